// What needs no browser: run with `npm test`, and by tests/integration/test_console.py.

import assert from "node:assert/strict";
import test from "node:test";
import { baseOf, chatPath } from "../src/paths.js";
import { gigabytes, many, seconds, share, tick } from "../src/format.js";
import { Events } from "../src/sse.js";
import { isTrouble, overTime, percentile, rate } from "../src/stats.js";
import { Store } from "../src/store.js";

test("numbers have three digits that matter, and their unit", () => {
  const said = [0, 0.00042, 0.084, 0.9996, 1.254, 12.34, 125, 3725].map(seconds);
  assert.deepEqual(said, [
    "0 ms",
    "0.42 ms",
    "84.0 ms",
    "1.00 s",
    "1.25 s",
    "12.3 s",
    "2 min 5 s",
    "1 h 2 min",
  ]);
  assert.equal(seconds(null), "not known");
  assert.equal(gigabytes(8.734), "8.73 GB/s");
  assert.equal(gigabytes(0.003524), "3.52 MB/s");
  assert.equal(share(0.004), "0.4 %");
  assert.equal(many(1, "pair"), "1 pair");
  assert.deepEqual([0.0001, 0.02, 5].map(tick), ["100 µs", "20 ms", "5 s"]);
});

test("a percentile is a value that was there", () => {
  assert.equal(percentile([], 95), null);
  assert.equal(percentile([3, 1, 2], 50), 2);
  assert.equal(percentile([10, 9, 8, 7], 95), 10);
});

const request = (ended_at, prefill_s, more = {}) => ({
  ended_at,
  stages: { prefill_s },
  outcome: "ok",
  fallbacks: [],
  resumes: [],
  attempts: [],
  ...more,
});

test("a bucket without a request is a gap and not a zero", () => {
  const requests = [request(101, 1), request(102, 3), request(111, 2)];
  const { times, values } = overTime(requests, ["prefill"], 50, { now: 114, span: 15, step: 5 });
  assert.deepEqual(times, [100, 105, 110, 115]);
  assert.deepEqual(values.prefill, [null, 1, null, 2]);
});

test("requests that left their way are told from those that did not", () => {
  assert.equal(isTrouble(request(1, 1)), false);
  for (const more of [
    { outcome: "error" },
    { fallbacks: ["prefill_timeout"] },
    { resumes: [{}] },
    { attempts: [{}] },
  ]) {
    assert.equal(isTrouble(request(1, 1, more)), true);
  }
});

test("a rate is counted by one gateway's own clock", () => {
  assert.equal(rate([[1, 5]]), null);
  assert.equal(
    rate([
      [1, 5],
      [3, 9],
    ]),
    2,
  );
  assert.equal(
    rate([
      [1, 5],
      [3, 0],
    ]),
    0,
  );
});

test("events may be cut anywhere, and comments that are no timeline are skipped", () => {
  const stream =
    ': keep-alive\n\ndata: {"a":1}\r\n\r\ndata: two\n\n: baton-timing {"ttft_s":1}\n\ndata: [DONE]\n\n';
  for (const size of [1, 2, 7, 1000]) {
    const split = new Events();
    const found = [];
    for (let at = 0; at < stream.length; at += size)
      found.push(...split.push(stream.slice(at, at + size)));
    assert.deepEqual(found, [
      { data: '{"a":1}' },
      { data: "two" },
      { timing: { ttft_s: 1 } },
      { data: "[DONE]" },
    ]);
  }
  assert.deepEqual(new Events().push(": baton-timing {broken\n\n"), []);
});

test("an event is there as soon as its lines are, also when a piece ends between CR and LF", () => {
  const split = new Events();
  const pieces = ["data: one\r", "\n\r", "\ndata: two\r\n\r", "\n"];
  assert.deepEqual(
    pieces.map((piece) => split.push(piece)),
    [[], [], [{ data: "one" }], [{ data: "two" }]],
  );
});

test("the gateway's address comes from the page's own, and /v1 never doubles", () => {
  assert.equal(chatPath(baseOf("/console")), "/v1/chat/completions");
  assert.equal(chatPath(baseOf("/qwen/console")), "/qwen/v1/chat/completions");
  assert.equal(chatPath(baseOf("/a/v1/console")), "/a/v1/chat/completions");
});

const view = (id, added, engines, more = {}) => ({
  gateway: { id, now: 100, began: 0, of: 2, ...more.gateway, slo: {}, mode: "auto" },
  engines,
  pairs: [],
  verdicts: [],
  models: ["m"],
  load: { inflight: 1, queued: 0 },
  requests: { added, left_out: 0, ended: [] },
  ...more.rest,
});
const engine = (replica_id, role, more = {}) => ({
  replica_id,
  role,
  inflight: 2,
  circuit: "closed",
  state: "ready",
  kv_bytes_per_token: 1e5,
  ...more,
});

test("two gateways behind one address become one picture", () => {
  const store = new Store();
  store.take(view("g1", 7, [engine("d", "decode")]), 1);
  store.take(view("g2", 3, [engine("d", "decode"), engine("e", "decode", { circuit: "open" })]), 2);
  assert.deepEqual(
    [...store.seen],
    [
      ["g1", 7],
      ["g2", 3],
    ],
  );
  assert.deepEqual(
    store.engines("decode").map((one) => [one.replica_id, one.inflight]),
    [
      ["e", 2],
      ["d", 4],
    ],
  );
  assert.equal(store.load("inflight"), 2);
  store.take(view("g2", 4, []), 40);
  assert.deepEqual([...store.seen], [["g2", 4]]);
});

test("of what two gateways think of an engine the worst is shown, with the time that belongs to it", () => {
  const store = new Store();
  const think = (circuit, cool_off_left_s) => [engine("d", "decode", { circuit, cool_off_left_s })];
  store.take(view("g1", 0, think("half_open", 0)), 1);
  store.take(view("g2", 0, think("open", 4)), 2);
  store.take(view("g3", 0, think("closed", 0)), 3);
  store.take(view("g4", 0, think("half_open", 0)), 4);
  const [{ circuit, cool_off_left_s }] = store.engines("decode");
  assert.deepEqual([circuit, cool_off_left_s], ["open", 4]);
});

test("a slow pair comes first, and one that nobody measured is not called well", () => {
  const store = new Store();
  const pairs = [
    { prefill: "p", decode: "d", ok: true, tokens_per_s: null, gb_per_s: null },
    { prefill: "p", decode: "e", ok: false, tokens_per_s: 1e4, gb_per_s: null },
  ];
  store.take(
    view("g", 0, [engine("p", "prefill"), engine("d", "decode"), engine("e", "decode")], {
      rest: { pairs },
    }),
    1,
  );
  assert.deepEqual(
    store.pairs().map(({ decode, ok, gbPerS }) => [decode, ok, gbPerS]),
    [
      ["e", false, 1],
      ["d", null, null],
    ],
  );
});

test("the only gateway that is started anew takes the place of the first at once", () => {
  const store = new Store();
  store.take(view("old", 7, [engine("d", "decode")], { gateway: { of: 1 } }), 1);
  store.take(view("new", 0, [engine("d", "decode")], { gateway: { of: 1 } }), 2);
  assert.equal(store.load("inflight"), 1);
  assert.deepEqual([...store.seen.keys()], ["new"]);
});
