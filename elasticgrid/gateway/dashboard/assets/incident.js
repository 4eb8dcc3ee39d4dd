// Looking back at a span: what happened in which order and why, its evidence as a file, and what if.
import { get, jobPath, url } from "./api.js";
import { empty, failed, fill, h, loading, say } from "./dom.js";
import { openEvent, sentence } from "./event_panel.js";
import { clockMs, day, fromInput, inputValue, lasted, number, plural } from "./format.js";
import { EventDensity } from "./incident_plot.js";
import { address, current, refine } from "./router.js";
import { onThemeChange } from "./theme.js";
import { VirtualList } from "./virtual.js";
import { WhatIf } from "./whatif.js";

const PAGE = 1000;
const MOST_LINES = 20_000;
const PRESETS = [["15 min", 900_000], ["1 h", 3_600_000], ["6 h", 21_600_000], ["24 h", 86_400_000], ["7 days", 604_800_000]];
/** What is about no job: providers, tenants, keys, quotas. It is a filter by whom the log has it of, not by a type. */
const GRID = "grid";
const COLUMNS = [["Time, UTC", "c-time"], ["After", "c-delta n"], ["What", "c-type"], ["About", "c-about"], ["What changed, and why", "c-text"]];

export class IncidentView {
  constructor(root, app) {
    this.root = root;
    this.app = app;
    const { tenant = "", job = "", type = "", from, to } = current();
    Object.assign(this, { tenant, job, type, from: Number(from) || null, to: Number(to) || null, lines: [] });
  }

  async open() {
    document.title = "Incident · elasticgrid";
    this.app.live("off");
    fill(this.root, loading("Loading the timeline"));
    try {
      this.totals = await get("/v1/grid");
      await this.wholeSpan();
    } catch (error) {
      if (!this.closed) fill(this.root, failed(error, () => this.open()));
      return;
    }
    if (this.closed) return;
    this.build();
    await this.fetchLines();
    const { event } = current();
    if (event) openEvent(Number(event));
  }

  /** Without a span in the address: the job's own, else the last events there are. */
  async wholeSpan() {
    if (this.from && this.to) return;
    if (this.job && this.tenant) {
      const { job } = await get(jobPath(this.job), { tenant: this.tenant });
      this.from = job.submitted_ms - 1000;
      this.to = (job.finished_ms || this.totals.as_of_ms) + 1000;
      return;
    }
    const last = await get("/v1/events", { order: "desc", limit: 1, tenant: this.tenant, job: this.job });
    this.to = (last.items[0]?.recorded_ms ?? this.totals.as_of_ms) + 1000;
    this.from = this.to - 3_600_000;
  }

  build() {
    const field = (name, input) => h("label", {}, h("span", {}, name), input);
    this.fromInput = h("input", { type: "datetime-local", step: "1", name: "from" });
    this.toInput = h("input", { type: "datetime-local", step: "1", name: "to" });
    this.tenantInput = h("input", { type: "text", value: this.tenant, name: "tenant", placeholder: "all", autocomplete: "off" });
    this.jobInput = h("input", { type: "text", value: this.job, name: "job", placeholder: "all", autocomplete: "off" });
    this.typeInput = h("select", { name: "type" }, [["", "all events"], ["job", "job.*"], ["decision", "decision.*"], ["launch", "launch.*"], ["node", "node.*"], [GRID, "about the grid"]]
      .map(([value, name]) => h("option", { value, selected: value === this.type }, name)));
    this.state = h("p", { class: "quiet small", role: "status" });
    this.exportPlace = h("div", { class: "actions" });
    this.density = new EventDensity(h("div", { class: "plot density", role: "img", "aria-label": "Events over time; the list below has each of them" }),
      (from, to) => this.choose(from, to));
    this.unthemed = onThemeChange(() => this.density.draw(this.lines, this.from, this.to));
    this.list = new VirtualList({
      label: "Timeline", kind: "timeline", columns: COLUMNS, row: (line) => this.row(line), onOpen: (line) => openEvent(line.sequence),
    });
    this.listPlace = h("div", {});
    this.whatIfPlace = h("div", {});
    fill(this.root,
      h("h1", {}, "Incident"),
      h("form", { class: "card filters", onsubmit: (event) => { event.preventDefault(); this.fromForm(); } },
        h("div", { class: "fields" }, field("From, UTC", this.fromInput), field("To, UTC", this.toInput), field("Tenant", this.tenantInput),
          field("Job", this.jobInput), field("Events", this.typeInput), h("button", { class: "button", type: "submit" }, "Show")),
        h("div", { class: "chips", role: "group", "aria-label": "Span" }, PRESETS.map(([name, ms]) =>
          h("button", { class: "chip", type: "button", onclick: () => this.choose(this.totals.as_of_ms - ms, this.totals.as_of_ms + 1000) }, `last ${name}`)))),
      h("section", { class: "card", "aria-labelledby": "timeline-title" },
        h("div", { class: "card-head" }, h("h2", { id: "timeline-title" }, "Timeline"), this.state),
        this.density.element, this.listPlace),
      h("section", { class: "card", "aria-labelledby": "export-title" }, h("h2", { id: "export-title" }, "Hand it on"),
        h("p", { class: "quiet" }, "An archive is one file that replays with no server: ", h("code", {}, "elasticgrid replay timeline FILE"), "."), this.exportPlace),
      h("section", { class: "card", "aria-labelledby": "whatif-title" }, h("h2", { id: "whatif-title" }, "What if"), this.whatIfPlace));
    this.showForm();
  }

