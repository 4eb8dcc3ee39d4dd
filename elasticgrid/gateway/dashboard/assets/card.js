// The decision card: why a job has its size, with every number, and when that may change.
import { get, jobPath } from "./api.js";
import { facts, h, table } from "./dom.js";
import { clock, lasted, moment, number, percent, plural, usd } from "./format.js";
import { openPanel } from "./panel.js";
import { refine } from "./router.js";

// Events leave out what is as it is by default.
const NO_SIGNALS = { steps: 0, round: 0, nodes: 0, evidence_ms: 0, step_us: 0, queue_us: 0, data_wait_us: 0, tokens: 0, window_us: 0 };

/** Opens the card of a decision. The address holds which one. */
export function openCard(tenant, job, sequence) {
  refine({ decision: sequence });
  return openPanel("Decision",
    () => get(jobPath(job, `decisions/${sequence}`), { tenant }), drawCard, () => refine({ decision: null }));
}

export function changeText(mark) {
  return mark.action === "hold"
    ? `stay at ${plural(mark.target_nodes, "node")}`
    : `${mark.current_nodes} → ${plural(mark.target_nodes, "node")}`;
}

function drawCard(card) {
  return [
    h("p", { class: "card-change" }, h("span", { class: `change ${card.action}` }, changeText(card)),
      h("code", {}, card.rule)),
    h("p", {}, card.reason),
    facts([
      ["Job", `${card.tenant}/${card.job}`],
      ["Decided", moment(card.time_ms), `event ${card.sequence}`],
      ["Policy", `${card.policy} version ${card.policy_version}`, card.config_digest],
      ["Had read", `events through ${card.events_through}, samples through ${card.samples_through}`],
      ["May change", mayChange(card)],
    ]),
    h("h3", {}, "What it saw"),
    signals(card),
    h("h3", {}, "Rules, in order"),
    table("Rules and the numbers they compared", [["Rule", "mono"], ["Verdict", ""], ["Numbers", "long"]],
      card.rules.map((line) => [
        line.rule,
        h("span", { class: `badge ${{ decided: "good", passed: "plain" }[line.verdict] ?? "faint"}` }, line.verdict),
        [line.says ? h("div", {}, line.says) : null, numbers(line.numbers)],
      ]), { hideCaption: true }),
    h("h3", {}, "Where"),
    placement(card),
    ...since(card),
  ];
}

function mayChange(card) {
  if (card.outcome_ms) return `not any more: the job was ${card.outcome} at ${moment(card.outcome_ms)}`;
  if (card.outcome) return `not any more: the job is ending as ${card.outcome}`;
  return card.next_change_ms ? `by time alone at ${moment(card.next_change_ms)}` : "only by new evidence";
}

function since(card) {
  const later = card.later ?? [];
  if (!later.length) return [];
  const change = (line) => [line.before, line.after].filter(Boolean).join(" → ");
  return [
    h("h3", {}, "Decided since"),
    table("What else was decided by then", [["Event", "n"], ["Time", ""], ["What", "mono"], ["Change", "long"]],
      later.map((line) => [number(line.sequence), moment(line.time_ms), line.what,
        [change(line), line.reason ? ` (${line.reason})` : ""].join("")]), { hideCaption: true }),
  ];
}

function numbers(given) {
  const found = Object.entries(given);
  return found.length
    ? h("ul", { class: "numbers" }, found.map(([name, value]) => h("li", {}, h("span", { class: "quiet" }, `${name} `), number(value))))
    : null;
}

function signals(card) {
  const seen = { ...NO_SIGNALS, ...card.signals };
  if (!seen.steps) return h("p", { class: "quiet" }, "No step had been completed in this world.");
  const age = card.sample_age_ms === null ? null : ["Last sample", `${lasted(card.sample_age_ms)} before`];
  return facts([
    ["Window", `${plural(seen.steps, "step")} of round ${seen.round} on ${plural(seen.nodes, "node")}`, `over ${lasted(seen.evidence_ms)}`],
    ["Step, median", lasted(seen.step_us / 1000)],
    ["Waiting for a worker", lasted(seen.queue_us / 1000), percent(seen.queue_us / Math.max(seen.step_us, 1))],
    ["Waiting for input", lasted(seen.data_wait_us / 1000), percent(seen.data_wait_us / Math.max(seen.step_us, 1))],
    seen.tokens && seen.window_us ? ["Throughput", `${number((seen.tokens * 1e6) / seen.window_us)} tokens/s`] : null,
    age,
  ]);
}

function which(card) {
  if (card.placement_number === card.number) return "";
  return card.placement_sequence < card.sequence ? "Earlier: " : "Later: ";
}

function moves(card) {
  return (card.assignments ?? []).map((each) => `${each.action} ${each.nodes} on ${each.provider}`).join(", ");
}

function placement(card) {
  if (!card.placement_sequence) return h("p", { class: "quiet" }, "No provider had been looked for by then.");
  const why = (each) => each.refused
    ? [h("span", { class: "badge warn" }, each.refused), " ", each.detail ?? "", each.until_ms ? ` until ${clock(each.until_ms)}` : ""]
    : h("span", { class: "quiet" }, "not needed further");
  return [
    h("p", {}, `${which(card)}${card.placed_nodes} of ${plural(card.demand_nodes, "node")} placed (event ${card.placement_sequence}).`,
      card.waiting ? ` ${card.waiting}` : ""),
    moves(card) ? h("p", { class: "quiet" }, moves(card)) : null,
    card.policy_broken ? h("p", { class: "notice" }, `The policy was broken: ${card.policy_broken}`) : null,
    !card.candidates?.length ? null : table("Candidates", [["Provider", ""], ["Took", "n"], ["Free", "n"], ["Price/h", "n"], ["Why no more", "long"]],
      card.candidates.map((each) =>
        [each.provider, number(each.taken ?? 0), number(each.free ?? 0), usd(each.price_microdollars_per_hour ?? 0), why(each)]),
      { hideCaption: true }),
  ];
}
