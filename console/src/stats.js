// Arithmetic over requests that ended. Pure, and tested without a browser.

/** Nearest-rank percentile of unsorted values; null of none. */
export function percentile(values, p) {
  if (values.length === 0) return null;
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.max(0, Math.ceil((p / 100) * sorted.length) - 1)];
}

/** Seconds of a stage in each request that had it. */
export function stageSeconds(requests, stage) {
  const name = `${stage}_s`;
  const found = [];
  for (const request of requests) {
    const value = request.stages?.[name];
    if (typeof value === "number") found.push(value);
  }
  return found;
}

/**
 * A percentile of each stage over time.
 *
 * Buckets are whole multiples of `step`, so that a bucket's value does not wander as time goes on.
 * Returns `{times, values}`; `values[stage]` has a number or null for each time.
 */
export function overTime(requests, stages, p, { now, span, step }) {
  const first = Math.floor((now - span) / step);
  const last = Math.floor(now / step);
  const buckets = Array.from({ length: last - first + 1 }, () => []);
  for (const request of requests) {
    const at = Math.floor(request.ended_at / step) - first;
    if (at >= 0 && at < buckets.length) buckets[at].push(request);
  }
  const values = {};
  for (const stage of stages) {
    values[stage] = buckets.map((inside) => percentile(stageSeconds(inside, stage), p));
  }
  return { times: buckets.map((_, number) => (first + number + 1) * step), values };
}

/** Requests a second, from samples `[seconds, requests so far]` of one gateway; null of one. */
export function rate(samples) {
  if (samples.length < 2) return null;
  const [[from, before], [to, after]] = [samples[0], samples[samples.length - 1]];
  return to > from ? Math.max(0, after - before) / (to - from) : null;
}

/** Whether something went another way than it should have. */
export function isTrouble(request) {
  return (
    request.outcome === "error" ||
    request.outcome === "broken" ||
    request.fallbacks.length > 0 ||
    request.resumes.length > 0 ||
    request.attempts.length > 0
  );
}
