// A job over time: everything on one time axis, so that what happened together is seen together.
import { plural } from "./format.js";
import { CONFIG, at, axis, baseLayout, label, msOf, plotly } from "./plotly.js";
import { colours } from "./theme.js";

const GAP_PX = 34;
const ROW_PX = 108;
const LANE_PX = 20;
const HEAD_PX = 8;
const FOOT_PX = 40;
const FEW_NODES = 6;
const MARKS = {
  lost: ["x", "bad"], failed: ["diamond", "bad"], stuck: ["square", "bad"], "launch failed": ["x-open", "bad"],
  notice: ["triangle-left", "warn"], gap: ["hourglass-open", "warn"], checkpoint: ["line-ns-open", "card"],
};
const DOING = ["launching", "booting", "waiting", "training", "draining"];

export class JobPlot {
  /** onDecision(sequence): a mark was chosen. onSpan(from, to): the time axis shows that; (null, null) all of it. */
  constructor(element, { onDecision, onSpan }) {
    this.element = element;
    this.onDecision = onDecision;
    this.onSpan = onSpan;
    this.span = null;
  }

  /** Draws a newer state, where it is one. */
  async update(series) {
    const key = `${series.sequence} ${series.as_of_ms} ${series.steps.time_ms.at(-1)} ${series.steps.time_ms.length}`;
    if (key === this.key) return true;
    // What a hand points at stays where it is until the hand has gone.
    if (this.pointed) {
      this.later = series;
      return true;
    }
    this.key = key;
    return this.draw(series);
  }

  async draw(series) {
    this.series = series;
    const Plotly = await plotly();
    if (!Plotly || !this.element.isConnected) return Boolean(Plotly);
    // A newer state came while the script did: that one is drawn.
    if (this.series !== series) return true;
    const { traces, layout } = figure(series, this.span, this.element.clientWidth < 560);
    this.element.style.height = `${layout.height}px`;
    await Plotly.react(this.element, traces, layout, CONFIG);
    if (!this.bound) this.bind(Plotly);
    return true;
  }

  bind(Plotly) {
    this.bound = Plotly;
    this.element.on("plotly_click", (event) => {
      const found = event.points.find((point) => point.data.meta === "decisions");
      if (found) this.onDecision(found.customdata[0]);
    });
    this.element.on("plotly_hover", (event) => {
      this.pointed = event.points.some((point) => point.data.meta === "decisions");
    });
    this.element.on("plotly_unhover", () => {
      this.pointed = false;
      if (this.later) this.update(this.later);
      this.later = null;
    });
    this.element.on("plotly_relayout", (change) => {
      if (change["xaxis.range[0]"] !== undefined) {
        this.span = [change["xaxis.range[0]"], change["xaxis.range[1]"]].map(msOf);
        this.onSpan(...this.span);
      } else if (change["xaxis.autorange"]) {
        this.show(null);
        this.onSpan(null, null);
      }
    });
  }

  /** Shows a span of time, [from, to] in milliseconds; null is all of it. */
  show(span) {
    this.span = span;
    if (this.series) this.draw(this.series);
  }

  close() {
    this.bound?.purge(this.element);
  }
}

