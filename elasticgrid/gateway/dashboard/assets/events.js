// The log, the newest first and as it comes.
import { get } from "./api.js";
import { empty, failed, fill, h, loading, say } from "./dom.js";
import { openEvent } from "./event_panel.js";
import { clockMs, day, fromInput, inputValue, number, plural } from "./format.js";
import { address, current, refine } from "./router.js";
import { LiveEvents } from "./sse.js";
import { VirtualList } from "./virtual.js";

const PAGE = 500;
const COLUMNS = [["#", "c-seq n"], ["Time, UTC", "c-time"], ["Type", "c-type"], ["About", "c-about"], ["What it says", "c-text"]];

export class EventsView {
  constructor(root, app) {
    this.root = root;
    this.app = app;
    const { tenant = "", job = "", type = "", from = "", to = "", before = "" } = current();
    this.filters = { tenant, job, type, from: Number(from) || null, to: Number(to) || null, before: Number(before) || null };
    Object.assign(this, { items: [], fresh: [], types: new Set() });
  }

  async open() {
    document.title = "Events · elasticgrid";
    this.build();
    await this.restart();
    const { event } = current();
    if (event) openEvent(Number(event));
  }

  build() {
    const field = (name, input) => h("label", {}, h("span", {}, name), input);
    const text = (name, more = {}) => h("input", { type: "text", name, value: this.filters[name] ?? "", autocomplete: "off", placeholder: "all", ...more });
    const time = (name) => h("input", { type: "datetime-local", step: "1", name, value: this.filters[name] ? inputValue(this.filters[name]) : "" });
    this.known = h("datalist", { id: "types" });
    this.fresher = h("button", { class: "button fresher", type: "button", hidden: true, onclick: () => this.takeFresh(true) });
    this.state = h("p", { class: "quiet small", role: "status" });
    this.form = h("form", { class: "card filters", onsubmit: (event) => { event.preventDefault(); this.fromForm(); } },
      h("div", { class: "fields" }, field("Job", text("job")), field("Tenant", text("tenant")),
        field("Type", text("type", { list: "types", placeholder: "all, or launch" })), field("From, UTC", time("from")), field("To, UTC", time("to")),
        field("Before #", text("before", { inputmode: "numeric", placeholder: "newest" })),
        h("button", { class: "button", type: "submit" }, "Filter"),
        h("button", { class: "quiet-button", type: "button", onclick: () => this.clear() }, "Clear")), this.known);
    this.list = new VirtualList({
      label: "Events, the newest first", kind: "events", columns: COLUMNS, row: (event) => this.row(event),
      onOpen: (event) => openEvent(event.sequence), onNearEnd: () => this.older(),
    });
    this.place = h("div", { class: "list-place" });
    fill(this.root, h("h1", {}, "Events"), this.form,
      h("section", { class: "card", "aria-label": "The log" }, h("div", { class: "card-head" }, this.state, this.fresher), this.place));
  }

  parameters() {
    const { tenant, job, type, from, to } = this.filters;
    return { tenant, job, type, since_ms: from, until_ms: to };
  }

  clear() {
    for (const input of this.form.querySelectorAll("input")) input.value = "";
    this.fromForm();
  }

  fromForm() {
    const value = (name) => this.form.querySelector(`[name=${name}]`).value.trim();
    this.filters = {
      tenant: value("tenant"), job: value("job"), type: value("type"), from: fromInput(value("from")), to: fromInput(value("to")),
      before: Number(value("before")) || null,
    };
    refine(this.filters);
    this.restart();
  }

  async restart() {
    this.live?.close();
    this.turn = (this.turn ?? 0) + 1;
    Object.assign(this, { items: [], fresh: [], before: this.filters.before, complete: false });
    this.fresher.hidden = true;
    fill(this.place, loading("Loading the log"));
    const page = await this.older();
    if (!page || this.closed) return;
    if (this.filters.before || (this.filters.to && this.filters.to < Date.now())) {
      this.app.live("off");
      return;
    }
    this.live = new LiveEvents("/v1/events/stream", { tenant: this.filters.tenant }, page.next_after, {
      onEvent: (event) => this.take(event),
      onState: (state) => this.app.live(state),
    });
  }

  async older() {
    if (this.fetching === this.turn || this.complete || this.closed) return null;
    this.fetching = this.turn;
    const { turn } = this;
    try {
      const page = await get("/v1/events", { ...this.parameters(), order: "desc", before: this.before, limit: PAGE });
      if (turn !== this.turn || this.closed) return null;
      this.items = this.items.concat(page.items);
      this.before = page.next_before;
      this.complete = !page.more;
      this.show();
      return page;
    } catch (error) {
      if (turn === this.turn && !this.closed) {
        if (this.items.length) say(this.state, `${error.message}; scroll to try again`);
        else fill(this.place, failed(error, () => this.restart()));
      }
      return null;
    } finally {
      if (this.fetching === turn) this.fetching = null;
    }
  }

  wanted(event) {
    const { job, type, from, to } = this.filters;
    return (!job || event.job === job) && (!type || event.type === type || (!type.includes(".") && event.type.startsWith(`${type}.`)))
      && (!from || event.recorded_ms >= from) && (!to || event.recorded_ms < to);
  }

  take(event) {
    if (!this.wanted(event)) return;
    this.fresh.push(event);
    this.planned ??= requestAnimationFrame(() => {
      this.planned = null;
      this.takeFresh(false);
    });
  }

  /** New events are put in at the top when that is in sight; whoever reads further down is told of them instead. */
  takeFresh(toTop) {
    if (!this.fresh.length || this.closed) return;
    const { body } = this.list;
    if (!toTop && body.scrollTop > 0 && this.items.length) {
      say(this.fresher, `${plural(this.fresh.length, "new event")}`);
      this.fresher.hidden = false;
      return;
    }
    this.items = this.fresh.reverse().concat(this.items);
    this.fresh = [];
    this.fresher.hidden = true;
    if (toTop) body.scrollTop = 0;
    this.show();
  }

  show() {
    if (!this.items.length) {
      fill(this.place, empty("There is no such event.", "What comes is shown here at once."));
      say(this.state, "");
      return;
    }
    if (!this.place.contains(this.list.element)) fill(this.place, this.list.element);
    this.list.element.style.setProperty("--rows", String(Math.min(this.items.length, 20)));
    this.list.show(this.items);
    say(this.state, `${number(this.items.length)} events${this.complete ? "" : ", older ones as you scroll"}`);
    const before = this.types.size;
    for (const event of this.items.slice(0, PAGE)) this.types.add(event.type).add(event.type.split(".")[0]);
    if (this.types.size !== before) fill(this.known, [...this.types].sort().map((value) => h("option", { value })));
  }

  row(event) {
    const grid = event.tenant === "_grid";
    return [
      String(event.sequence),
      [clockMs(event.recorded_ms), h("span", { class: "quiet small wide-only" }, ` ${day(event.recorded_ms)}`)],
      h("code", { class: `kind-${event.type.split(".")[0]}` }, event.type),
      grid ? h("span", { class: "quiet" }, "grid") : h("a", { href: address({ view: "job", tenant: event.tenant, job: event.job }), tabIndex: -1 }, event.job),
      [event.took_effect ? null : h("span", { class: "badge warn" }, "no effect"), event.text],
    ];
  }

  close() {
    this.closed = true;
    this.live?.close();
    this.list?.close();
    cancelAnimationFrame(this.planned);
  }
}
