// The stages of a request, as `docs/reference/timeline.md` defines them, and how each one looks.
// Colour is never alone: a bar has a hatch and a letter, a line its own dashes.

export const STAGES = [
  { id: "admit", name: "admit", letter: "A", dash: [2, 3], text: "received → understood" },
  { id: "queue", name: "queue", letter: "Q", dash: [8, 3, 2, 3], text: "understood → let in" },
  { id: "route", name: "route", letter: "r", dash: [1, 4], text: "choosing engines" },
  { id: "prefill", name: "prefill", letter: "P", dash: [], text: "prefill leg" },
  {
    id: "handoff",
    name: "handoff",
    letter: "H",
    dash: [7, 4],
    text: "KV transfer and decode's first step",
  },
  {
    id: "first_token",
    name: "first token",
    letter: "1",
    dash: [3, 2],
    text: "engine's first byte → caller",
  },
  {
    id: "local_prefill",
    name: "local prefill",
    letter: "L",
    dash: [4, 2, 1, 2],
    text: "prefill on decode",
  },
  { id: "decode", name: "decode", letter: "D", dash: [12, 3], text: "first byte → last byte" },
  {
    id: "answer",
    name: "answer",
    letter: "W",
    dash: [10, 2, 2, 2, 2, 2],
    text: "whole answer, not streamed",
  },
  { id: "overflow", name: "overflow", letter: "O", dash: [2, 2], text: "another provider" },
];

export const BY_ID = new Map(STAGES.map((stage) => [stage.id, stage]));

/** Those that the chart shows from the start; the others once a request had them. */
export const ALWAYS = ["admit", "queue", "prefill", "handoff", "decode"];

/** How a way is called for people. */
export function wayName(route) {
  return { pd: "P/D", decode_only: "decode alone", overflow: "overflow" }[route] ?? "none";
}