function figure(series, span, narrow) {
  const colour = colours();
  const lanes = series.lanes;
  const stepped = series.steps.time_ms.length > 0 || !series.rounds.length;
  const rows = [
    { title: "Nodes", key: "size" },
    ...(stepped ? [
      { title: narrow ? "Queue share of the step" : "Share of the step spent waiting for a worker", key: "queue" },
      { title: "Step time, seconds", key: "step" },
      { title: "Throughput, tokens a second", key: "tokens" },
    ] : []),
    { title: series.deadline_ms && !narrow ? "Cost, USD, and (dashed) how much of the time to the deadline is used" : "Cost, USD", key: "cost" },
    { title: "Rounds and nodes", key: "lanes", px: Math.max(lanes.length + 1, 2) * LANE_PX },
  ];
  const innerPx = rows.reduce((sum, row) => sum + (row.px ?? ROW_PX) + GAP_PX, 0);
  const height = innerPx + HEAD_PX + FOOT_PX;
  const layout = {
    ...baseLayout(colour),
    height,
    margin: { l: narrow ? 44 : 58, r: series.deadline_ms ? 44 : narrow ? 10 : 16, t: HEAD_PX, b: FOOT_PX },
    hovermode: "closest",
    dragmode: narrow ? false : "zoom",
    barmode: "overlay",
    bargap: 0.3,
    uirevision: "kept",
    annotations: [],
    shapes: [],
    xaxis: {
      ...axis(colour), type: "date", range: (span ?? whole(series)).map(at), anchor: `y${rows.length}`, nticks: narrow ? 4 : 10,
      showspikes: true, spikemode: "across", spikesnap: "cursor", spikethickness: 1, spikedash: "solid", spikecolor: colour("quiet"),
      hoverformat: "%H:%M:%S UTC", title: { text: "UTC", standoff: 4, font: { color: colour("quiet") } },
    },
  };
  const axes = {};
  let top = 1;
  rows.forEach((row, index) => {
    const share = (row.px ?? ROW_PX) / innerPx;
    top -= GAP_PX / innerPx;
    axes[row.key] = `y${index ? index + 1 : ""}`;
    layout[nameOf(axes[row.key])] = {
      ...axis(colour), domain: [Math.max(top - share, 0), top], fixedrange: true, rangemode: "tozero", nticks: 5, anchor: "x",
    };
    layout.annotations.push({
      text: row.title, x: 0, xref: "paper", y: top, yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false,
      font: { size: 12, color: colour("quiet") },
    });
    top -= share;
  });
  const { size, queue, step, tokens, cost, lanes: lane } = axes;
  Object.assign(layout[nameOf(size)], wholeNumbers(series));
  Object.assign(layout[nameOf(cost)], { tickprefix: "$", tickformat: ",.6~f", automargin: true });
  if (stepped) {
    Object.assign(layout[nameOf(queue)], { tickformat: ".0%", range: [0, 1.04] });
    layout[nameOf(step)].tickformat = ",.6~f";
  }
  const traces = [
    line(series.target, size, { color: colour("accent"), width: 1.5, dash: "dash", shape: "hv" }),
    line(series.paid, size, { color: colour("paid"), width: 1.5, dash: "dot", shape: "hv" }),
    line(series.training, size, { color: colour("training"), width: 2.5, shape: "hv" }, "training: %{y}"),
    ...decisions(series, size, colour),
    ...(stepped ? [
      steps(series.steps, "queue_share", queue, colour("job1"), "%{y:.1%} of the step"),
      steps(series.steps, "step_s", step, colour("job0"), "%{y:.4~f} s a step"),
      steps(series.steps, "tokens_per_s", tokens, colour("job2"), "%{y:,.4~s} tokens/s"),
    ] : []),
    line(series.cost, cost, { color: colour("job3"), width: 2 }, "$%{y:,.6~f}"),
  ];
  if (series.deadline_ms) deadline(series, cost, layout, traces, colour);
  lanesOf(series, lane, layout, traces, colour, narrow);
  return { traces, layout };
}

const nameOf = (name) => `yaxis${name.slice(1)}`;

/** Ticks of an axis of nodes: each number once, also where there are few. */
function wholeNumbers(series) {
  const most = Math.max(1, ...[series.target, series.training, series.paid].flatMap((column) => column.value), ...series.decisions.map((mark) => mark.target_nodes));
  return most > FEW_NODES ? { tickformat: "d" } : { tickformat: "d", dtick: 1, tick0: 0, range: [0, most + 0.4] };
}

function whole(series) {
  const slack = Math.max((series.as_of_ms - series.submitted_ms) / 50, 500);
  return [series.submitted_ms - slack, series.as_of_ms + slack];
}

/** Without a text to show it lets a hand through to the marks on it. */
function line(column, yaxis, style, hover) {
  const shown = hover ? { hovertemplate: `${hover}<extra></extra>` } : { hoverinfo: "skip" };
  return { type: "scatter", mode: "lines", x: column.time_ms.map(at), y: column.value, yaxis, line: style, ...shown };
}

/** A line breaks between rounds: nobody trained there. */
function steps(columns, name, yaxis, color, hover) {
  const x = [];
  const y = [];
  columns.time_ms.forEach((ms, index) => {
    if (index && columns.round[index] !== columns.round[index - 1]) {
      x.push(at(ms));
      y.push(null);
    }
    x.push(at(ms));
    y.push(columns[name][index]);
  });
  const mode = columns.source === "samples" && x.length > 60 ? "lines" : "lines+markers";
  return { type: "scatter", mode, x, y, yaxis, connectgaps: false, line: { color, width: 1.75 }, marker: { color, size: 4 },
    hovertemplate: `${hover}<extra></extra>` };
}

function decisions(series, yaxis, colour) {
  const make = (marks, symbol, size, color) => ({
    type: "scatter", mode: "markers", meta: "decisions", cliponaxis: false, yaxis,
    x: marks.map((mark) => at(mark.time_ms)),
    // Holds lie at the bottom, out of the way of what changes a size.
    y: marks.map((mark) => (mark.action === "hold" ? 0 : mark.target_nodes)),
    customdata: marks.map((mark) => [mark.sequence, label(mark.action === "hold" ? "hold" : `${mark.current_nodes} → ${mark.target_nodes}`), label(mark.rule)]),
    marker: { symbol, size, color, line: { color: colour("card"), width: 1.5 } },
    hovertemplate: "%{customdata[1]}: %{customdata[2]}<br>click for the card<extra></extra>",
  });
  const of = (action) => series.decisions.filter((mark) => mark.action === action);
  return [
    make(of("hold"), "circle", 8, colour("quiet")),
    make(of("up"), "triangle-up", 14, colour("accent")),
    make(of("down"), "triangle-down", 14, colour("job1")),
  ].filter((trace) => trace.x.length);
}

