// Where the time goes, over time: a percentile of each stage of requests that ended, drawn by uPlot.
// The table beside it has the same stages in numbers, and is the chart's legend.

import uPlot from "uplot";
import { attr, h, keyed, say, show } from "./dom.js";
import { clock, count, many, seconds, tick } from "./format.js";
import { ALWAYS, STAGES } from "./stages.js";
import { overTime, percentile, stageSeconds } from "./stats.js";
import { colour, onTheme } from "./theme.js";
import { lineSample } from "./samples.js";

const SPANS = [
  { name: "1 min", span: 60, step: 2 },
  { name: "5 min", span: 300, step: 5 },
  { name: "15 min", span: 900, step: 15 },
];
const PERCENTILES = [50, 95, 99];
const HEIGHT = 280;

function choice(legend, name, options, chosen, onChange) {
  const set = h("fieldset", { class: "choice" }, h("legend", { text: legend }));
  for (const { text, value } of options) {
    const input = h("input", {
      type: "radio",
      name,
      value: String(value),
      checked: value === chosen,
    });
    input.addEventListener("change", () => onChange(value));
    set.append(h("label", {}, input, h("span", { text })));
  }
  return set;
}

function stageRow(stage, hidden, redraw) {
  const box = h("input", { type: "checkbox", checked: !hidden.has(stage.id) });
  box.addEventListener("change", () => {
    if (box.checked) hidden.delete(stage.id);
    else hidden.add(stage.id);
    redraw();
  });
  const label = h(
    "label",
    { title: stage.text },
    box,
    lineSample(stage),
    h("span", { text: stage.name }),
  );
  const cells = Array.from({ length: 4 }, () => h("td", { class: "number" }));
  return {
    node: h("tr", {}, h("th", { scope: "row" }, label), ...cells),
    update({ times }) {
      for (const [at, p] of PERCENTILES.entries())
        say(cells[at], times.length ? seconds(percentile(times, p)) : "–");
      say(cells[3], count(times.length));
    },
  };
}

/** The plot itself; made anew when its lines or the colours change. */
class Plot {
  #plot = null;
  #shape = "";

  constructor(box, readout) {
    this.box = box;
    this.readout = readout;
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(box);
    onTheme(() => {
      this.#shape = "";
    });
  }

  #size() {
    return { width: Math.max(200, this.box.clientWidth), height: HEIGHT };
  }

  draw(stages, { times, values }) {
    const data = [times, ...stages.map((stage) => values[stage.id])];
    const shape = stages.map((stage) => stage.id).join();
    if (shape === this.#shape) {
      this.#plot.setData(data);
      return;
    }
    this.#plot?.destroy();
    this.#shape = shape;
    this.#plot = new uPlot(this.#options(stages), data, this.box);
  }

  #options(stages) {
    const [ink, grid] = [colour("muted"), colour("grid")];
    const axis = {
      stroke: ink,
      font: "12px system-ui, sans-serif",
      grid: { stroke: grid, width: 1 },
      ticks: { stroke: grid, width: 1 },
    };
    return {
      ...this.#size(),
      legend: { show: false },
      cursor: { y: false, points: { size: 7 } },
      scales: {
        x: { time: true },
        y: {
          distr: 3,
          range: (_, low, high) =>
            low === null || high === null
              ? [0.001, 1]
              : uPlot.rangeLog(Math.max(low, 1e-5), Math.max(high, 1e-4), 10, true),
        },
      },
      axes: [
        { ...axis, space: 90, values: (_, times) => times.map(clock) },
        { ...axis, size: 62, values: (_, ticks) => ticks.map(tick) },
      ],
      series: [
        {},
        ...stages.map((stage) => ({
          label: stage.name,
          stroke: colour(stage.id),
          width: 2,
          dash: stage.dash,
          points: { show: true, size: 4, fill: colour(stage.id), filter: alone },
        })),
      ],
      hooks: { setCursor: [(plot) => this.#read(plot, stages)] },
    };
  }

  #read(plot, stages) {
    const at = plot.cursor.idx;
    if (at === null || at === undefined) {
      say(this.readout, "");
      return;
    }
    const said = stages.flatMap((stage, number) => {
      const value = plot.data[number + 1][at];
      return value === null || value === undefined ? [] : [`${stage.name} ${seconds(value)}`];
    });
    say(this.readout, `${clock(plot.data[0][at])}  ${said.join(" · ") || "no request ended"}`);
  }
}

