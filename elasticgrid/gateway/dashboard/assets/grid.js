// The grid: providers, jobs by phase, and what it costs an hour.
import { get } from "./api.js";
import { empty, failed, fill, h, loading, phaseBadge, say } from "./dom.js";
import { ago, clock, lasted, number, plural, usd } from "./format.js";
import { address, current, refine } from "./router.js";
import { LiveEvents } from "./sse.js";
import { VirtualList } from "./virtual.js";

const PHASES = ["submitted", "starting", "running", "draining", "ending", "completed", "failed", "cancelled"];
const PAGE = 1000;
const MOST_JOBS = 5000;
const COLUMNS = [["Job", "c-job"], ["Phase", "c-phase"], ["Nodes", "c-nodes"], ["Why this size", "c-why"], ["Per hour", "c-rate n"], ["Spent", "c-cost n"]];

/** A tenant's key does not show what the whole grid has. */
function hidden(error) {
  if (error.status === 403) return null;
  throw error;
}

export class GridView {
  constructor(root, app) {
    this.root = root;
    this.app = app;
    this.jobs = [];
    this.phase = current().phase ?? "";
    this.words = current().q ?? "";
  }

  async open() {
    document.title = "Grid · elasticgrid";
    fill(this.root, loading("Loading the grid"));
    try {
      await this.fetchAll();
    } catch (error) {
      if (!this.closed) fill(this.root, failed(error, () => this.open()));
      return;
    }
    if (this.closed) return;
    this.build();
    this.draw();
    this.live = new LiveEvents("/v1/events/stream", {}, this.totals.sequence, {
      onEvent: () => this.later(),
      onState: (state) => this.app.live(state, () => this.later()),
    });
    this.ticking = setInterval(() => this.later(), 15_000);
  }

  async fetchAll() {
    const [totals, providers, first] = await Promise.all([
      get("/v1/grid"), get("/v1/providers").catch(hidden), get("/v1/jobs", { limit: PAGE })]);
    let { items, next_cursor: cursor } = first;
    while (cursor && items.length < MOST_JOBS) {
      const page = await get("/v1/jobs", { limit: PAGE, cursor });
      items = items.concat(page.items);
      cursor = page.next_cursor;
    }
    Object.assign(this, { totals, providers: providers?.items ?? null, jobs: items, more: Boolean(cursor) });
  }

  /** Something changed: look again, but not more often than the looking takes time for. */
  later() {
    if (this.waiting || this.closed) return;
    this.waiting = setTimeout(async () => {
      const began = performance.now();
      try {
        await this.fetchAll();
        if (!this.closed) this.draw();
      } catch { /* the next event, or the next tick, asks again */ }
      this.pause = Math.max(600, (performance.now() - began) * 4);
      this.waiting = null;
    }, this.pause ?? 250);
  }

  build() {
    this.tiles = h("div", { class: "tiles" });
    this.cards = h("div", { class: "providers" });
    this.providersPlace = h("section", { "aria-labelledby": "providers-title" }, h("h2", { id: "providers-title" }, "Providers"), this.cards);
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Jobs by phase" });
    this.found = h("p", { class: "quiet small", role: "status" });
    const search = h("input", { type: "search", id: "job-search", value: this.words, placeholder: "name, tenant, rule …",
      oninput: (event) => this.search(event.target.value) });
    this.list = new VirtualList({
      label: "Jobs", kind: "jobs", columns: COLUMNS, row: (job) => this.row(job),
      onOpen: (job) => this.app.go({ view: "job", tenant: job.tenant, job: job.id }),
    });
    this.listPlace = h("div", {});
    fill(this.root,
      h("h1", { class: "hidden-text" }, "Grid"),
      this.tiles,
      this.providersPlace,
      h("section", { "aria-labelledby": "jobs-title" },
        h("div", { class: "section-head" }, h("h2", { id: "jobs-title" }, "Jobs"), this.chips,
          h("label", { class: "search", for: "job-search" }, h("span", { class: "hidden-text" }, "Search jobs"), search)),
        this.listPlace, this.found));
  }

  search(words) {
    this.words = words;
    refine({ q: words });
    this.drawJobs();
  }

  choose(phase) {
    this.phase = this.phase === phase ? "" : phase;
    refine({ phase: this.phase });
    this.drawChips();
    this.drawJobs();
  }

  draw() {
    const { jobs, price_microdollars_per_hour: rate, cost_microdollars: cost } = this.totals;
    const going = ["submitted", "starting", "running", "draining", "ending"].reduce((sum, phase) => sum + (jobs[phase] ?? 0), 0);
    const providers = this.providers ?? [];
    const used = this.providers ? providers.reduce((sum, each) => sum + each.in_use, 0)
      : this.jobs.reduce((sum, job) => sum + job.actual_nodes, 0);
    const capacity = providers.reduce((sum, each) => sum + (each.withdrawn ? 0 : each.spec.max_nodes), 0);
    const tiles = [
      ["Burn rate", `${usd(rate)}/h`, `${usd(rate * 24)} a day`],
      ["Nodes in use", capacity ? `${number(used)} of ${number(capacity)}` : number(used),
        capacity ? `${Math.round((used / capacity) * 100)} % of what there is` : this.providers ? "no provider" : "by the jobs shown here"],
      ["Jobs going on", number(going), `${number(jobs.running ?? 0)} running`],
      ["Spent so far", usd(cost), `by ${plural(Object.values(jobs).reduce((sum, each) => sum + each, 0), "job")}`],
    ];
    fill(this.tiles, tiles.map(([name, value, more]) =>
      h("div", { class: "tile" }, h("span", {}, name), h("b", {}, value), h("span", { class: "quiet small" }, more))));
    this.providersPlace.hidden = !this.providers;
    fill(this.cards, providers.length
      ? providers.map((each) => this.provider(each))
      : empty("There is no provider.", "Name some in the grid file and start the gateway with it."));
    this.drawChips();
    this.drawJobs();
  }

