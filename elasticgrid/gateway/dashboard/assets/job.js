// One job: its size and why, over time on one axis, its nodes, its decisions and its output.
import { JobActions } from "./actions.js";
import { get, jobPath } from "./api.js";
import { changeText, openCard } from "./card.js";
import { announce, empty, failed, fill, h, loading, phaseBadge, say, table } from "./dom.js";
import { clock, lasted, moment, number, percent, plural, roughly, short, usd } from "./format.js";
import { JobPlot } from "./job_plot.js";
import { LogTail } from "./logs.js";
import { address, current, refine } from "./router.js";
import { LiveEvents } from "./sse.js";
import { onThemeChange } from "./theme.js";

const OVER = new Set(["completed", "failed", "cancelled"]);
const FEW_DECISIONS = 8;
const TICK_MS = 2500;
const TICKS_WITHOUT_STEPS = 6;
const LEGEND = [
  ["training", "training"], ["decided", "accent dashed"], ["paid for", "paid dotted"], ["launching", "launching box"], ["booting", "booting box"],
  ["waiting", "waiting box"], ["draining", "draining box"],
];

/** Where the steps come from when they do not come from samples, or that there are none. */
function stepsNote({ steps, rounds, finished_ms: finished }) {
  if (steps.source !== "decisions") return "";
  if (steps.time_ms.length) return "Steps are told from the decisions: their samples are not there (any more).";
  if (!rounds.length) return "";
  return finished ? "This job published no steps." : "This job publishes no steps: its nodes are drawn as training from when they were put together.";
}

export class JobView {
  constructor(root, app) {
    this.root = root;
    this.app = app;
    const { tenant = "default", job = "", from, to } = current();
    Object.assign(this, { tenant, job, span: from && to ? [Number(from), Number(to)] : null });
  }

  async open() {
    document.title = `${this.job} · elasticgrid`;
    fill(this.root, loading("Loading the job"));
    try {
      await this.fetchAll();
    } catch (error) {
      if (!this.closed) fill(this.root, failed(error, () => this.open()));
      return;
    }
    if (this.closed) return;
    this.build();
    this.draw();
    this.live = new LiveEvents(jobPath(this.job, "events/stream"), { tenant: this.tenant }, this.series.sequence, {
      onEvent: () => this.later(200),
      onState: (state) => this.app.live(state, () => this.later(0)),
    });
    this.ticking = setInterval(() => this.tick(), TICK_MS);
    const { decision } = current();
    if (decision) openCard(this.tenant, this.job, Number(decision));
  }

  /** Events say when to look again; only steps come without any, and of a job without steps money alone changes. */
  tick() {
    this.ticks = (this.ticks ?? 0) + 1;
    if (document.hidden || (OVER.has(this.detail.job.phase) && !this.series.samples_behind)) return;
    const stepping = this.series.steps.source === "samples" && this.series.steps.time_ms.length > 0;
    if (stepping || this.series.samples_behind || this.ticks % TICKS_WITHOUT_STEPS === 0) this.later(0);
  }

  async fetchAll() {
    const [detail, series] = await Promise.all([
      get(jobPath(this.job), { tenant: this.tenant }), get(jobPath(this.job, "series"), { tenant: this.tenant })]);
    this.tell(detail.job);
    Object.assign(this, { detail, series });
  }

  /** For whoever listens: what is different about its size or phase. */
  tell(job) {
    const before = this.detail?.job;
    if (!before) return;
    if (before.phase !== job.phase) announce(`${job.id} is ${job.phase}`);
    else if (before.world_nodes !== job.world_nodes) announce(`${job.id} trains on ${plural(job.world_nodes, "node")}`);
    else if (before.target_nodes !== job.target_nodes) announce(`${job.id}: decided on ${plural(job.target_nodes, "node")}`);
  }

  later(after) {
    if (this.waiting || this.closed) return;
    this.waiting = setTimeout(async () => {
      try {
        await this.fetchAll();
        if (!this.closed) this.draw();
      } catch { /* the next event, or the next tick, asks again */ }
      this.waiting = null;
    }, after);
  }

