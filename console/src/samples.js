// How a stage looks: as a line of the chart and as a piece of a bar.

import { h, svg } from "./dom.js";
import { seconds } from "./format.js";
import { BY_ID } from "./stages.js";

export function lineSample({ id, dash }) {
  return svg(
    "svg",
    { class: `sample ink-${id}`, viewBox: "0 0 26 8", "aria-hidden": "true", focusable: "false" },
    svg("line", { x1: 1, y1: 4, x2: 25, y2: 4, "stroke-dasharray": dash.join(" ") || "none" }),
  );
}

export function barSample({ id, letter }) {
  return h("span", { class: `piece still fill-${id}`, "aria-hidden": "true", text: letter });
}

/**
 * The steps of a request as pieces of one bar that is `scale` seconds long, and in words for those
 * who do not see it. A piece that is too short for its letter has none.
 */
export function drawBar(bar, request, scale) {
  const pieces = [];
  for (const { stage, at_s: at, seconds: took } of request.steps) {
    const known = BY_ID.get(stage);
    if (!known || at > scale) continue;
    const [left, width] = [(at / scale) * 100, (Math.min(took, scale - at) / scale) * 100];
    const piece = h("span", { class: `piece fill-${stage}`, text: width > 4 ? known.letter : "" });
    piece.style.insetInlineStart = `${left}%`;
    piece.style.inlineSize = `max(2px, ${width}%)`;
    pieces.push(piece);
  }
  if (request.ttft_s !== null && request.ttft_s <= scale) {
    const first = h("span", { class: "first" });
    first.style.insetInlineStart = `${(request.ttft_s / scale) * 100}%`;
    pieces.push(first);
  }
  bar.replaceChildren(...pieces);
}

/** `prefill 84 ms, handoff 31 ms, decode 1.2 s`: the stages in the order in which they began. */
export function inWords(request) {
  const order = [];
  for (const { stage } of request.steps) if (!order.includes(stage)) order.push(stage);
  const said = order.map(
    (stage) => `${BY_ID.get(stage)?.name ?? stage} ${seconds(request.stages[`${stage}_s`])}`,
  );
  return said.join(", ") || "no stage was reached";
}
