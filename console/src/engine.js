// One engine of a pool: who it is, where it runs, how it fares.

import { attr, h, say, show } from "./dom.js";
import { UNKNOWN, count, seconds, share } from "./format.js";

/** The engine's state in a word, and how well that is. */
function condition(engine) {
  if (engine.circuit === "open") {
    return {
      word: `left alone, tried again in ${seconds(engine.cool_off_left_s)}`,
      kind: "bad",
      sign: "✕",
    };
  }
  if (engine.circuit === "half_open") {
    return { word: "being tried again", kind: "warn", sign: "↻" };
  }
  if (engine.state === "ready") return { word: "ready", kind: "good", sign: "●" };
  if (engine.state === "draining") return { word: "draining", kind: "warn", sign: "◐" };
  return { word: "starting", kind: "warn", sign: "○" };
}

/** What it computes on, as far as somebody said so. */
function device(engine, told) {
  const workers = told?.facts?.workers ?? [];
  const devices = new Set(workers.map((worker) => worker.device).filter(Boolean));
  const name = [...devices].join(", ") || engine.evidence?.kv_buffer_device || "";
  const several = engine.tensor_parallel_size > 1 ? `TP ${engine.tensor_parallel_size}` : "";
  if (told?.facts?.simulated) return ["simulated", several].filter(Boolean).join(", ");
  return [name, several].filter(Boolean).join(", ");
}

/** A lease says more than a probe: a gateway with a fixed list knows no load. */
const hasLease = (engine) => engine.engine_id !== "";

export function engineRow(engine) {
  const state = h("span", { class: "badge" });
  const name = h("span", { class: "name" });
  const place = h("p", { class: "place" });
  const bar = h("span", { class: "fill" });
  const meter = h(
    "span",
    { class: "meter", role: "meter", "aria-valuemin": "0", "aria-valuemax": "100" },
    bar,
  );
  const kv = h("span", { class: "kv" });
  const load = h("p", { class: "load" });
  const node = h(
    "li",
    { class: "engine" },
    h("p", { class: "who" }, name, state),
    place,
    load,
    h("p", { class: "use" }, meter, kv),
  );
  attr(meter, "aria-label", `KV cache in use on ${engine.replica_id}`);
  return {
    node,
    update({ engine: now, told }) {
      const { word, kind, sign } = condition(now);
      say(name, now.replica_id);
      say(state, `${sign} ${word}`);
      attr(state, "data-kind", kind);
      const where = now.node || hostOf(now.url);
      const model = now.model_id ? `, ${now.model_id}` : "";
      say(place, [where, device(now, told)].filter(Boolean).join(" · ") + model);
      const lease = hasLease(now);
      say(
        load,
        lease
          ? `${count(now.load.running)} running, ${count(now.load.waiting)} waiting, ${pace(now)}`
          : `${count(now.inflight)} in flight from here; its own load is ${UNKNOWN}`,
      );
      show(meter, lease);
      const used = now.load.kv_usage;
      const percent = Math.round(used * 100);
      attr(meter, "aria-valuenow", String(percent));
      if (bar.style.inlineSize !== `${percent}%`) bar.style.inlineSize = `${percent}%`;
      attr(meter, "data-full", String(used > 0.9));
      say(kv, lease ? `${share(used)} of KV` : "");
    },
  };
}

function hostOf(url) {
  try {
    return new URL(url).hostname;
  } catch {
    return "";
  }
}

function pace({ role, load }) {
  if (role === "decode")
    return load.tpot_s ? `${seconds(load.tpot_s)} a token` : "no token gap yet";
  const rate = load.prefill_tokens_per_s;
  const queue = `${count(load.queued_prompt_tokens)} tokens queued`;
  return rate ? `${queue}, ${count(Math.round(rate))} /s` : queue;
}