  build() {
    this.head = h("div", {});
    this.actions = new JobActions({
      tenant: this.tenant, id: this.job, scopes: this.app.who?.scopes ?? [], job: () => this.detail.job, onDone: () => this.later(0),
    });
    this.tiles = h("div", { class: "tiles" });
    this.plotPlace = h("div", { class: "plot", role: "img" });
    this.plotNote = h("p", { class: "quiet small" });
    this.reset = h("button", { class: "quiet-button", type: "button", hidden: !this.span, onclick: () => this.showSpan(null) }, "Show all of it");
    this.decisions = h("section", { class: "card", "aria-labelledby": "decisions-title" });
    this.nodes = h("section", { class: "card", "aria-labelledby": "nodes-title" });
    this.values = h("details", { class: "values" }, h("summary", {}, "The plots as tables"));
    this.values.addEventListener("toggle", () => this.drawValues());
    this.plot = new JobPlot(this.plotPlace, {
      onDecision: (sequence) => openCard(this.tenant, this.job, sequence),
      onSpan: (from, to) => this.keepSpan(from === null ? null : [from, to]),
    });
    this.plot.span = this.span;
    this.unthemed = onThemeChange(() => this.plot.draw(this.series));
    this.logs = new LogTail(this.tenant, this.job);
    fill(this.root, this.head, this.actions.element, this.tiles,
      h("section", { class: "card", "aria-labelledby": "time-title" },
        h("div", { class: "card-head" }, h("h2", { id: "time-title" }, "Over time"), this.reset),
        h("ul", { class: "legend", "aria-hidden": "true" }, LEGEND.map(([name, style]) => h("li", {}, h("i", { class: style }), name)),
          h("li", {}, h("i", { class: "mark-up" }), "decision: click for its card")),
        this.plotPlace, this.plotNote, this.values),
      h("div", { class: "columns" }, this.decisions, this.nodes), this.logs.element);
  }

  showSpan(span) {
    this.keepSpan(span);
    this.plot.show(span);
  }

  keepSpan(span) {
    this.span = span;
    this.reset.hidden = !span;
    refine({ from: span ? Math.round(span[0]) : null, to: span ? Math.round(span[1]) : null });
  }

  draw() {
    this.drawHead();
    this.actions.update(OVER.has(this.detail.job.phase));
    this.drawTiles();
    this.drawPlot();
    this.drawDecisions();
    this.drawNodes();
    this.drawValues();
  }

  drawHead() {
    const { job, facts: known } = this.detail;
    const about = OVER.has(job.phase) ? job.outcome_reason : job.paused || job.waiting || job.reason;
    const rule = OVER.has(job.phase) ? "" : job.paused ? "paused" : job.rule;
    const next = address({ view: "incident", tenant: job.tenant, job: job.id, from: this.series.submitted_ms - 1000, to: this.series.as_of_ms + 1000 });
    const key = JSON.stringify([job.phase, about, known.failure_text, known.unknown_type, rule]);
    if (key === this.headKey) return;
    this.headKey = key;
    fill(this.head,
      h("div", { class: "title" }, h("p", { class: "quiet small crumbs" }, h("a", { href: address({ view: "grid" }) }, "Grid"), ` / ${job.tenant}`),
        h("h1", {}, job.id, " ", phaseBadge(job.phase)),
        about ? h("p", { class: "why" }, rule ? h("code", {}, rule) : null, " ", about) : null),
      known.unknown_type ? h("p", { class: "notice" }, `An event of the type ${known.unknown_type}, which this version does not know, stops its decisions.`) : null,
      known.failure_text ? h("p", { class: "notice" }, `Last failure: ${known.failure_text}`) : null,
      h("p", {}, h("a", { href: next }, "Look back at it: timeline, causes, what if")));
  }

  drawTiles() {
    const { job, facts: known } = this.detail;
    const { series } = this;
    const end = series.finished_ms ?? series.as_of_ms;
    const last = series.steps.queue_share.at(-1);
    const speed = series.steps.tokens_per_s.at(-1);
    const step = series.steps.step_s.at(-1);
    const left = series.deadline_ms ? series.deadline_ms - end : null;
    const used = series.deadline_ms ? (end - series.submitted_ms) / Math.max(series.deadline_ms - series.submitted_ms, 1) : 0;
    const over = OVER.has(job.phase);
    const tiles = [
      ["Nodes", over ? "–" : `${job.world_nodes}${job.target_nodes !== job.world_nodes ? ` → ${job.target_nodes}` : ""}`, `${job.min_nodes} to ${job.max_nodes} allowed`],
      ["Round", number(job.round), known.checkpoint ? `checkpoint of step ${number(job.checkpoint_step)}` : "no checkpoint yet"],
      [over ? "Last queue share" : "Queue share", last === undefined ? "–" : percent(last), step === undefined ? "no step yet" : `${short(step)} s a step`],
      [over ? "Last throughput" : "Throughput", speed ? `${short(speed)}` : "–", "tokens a second"],
      ["Cost", usd(job.cost_microdollars), over ? `in ${lasted(end - series.submitted_ms)}` : `${usd(job.price_microdollars_per_hour)}/h`],
      series.deadline_ms
        ? ["Deadline", left < 0 ? "missed" : `${roughly(left)} left`, left < 0 ? `by ${lasted(left)}` : `${percent(used)} of its time used`]
        : [over ? "Took" : "Runs for", roughly(end - series.submitted_ms), `since ${end - series.submitted_ms > 86_400_000 ? moment(series.submitted_ms) : `${clock(series.submitted_ms)} UTC`}`],
    ];
    const key = JSON.stringify(tiles);
    if (key === this.tilesKey) return;
    this.tilesKey = key;
    fill(this.tiles, tiles.map(([name, value, more]) =>
      h("div", { class: "tile" }, h("span", {}, name), h("b", {}, value), h("span", { class: "quiet small" }, more))));
  }

