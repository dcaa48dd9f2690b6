// The table of pairs: asked for and observed backend, what the bytes run on, speed, judgements.

import { attr, h, keyed, say, show } from "./dom.js";
import { UNKNOWN, clock, count, gigabytes, many, seconds } from "./format.js";

const SHORT = 12;

/** What UCX or libfabric said that transfers of this decode engine run on; "" while nobody has. */
function observedFabric(told) {
  const found = new Set();
  for (const worker of told?.facts?.workers ?? []) {
    for (const protocol of worker.ucx ?? []) {
      if (protocol.operation === "get" && protocol.scope !== "self" && protocol.transport) {
        found.add(protocol.transport);
      }
    }
    if (worker.libfabric?.provider) found.add(`libfabric ${worker.libfabric.provider}`);
  }
  return [...found].join(", ");
}

function backends(engine, told, verdict) {
  const asked = told?.facts?.requested_backends ?? engine?.evidence?.requested_backends ?? [];
  const observed = new Set([
    ...(engine?.evidence?.observed_backends ?? []),
    ...(told?.facts?.workers ?? []).flatMap((worker) => worker.observed_backends ?? []),
    ...(verdict?.observed_backends ?? []),
  ]);
  if (observed.size === 0) {
    if (told?.facts?.simulated || engine?.evidence?.connector === "simulated") return "simulated";
    return asked.length ? `${asked.join(", ")} asked for; observed: ${UNKNOWN}` : UNKNOWN;
  }
  const names = [...observed].join(", ");
  const differ = asked.length > 0 && asked.join() !== [...observed].join();
  return differ ? `${names} (asked for: ${asked.join(", ")})` : names;
}

function judged({ ok, aside }) {
  if (ok === null) return { word: "not measured yet", kind: "none", sign: "·" };
  return ok
    ? { word: "faster than prefill", kind: "good", sign: "✓" }
    : { word: aside ? "slow, left alone" : "slower than prefill", kind: "bad", sign: "✕" };
}

const OUTCOMES = {
  PASS: { word: "PASS", kind: "good", sign: "✓" },
  FAIL: { word: "FAIL", kind: "bad", sign: "✕" },
  INCONCLUSIVE: { word: "INCONCLUSIVE", kind: "warn", sign: "?" },
};

function mark(badge, { word, kind, sign }) {
  say(badge, `${sign} ${word}`);
  attr(badge, "data-kind", kind);
}

function pairRow() {
  const [who, runs, speed, time] = ["th", "td", "td", "td"].map((tag) => h(tag));
  const [fabric, backend] = [h("span"), h("span", { class: "why" })];
  runs.append(fabric, backend);
  attr(who, "scope", "row");
  speed.className = time.className = "number";
  const live = h("span", { class: "badge" });
  const proof = h("span", { class: "badge" });
  const why = h("span", { class: "why" });
  const node = h("tr", {}, who, runs, speed, time, h("td", {}, live), h("td", {}, proof, why));
  return {
    node,
    update({ pair, decode, told }) {
      say(who, `${pair.prefill} → ${pair.decode}`);
      const names = backends(decode, told, pair.verdict);
      say(backend, names === "simulated" ? "" : `backend: ${names}`);
      const seen = observedFabric(told);
      const name = pair.verdict?.observed_fabric;
      say(
        fabric,
        name
          ? seen
            ? `${name} (${seen})`
            : name
          : seen || (told?.facts?.simulated ? "simulated" : UNKNOWN),
      );
      say(speed, pair.gbPerS === null ? UNKNOWN : `≥ ${gigabytes(pair.gbPerS)}`);
      say(
        time,
        pair.handoffS === null
          ? "none streamed"
          : `${seconds(pair.handoffS)} of ${count(pair.handoffs)}`,
      );
      mark(live, judged(pair));
      if (pair.verdict) {
        mark(proof, OUTCOMES[pair.verdict.outcome]);
        const first = pair.verdict.reasons.find((reason) => reason.weight !== "good");
        say(why, `${clock(pair.verdict.told_at)}${first ? `: ${first.fact}` : ""}`);
      } else {
        mark(proof, { word: "not verified", kind: "none", sign: "·" });
        say(why, "");
      }
    },
  };
}

export function startPairs(box, askEvidence) {
  const body = h("tbody");
  const all = h("button", { type: "button", class: "quiet" });
  const ask = h("button", {
    type: "button",
    class: "quiet",
    text: "Ask the engines again",
    on: { click: askEvidence },
  });
  const empty = h("p", { class: "note", text: "No pair has handed KV over yet." });
  const heads = [
    "Prefill → decode",
    "Runs on",
    "Speed",
    "Handoff",
    "While serving",
    "baton verify",
  ];
  const table = h(
    "table",
    {},
    h("caption", { class: "unseen", text: "Pairs of engines, those in trouble first" }),
    h("thead", {}, h("tr", {}, ...heads.map((text) => h("th", { scope: "col", text })))),
    body,
  );
  const scroll = h(
    "div",
    { class: "scroll wide", tabIndex: 0, role: "region", "aria-label": "Pairs" },
    table,
  );
  let whole = false;
  let latest = null;
  const render = () => {
    const [store, pairs] = latest;
    show(empty, pairs.length === 0);
    show(scroll, pairs.length > 0);
    const known = new Map(store.engines("decode").map((engine) => [engine.replica_id, engine]));
    keyed(
      body,
      (whole ? pairs : pairs.slice(0, SHORT)).map((pair) => ({
        pair,
        decode: known.get(pair.decode),
        told: store.facts.get(pair.decode),
      })),
      ({ pair }) => pair.name,
      pairRow,
    );
    show(all, pairs.length > SHORT);
    say(all, whole ? `Show the first ${SHORT} only` : `Show all ${many(pairs.length, "pair")}`);
  };
  all.addEventListener("click", () => {
    whole = !whole;
    render();
  });
  box.append(
    h("div", { class: "row" }, h("h3", { text: "Pairs" }), ask),
    empty,
    scroll,
    all,
    h("p", {
      class: "note",
      text: "Speed is KV bytes by the whole time of handoffs, decode's first step included: the transfer is this fast at least. Handoff is the median of the last 5 minutes, and of how many. A slow pair is left alone when most others are several times faster.",
    }),
  );
  return (store, pairs) => {
    latest = [store, pairs];
    render();
  };
}
