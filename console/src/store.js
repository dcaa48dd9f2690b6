// What is known: the last word of each gateway, and the requests that ended since the page was
// opened. Several gateways may answer in turn behind one address; here they become one picture.

import { rate, stageSeconds, percentile } from "./stats.js";

const MOST_REQUESTS = 10000;
const KEEPS_GATEWAY_S = 30;
const RATE_OVER_S = 30;
/** From well to bad: of what several gateways think of an engine the worst is shown. */
const CIRCUITS = ["closed", "half_open", "open"];

export class Store {
  requests = [];
  leftOut = 0;
  dropped = 0;
  facts = new Map();
  #gateways = new Map();
  #samples = new Map();

  /** For the next question: each gateway, and up to which request it was read. */
  get seen() {
    return new Map([...this.#gateways].map(([id, { view }]) => [id, view.requests.added]));
  }

  /** Takes over an answer of `/baton/console`; `at` is this browser's time in seconds. */
  take(view, at) {
    const { id, now } = view.gateway;
    for (const [other, known] of this.#gateways) {
      // The only gateway is another one now: the one before has ended.
      if (at - known.at > KEEPS_GATEWAY_S || (other !== id && view.gateway.of === 1)) {
        this.#gateways.delete(other);
        this.#samples.delete(other);
      }
    }
    this.#gateways.set(id, { view, at });
    const samples = this.#samples.get(id) ?? [];
    samples.push([now, view.requests.added]);
    while (samples.length > 2 && now - samples[0][0] > RATE_OVER_S) samples.shift();
    this.#samples.set(id, samples);
    this.leftOut += view.requests.left_out;
    for (const request of view.requests.ended) {
      this.requests.push({
        ...request,
        key: `${id} ${request.request_id} ${request.received_at}`,
        ended_at: request.received_at + request.total_s,
      });
    }
    this.requests.sort((one, other) => one.ended_at - other.ended_at);
    const over = Math.max(0, this.requests.length - MOST_REQUESTS);
    if (over > 0) this.dropped = this.requests[over - 1].ended_at;
    this.requests.splice(0, over);
  }

  /** Takes over an answer of `/baton/evidence`. */
  takeEvidence(found) {
    for (const { lease, facts, why_no_facts: why } of found.engines) {
      this.facts.set(lease.replica_id, { facts, why });
    }
  }

  /** Whether requests of the last so many seconds had to be let go. */
  isShort(spanS) {
    return this.dropped > (this.last?.gateway.now ?? 0) - spanS;
  }

  /** The answers that are fresh enough to be shown, newest first. */
  get views() {
    return [...this.#gateways.values()].sort((a, b) => b.at - a.at).map(({ view }) => view);
  }

  /** The newest answer. */
  get last() {
    return this.views[0] ?? null;
  }

  get rate() {
    const rates = [...this.#samples.values()].map(rate).filter((one) => one !== null);
    return rates.length ? rates.reduce((sum, one) => sum + one, 0) : null;
  }

  /** A number of `load`, added over gateways. */
  load(name) {
    return this.views.reduce((sum, view) => sum + view.load[name], 0);
  }

  /** Requests that ended in the last so many seconds, on the gateways' clock. */
  recent(spanS) {
    const from = (this.last?.gateway.now ?? 0) - spanS;
    let at = this.requests.length;
    while (at > 0 && this.requests[at - 1].ended_at >= from) at -= 1;
    return this.requests.slice(at);
  }

  /** Engines of a role; requests in flight are added over gateways. Those in trouble come first. */
  engines(role) {
    const found = new Map();
    for (const view of this.views) {
      for (const engine of view.engines) {
        if (engine.role !== role) continue;
        const known = found.get(engine.replica_id);
        if (known === undefined) found.set(engine.replica_id, { ...engine });
        else {
          known.inflight += engine.inflight;
          if (CIRCUITS.indexOf(engine.circuit) > CIRCUITS.indexOf(known.circuit)) {
            known.circuit = engine.circuit;
            known.cool_off_left_s = engine.cool_off_left_s;
          }
        }
      }
    }
    const weight = (engine) => (engine.circuit !== "closed" ? 0 : engine.state !== "ready" ? 1 : 2);
    return [...found.values()].sort(
      (a, b) => weight(a) - weight(b) || a.replica_id.localeCompare(b.replica_id),
    );
  }

  /**
   * Pairs that something is known of, those in trouble first: `{prefill, decode, ok, aside,
   * gbPerS, verdict, handoffs, handoffS}`. `ok` is null while nothing was measured; `aside`: it is
   * left alone.
   */
  pairs(spanS = 300) {
    const found = new Map();
    const pair = (prefill, decode) => {
      const name = `${prefill}\n${decode}`;
      let known = found.get(name);
      if (known === undefined) {
        known = { name, prefill, decode, ok: null, aside: false, gbPerS: null, verdict: null };
        known.requests = [];
        found.set(name, known);
      }
      return known;
    };
    const here = new Map(this.views.flatMap((v) => v.engines.map((e) => [e.replica_id, e])));
    for (const view of this.views) {
      for (const told of view.pairs) {
        const known = pair(told.prefill, told.decode);
        if (told.tokens_per_s !== null || !told.ok) known.ok = known.ok !== false && told.ok;
        known.aside ||= told.routed_around === true;
        const size = this.#kvBytes(here.get(told.prefill));
        const speed =
          told.gb_per_s ?? (told.tokens_per_s && size ? (told.tokens_per_s * size) / 1e9 : null);
        known.gbPerS ??= speed;
      }
      for (const verdict of view.verdicts) {
        const known = pair(verdict.prefill, verdict.decode);
        if (!known.verdict || known.verdict.told_at < verdict.told_at) known.verdict = verdict;
      }
    }
    for (const request of this.recent(spanS)) {
      const { prefill_engine: prefill, decode_engine: decode, route } = request;
      if (route === "pd" && here.has(prefill) && here.has(decode))
        pair(prefill, decode).requests.push(request);
    }
    const bad = (one) => (one.ok === false || one.verdict?.outcome === "FAIL" ? 0 : 1);
    return [...found.values()]
      .map(({ requests, ...known }) => {
        const times = stageSeconds(requests, "handoff");
        return { ...known, handoffs: requests.length, handoffS: percentile(times, 50) };
      })
      .sort((a, b) => bad(a) - bad(b) || b.handoffs - a.handoffs || a.name.localeCompare(b.name));
  }

  #kvBytes(engine) {
    if (engine?.kv_bytes_per_token) return engine.kv_bytes_per_token;
    const sizes = (this.facts.get(engine?.replica_id)?.facts?.workers ?? []).map(
      (w) => w.kv_bytes_per_token,
    );
    return sizes.every(Boolean) ? sizes.reduce((sum, one) => sum + one, 0) : 0;
  }
}
