// Elements. Text becomes text nodes and nothing here makes markup of it, so what the log says cannot be anything else.

const PROPERTIES = new Set(["disabled", "hidden", "value", "checked", "selected", "tabIndex", "open", "type"]);

/**
 * h("button", { class: "quiet", onclick: fn, "aria-label": "..." }, "text", child, ...)
 * Children that are null or false are left out.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  put(element, ...children);
  return element;
}

/** Appends children; a text is a text. */
export function put(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Replaces what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren();
  return put(element, ...children);
}

/** Sets a text only where it is another one, so that nothing is laid out or read out again for nothing. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Says something to whoever listens instead of looking. */
export function announce(text) {
  say(document.getElementById("announce"), text);
}

/** A table: columns are [title, kind] with kind "", "n" (a number), "long" or "mono"; rows are lists of values. */
export function table(caption, columns, rows, { hideCaption = false } = {}) {
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind === "n" ? "n" : null }, title));
  const body = rows.map((row) =>
    h("tr", {}, row.map((value, index) => h("td", { class: columns[index][1] || null }, value))));
  return h("div", { class: "scroll", role: "region", tabIndex: 0, "aria-label": caption },
    h("table", {}, h("caption", { class: hideCaption ? "hidden-text" : null }, caption), h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, body)));
}

/** A line of name and value pairs. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value, extra]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, extra ? h("span", { class: "quiet" }, " ", extra) : null))));
}

const TONES = { running: "good", completed: "good", failed: "bad", cancelled: "warn", draining: "warn", ending: "warn" };

/** The phase of a job. */
export function phaseBadge(phase) {
  return h("span", { class: `badge ${TONES[phase] ?? "plain"} phase-${TONES[phase] ? phase : "other"}` }, phase);
}

/** What is shown while something is fetched. */
export function loading(what) {
  return h("p", { class: "state", "aria-busy": "true" }, h("span", { class: "spinner", "aria-hidden": "true" }), what);
}

/** What is shown where there is nothing. */
export function empty(title, hint) {
  return h("div", { class: "state empty" }, h("p", {}, title), hint ? h("p", { class: "quiet" }, hint) : null);
}

/** What is shown when something went wrong. */
export function failed(error, again) {
  return h("div", { class: "state error", role: "alert" },
    h("p", {}, error.message || "something went wrong"),
    error.hint ? h("p", { class: "quiet" }, error.hint) : null,
    again ? h("button", { class: "button", type: "button", onclick: again }, "Try again") : null);
}
