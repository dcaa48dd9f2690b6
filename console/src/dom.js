// Builds and changes the page. Text goes in as text: names of models and engines, ids and errors
// come from elsewhere, and nothing here can turn one of them into markup.

/**
 * An element. `props`: `class`, `text`, `on` (listeners), properties of the element, and attributes
 * by their names where there is no such property. Children are nodes or strings.
 */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name in node && !name.startsWith("aria")) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element; all of `attributes` are attributes. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** Sets a text if it is another one: a screen reader must not be told what has not changed. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets an attribute if it is another one. */
export function attr(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/**
 * Brings the children of `parent` in line with `items` and keeps the nodes of those that stay, so
 * that focus and selection survive an update.
 *
 * `make(item)` returns `{node, update(item)}`; `key(item)` a string. What stands in front of the
 * rows, such as a table's head, is named by `parent.keyedBehind`.
 */
export function keyed(parent, items, key, make) {
  const had = parent.keyedRows ?? new Map();
  const wanted = new Map(items.map((item) => [key(item), item]));
  const has = new Map();
  for (const [name, row] of had) if (!wanted.has(name)) row.node.remove();
  let at = parent.keyedBehind ? parent.keyedBehind.nextSibling : parent.firstChild;
  for (const [name, item] of wanted) {
    const row = had.get(name) ?? make(item);
    row.update(item);
    has.set(name, row);
    if (row.node === at) at = at.nextSibling;
    else parent.insertBefore(row.node, at);
  }
  parent.keyedRows = has;
}

let counted = 0;

/** An id that no other element has. */
export function newId(prefix) {
  counted += 1;
  return `${prefix}-${counted}`;
}