/** Points without neighbours: a line cannot show them. */
function alone(plot, series, isShown) {
  if (isShown === false) return null;
  const values = plot.data[series];
  const found = [];
  for (let at = 0; at < values.length; at += 1) {
    const empty = (other) => values[other] === null || values[other] === undefined;
    if (!empty(at) && empty(at - 1) && empty(at + 1)) found.push(at);
  }
  return found;
}

export function startPhases(section) {
  const hidden = new Set(["route", "first_token"]); // microseconds, as a rule
  let [span, p, latest] = [SPANS[1], 95, null];
  const redraw = () => latest && render(latest);
  const box = h("div", { class: "plot", "aria-hidden": "true" });
  const readout = h("p", { class: "readout", "aria-hidden": "true" });
  const words = h("figcaption", { class: "note" });
  const empty = h("p", { class: "note", text: "No request has ended in this time." });
  const rows = h("tbody");
  const legend = h(
    "table",
    { class: "legend" },
    h("caption", {
      class: "unseen",
      text: "Stages of requests that ended in the time that is shown",
    }),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ...["Stage", "p50", "p95", "p99", "requests"].map((text, at) =>
          h("th", { scope: "col", class: at ? "number" : "", text }),
        ),
      ),
    ),
    rows,
  );
  const series = h("table");
  const details = h(
    "details",
    {},
    h("summary", { text: "The chart as a table" }),
    h(
      "div",
      { class: "scroll wide", tabIndex: 0, role: "region", "aria-label": "The chart as a table" },
      series,
    ),
  );
  details.addEventListener("toggle", redraw);
  section.append(
    h(
      "div",
      { class: "row" },
      h("h2", { id: "phases-title", text: "Where the time goes" }),
      choice(
        "Line",
        "percentile",
        PERCENTILES.map((value) => ({ text: `p${value}`, value })),
        p,
        (value) => {
          p = value;
          redraw();
        },
      ),
      choice(
        "Time",
        "span",
        SPANS.map((value) => ({ text: value.name, value: value.name })),
        span.name,
        (name) => {
          span = SPANS.find((one) => one.name === name);
          redraw();
        },
      ),
    ),
    h(
      "div",
      { class: "halves" },
      h("figure", {}, box, readout, empty, words),
      h(
        "div",
        { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Stages in numbers" },
        legend,
      ),
    ),
    details,
  );
  const plot = new Plot(box, readout);
  onTheme(() => setTimeout(redraw));

  function render(store) {
    const requests = store.recent(span.span);
    const had = STAGES.filter(
      ({ id }) => ALWAYS.includes(id) || requests.some((r) => `${id}_s` in r.stages),
    );
    keyed(
      rows,
      had.map((stage) => ({ stage, times: stageSeconds(requests, stage.id) })),
      ({ stage }) => stage.id,
      ({ stage }) => stageRow(stage, hidden, redraw),
    );
    const lines = had.filter(({ id }) => !hidden.has(id));
    const found = overTime(
      requests,
      lines.map(({ id }) => id),
      p,
      { ...span, now: store.last.gateway.now },
    );
    show(empty, requests.length === 0);
    plot.draw(lines, found);
    const part = store.leftOut
      ? `; ${many(store.leftOut, "request")} ended faster than this page could read them and are not in it`
      : "";
    const short = store.isShort(span.span) ? "; older ones of them are no longer kept here" : "";
    say(
      words,
      `p${p} of each stage in steps of ${span.step} s, from ${many(requests.length, "request")} that ended in ${span.name}${part}${short}. The scale is logarithmic.`,
    );
    attr(box, "data-lines", String(lines.length));
    if (details.open) asTable(lines, found);
  }

  function asTable(lines, { times, values }) {
    const full = times
      .map((time, at) => ({ time, at }))
      .filter(({ at }) => lines.some(({ id }) => values[id][at] !== null))
      .reverse();
    series.replaceChildren(
      h("caption", { class: "unseen", text: `p${p} of each stage, newest first` }),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col", text: "Until" }),
          ...lines.map(({ name }) => h("th", { scope: "col", class: "number", text: name })),
        ),
      ),
      h(
        "tbody",
        {},
        ...full.map(({ time, at }) =>
          h(
            "tr",
            {},
            h("th", { scope: "row", text: clock(time) }),
            ...lines.map(({ id }) =>
              h("td", {
                class: "number",
                text: values[id][at] === null ? "–" : seconds(values[id][at]),
              }),
            ),
          ),
        ),
      ),
    );
  }

  return (store) => {
    latest = store;
    render(store);
  };
}
