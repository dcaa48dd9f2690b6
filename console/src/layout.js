// What runs where: the two pools, the lines between them, and the pairs with what they run on.

import { h, keyed, newId, say, show, svg } from "./dom.js";
import { engineRow } from "./engine.js";
import { count, many } from "./format.js";
import { startPairs } from "./pairs.js";
import { MOST_A_SIDE, drawWires } from "./wires.js";

function pool(role, title) {
  const id = newId("pool");
  const list = h("ul", { class: "engines", role: "list" });
  const sum = h("p", { class: "sum" });
  const scroll = h(
    "div",
    { class: "scroll", tabIndex: 0, role: "region", "aria-labelledby": id },
    list,
  );
  const node = h("div", { class: `pool ${role}` }, h("h3", { id, text: title }), sum, scroll);
  return { role, node, list, sum, scroll };
}

function inWords(engines, role) {
  if (engines.length === 0)
    return role === "prefill" ? "No prefill engine is known." : "No decode engine is known.";
  const ready = engines.filter(
    (engine) => engine.state === "ready" && engine.circuit === "closed",
  ).length;
  const nodes = new Set(engines.map((engine) => engine.node).filter(Boolean)).size;
  const where = nodes ? ` on ${many(nodes, "node")}` : "";
  return `${count(ready)} of ${many(engines.length, "engine")} ready${where}`;
}

export function startLayout(section, askEvidence) {
  const [prefill, decode] = [pool("prefill", "Prefill pool"), pool("decode", "Decode pool")];
  const picture = svg("svg", { class: "picture", "aria-hidden": "true", focusable: "false" });
  const between = h("p", { class: "between" });
  const middle = h("div", { class: "middle" }, picture, between);
  const pairsBox = h("div", { class: "pairs" });
  section.append(
    h("h2", { id: "layout-title", text: "What runs where" }),
    h("div", { class: "pools" }, prefill.node, middle, decode.node),
    pairsBox,
  );
  const showPairs = startPairs(pairsBox, askEvidence);
  let drawn = null;

  function wires() {
    if (drawn === null) return;
    const { pairs, few } = drawn;
    const visible = few && middle.offsetParent !== null && middle.clientWidth > 60;
    picture.classList.toggle("unseen", !visible);
    show(between, !visible);
    if (!visible) return;
    const box = middle.getBoundingClientRect();
    const rows = new Map();
    for (const { list } of [prefill, decode]) {
      for (const [id, row] of list.keyedRows ?? []) {
        const at = row.node.getBoundingClientRect();
        rows.set(`${list === prefill.list ? "p" : "d"} ${id}`, at.top + at.height / 2 - box.top);
      }
    }
    drawWires(picture, pairs, {
      width: middle.clientWidth,
      height: Math.max(prefill.node.offsetHeight, decode.node.offsetHeight),
      place: (id) => rows.get(`p ${id}`) ?? rows.get(`d ${id}`) ?? null,
    });
  }
  new ResizeObserver(wires).observe(middle);

  return (store) => {
    const sizes = [];
    for (const { role, list, sum } of [prefill, decode]) {
      const engines = store.engines(role);
      sizes.push(engines.length);
      say(sum, inWords(engines, role));
      keyed(
        list,
        engines.map((engine) => ({ engine, told: store.facts.get(engine.replica_id) })),
        ({ engine }) => engine.replica_id,
        ({ engine }) => engineRow(engine),
      );
    }
    const pairs = store.pairs();
    const used = pairs.filter((pair) => pair.handoffs > 0).length;
    const slow = pairs.filter((pair) => pair.ok === false).length;
    const possible = sizes[0] * sizes[1];
    say(
      between,
      possible === 0
        ? "no pairs"
        : `${many(possible, "pair")} possible, ${count(used)} used in 5 min${slow ? `, ${count(slow)} slow` : ""}`,
    );
    drawn = { pairs, few: Math.max(...sizes) <= MOST_A_SIDE && possible > 0 };
    wires();
    showPairs(store, pairs);
  };
}
