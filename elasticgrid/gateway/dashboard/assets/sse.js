// Events as they come. A lost connection is taken up again after the last event seen, so nothing is missed.
import { get, url } from "./api.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;

/**
 * A stream of events.
 *
 * path, parameters: of the route; after: the sequence that it goes on after.
 * onEvent(event): each in the order of the log, none twice.
 * onState(state): "live", "reconnecting", "paused" (the page is not looked at) or "refused".
 */
export class LiveEvents {
  constructor(path, parameters, after, { onEvent, onState }) {
    this.path = path;
    this.parameters = parameters;
    this.last = after;
    this.onEvent = onEvent;
    this.onState = onState;
    this.wait = FIRST_WAIT_MS;
    this.closed = false;
    this.looked = () => (document.hidden ? this.pause() : this.open());
    document.addEventListener("visibilitychange", this.looked);
    this.open();
  }

  open() {
    if (this.closed || this.source) return;
    clearTimeout(this.timer);
    const source = new EventSource(url(this.path, { ...this.parameters, after: this.last }));
    this.source = source;
    source.onopen = () => {
      this.wait = FIRST_WAIT_MS;
      this.onState("live");
    };
    source.onmessage = (message) => {
      const sequence = Number(message.lastEventId);
      if (!(sequence > this.last)) return;
      this.last = sequence;
      this.onEvent(JSON.parse(message.data));
    };
    source.onerror = () => {
      // While it is CONNECTING the browser comes back by itself, with the id of the last event.
      if (this.source === source && !this.closed) this.onState("reconnecting");
      if (source.readyState === EventSource.CLOSED) this.again();
    };
  }

  /** The gateway answered with an error, after which a browser gives up; we do not. */
  again() {
    this.source = null;
    if (this.closed) return;
    // Where the session is over, asking anything says so and the page asks for a key.
    get("/v1/whoami").catch(() => {});
    this.timer = setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
  }

  /** A page that nobody looks at holds no connection: browsers have few for one host. */
  pause() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.onState("paused");
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.looked);
    this.source?.close();
    this.source = null;
  }
}

/** A job's output as it comes. onText({node, round, rank, text}), onEnd(). A piece that came before is left out. */
export class LiveLog {
  constructor(path, parameters, { onText, onEnd, onState }) {
    const reached = new Map();
    this.source = new EventSource(url(path, parameters));
    this.source.onopen = () => onState("live");
    this.source.onmessage = (message) => {
      const piece = JSON.parse(message.data);
      const key = `${piece.node} ${piece.round} ${piece.rank}`;
      if (piece.end <= (reached.get(key) ?? -1)) return;
      reached.set(key, piece.end);
      onText(piece);
    };
    this.source.addEventListener("end", () => {
      this.close();
      onEnd();
    });
    this.source.onerror = () => {
      const closed = this.source.readyState === EventSource.CLOSED;
      onState(closed ? "closed" : "reconnecting");
      // As above: it may be that the session is over.
      if (closed) get("/v1/whoami").catch(() => {});
    };
  }

  close() {
    this.source.close();
  }
}