  provider(each) {
    const { spec } = each;
    const share = (nodes) => `${(nodes / Math.max(spec.max_nodes, 1)) * 100}%`;
    const part = (name, nodes) => {
      const bar = h("span", { class: `part ${name}` });
      bar.style.width = share(nodes);
      return nodes ? bar : null;
    };
    const held = Math.max(each.in_use - each.draining, 0);
    const says = `${spec.name}: ${held} in use, ${each.in_flight} coming, ${each.draining} draining, of ${spec.max_nodes}`;
    const left = each.until_ms ? each.until_ms - this.totals.as_of_ms : 0;
    return h("article", { class: "card provider" },
      h("div", { class: "provider-head" }, h("h3", {}, spec.name),
        h("span", { class: "badge plain" }, (spec.market ?? "on_demand") === "spot" ? "spot" : "on demand")),
      h("p", { class: "provider-price" }, h("b", {}, usd(spec.price_microdollars_per_hour ?? 0)), h("span", { class: "quiet" }, " per node and hour")),
      h("div", { class: "meter", role: "img", "aria-label": says }, part("used", held), part("draining", each.draining), part("coming", each.in_flight)),
      h("p", { class: "small counts" },
        h("span", {}, h("i", { class: "key used", "aria-hidden": "true" }), `${held} in use`),
        each.in_flight ? h("span", {}, h("i", { class: "key coming", "aria-hidden": "true" }), `${each.in_flight} coming`) : null,
        each.draining ? h("span", {}, h("i", { class: "key draining", "aria-hidden": "true" }), `${each.draining} draining`) : null,
        h("span", { class: "quiet" }, `${each.free_nodes} free of ${spec.max_nodes}`)),
      each.refused && each.refused !== "capacity"
        ? h("p", { class: "mark small" }, h("span", { class: "badge warn" }, each.withdrawn ? "withdrawn" : each.refused), " ", each.detail,
          left > 0 ? h("span", { class: "quiet" }, ` · ${lasted(left)} left, until ${clock(each.until_ms)} UTC`) : null)
        : null);
  }

  drawChips() {
    const counts = this.totals.jobs;
    const chip = (phase, name, count) => h("button", {
      class: "chip", type: "button", "aria-pressed": String(this.phase === phase), onclick: () => this.choose(phase),
    }, name, h("b", {}, number(count)));
    const focused = this.chips.contains(document.activeElement) ? [...this.chips.children].indexOf(document.activeElement) : -1;
    fill(this.chips, PHASES.filter((phase) => counts[phase] || this.phase === phase).map((phase) => chip(phase, phase, counts[phase] ?? 0)));
    if (focused >= 0) this.chips.children[focused]?.focus();
  }

  drawJobs() {
    const words = this.words.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = (job) => (!this.phase || job.phase === this.phase)
      && words.every((word) => `${job.tenant}/${job.id} ${job.name} ${job.rule} ${job.reason} ${job.waiting}`.toLowerCase().includes(word));
    const shown = this.jobs.filter(wanted);
    if (!this.jobs.length) {
      fill(this.listPlace, h("div", { class: "card" },
        empty("No job was submitted yet.", "elasticgrid submit examples/elastic_numpy/job.yaml --wait")));
      say(this.found, "");
      return;
    }
    if (!shown.length) fill(this.listPlace, h("div", { class: "card" }, empty("No job is like that.", "Take a filter away.")));
    else if (!this.listPlace.contains(this.list.element)) fill(this.listPlace, this.list.element);
    this.list.show(shown);
    this.list.element.style.setProperty("--rows", String(Math.min(shown.length, 14)));
    say(this.found, `${number(shown.length)} of ${plural(this.jobs.length, "job")}${this.more ? ", the newest ones" : ""}`);
  }

  row(job) {
    const over = ["completed", "failed", "cancelled"].includes(job.phase);
    const why = over ? job.outcome_reason : job.paused || job.waiting || job.reason;
    return [
      [h("a", { href: address({ view: "job", tenant: job.tenant, job: job.id }), tabIndex: -1 }, job.id),
        h("span", { class: "quiet small" }, `${job.tenant} · ${ago(job.submitted_ms, this.totals.as_of_ms)}`)],
      phaseBadge(job.phase),
      over ? h("span", { class: "quiet" }, "–") : [h("b", {}, number(job.world_nodes)),
        job.target_nodes !== job.world_nodes ? ` → ${job.target_nodes}` : "", h("span", { class: "quiet small" }, ` of ${job.min_nodes}–${job.max_nodes}`)],
      [job.rule && !over ? h("code", {}, job.rule) : null, " ", why],
      job.price_microdollars_per_hour ? usd(job.price_microdollars_per_hour) : h("span", { class: "quiet" }, "–"),
      usd(job.cost_microdollars),
    ];
  }

  close() {
    this.closed = true;
    clearTimeout(this.waiting);
    clearInterval(this.ticking);
    this.live?.close();
    this.list?.close();
  }
}
