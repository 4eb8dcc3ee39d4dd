// Signing in with a key. The key goes to the gateway once and is kept nowhere here.
import { post } from "./api.js";
import { fill, h } from "./dom.js";

/** Asks for a key; onDone is called when the gateway has taken it. */
export function showLogin(root, onDone) {
  document.title = "Sign in · elasticgrid";
  const problem = h("p", { class: "error-text", role: "alert", id: "login-problem" });
  const key = h("input", { type: "password", name: "key", id: "login-key", autocomplete: "current-password", required: true, spellcheck: "false",
    "aria-describedby": "login-hint login-problem" });
  const button = h("button", { class: "button", type: "submit" }, "Sign in");
  const submit = async (event) => {
    event.preventDefault();
    fill(problem);
    button.disabled = true;
    try {
      await post("/login", { key: key.value.trim() });
      key.value = "";
      onDone();
    } catch (error) {
      fill(problem, error.message, error.hint ? ` ${error.hint}` : "");
      key.select();
    } finally {
      button.disabled = false;
    }
  };
  fill(root, h("div", { class: "login" }, h("form", { class: "card", onsubmit: submit, "aria-labelledby": "login-title" },
    h("h1", { id: "login-title" }, "Sign in"),
    h("input", { type: "text", autocomplete: "username", value: "elasticgrid", hidden: true, readonly: true, "aria-hidden": "true" }),
    h("label", { for: "login-key" }, "Key"), key,
    h("p", { class: "quiet small", id: "login-hint" }, "The administrator's is in ", h("code", {}, "admin.key"), " of the gateway's data folder; others are made with ",
      h("code", {}, "elasticgrid keys create"), "."),
    problem, button)));
  key.focus();
}
