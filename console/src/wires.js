// The lines between the two pools, where there are few enough to be told apart. What they say stands
// in the table of pairs as well, so they are hidden from screen readers.

import { svg } from "./dom.js";
import { gigabytes } from "./format.js";

export const MOST_A_SIDE = 8;
const MOST_LABELS = 4;

/** Draws `pairs` between rows; `place(replicaId)` gives a row's middle in the picture or null. */
export function drawWires(picture, pairs, { width, height, place }) {
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("height", height);
  const most = Math.max(1, ...pairs.map((pair) => pair.handoffs));
  const drawn = [];
  for (const pair of pairs) {
    const [from, to] = [place(pair.prefill), place(pair.decode)];
    if (from === null || to === null) continue;
    const slow = pair.ok === false || pair.verdict?.outcome === "FAIL";
    const kind = slow ? "slow" : pair.ok === null ? "unknown" : "well";
    const bend = width / 2;
    drawn.push(
      svg("path", {
        d: `M0 ${from} C${bend} ${from} ${bend} ${to} ${width} ${to}`,
        class: `wire ${kind}`,
        "stroke-width": pair.handoffs ? 1.5 + 4 * Math.sqrt(pair.handoffs / most) : 1,
      }),
    );
    if (pairs.length > MOST_LABELS || pair.gbPerS === null) continue;
    // Two lines cross in the middle and level ones pass there: each label stands where its line is
    // alone.
    const t = Math.abs(from - to) < 8 ? 0.72 : 0.3;
    const y =
      (1 - t) ** 3 * from + 3 * (1 - t) ** 2 * t * from + 3 * (1 - t) * t * t * to + t ** 3 * to;
    const x = 3 * (1 - t) ** 2 * t * bend + 3 * (1 - t) * t * t * bend + t ** 3 * width;
    const label = svg("text", {
      x,
      y: to > from + 8 ? y + 14 : y - 7,
      class: `wire-label ${kind}`,
      "text-anchor": "middle",
    });
    label.textContent = `${slow ? "slow, " : ""}${gigabytes(pair.gbPerS)}`;
    drawn.push(label);
  }
  picture.replaceChildren(...drawn);
}
