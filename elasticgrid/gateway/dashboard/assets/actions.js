// What somebody who may can do about a job. Each is asked for in the side panel, for the job as it was seen there.
import { del, jobPath, post } from "./api.js";
import { announce, fill, h, say } from "./dom.js";
import { plural } from "./format.js";
import { closePanel, openPanel } from "./panel.js";

const BANDS = ["production", "interactive", "batch"];
const LONGEST_REASON = 1000;

const number = (name, title, value) => h("label", {}, h("span", {}, title),
  h("input", { type: "number", name, value: String(value), min: "0", step: "1", required: true, inputmode: "numeric" }));

/**
 * Each action: its button, the scope it needs, what the panel says of it, fields, and what is sent.
 * for(job): whether there is anything to do.
 */
const ACTIONS = [
  {
    name: "Pause", scope: "operate", verb: "pause", for: (job) => !job.paused,
    says: (job) => `The job is held at the size it has, ${plural(job.world_nodes, "node")}. It goes on training.`,
    done: (job) => `${job.id} is paused`,
  },
  {
    name: "Resume", scope: "operate", verb: "resume", for: (job) => job.paused,
    says: (job) => `Its size is decided again. It was paused: ${job.paused}`,
    done: (job) => `${job.id} is not paused any more`,
  },
  {
    name: "Resize", scope: "operate", verb: "resize", for: () => true,
    says: () => "New bounds for its size. A size outside of them changes at once.",
    fields: (job) => [number("min_nodes", "At least, nodes", job.min_nodes), number("max_nodes", "At most, nodes", job.max_nodes)],
    body: (form) => ({ min_nodes: Number(form.get("min_nodes")), max_nodes: Number(form.get("max_nodes")) }),
    done: (job) => `${job.id} may have ${job.min_nodes} to ${plural(job.max_nodes, "node")}`,
  },
  {
    name: "Set priority", scope: "operate", verb: "priority", for: () => true,
    says: () => "Another band. It is kept, and given to the job's own placement; it takes nothing from others yet.",
    fields: (job) => [h("label", {}, h("span", {}, "Band"), h("select", { name: "band" },
      BANDS.map((band) => h("option", { value: band, selected: band === job.band }, band))))],
    body: (form) => ({ band: form.get("band") }),
    done: (job) => `${job.id} is in the band ${job.band}`,
  },
  {
    name: "Cancel", scope: "submit", verb: "cancel", for: (job) => !job.cancel_requested, danger: true,
    says: (job) => `${job.id} ends: its workers commit a checkpoint, its nodes are given back. It cannot be taken up again.`,
    confirm: "Cancel the job", keep: "Keep it",
    done: (job) => `${job.id} is ending`,
  },
];

/** What a form was filled in for; another job than that is said to have changed. */
const shownOf = ({ phase, min_nodes, max_nodes, paused, band, cancel_requested: ending }) => JSON.stringify([phase, min_nodes, max_nodes, paused, band, ending]);

export class JobActions {
  /** job(): as it was seen last. onDone(): something was changed. */
  constructor({ tenant, id, scopes, job, onDone }) {
    Object.assign(this, { tenant, id, job, onDone });
    this.buttons = ACTIONS.filter((action) => scopes.includes(action.scope)).map((action) => [action, h("button", {
      class: `quiet-button${action.danger ? " danger" : ""}`, type: "button", "aria-haspopup": "dialog", onclick: () => this.ask(action),
    }, `${action.name} …`)]);
    this.element = h("div", { class: "actions job-actions", role: "group", "aria-label": "What can be done about the job" },
      this.buttons.map(([, button]) => button));
  }

  /** Takes in how the job is now. */
  update(over) {
    const job = this.job();
    const focused = this.buttons.find(([, button]) => button === document.activeElement);
    for (const [action, button] of this.buttons) button.hidden = !action.for(job);
    this.element.hidden = over || !this.buttons.some(([, button]) => !button.hidden);
    // Who has just paused may want to resume: the focus is not lost with the button.
    if (focused?.[1].hidden && !this.element.hidden) this.buttons.find(([, button]) => !button.hidden)[1].focus();
    this.form?.seeAgain(job);
  }

  ask(action) {
    return openPanel(`${action.name}: ${this.id}`, async () => this.job(), (job) => this.draw(action, job), () => { this.form = null; });
  }

  draw(action, seen) {
    let { sequence } = seen;
    const problem = h("div", { class: "error-text", role: "alert" });
    const changed = h("p", { class: "notice", role: "status", hidden: true });
    const send = h("button", { class: `button${action.danger ? " danger" : ""}`, type: "submit" }, action.confirm ?? action.name);
    const again = h("button", { class: "quiet-button", type: "button", hidden: true, onclick: () => this.ask(action) }, "Look again");
    const form = h("form", {
      class: "action-form",
      onsubmit: async (event) => {
        event.preventDefault();
        fill(problem);
        send.disabled = true;
        try {
          const job = await this.send(action, new FormData(form), sequence);
          closePanel();
          this.form = null;
          announce(action.done(job));
          this.onDone();
        } catch (error) {
          if (error.name === "AbortError") return;
          fill(problem, h("p", {}, error.message), error.hint ? h("p", {}, error.hint) : null);
          again.hidden = error.status !== 412 && error.status !== 409;
        } finally {
          send.disabled = false;
        }
      },
    },
    h("p", {}, action.says(seen)),
    action.fields?.(seen) ?? null,
    h("label", {}, h("span", {}, "Reason, kept in the log"), h("input", { type: "text", name: "reason", maxlength: LONGEST_REASON, autocomplete: "off" })),
    changed, problem,
    h("div", { class: "actions" }, send, again, h("button", { class: "quiet-button", type: "button", onclick: () => closePanel() }, action.keep ?? "Leave it")));
    this.form = {
      /** Facts that come meanwhile change nothing here; what is asked for another job than the one shown is refused. */
      seeAgain: (job) => {
        if (shownOf(job) === shownOf(seen) && changed.hidden) sequence = job.sequence;
        else {
          say(changed, "The job has changed since this was opened.");
          changed.hidden = false;
          again.hidden = false;
        }
      },
    };
    return form;
  }

  send(action, form, seen) {
    const reason = form.get("reason").trim();
    const parameters = { tenant: this.tenant };
    if (action.verb === "cancel") return del(jobPath(this.id), { parameters: { ...parameters, reason }, seen });
    return post(jobPath(this.id, action.verb), { ...action.body?.(form), reason }, { parameters, seen });
  }
}
