// Recent requests, newest first, each as a bar of its stages. No word of a prompt or an answer is in
// a timeline, so none is here.

import { attr, h, keyed, newId, say, show } from "./dom.js";
import { UNKNOWN, clock, count, many, seconds } from "./format.js";
import { barSample, drawBar, inWords } from "./samples.js";
import { BY_ID, STAGES, wayName } from "./stages.js";
import { isTrouble } from "./stats.js";

const MOST = 40;
const FILTERS = { all: () => true, trouble: isTrouble, alone: (r) => r.route !== "pd" };

const OUTCOMES = {
  ok: { kind: "good", sign: "✓" },
  error: { kind: "bad", sign: "✕" },
  broken: { kind: "bad", sign: "✕" },
  rejected: { kind: "warn", sign: "!" },
  hangup: { kind: "none", sign: "–" },
};

function troubles(request) {
  const said = [
    ...request.fallbacks.map((kind) => `fell back: ${kind}`),
    ...request.resumes.map(
      (one) => `stream healed (${one.how}) after ${one.kind}, stood ${seconds(one.seconds)}`,
    ),
  ];
  if (request.attempts.length > 0 && said.length === 0)
    said.push(many(request.attempts.length, "broken leg"));
  return said.join("; ");
}

function facts(request) {
  const chosen = Object.entries(request.choices).map(
    ([leg, choice]) =>
      `${leg}: ${choice.why}${choice.held ? `, had ${Math.round(choice.held * 100)} % of the prompt` : ""}`,
  );
  const broke = request.attempts.map(
    (one) => `${one.leg} on ${one.engine}: ${one.kind} after ${seconds(one.seconds)}`,
  );
  return [
    ["Request id", request.request_id],
    ["Trace id", request.trace_id],
    ["Path", request.path],
    ["Prefill engine", request.prefill_engine],
    ["Decode engine", request.decode_engine],
    ["Why these engines", chosen.join("; ")],
    ["First token", request.first_token],
    [
      "Predicted",
      request.way?.pd_s
        ? `P/D ${seconds(request.way.pd_s)}, on decode alone ${seconds(request.way.local_s)}`
        : null,
    ],
    ["Legs that broke", broke.join("; ")],
    ["Left its way", troubles(request)],
    ["Time a token", request.tpot_s === null ? null : seconds(request.tpot_s)],
    ["Status", `${request.status} (${request.outcome})`],
  ].filter(([, value]) => value);
}

function stepsTable(request) {
  return h(
    "table",
    { class: "steps" },
    h("caption", { text: "Steps, in the order in which they ended" }),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col", text: "Step" }),
        ...["began at", "took"].map((text) => h("th", { scope: "col", class: "number", text })),
      ),
    ),
    h(
      "tbody",
      {},
      ...request.steps.map((step) =>
        h(
          "tr",
          {},
          h("th", { scope: "row", text: BY_ID.get(step.stage)?.name ?? step.stage }),
          h("td", { class: "number", text: seconds(Math.max(0, step.at_s)) }),
          h("td", { class: "number", text: seconds(step.seconds) }),
        ),
      ),
    ),
  );
}

function requestRow(request, opened) {
  const id = newId("request");
  const bar = h("div", { class: "bar", role: "img", "aria-label": inWords(request) });
  const { kind, sign } = OUTCOMES[request.outcome] ?? { kind: "none", sign: "·" };
  const more = h(
    "button",
    { type: "button", class: "quiet opener", "aria-expanded": "false", "aria-controls": id },
    h("span", { class: "unseen", text: `Details of request ${request.request_id}` }),
    h("span", { "aria-hidden": "true", text: "▸" }),
  );
  const said = [request.reason ?? "", troubles(request)].filter(Boolean).join("; ");
  const tokens = `${request.prompt_tokens === null ? "?" : count(request.prompt_tokens)} → ${request.completion_tokens === null ? "?" : count(request.completion_tokens)}`;
  const row = h(
    "tr",
    {},
    h("td", {}, more),
    h(
      "th",
      { scope: "row", class: "id" },
      h("span", { text: request.request_id.slice(0, 12) }),
      h("span", { class: "when", text: clock(request.ended_at) }),
    ),
    h(
      "td",
      { class: "way" },
      h("span", { class: "badge", "data-kind": kind, text: `${sign} ${wayName(request.route)}` }),
      h("span", { class: "why", text: said || request.outcome }),
    ),
    h("td", { class: "number", text: tokens }),
    h("td", { class: "number", text: request.ttft_s === null ? UNKNOWN : seconds(request.ttft_s) }),
    h("td", { class: "number", text: seconds(request.total_s) }),
    h("td", { class: "time" }, bar),
  );
  const inside = h("td", { colSpan: 7 });
  const detail = h("tr", { id, class: "detail", hidden: true }, inside);
  const node = h("tbody", {}, row, detail);
  more.addEventListener("click", () => {
    const open = detail.hidden;
    if (open && !inside.firstChild) {
      inside.append(
        h(
          "dl",
          { class: "facts" },
          ...facts(request).map(([name, value]) =>
            h("div", {}, h("dt", { text: name }), h("dd", { text: value })),
          ),
        ),
        stepsTable(request),
      );
    }
    show(detail, open);
    attr(more, "aria-expanded", String(open));
    if (open) opened.add(request.key);
    else opened.delete(request.key);
  });
  let drawn = 0;
  return {
    node,
    update({ scale }) {
      if (scale !== drawn) drawBar(bar, request, scale);
      drawn = scale;
    },
  };
}

