// Numbers and times for people. Times are UTC, as everywhere in elasticgrid.

const two = (number) => String(number).padStart(2, "0");

export function day(ms) {
  return new Date(ms).toISOString().slice(0, 10);
}

export function clock(ms) {
  return new Date(ms).toISOString().slice(11, 19);
}

export function clockMs(ms) {
  return new Date(ms).toISOString().slice(11, 23);
}

export function moment(ms) {
  return ms ? `${day(ms)} ${clock(ms)} UTC` : "";
}

/** For an input of type datetime-local, whose value has no zone: UTC. */
export function inputValue(ms) {
  return new Date(ms).toISOString().slice(0, 19);
}

export function fromInput(text) {
  const ms = Date.parse(`${text}Z`);
  return Number.isNaN(ms) ? null : ms;
}

export function lasted(ms) {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 1) return `${Math.round(Math.abs(ms))} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${two(Math.round(seconds) % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${two(Math.floor(seconds / 60) % 60)} min`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

/** As above with one unit less. */
export function roughly(ms) {
  return lasted(ms).replace(/ (\d\d) s$/, "").replace(/ (\d\d) min$/, "");
}

export function ago(ms, now) {
  return ms > now - 1500 ? "now" : `${roughly(now - ms)} ago`;
}

export function usd(microdollars) {
  const dollars = microdollars / 1e6;
  const digits = dollars === 0 || dollars >= 1 ? 2 : dollars >= 0.01 ? 3 : 5;
  return `$${dollars.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

export function number(value, digits = 0) {
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
}

/** Four significant digits. */
export function short(value) {
  return value.toLocaleString("en-US", { maximumSignificantDigits: 4 });
}

export function percent(share) {
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

export function plural(count, word) {
  return `${number(count)} ${word}${count === 1 ? "" : "s"}`;
}