  filters() {
    return this.type === GRID ? { tenant: "_grid" } : { tenant: this.tenant, job: this.job, type: this.type };
  }

  showForm() {
    this.fromInput.value = inputValue(this.from);
    this.toInput.value = inputValue(this.to);
    refine({ tenant: this.tenant, job: this.job, type: this.type, from: Math.round(this.from), to: Math.round(this.to) });
    const filters = { tenant: this.tenant, job: this.job };
    const link = (name, parameters) => h("a", { class: "button-link", download: "log.egz", href: url("/v1/events/export", parameters) }, name);
    fill(this.exportPlace,
      link("Export this span", { ...filters, since_ms: Math.round(this.from), until_ms: Math.round(this.to) }),
      link(this.job ? "Export the job with its samples" : "Export everything with samples", { ...filters, with_samples: true }));
    if (!this.job) fill(this.whatIfPlace, empty("Choose a job to run it under another policy.", "Name its tenant and the job above."));
    else if (this.whatIfJob !== `${this.tenant}/${this.job}`) {
      this.whatIfJob = `${this.tenant}/${this.job}`;
      fill(this.whatIfPlace, new WhatIf(this.tenant || "default", this.job).element);
    }
  }

  fromForm() {
    Object.assign(this, { tenant: this.tenantInput.value.trim(), job: this.jobInput.value.trim(), type: this.typeInput.value });
    if (!this.job) this.whatIfJob = "";
    this.choose(fromInput(this.fromInput.value) ?? this.from, fromInput(this.toInput.value) ?? this.to);
  }

  choose(from, to) {
    [this.from, this.to] = from < to ? [from, to] : [to, from];
    this.showForm();
    this.fetchLines();
  }

  async fetchLines() {
    this.stop?.abort();
    const stop = new AbortController();
    this.stop = stop;
    say(this.state, "loading");
    const lines = [];
    try {
      let after = 0;
      let more = true;
      while (more && lines.length < MOST_LINES) {
        const page = await get("/v1/timeline", {
          ...this.filters(), since_ms: Math.round(this.from), until_ms: Math.round(this.to), after, limit: PAGE,
        }, { signal: stop.signal });
        lines.push(...page.items);
        ({ next_after: after, more } = page);
      }
      this.lines = lines;
      say(this.state, `${plural(lines.length, "event")} in ${lasted(this.to - this.from)}${more ? `; only the first ${number(MOST_LINES)} are shown` : ""}`);
    } catch (error) {
      if (error.name === "AbortError" || this.closed) return;
      say(this.state, "");
      fill(this.listPlace, failed(error, () => this.fetchLines()));
      return;
    }
    if (this.closed || this.stop !== stop) return;
    if (!lines.length) fill(this.listPlace, empty("Nothing happened in this span.", "Choose another one, or take a filter away."));
    else if (!this.listPlace.contains(this.list.element)) fill(this.listPlace, this.list.element);
    this.list.element.style.setProperty("--rows", String(Math.min(lines.length, 14)));
    this.list.show(lines);
    this.density.draw(lines, this.from, this.to).catch(() => {});
  }

  row(line) {
    const grid = line.tenant === "_grid";
    return [
      [clockMs(line.time_ms), h("span", { class: "quiet small wide-only" }, ` ${day(line.time_ms)}`)],
      line.delta_ms ? `+${lasted(line.delta_ms)}` : "",
      h("code", { class: `kind-${line.what.split(".")[0]}` }, line.what),
      grid ? line.provider || "grid" : h("a", { href: address({ view: "job", tenant: line.tenant, job: line.job }), tabIndex: -1 }, line.job),
      [line.node ? h("span", { class: "quiet" }, `${line.node} `) : null, sentence(line)],
    ];
  }

  close() {
    this.closed = true;
    this.stop?.abort();
    this.list?.close();
    this.density?.close();
    this.unthemed?.();
  }
}
