// The row of numbers on top: what a person looks at first.

import { attr, h, say } from "./dom.js";
import { count, many, perSecond, seconds, share } from "./format.js";
import { isTrouble, percentile } from "./stats.js";

const SPAN_S = 60;

function tile(list, name, note) {
  const value = h("span", { class: "value" });
  const more = h("span", { class: "more" });
  const node = h(
    "div",
    { class: "tile" },
    h("dt", { text: name, title: note }),
    h("dd", {}, value, more),
  );
  list.append(node);
  return (text, rest = "", bad = false) => {
    say(value, text);
    say(more, rest);
    attr(node, "data-bad", String(bad));
  };
}

export function startNumbers(section) {
  const list = h("dl", { class: "tiles" });
  section.append(list);
  const load = tile(list, "Requests", "of the last 30 s, all that ended");
  const open = tile(list, "In flight", "let in, and waiting to be let in");
  const ttft = tile(list, "TTFT, median", "streamed answers that ended in the last minute");
  const tokens = tile(list, "Tokens written", "of requests that ended in the last minute");
  const ways = tile(list, "Way", "of requests that ended in the last minute");
  const trouble = tile(
    list,
    "Left their way",
    "requests with a fallback, a healed break or an error in 5 min",
  );

  return (store) => {
    const last = store.last;
    const minute = store.recent(SPAN_S);
    load(
      store.rate === null ? "…" : `${perSecond(store.rate)} /s`,
      many(minute.length, "request") + " seen in 1 min",
    );
    const [queued, room] = [store.load("queued"), store.load("max_inflight")];
    open(count(store.load("inflight")), `of ${count(room)}; ${count(queued)} waiting`, queued > 0);

    const times = minute.filter((r) => r.streamed && r.ttft_s !== null).map((r) => r.ttft_s);
    const target = last.gateway.slo.ttft_s;
    const p95 = percentile(times, 95);
    const kept = target === null || target === undefined ? "" : `; target ${seconds(target)}`;
    ttft(
      times.length ? seconds(percentile(times, 50)) : "none",
      times.length ? `p95 ${seconds(p95)}${kept}` : `no stream in 1 min${kept}`,
      Boolean(target && p95 > target),
    );

    const known = minute.filter((r) => r.completion_tokens !== null);
    const written = known.reduce((sum, r) => sum + r.completion_tokens, 0);
    const gaps = known.map((r) => r.tpot_s).filter((s) => s !== null);
    const span = Math.min(SPAN_S, Math.max(1, last.gateway.now - last.gateway.began));
    tokens(
      known.length ? `${perSecond(written / span)} /s` : "none",
      gaps.length ? `${seconds(percentile(gaps, 50))} a token` : "no tokens counted in 1 min",
    );

    const routed = minute.filter((r) => r.route !== null);
    const pd = routed.filter((r) => r.route === "pd").length;
    ways(
      routed.length ? `${share(pd / routed.length)} P/D` : "none",
      routed.length
        ? `${count(routed.length - pd)} otherwise; mode ${last.gateway.mode}`
        : `mode ${last.gateway.mode}`,
    );

    const five = store.recent(300);
    const off = five.filter(isTrouble);
    const errors = five.filter((r) => r.outcome === "error" || r.outcome === "broken").length;
    trouble(
      count(off.length),
      off.length
        ? `${count(errors)} lost; of ${count(five.length)} in 5 min`
        : `of ${count(five.length)} in 5 min`,
      errors > 0,
    );
  };
}
