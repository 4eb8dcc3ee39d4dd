// The same job under another policy: a form of settings, and what was recorded beside what would have been.
import { get, jobPath, post } from "./api.js";
import { empty, failed, fill, h, loading, say, table } from "./dom.js";
import { moment, short } from "./format.js";

export class WhatIf {
  constructor(tenant, job) {
    this.tenant = tenant;
    this.job = job;
    this.rows = h("div", { class: "settings" });
    this.answer = h("div", { "aria-live": "polite" });
    this.run = h("button", { class: "button", type: "submit" }, "Run it");
    this.element = h("form", { class: "whatif", onsubmit: (event) => this.submit(event) });
    this.load();
  }

  async load() {
    fill(this.element, loading("Loading the policy"));
    try {
      this.policy = (await get(jobPath(this.job, "policy"), { tenant: this.tenant })).items;
    } catch (error) {
      fill(this.element, failed(error, () => this.load()));
      return;
    }
    this.add("scaling.cooldown_up_s");
    fill(this.element,
      h("p", { class: "quiet" }, "What would have been decided with other settings, from the same samples. Nothing of it happens."),
      this.rows,
      h("div", { class: "actions" }, this.run,
        h("button", { class: "quiet-button", type: "button", onclick: () => this.add("scaling.target_queue_share").focus() }, "Another setting")),
      this.answer);
  }

  add(setting) {
    const number = this.rows.children.length + 1;
    const value = h("input", { type: "text", inputmode: "decimal", required: true, autocomplete: "off", name: "value" });
    const now = h("span", { class: "quiet small" });
    const select = h("select", { name: "setting", onchange: () => show() },
      this.policy.map((each) => h("option", { value: each.setting, selected: each.setting === setting }, each.setting.replace("scaling.", ""))));
    const show = () => {
      const found = this.policy.find((each) => each.setting === select.value);
      say(now, found?.value ? `now ${found.value}` : "not set now");
      value.value = found?.value ?? "";
    };
    const row = h("div", { class: "setting" },
      h("label", {}, h("span", {}, `Setting ${number}`), select), h("label", {}, h("span", {}, "Value"), value), now,
      h("button", { class: "quiet-button", type: "button", "aria-label": `Remove setting ${number}`, onclick: () => row.remove() }, "Remove"));
    show();
    this.rows.append(row);
    return select;
  }

  async submit(event) {
    event.preventDefault();
    const settings = [...this.rows.querySelectorAll(".setting")].map((row) =>
      `${row.querySelector("select").value}=${row.querySelector("input").value.trim()}`);
    this.run.disabled = true;
    fill(this.answer, loading("Running it again; this may take a minute"));
    try {
      fill(this.answer, draw(await post(jobPath(this.job, "whatif"), { settings }, { parameters: { tenant: this.tenant } })));
    } catch (error) {
      fill(this.answer, failed(error));
    }
    this.run.disabled = false;
  }
}

function draw(answer) {
  const first = answer.first_difference;
  const job = answer.jobs[0];
  return [
    first
      ? h("div", { class: "difference" },
        h("p", {}, h("b", {}, "The first different decision: "), `${moment(first.time_ms)}, after event ${first.after_sequence}.`),
        h("p", {}, h("span", { class: "quiet" }, "Recorded: "), first.recorded),
        h("p", {}, h("span", { class: "quiet" }, "What if: "), first.what_if, first.rule ? ` (${first.rule}: ${first.reason})` : ""))
      : empty(answer.untold?.length ? "No difference among what can be told." : "Nothing would have been different.", answer.why_none),
    first && answer.untold?.some((each) => each.from_ms < first.time_ms)
      ? h("p", { class: "notice" }, "An earlier difference cannot be ruled out: some of the samples before it are not there any more.") : null,
    job ? table("Recorded and what if", [["Figure", ""], ["Recorded", "n"], ["What if", "n"], ["Difference", "n"], ["", ""]],
      job.table.map((line) => [line.unit ? `${line.figure} (${line.unit})` : line.figure, cell(line.recorded), cell(line.what_if),
        difference(line), line.extrapolated ? h("span", { class: "badge plain" }, "extrapolated") : ""]), { hideCaption: true }) : null,
    job?.model ? h("p", { class: "quiet small" }, model(job.model)) : null,
    h("p", { class: "quiet small" }, "What other jobs held of the grid meanwhile is not known to this run."),
    answer.stopped ? h("p", { class: "notice" }, `The simulation stopped: ${answer.stopped}.`) : null,
  ];
}

function model(told) {
  const error = told.error_ppm === null ? "of unknown error, since one size was measured" : `off by ${(told.error_ppm / 10000).toFixed(1)} % on held-out sizes`;
  return `Extrapolated from steps measured on ${told.sizes.map((size) => size.nodes).join(", ")} nodes; the model is ${error}. Assumed: ${told.assumes.join("; ")}.`;
}

function cell(value) {
  if (value === null) return "–";
  return typeof value === "number" ? short(value) : String(value);
}

function difference({ recorded, what_if: other }) {
  if (typeof recorded !== "number" || typeof other !== "number" || recorded === other) return "";
  if (!recorded) return `+${short(other)}`;
  const share = ((other - recorded) / recorded) * 100;
  return `${share > 0 ? "+" : ""}${share.toFixed(Math.abs(share) < 10 ? 1 : 0)} %`;
}