  async drawPlot() {
    const { series } = this;
    this.plotPlace.setAttribute("aria-label",
      `Nodes, queue share, step time, throughput, cost and ${plural(series.lanes.length, "node")} over time; the tables below say the same`);
    try {
      const drawn = await this.plot.update(series);
      if (!drawn) fill(this.plotPlace, empty("The plots need Plotly beside the gateway.", "pip install 'elasticgrid[cli]', or read the tables below."));
    } catch (error) {
      fill(this.plotPlace, failed(error, () => this.drawPlot()));
    }
    const notes = [
      stepsNote(series),
      series.lanes_left_out ? `${plural(series.lanes_left_out, "older node")} not shown.` : "",
      series.samples_behind ? "More samples are being read." : "",
    ].filter(Boolean);
    say(this.plotNote, notes.join(" "));
  }

  drawDecisions() {
    const marks = [...this.series.decisions].reverse();
    const key = `${marks.length} ${this.all}`;
    if (key === this.decisionsKey) return;
    this.decisionsKey = key;
    const focused = this.decisions.contains(document.activeElement) ? document.activeElement.dataset.sequence : null;
    const shown = this.all ? marks : marks.slice(0, FEW_DECISIONS);
    const rows = shown.map((mark) => h("li", {}, h("button", {
      class: "decision", type: "button", "data-sequence": mark.sequence, onclick: () => openCard(this.tenant, this.job, mark.sequence),
    }, h("span", { class: "when" }, clock(mark.time_ms)), h("span", { class: `change ${mark.action}` }, changeText(mark)),
      h("span", { class: "why" }, h("code", {}, mark.rule), " ", mark.reason))));
    fill(this.decisions, h("h2", { id: "decisions-title" }, "Decisions"),
      marks.length ? h("ol", { class: "decisions" }, rows) : empty("Nothing was decided yet."),
      marks.length > FEW_DECISIONS ? h("button", { class: "quiet-button", type: "button", onclick: () => { this.all = !this.all; this.drawDecisions(); } },
        this.all ? "Show the last ones" : `Show all ${marks.length}`) : null,
      this.series.decisions_left_out ? h("p", { class: "quiet small" }, `${plural(this.series.decisions_left_out, "older one")} not shown.`) : null);
    if (focused) this.decisions.querySelector(`[data-sequence="${CSS.escape(focused)}"]`)?.focus();
  }

  drawNodes() {
    const { nodes } = this.detail;
    const key = JSON.stringify(nodes);
    if (key === this.nodesKey) return;
    this.nodesKey = key;
    const order = { joined: 0, leaving: 1, planned: 2 };
    const sorted = [...nodes].sort((one, other) => (order[one.status] ?? 3) - (order[other.status] ?? 3)).slice(0, 200);
    fill(this.nodes, h("h2", { id: "nodes-title" }, "Nodes"), sorted.length
      ? table("Nodes of the job", [["Node", "mono"], ["Provider", ""], ["Status", ""], ["Round", "n"], ["Step", "n"], ["Per hour", "n"]],
        sorted.map((node) => [node.id, node.provider, h("span", { class: `badge ${{ joined: "good", lost: "bad", leaving: "warn" }[node.status] ?? "plain"}` }, node.status),
          number(node.round), number(node.last_step), usd(node.price_microdollars_per_hour)]), { hideCaption: true })
      : empty("It has no node yet.", this.detail.job.waiting));
  }

  drawValues() {
    if (!this.values.open) return;
    const { series } = this;
    const at = (column) => column.time_ms.map((ms, index) => [clock(ms), number(column.value[index], 4)]);
    const every = Math.ceil(series.steps.time_ms.length / 60) || 1;
    const steps = series.steps.time_ms.map((ms, index) => [clock(ms), number(series.steps.round[index]), short(series.steps.step_s[index]),
      percent(series.steps.queue_share[index]), short(series.steps.tokens_per_s[index])]).filter((_, index) => index % every === 0);
    const open = this.values.querySelector(".values-in");
    const inner = h("div", { class: "values-in columns" },
      table("Nodes that train", [["From", ""], ["Nodes", "n"]], at(series.training)),
      table("Rounds", [["Round", "n"], ["Nodes", "n"], ["From", ""], ["Lasted", "n"], ["From step", "n"]],
        series.rounds.map((round) => [number(round.round), number(round.nodes), clock(round.from_ms),
          lasted((round.to_ms ?? series.as_of_ms) - round.from_ms), number(round.resumed_step)])),
      table("Steps", [["At", ""], ["Round", "n"], ["Step, s", "n"], ["Queue", "n"], ["Tokens/s", "n"]], steps),
      table("Cost, USD", [["At", ""], ["Spent", "n"]], at(series.cost)));
    if (open) open.replaceWith(inner);
    else this.values.append(inner);
  }

  close() {
    this.closed = true;
    clearTimeout(this.waiting);
    clearInterval(this.ticking);
    this.live?.close();
    this.logs?.close();
    this.plot?.close();
    this.unthemed?.();
  }
}
