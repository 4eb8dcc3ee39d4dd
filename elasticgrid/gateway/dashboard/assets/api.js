// The gateway's interface, as any script may use it. The session is a cookie that this page cannot read.

/** A refusal: what happened, and what to do about it. */
class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || `the gateway answered ${status}`);
    this.status = status;
    this.code = body?.code ?? "";
    this.hint = body?.hint ?? "";
    this.where = body?.where ?? "";
  }
}

/** The gateway did not answer. */
class Unreachable extends Error {
  constructor() {
    super("the gateway does not answer");
    this.hint = "It may be restarting. The page tries again by itself.";
  }
}

let signedOut = () => {};

/** Told when a request was refused for want of a session. */
export function onSignedOut(callback) {
  signedOut = callback;
}

export function url(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given).toString();
  return query ? `${path}?${query}` : path;
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", redirect: "error", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable();
  }
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  const problem = new Problem(answer.status, await answer.json().catch(() => null));
  if (problem.status === 401 && !path.startsWith("/login")) signedOut();
  throw problem;
}

export function get(path, parameters = {}, { signal } = {}) {
  return ask(url(path, parameters), { signal, headers: { Accept: "application/json" } });
}

// What a page of another site cannot send: it says that this one asks.
const WRITES = { Accept: "application/json", "X-Requested-With": "elasticgrid" };

/** With `seen`, the sequence of what was looked at: refused when it has changed since. */
const asSeen = (seen) => (seen ? { "If-Match": `"${seen}"` } : {});

export function post(path, body, { parameters = {}, signal, seen } = {}) {
  return ask(url(path, parameters), {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json", ...WRITES, ...asSeen(seen) },
    body: JSON.stringify(body ?? {}),
  });
}

export function del(path, { parameters = {}, seen } = {}) {
  return ask(url(path, parameters), { method: "DELETE", headers: { ...WRITES, ...asSeen(seen) } });
}

export const jobPath = (job, rest = "") => `/v1/jobs/${encodeURIComponent(job)}${rest ? `/${rest}` : ""}`;
