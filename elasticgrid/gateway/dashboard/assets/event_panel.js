// One event: as it stands in the log, what led to it, and what it led to.
import { get } from "./api.js";
import { facts, h } from "./dom.js";
import { clockMs, moment } from "./format.js";
import { openPanel } from "./panel.js";
import { address, refine } from "./router.js";

export function openEvent(sequence) {
  refine({ event: sequence });
  return openPanel(`Event ${sequence}`,
    () => Promise.all([get(`/v1/events/${sequence}`), get(`/v1/events/${sequence}/causes`)]),
    ([event, chain]) => draw(event, chain), () => refine({ event: null }));
}

function draw(event, chain) {
  const grid = event.tenant === "_grid";
  return [
    h("p", {}, event.text),
    facts([
      ["Type", h("code", {}, event.type)],
      ["Recorded", moment(event.recorded_ms)],
      ["About", grid ? "the grid" : h("a", { href: address({ view: "job", tenant: event.tenant, job: event.job }) }, `${event.tenant}/${event.job}`)],
      event.actor ? ["Written by", event.actor] : null,
      event.took_effect ? null : ["Effect", "none: the state did not allow it"],
    ]),
    h("h3", {}, "What led to it"),
    steps(chain.causes.slice(1), "Nothing else: it came from outside."),
    h("h3", {}, "What it led to"),
    steps(chain.effects, "Nothing so far."),
    chain.effects_left_out ? h("p", { class: "quiet" }, `${chain.effects_left_out} later ones are not shown.`) : null,
    h("h3", {}, "As it stands in the log"),
    h("pre", { class: "json", tabIndex: 0 }, JSON.stringify(event.event, null, 2)),
  ];
}

function steps(found, none) {
  if (!found.length) return h("p", { class: "quiet" }, none);
  return h("ol", { class: "chain" }, found.slice(0, 200).map(({ depth, line }) => {
    const item = h("li", {},
      h("button", { class: "link", type: "button", onclick: () => openEvent(line.sequence) }, `#${line.sequence} ${line.what}`),
      h("span", { class: "quiet" }, ` ${clockMs(line.time_ms)} `), sentence(line));
    item.style.setProperty("--depth", String(Math.min(depth, 8)));
    return item;
  }));
}

/** What changed, and why, in a line. */
export function sentence(line) {
  const change = line.before ? `${line.before} → ${line.after}` : line.after;
  return [change, line.reason].filter(Boolean).join(" · ");
}