export function startWaterfall(section) {
  const opened = new Set();
  let [filter, whole, latest, held, shown] = ["all", true, null, null, []];
  const redraw = () => latest && render();
  const pick = (text, options, onChange) => {
    const select = h(
      "select",
      {},
      ...options.map(([value, name]) => h("option", { value, text: name })),
    );
    select.addEventListener("change", () => {
      onChange(select.value);
      redraw();
    });
    return h("label", { text }, select);
  };
  const state = h("p", { class: "note" });
  const empty = h("p", { class: "note empty" });
  const table = h(
    "table",
    { class: "waterfall" },
    h("caption", { class: "unseen", text: "Requests that ended, newest first" }),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", {}, h("span", { class: "unseen", text: "Details" })),
        ...["Request", "Way and reason", "Tokens in → out", "TTFT", "Total", "Stages"].map(
          (text, at) => h("th", { scope: "col", class: at > 1 && at < 5 ? "number" : "", text }),
        ),
      ),
    ),
  );
  table.keyedBehind = table.tHead;
  const scroll = h(
    "div",
    { class: "scroll wide", tabIndex: 0, role: "region", "aria-label": "List of requests" },
    table,
  );
  const letters = h("ul", { class: "letters", "aria-label": "Letters of the bars" });
  const key = h(
    "div",
    { class: "key" },
    letters,
    h(
      "span",
      {},
      h("span", { class: "first still", "aria-hidden": "true" }),
      "first byte to the caller",
    ),
  );
  section.append(
    h(
      "div",
      { class: "row" },
      h("h2", { id: "requests-title", text: "Recent requests" }),
      pick(
        "Show",
        [
          ["all", "all"],
          ["trouble", "those that left their way"],
          ["alone", "those without P/D"],
        ],
        (value) => {
          filter = value;
          opened.clear(); // their rows may not be of this kind: all are made anew, closed
          keyed(table, []);
        },
      ),
      pick(
        "Bars",
        [
          ["whole", "whole request"],
          ["first", "until the first token"],
        ],
        (value) => {
          whole = value === "whole";
        },
      ),
    ),
    state,
    key,
    empty,
    scroll,
  );

  function render() {
    const store = latest;
    const fitting = store.requests.filter(FILTERS[filter]);
    // A row that somebody reads must not run away under the eyes: the list stands still meanwhile,
    // as it was on the screen when the first one was opened.
    held = opened.size === 0 ? null : (held ?? shown);
    shown = held ?? fitting.slice(-MOST).reverse();
    const longest = Math.max(0, ...shown.map((r) => (whole ? r.total_s : (r.ttft_s ?? r.total_s))));
    const scale = Number((longest * 1.02 || 1).toPrecision(2));
    show(scroll, shown.length > 0);
    show(key, shown.length > 0);
    const had = STAGES.filter(
      ({ id }) => id !== "route" && shown.some((r) => `${id}_s` in r.stages),
    );
    keyed(
      letters,
      had,
      ({ id }) => id,
      (stage) => ({ node: h("li", {}, barSample(stage), stage.name), update: () => {} }),
    );
    show(empty, shown.length === 0);
    say(
      empty,
      store.requests.length === 0
        ? "No request has ended since this page was opened or the gateway started. The chat box sends one."
        : `None of the ${many(store.requests.length, "request")} that this page knows is of that kind.`,
    );
    const newer = held ? fitting.filter((r) => r.ended_at > (held[0]?.ended_at ?? 0)).length : 0;
    say(
      state,
      shown.length === 0
        ? ""
        : `The newest ${count(shown.length)} of ${count(fitting.length)}; a full bar is ${seconds(scale)}.${held ? ` The list stands still while details are open; ${count(newer)} newer.` : ""}`,
    );
    keyed(
      table,
      shown.map((request) => ({ request, scale })),
      ({ request }) => request.key,
      ({ request }) => requestRow(request, opened),
    );
  }

  return (store) => {
    latest = store;
    render();
  };
}
