// Plotly's script, loaded when the first plot is wanted: it is the largest file of the page by far.

const { plotly: script, plotlyStyles: styles } = document.documentElement.dataset;
/** A page that is always busy gets its plots nevertheless. */
const LATEST_MS = 1500;
let promise = null;

/** Resolves in a task of its own, behind what a person has typed or clicked meanwhile. */
export function nextTask() {
  return new Promise((done) => setTimeout(done));
}

/** Resolves when the page has been painted and has nothing better to do. */
function idle() {
  return new Promise((done) => requestAnimationFrame(() => (window.requestIdleCallback ?? setTimeout)(() => done(), { timeout: LATEST_MS })));
}

/** Resolves to Plotly, or to null where it is not installed beside the gateway. */
export function plotly() {
  if (!script) return Promise.resolve(null);
  promise ??= idle().then(() => new Promise((done, fail) => {
    // Styles of its maps, which no plot here is: it takes them for there already, and puts no inline style into the page.
    for (const id of styles.split(" ").filter(Boolean)) {
      const there = document.createElement("meta");
      there.id = id;
      document.head.append(there);
    }
    const element = document.createElement("script");
    element.src = script;
    element.async = true;
    // Running the script is a long task of its own; whoever waits for it draws in another one.
    element.onload = () => nextTask().then(() => done(window.Plotly));
    element.onerror = () => {
      promise = null;
      fail(new Error("the plots could not be loaded"));
    };
    document.head.append(element);
  }));
  return promise;
}

/** Plotly reads some markup in labels: a text that came from elsewhere is shown letter by letter. */
export function label(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** A time as Plotly takes it: without a zone, so that it shows UTC wherever the page is read. */
export const at = (ms) => new Date(ms).toISOString().slice(0, -1);

/** The time, in milliseconds, that Plotly says of a place on a time axis. */
export function msOf(value) {
  return Math.round(typeof value === "number" ? value : Date.parse(`${String(value).replace(" ", "T")}Z`));
}

export const CONFIG = {
  displaylogo: false,
  responsive: true,
  showSendToCloud: false,
  plotlyServerURL: "",
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "toImage"],
};

export function baseLayout(colour) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("text"), family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("text") } },
    showlegend: false,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("quiet"), activecolor: colour("accent") },
  };
}

export function axis(colour) {
  return { gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line"), tickfont: { color: colour("quiet") } };
}
