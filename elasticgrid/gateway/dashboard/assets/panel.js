// The side panel: a dialog that Escape closes and that gives the focus back.
import { fill, h, failed, loading } from "./dom.js";

const panel = document.getElementById("panel");
let turn = 0;
let closing = () => {};

panel.addEventListener("close", () => {
  turn += 1;
  const told = closing;
  closing = () => {};
  told();
});
panel.addEventListener("click", (event) => { if (event.target === panel) panel.close(); });

/**
 * Opens the panel. fetchIt() gives the data, draw(data) its content.
 * onClose() is told when it is closed.
 */
export async function openPanel(title, fetchIt, draw, onClose = () => {}) {
  turn += 1;
  const mine = turn;
  const content = h("div", { class: "panel-content" });
  const close = h("button", { class: "quiet-button", type: "button", onclick: () => panel.close() }, "Close");
  fill(panel,
    h("div", { class: "panel-head" }, h("h2", { id: "panel-title", tabIndex: -1 }, title), close), content);
  closing = () => {};
  if (!panel.open) panel.showModal();
  closing = onClose;
  panel.querySelector("h2").focus();
  const load = async () => {
    fill(content, loading("Loading"));
    try {
      const data = await fetchIt();
      if (mine === turn) fill(content, draw(data));
    } catch (error) {
      if (mine === turn) fill(content, failed(error, load));
    }
  };
  await load();
}

export function closePanel() {
  closing = () => {};
  if (panel.open) panel.close();
}
