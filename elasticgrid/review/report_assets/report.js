"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  const palette = () => {
    const styles = getComputedStyle(document.documentElement);
    return new Proxy({}, { get: (_, name) => styles.getPropertyValue(`--${String(name)}`).trim() });
  };

  const traced = (trace, colours) => {
    const colour = colours[trace.colour];
    const made = { ...trace, x: trace.type === "bar" ? trace.x : trace.x.map((ms) => new Date(ms)) };
    delete made.colour;
    if (trace.type === "bar") {
      made.base = trace.base.map((ms) => new Date(ms));
      made.marker = { color: colour, line: { color: colours.card, width: 1 } };
    } else if (trace.mode === "markers") {
      made.marker = { color: colour, symbol: trace.symbol, size: 11, line: { width: 1.5, color: colour } };
      made.cliponaxis = false;
    } else {
      made.line = { color: colour, width: 2, shape: trace.shape || "linear", dash: trace.dash || "solid" };
    }
    return made;
  };

  const layout = (plot, colours, narrow) => {
    const axis = { gridcolor: colours.line, linecolor: colours.line, zerolinecolor: colours.line };
    const drawn = plot.traces.map((trace) => trace.name).filter((name) => name);
    const widest = Math.min(Math.max(...drawn.map((name) => name.length), 8) * (narrow ? 6 : 7) + 12, window.innerWidth / 2);
    const made = {
      height: plot.height,
      margin: { l: narrow ? 44 : 64, r: 12, t: 12, b: 40 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colours.text, family: "system-ui, sans-serif", size: narrow ? 11 : 13 },
      hoverlabel: { bgcolor: colours.card, bordercolor: colours.line, font: { color: colours.text } },
      hovermode: "closest",
      dragmode: narrow ? false : "zoom",
      showlegend: drawn.length > 1,
      legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0, traceorder: "normal", itemwidth: 30,
        entrywidth: widest, entrywidthmode: "pixels" },
      xaxis: { ...axis, type: "date", range: data.span.map((ms) => new Date(ms)), title: { text: "UTC" }, nticks: narrow ? 4 : 9 },
      yaxis: { ...axis, fixedrange: true, automargin: plot.kind === "lanes" },
    };
    if (made.showlegend) {
      // A legend above the plot takes room of its own: about so many names fit on a line.
      const lines = Math.ceil(drawn.length / Math.max(Math.floor(Math.min(window.innerWidth, 1200) * 0.85 / (widest + 42)), 1));
      made.margin.t = 18 + 20 * lines;
      made.height += 20 * (lines - 1);
    }
    if (plot.kind === "lanes") {
      Object.assign(made, { barmode: "overlay", bargap: 0.35 });
      Object.assign(made.yaxis, { type: "category", categoryorder: "array", categoryarray: plot.order, autorange: "reversed" });
    } else {
      Object.assign(made.yaxis, { rangemode: "tozero", title: { text: narrow ? "" : plot.title } });
      if (plot.percent) Object.assign(made.yaxis, { tickformat: ".0%", range: [0, 1.05] });
      if (plot.whole) Object.assign(made.yaxis, { tickformat: "d", nticks: 6 });
    }
    return made;
  };

  const config = { displaylogo: false, responsive: true, showLink: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
  const figures = [...document.querySelectorAll(".plot")];
  // Plotly shows local time; the report's times are UTC wherever it is read.
  const utc = (ms) => new Date(ms + new Date(ms).getTimezoneOffset() * 60000);
  const inUtc = (plot) => ({ ...plot, traces: plot.traces.map((trace) => (trace.type === "bar"
    ? { ...trace, base: trace.base.map((ms) => utc(ms).getTime()) }
    : { ...trace, x: trace.x.map((ms) => utc(ms).getTime()) })) });
  data.span = data.span.map((ms) => utc(ms).getTime());

  const draw = () => {
    const colours = palette();
    const narrow = window.innerWidth < 640;
    for (const figure of figures) {
      const plot = inUtc(data.plots[figure.dataset.plot]);
      Plotly.react(figure, plot.traces.map((trace) => traced(trace, colours)), layout(plot, colours, narrow), config);
    }
  };
  draw();
  dark.addEventListener("change", draw);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if ((window.innerWidth < 640) !== (width < 640)) draw();
    width = window.innerWidth;
  });
  // What one plot shows of time, the others show too.
  let following = false;
  for (const figure of figures) {
    figure.on("plotly_relayout", (change) => {
      const range = change["xaxis.range[0]"] !== undefined
        ? { "xaxis.range": [change["xaxis.range[0]"], change["xaxis.range[1]"]] }
        : change["xaxis.autorange"] ? { "xaxis.range": data.span.map((ms) => new Date(ms)) } : null;
      if (!range || following) return;
      following = true;
      Promise.all(figures.filter((other) => other !== figure).map((other) => Plotly.relayout(other, range)))
        .finally(() => { following = false; });
    });
  }

  // The timeline: filtered as one types, sorted by any column.
  const table = document.getElementById("timeline-table");
  if (table) {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, text: row.textContent.toLowerCase() }));
    const text = document.getElementById("filter-text");
    const kind = document.getElementById("filter-kind");
    const shown = document.getElementById("filter-shown");
    const filter = () => {
      const words = text.value.toLowerCase().split(/\s+/).filter((word) => word);
      let count = 0;
      for (const each of rows) {
        const wanted = (!kind.value || each.row.dataset.kind === kind.value)
          && words.every((word) => each.text.includes(word));
        each.row.hidden = !wanted;
        count += wanted;
      }
      shown.textContent = `${count} of ${rows.length} events`;
    };
    text.addEventListener("input", filter);
    kind.addEventListener("change", filter);
    filter();
    for (const button of table.querySelectorAll("th button")) {
      button.addEventListener("click", () => {
        const head = button.closest("th");
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const index = [...head.parentElement.children].indexOf(head);
        const value = (each) => each.row.cells[index].dataset.value ?? each.row.cells[index].textContent;
        const numeric = head.dataset.numeric !== undefined;
        rows.sort((one, other) => (numeric
          ? Number(value(one)) - Number(value(other))
          : value(one).localeCompare(value(other))) * (down ? -1 : 1));
        body.append(...rows.map((each) => each.row));
      });
    }
  }
  for (const all of document.querySelectorAll("button[data-open]")) {
    all.addEventListener("click", () => {
      const cards = [...document.querySelectorAll(all.dataset.open)];
      const open = cards.some((card) => !card.open);
      for (const card of cards) card.open = open;
      all.textContent = open ? "Close all" : "Open all";
    });
  }
  if (!still.matches) document.documentElement.classList.add("moves");
  document.documentElement.dataset.drawn = "yes";
})();
