// The page: asks the gateway every second, and says in words how that goes.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import * as api from "./api.js";
import { attr, h, keyed, say, show } from "./dom.js";
import { clock, count, many } from "./format.js";
import { startChat } from "./chat.js";
import { startLayout } from "./layout.js";
import { startNumbers } from "./numbers.js";
import { startPhases } from "./phases.js";
import { Store } from "./store.js";
import { startTheme } from "./theme.js";
import { startWaterfall } from "./waterfall.js";

const EVERY_MS = 1000;
const SLOWEST_MS = 5000;
const STALE_S = 10;
const EVIDENCE_EVERY_MS = 30000;

const byId = (id) => document.getElementById(id);
let store = new Store();
let [connection, failures, answeredAt, held, timer] = ["loading", 0, null, false, 0];
let polling = false;
let evidence = { asked: 0, running: false, of: "", failed: "" };

startTheme(byId("theme"));
const parts = [
  startNumbers(byId("numbers")),
  startLayout(byId("layout"), () => askEvidence()),
  startChat(byId("chat"), () => lock("")),
  startPhases(byId("phases")),
  startWaterfall(byId("requests")),
];

// -- asking ---------------------------------------------------------------------------------------

async function poll() {
  clearTimeout(timer);
  if (polling) return; // one at a time: two answers to one question would count requests twice
  polling = true;
  try {
    store.take(await api.view(store.seen), performance.now() / 1000);
    [connection, failures, answeredAt] = ["ok", 0, Date.now() / 1000];
  } catch (error) {
    failures += 1;
    if (error.status === 401) return lock(error.message);
    if (error.status === 404) connection = "off";
    else connection = "lost";
  } finally {
    polling = false;
  }
  if (!document.hidden)
    timer = setTimeout(poll, Math.min(SLOWEST_MS, EVERY_MS * 2 ** Math.max(0, failures - 1)));
  render();
  if (connection === "ok") evidenceWhenNew();
}

/** Engines are asked when there are others than before; it costs each of them a call. */
function evidenceWhenNew() {
  const ready = store.views
    .flatMap((view) => view.engines)
    .filter((engine) => engine.state === "ready");
  const of = [...new Set(ready.map((engine) => engine.replica_id))].sort().join("\n");
  if (
    of !== evidence.of &&
    of &&
    performance.now() - evidence.asked > (evidence.asked ? EVIDENCE_EVERY_MS : 0)
  )
    askEvidence(of);
}

async function askEvidence(of = evidence.of) {
  if (evidence.running) return;
  evidence = { asked: performance.now(), running: true, of, failed: "" };
  try {
    store.takeEvidence(await api.evidence());
  } catch (error) {
    evidence.failed = error.status ? error.message : "no answer";
  }
  evidence.running = false;
  render();
}

// -- the key --------------------------------------------------------------------------------------

function lock(why) {
  clearTimeout(timer);
  const wrong = api.key() !== null;
  api.keep(null);
  connection = "locked";
  store = new Store();
  evidence = { asked: 0, running: false, of: "", failed: "" };
  say(
    byId("lock-why"),
    wrong ? `The key was refused. ${why}` : "Its API keys open the console as well.",
  );
  render();
  byId("key").focus();
}

byId("lock-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = byId("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(value)) {
    say(byId("lock-why"), "A key has no spaces and no letters beyond ASCII.");
    return;
  }
  api.keep(value);
  byId("key").value = "";
  connection = "loading";
  render();
  poll();
});
byId("forget").addEventListener("click", () => {
  api.keep(null);
  location.reload(); // nothing of what was shown is left
});

// -- showing --------------------------------------------------------------------------------------

function inWords() {
  if (connection === "loading") return "Asking the gateway…";
  if (connection === "locked") return "A key is needed.";
  if (connection === "off") return "The console is switched off.";
  if (connection === "lost") return "Connection lost.";
  return held ? "Held still: what is shown does not change." : "Live.";
}

function notices() {
  const said = [];
  const add = (id, kind, text) => said.push({ id, kind, text });
  if (connection === "lost") {
    const since = answeredAt === null ? "" : ` What is shown is from ${clock(answeredAt)}.`;
    add("lost", "bad", `The gateway does not answer. This page goes on trying.${since}`);
  }
  if (connection === "off")
    add(
      "off",
      "bad",
      "This gateway serves no console. Switch it on with console: {enabled: true} in the baton block, or with baton gateway --console.",
    );
  const last = store.last;
  if (last === null || connection === "locked") return said;
  const { age_s: age } = last.directory;
  const [prefill, decode] = ["prefill", "decode"].map((role) =>
    store.engines(role).filter((e) => e.state === "ready"),
  );
  if (age === null) add("directory", "warn", "The directory of engines has not been read yet.");
  else if (age > STALE_S)
    add(
      "directory",
      "warn",
      "The directory of engines cannot be read; the last known engines stay in use.",
    );
  if (decode.length === 0)
    add("decode", "bad", "No decode engine is ready: requests are refused until one is.");
  if (last.gateway.mode === "never")
    add(
      "never",
      "info",
      "Disaggregation is switched off (mode never): each request is done by decode alone.",
    );
  else if (prefill.length === 0 && decode.length > 0)
    add(
      "prefill",
      "warn",
      "No prefill engine is ready: decode reads the prompts as well, and answers begin later.",
    );
  const pairs = store.pairs();
  const slow = pairs.filter((pair) => pair.ok === false).length;
  if (slow)
    add(
      "slow",
      "bad",
      `${many(slow, "pair")} handed KV over slower than prefill makes it. Run baton verify: it says why.`,
    );
  const refused = pairs.filter((pair) => pair.verdict?.outcome === "FAIL").length;
  if (refused)
    add("failed", "bad", `baton verify failed ${many(refused, "pair")}: see the table of pairs.`);
  if (evidence.failed)
    add(
      "evidence",
      "warn",
      `The engines could not be asked what their transfers run on: ${evidence.failed}`,
    );
  return said;
}

function notice({ kind }) {
  const sign = { bad: "✕", warn: "!", info: "i" }[kind];
  const text = h("span");
  const node = h(
    "p",
    { class: `notice ${kind}` },
    h("span", { class: "sign", "aria-hidden": "true", text: sign }),
    text,
  );
  return { node, update: ({ text: said }) => say(text, said) };
}

function render() {
  say(byId("state"), inWords());
  attr(byId("state"), "data-kind", { ok: "good", lost: "bad", off: "bad" }[connection] ?? "none");
  show(byId("lock"), connection === "locked");
  show(byId("forget"), api.key() !== null);
  keyed(byId("notices"), notices(), ({ id }) => id, notice);
  const last = store.last;
  show(byId("content"), last !== null && connection !== "locked");
  byId("content").classList.toggle("old", connection === "lost" || connection === "off");
  if (last === null || held || connection === "locked") return;
  say(byId("where"), last.models.join(", "));
  const { gateway } = last;
  const several =
    gateway.of > 1 ? `, ${count(store.views.length)} of ${count(gateway.of)} gateways heard` : "";
  say(
    byId("about"),
    `Baton ${gateway.version}, gateway ${gateway.id}${several}, up since ${clock(gateway.began)}${evidence.running ? "; asking the engines…" : ""}.`,
  );
  for (const part of parts) part(store);
}

byId("hold").addEventListener("click", () => {
  held = !held;
  attr(byId("hold"), "aria-pressed", String(held));
  render();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden || connection === "locked") clearTimeout(timer);
  else poll();
});
render();
poll();
