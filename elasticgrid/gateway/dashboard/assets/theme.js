// Light, dark, or as the system has it; a choice is kept in this browser.
const ORDER = ["auto", "light", "dark"];
const NAMES = { auto: "Auto", light: "Light", dark: "Dark" };
const system = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

const chosen = () => document.documentElement.dataset.theme ?? "auto";

/** Calls back whenever the colours change; returns how to end that. */
export function onThemeChange(callback) {
  listeners.add(callback);
  return () => listeners.delete(callback);
}

const changed = () => { for (const each of listeners) each(); };

export function startTheme(button) {
  const show = () => {
    const now = chosen();
    button.textContent = NAMES[now];
    button.setAttribute("aria-label", `Theme: ${now === "auto" ? "as the system" : now}`);
  };
  button.addEventListener("click", () => {
    const next = ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      if (next === "auto") localStorage.removeItem("theme");
      else localStorage.setItem("theme", next);
    } catch { /* not kept then */ }
    show();
    changed();
  });
  system.addEventListener("change", changed);
  show();
}

/** The colours now, by the names in base.css. */
export function colours() {
  const styles = getComputedStyle(document.documentElement);
  return (name) => styles.getPropertyValue(`--${name}`).trim();
}
