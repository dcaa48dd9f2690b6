// A small chat box: asks the gateway as any client does, and shows where the time of that very
// request went. What is written here stays in this page; nothing keeps it.

import { chat } from "./api.js";
import { h, say, show } from "./dom.js";
import { count, many, perSecond, seconds } from "./format.js";
import { drawBar, inWords } from "./samples.js";
import { events } from "./sse.js";
import { BY_ID, wayName } from "./stages.js";

const MOST_LETTERS = 60000;

function turn(who, text) {
  const body = h("p", { class: "text", text });
  return {
    body,
    node: h(
      "div",
      { class: `turn ${who}` },
      h("p", { class: "speaker", text: who === "me" ? "You" : "Model" }),
      body,
    ),
  };
}

/** What the request took: as seen here, and as the gateway says. */
function timing(timeline, hereS, piecesS) {
  const bar = h("div", { class: "bar", role: "img", "aria-label": inWords(timeline) });
  drawBar(bar, timeline, timeline.total_s);
  const written = timeline.completion_tokens;
  const rows = [
    ["TTFT", `${seconds(timeline.ttft_s)} at the gateway, ${seconds(hereS)} in this browser`],
    ["Way", `${wayName(timeline.route)} (${timeline.reason ?? "no reason given"})`],
    ...Object.keys(timeline.stages).map((name) => {
      const stage = name.replace(/_s$/, "");
      return [BY_ID.get(stage)?.name ?? stage, seconds(timeline.stages[name])];
    }),
    ["Total", seconds(timeline.total_s)],
    [
      "Tokens",
      written === null
        ? "not counted"
        : `${count(written)}${piecesS > 0 && written > 1 ? `, ${perSecond((written - 1) / piecesS)} /s` : ""}`,
    ],
    ["Engines", [timeline.prefill_engine, timeline.decode_engine].filter(Boolean).join(" → ")],
    ["Left its way", timeline.fallbacks.join(", ")],
  ].filter(([, value]) => value);
  return h(
    "div",
    { class: "timing" },
    bar,
    h(
      "dl",
      { class: "facts" },
      ...rows.map(([name, value]) =>
        h("div", {}, h("dt", { text: name }), h("dd", { text: value })),
      ),
    ),
  );
}

export function startChat(section, onLocked) {
  const log = h("div", {
    class: "talk scroll",
    role: "log",
    "aria-label": "Conversation",
    tabIndex: 0,
  });
  const hint = h("p", {
    class: "note",
    text: "Ask something: the answer comes with its TTFT and the time of each stage.",
  });
  const model = h("select", { required: true });
  const most = h("input", { type: "number", min: 1, max: 4096, value: 128, inputMode: "numeric" });
  const text = h("textarea", { rows: 2, maxLength: MOST_LETTERS, required: true, id: "chat-text" });
  const send = h("button", { type: "submit", class: "primary", text: "Send" });
  const stop = h("button", { type: "button", text: "Stop", hidden: true });
  const fresh = h("button", { type: "button", class: "quiet", text: "New conversation" });
  const state = h("p", { class: "note", role: "status" });
  const form = h(
    "form",
    {},
    h("label", { for: "chat-text", text: "Your message" }),
    text,
    h(
      "div",
      { class: "row" },
      h("label", { text: "Model" }, model),
      h("label", { text: "Tokens at most" }, most),
      send,
      stop,
    ),
  );
  log.append(hint);
  section.append(
    h("div", { class: "row" }, h("h2", { id: "chat-title", text: "Try a request" }), fresh),
    log,
    state,
    form,
  );

  let [turns, running] = [[], null];

  async function ask() {
    const asked = text.value.trim();
    if (!asked || running) return;
    const began = performance.now();
    const since = () => (performance.now() - began) / 1000;
    const answer = turn("model", "");
    log.append(turn("me", asked).node, answer.node);
    log.setAttribute("aria-busy", "true"); // the answer is read out when it is whole
    show(hint, false);
    text.value = "";
    busy(true);
    say(state, "Waiting for the first token…");
    running = new AbortController();
    let [said, first, last, timeline, failed] = ["", null, null, null, null];
    try {
      const messages = [...turns, { role: "user", content: asked }];
      const body = {
        model: model.value,
        messages,
        stream: true,
        max_tokens: Number(most.value) || 128,
        stream_options: { include_usage: true },
      };
      const response = await chat(body, running.signal);
      for await (const event of events(response)) {
        if (event.timing) timeline = event.timing;
        if (!event.data || event.data === "[DONE]") continue;
        const found = JSON.parse(event.data);
        if (found.error) failed = found.error.message ?? "The stream ended with an error.";
        const piece = found.choices?.[0]?.delta?.content;
        if (!piece) continue;
        last = since();
        if (first === null) {
          first = last;
          say(state, `First token after ${seconds(first)}; the answer is being written…`);
        }
        said += piece;
        answer.body.textContent = said;
        log.scrollTop = log.scrollHeight;
      }
      turns = [...messages, { role: "assistant", content: said }];
    } catch (error) {
      if (error.name === "AbortError")
        failed = "Stopped. The gateway frees what the engines held for it.";
      else if (error.status) failed = error.message;
      else failed = "The connection broke before the answer was whole.";
      if (error.status === 401) onLocked();
    }
    running = null;
    busy(false);
    log.removeAttribute("aria-busy");
    if (failed) answer.node.append(h("p", { class: "notice bad", text: failed }));
    if (timeline) answer.node.append(timing(timeline, first, first === null ? 0 : last - first));
    log.scrollTop = log.scrollHeight;
    say(
      state,
      failed
        ? ""
        : `Done: ${many(timeline?.completion_tokens ?? 0, "token")}, TTFT ${seconds(timeline?.ttft_s ?? first)}.`,
    );
  }

  function busy(is) {
    show(send, !is);
    show(stop, is);
    fresh.disabled = is;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  stop.addEventListener("click", () => {
    running?.abort();
    text.focus();
  });
  fresh.addEventListener("click", () => {
    turns = [];
    log.replaceChildren(hint);
    show(hint, true);
    say(state, "");
    text.focus();
  });

  return (store) => {
    const names = store.last.models;
    if ([...model.options].map((option) => option.value).join("\n") !== names.join("\n")) {
      const chosen = model.value;
      model.replaceChildren(...names.map((name) => h("option", { value: name, text: name })));
      if (names.includes(chosen)) model.value = chosen;
    }
    send.disabled = names.length === 0;
  };
}
