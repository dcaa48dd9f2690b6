// Numbers as people read them, always with their unit. What is not known is said in words.

export const UNKNOWN = "not known";

/** Three digits that matter; no exponent. */
function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en-GB");
  return value.toFixed(size >= 10 ? 1 : 2);
}

/** Seconds: `0.42 ms`, `84.0 ms`, `1.25 s`, `2 min 5 s`. */
export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return UNKNOWN;
  if (value < 0.9995) return `${digits(value * 1000)} ms`;
  if (value < 99.95) return `${digits(value)} s`;
  const whole = Math.round(value);
  const [minutes, rest] = [Math.floor(whole / 60), whole % 60];
  if (minutes < 60) return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A tick of an axis: as short as can be. */
export function tick(value) {
  if (value === null || value === undefined) return "";
  if (value < 0.001) return `${Number((value * 1e6).toPrecision(3))} µs`;
  return value < 1
    ? `${Number((value * 1000).toPrecision(3))} ms`
    : `${Number(value.toPrecision(3))} s`;
}

export function count(value) {
  return value === null || value === undefined ? UNKNOWN : value.toLocaleString("en-GB");
}

export function perSecond(value) {
  return value === null ? UNKNOWN : digits(value);
}

/** Gigabytes a second; megabytes where there is not much: a small model on a CPU has small KV. */
export function gigabytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return value < 0.1 ? `${digits(value * 1000)} MB/s` : `${digits(value)} GB/s`;
}

export function share(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return `${value > 0 && value < 0.01 ? (value * 100).toFixed(1) : Math.round(value * 100)} %`;
}

/** `1 engine`, `3 engines`. */
export function many(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}

/** A time of day, from seconds since the epoch. */
export function clock(epoch) {
  return new Date(epoch * 1000).toLocaleTimeString("en-GB");
}
