// The end of what a job's workers write, and new lines as they come.
import { jobPath } from "./api.js";
import { fill, h, say } from "./dom.js";
import { LiveLog } from "./sse.js";

const MAX_LINES = 600;

export class LogTail {
  constructor(tenant, job) {
    this.tenant = tenant;
    this.job = job;
    this.lines = [];
    this.state = h("span", { class: "quiet small" }, "connecting");
    this.text = h("pre", { class: "log", role: "log", "aria-live": "off", tabIndex: 0, "aria-label": "Output of the workers" });
    this.element = h("section", { class: "card", "aria-labelledby": "log-title" },
      h("div", { class: "card-head" }, h("h2", { id: "log-title" }, "Output"), this.state), this.text);
    fill(this.text, "Nothing was written so far that the gateway's machine could read.");
    this.open();
  }

  open() {
    this.live = new LiveLog(jobPath(this.job, "logs/stream"), { tenant: this.tenant, lines: 100 }, {
      onText: (piece) => this.take(piece),
      onEnd: () => {
        say(this.state, "ended");
      },
      onState: (state) => say(this.state, { live: "live", reconnecting: "reconnecting", closed: "not available" }[state]),
    });
  }

  take(piece) {
    const whose = piece.rank < 0 ? `agent ${piece.node}` : `rank ${piece.rank}`;
    for (const line of piece.text.split("\n")) if (line) this.lines.push(`${whose} | ${line}`);
    this.lines.splice(0, Math.max(this.lines.length - MAX_LINES, 0));
    if (!this.planned) this.planned = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.planned = 0;
    const atEnd = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 24;
    this.text.textContent = this.lines.join("\n");
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;
  }

  close() {
    this.live.close();
    cancelAnimationFrame(this.planned);
  }
}
