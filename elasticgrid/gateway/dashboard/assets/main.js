// The page: which view is shown, whether it is live, and who looks.
import { get, onSignedOut, post } from "./api.js";
import { announce, fill, h, say } from "./dom.js";
import { EventsView } from "./events.js";
import { GridView } from "./grid.js";
import { IncidentView } from "./incident.js";
import { JobView } from "./job.js";
import { showLogin } from "./login.js";
import { closePanel } from "./panel.js";
import { address, current, go, onRoute, startRouter } from "./router.js";
import { startTheme } from "./theme.js";

const VIEWS = { grid: GridView, job: JobView, incident: IncidentView, events: EventsView };
const SCREENS = [["grid", "Grid"], ["incident", "Incident"], ["events", "Events"]];
const STATES = {
  live: "live", reconnecting: "reconnecting", paused: "paused", off: "not live",
};
const root = document.getElementById("content");
let view = null;
let shown = "";

const app = {
  go,
  /** Who looks, as the gateway knows them. */
  who: null,
  /** Whether what is shown is live; `again` is called when it is so again after a break. */
  live(state, again) {
    const element = document.getElementById("live");
    const before = element.dataset.state;
    if (before === state) return;
    element.dataset.state = state;
    say(document.getElementById("live-text"), STATES[state]);
    if (state === "reconnecting") announce("The connection to the gateway was lost. Reconnecting.");
    if (state === "live" && before === "reconnecting") announce("Connected again. Nothing was missed.");
    if (state === "live" && ["reconnecting", "paused"].includes(before)) again?.();
  },
};

function route() {
  const parameters = current();
  const name = parameters.view in VIEWS && (parameters.view !== "job" || parameters.job) ? parameters.view : "grid";
  view?.close();
  closePanel();
  drawNav(name);
  document.getElementById("bar").hidden = false;
  document.getElementById("live").dataset.state = "connecting";
  say(document.getElementById("live-text"), "connecting");
  root.dataset.view = name;
  const moved = shown && shown !== name;
  shown = name;
  view = new VIEWS[name](root, app);
  view.open();
  if (moved) {
    root.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
}

function drawNav(name) {
  fill(document.getElementById("nav"), SCREENS.map(([key, title]) =>
    h("a", { href: address({ view: key }), "aria-current": name === key || (name === "job" && key === "grid") ? "page" : null }, title)));
}

function signIn() {
  view?.close();
  view = null;
  shown = "";
  closePanel();
  document.getElementById("bar").hidden = true;
  document.getElementById("live").dataset.state = "off";
  delete root.dataset.view;
  showLogin(root, start);
}

async function start() {
  let who;
  try {
    who = await get("/v1/whoami");
  } catch (error) {
    if (error.status !== 401) {
      fill(root, h("div", { class: "state error", role: "alert" }, h("p", {}, error.message), h("p", { class: "quiet" }, "The page tries again by itself.")));
      setTimeout(start, 2000);
    }
    return;
  }
  app.who = who;
  const label = document.getElementById("who");
  say(label, who.tenant ? `tenant ${who.tenant}` : "whole grid");
  label.hidden = false;
  document.getElementById("sign-out").hidden = false;
  route();
}

/** Shows the page to whoever has a session, and asks everybody else for a key. */
function begin() {
  if (document.documentElement.dataset.session) start();
  else signIn();
}

startTheme(document.getElementById("theme"));
startRouter();
onRoute(() => { if (view) route(); });
onSignedOut(signIn);
document.getElementById("sign-out").addEventListener("click", async () => {
  await post("/logout").catch(() => {});
  signIn();
});
begin();
