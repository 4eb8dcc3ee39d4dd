// How many events there were when: a span is chosen by drawing over it.
import { CONFIG, at, axis, baseLayout, msOf, plotly } from "./plotly.js";
import { colours } from "./theme.js";

const BINS = 80;
const KINDS = [["job", "accent"], ["decision", "job3"], ["launch", "booting"], ["node", "training"], ["grid", "job1"]];
/** The kind of an event: the first word of its type, or `grid` for what is about the whole grid. */
const kindOf = ({ tenant, what }) => (tenant === "_grid" ? "grid" : what.split(".")[0]);
const HEIGHT = 170;

export class EventDensity {
  constructor(element, onSpan) {
    this.element = element;
    this.onSpan = onSpan;
  }

  async draw(lines, from, to) {
    const Plotly = await plotly();
    if (!Plotly || !this.element.isConnected) return;
    const colour = colours();
    const width = Math.max((to - from) / BINS, 1);
    const middle = Array.from({ length: BINS }, (_, index) => at(from + (index + 0.5) * width));
    const traces = KINDS.map(([kind, tone]) => {
      const counts = new Array(BINS).fill(0);
      for (const line of lines) if (kindOf(line) === kind) counts[Math.min(Math.max(Math.floor((line.time_ms - from) / width), 0), BINS - 1)] += 1;
      return { type: "bar", name: kind, x: middle, y: counts, width, marker: { color: colour(tone), line: { width: 0 } }, hovertemplate: `%{y} ${kind} events<extra></extra>` };
    }).filter((trace) => trace.y.some(Boolean));
    const narrow = this.element.clientWidth < 560;
    this.element.style.height = `${HEIGHT}px`;
    await Plotly.react(this.element, traces, {
      ...baseLayout(colour), height: HEIGHT, barmode: "stack", bargap: 0.08, margin: { l: 36, r: 10, t: 28, b: 34 },
      showlegend: true, legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { color: colour("quiet") } },
      dragmode: narrow ? false : "zoom", hovermode: "closest",
      xaxis: { ...axis(colour), type: "date", range: [at(from), at(to)], nticks: narrow ? 4 : 10, hoverformat: "%H:%M:%S UTC" },
      yaxis: { ...axis(colour), fixedrange: true, rangemode: "tozero", nticks: 4, tickformat: "d" },
    }, { ...CONFIG, displayModeBar: false });
    if (this.bound) return;
    this.bound = Plotly;
    this.element.on("plotly_relayout", (change) => {
      if (change["xaxis.range[0]"] === undefined) return;
      this.onSpan(msOf(change["xaxis.range[0]"]), msOf(change["xaxis.range[1]"]));
    });
  }

  close() {
    this.bound?.purge(this.element);
  }
}