function deadline(series, cost, layout, traces, colour) {
  const length = series.deadline_ms - series.submitted_ms;
  const used = (ms) => Math.max(0, (ms - series.submitted_ms) / Math.max(length, 1));
  const ends = [series.submitted_ms, series.as_of_ms];
  layout.yaxis9 = { ...axis(colour), overlaying: cost, side: "right", fixedrange: true, tickformat: ".0%", rangemode: "tozero",
    range: [0, Math.max(1, used(series.as_of_ms)) * 1.04], showgrid: false, anchor: "x", tickvals: [0, 0.5, 1] };
  traces.push({ type: "scatter", mode: "lines", x: ends.map(at), y: ends.map(used), yaxis: "y9", line: { color: colour("warn"), width: 1.5, dash: "dash" },
    hovertemplate: "%{y:.0%} of the time to the deadline<extra></extra>" });
  if (series.as_of_ms >= series.deadline_ms) {
    layout.shapes.push({ type: "line", x0: at(series.deadline_ms), x1: at(series.deadline_ms), y0: 0, y1: 1, yref: "paper", line: { color: colour("bad"), width: 1.5, dash: "dash" } });
  }
}

function lanesOf(series, yaxis, layout, traces, colour, narrow) {
  const name = (lane) => label(narrow ? lane.node : `${lane.node} · ${lane.provider}`);
  const order = ["rounds", ...series.lanes.map(name)];
  const bars = (meta, y, base, x, text, color, hover) => traces.push({
    type: "bar", orientation: "h", meta, y, base, x, yaxis, customdata: text, marker: { color, line: { width: 0 } }, hovertemplate: `${hover}<extra></extra>`,
  });
  const until = (round) => round.to_ms ?? series.as_of_ms;
  if (series.rounds.length) {
    traces.push({
      type: "bar", orientation: "h", meta: "rounds", yaxis, y: series.rounds.map(() => "rounds"),
      base: series.rounds.map((round) => at(round.from_ms)), x: series.rounds.map((round) => until(round) - round.from_ms),
      customdata: series.rounds.map((round) => `round ${round.round}: ${plural(round.nodes, "node")}, from step ${round.resumed_step}`),
      text: series.rounds.map((round) => String(round.round)), textposition: "inside", insidetextanchor: "middle", textangle: 0, constraintext: "inside",
      insidetextfont: { color: colour("card"), size: 11 },
      marker: { color: series.rounds.map((round, index) => colour(index % 2 ? "roundodd" : "round")), line: { width: 0 } },
      hovertemplate: "%{customdata}<extra></extra>",
    });
  }
  for (const doing of DOING) {
    const found = series.lanes.flatMap((lane) => lane.bars.filter((bar) => bar.doing === doing).map((bar) => [name(lane), bar]));
    if (found.length) {
      bars(doing, found.map(([lane]) => lane), found.map(([, bar]) => at(bar.from_ms)), found.map(([, bar]) => bar.to_ms - bar.from_ms),
        found.map(() => doing), colour(doing), "%{y}<br>%{customdata}");
    }
  }
  for (const [what, [symbol, tone]] of Object.entries(MARKS)) {
    if (narrow && what === "checkpoint") continue;
    const found = series.lanes.flatMap((lane) => lane.marks.filter((mark) => mark.what === what).map((mark) => [name(lane), mark]));
    if (found.length) {
      traces.push({
        type: "scatter", mode: "markers", meta: what, yaxis, x: found.map(([, mark]) => at(mark.time_ms)), y: found.map(([lane]) => lane),
        customdata: found.map(([, mark]) => label(mark.text)), marker: { symbol, size: 10, color: colour(tone), line: { width: 1.5, color: colour(tone) } },
        hovertemplate: `%{y}<br>${what}: %{customdata}<extra></extra>`,
      });
    }
  }
  Object.assign(layout[nameOf(yaxis)], {
    type: "category", categoryorder: "array", categoryarray: order, range: [order.length - 0.5, -0.5], rangemode: "normal", automargin: true,
    showgrid: false, tickmode: "array", tickvals: order, ticktext: order, tickfont: { size: narrow ? 9 : 11, color: colour("quiet") },
  });
}
