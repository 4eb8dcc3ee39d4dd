// The address holds what is shown, so that it can be sent to a colleague.

const listeners = new Set();

/** What the address says now, as an object of texts. */
export function current() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

export function address(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return `/?${new URLSearchParams(given)}`;
}

/** Goes to another view. */
export function go(parameters) {
  history.pushState(null, "", address(parameters));
  for (const each of listeners) each();
}

/** Changes parts of what is shown without a new entry in the history; null takes a part out. */
export function refine(changes) {
  const next = address({ ...current(), ...changes });
  if (next !== location.pathname + location.search) history.replaceState(null, "", next);
}

export function onRoute(callback) {
  listeners.add(callback);
}

export function startRouter() {
  window.addEventListener("popstate", () => { for (const each of listeners) each(); });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='/?']");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(Object.fromEntries(new URL(link.href).searchParams));
  });
}
