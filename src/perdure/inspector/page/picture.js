// The graph of a thread drawn in layers, as SVG, with the way that the latest steps took.

import { get } from "./api.js";
import { make, number } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 30;
const GAP = 46;
const BETWEEN = 36;
const LONGEST = 28;
const SMALLEST = 0.7;
const NAMES = new Map([["__start__", "start"], ["__end__", "end"]]);

export async function picture(id) {
  const [drawn, page] = await Promise.all([get("picture", { id }), get("steps", { id })]);
  const taken = taking(page.steps, drawn.graph !== null);
  const place = make("div.picture", { tabIndex: 0, role: "region", "aria-label": "Graph" });
  const known = drawn.graph || { nodes: [...taken.nodes.keys()].map((name) => ({ id: name, name })), edges: [...taken.edges.keys()].map((key) => JSON.parse(key)).map(([source, target]) => ({ source, target, conditional: false, label: null })) };
  if (!drawn.graph) place.append(make("p.quiet", {}, `Only what ran is drawn: ${drawn.reason}.`));
  if (!known.nodes.length) return make("p.quiet", {}, "Nothing has run yet.");
  const visits = [...taken.nodes].filter(([name]) => !NAMES.has(name)).map(([name, count]) => `${name} ${number(count)}×`);
  place.append(draw(known, taken, visits));
  place.append(make("p.quiet", {}, visits.length ? `In the latest ${number(page.steps.length)} steps: ${visits.join(", ")}.` : "No step is stored."));
  return place;
}

// How often each node ran, and each edge was taken, by the ids that the graph's nodes have. A node with a subgraph is
// drawn as the nodes of that: edges to it lead to the first of them, edges from it come from the last.
function taking(steps, withSubgraphs) {
  const nodes = new Map();
  const edges = new Map();
  const up = (map, key) => map.set(key, (map.get(key) || 0) + 1);
  const take = (from, to) => {
    for (const one of new Set(from)) for (const other of new Set(to)) up(edges, JSON.stringify([one, other]));
  };
  const walk = (some, prefix) => {
    const start = prefix ? [] : ["__start__"];
    const end = prefix ? [] : ["__end__"];
    let first = null;
    let before = start;
    for (const step of some) {
      if (step.source === "input") {
        if (before !== start) take(before, end);
        before = start;
      }
      if (!step.nodes.length) continue;
      const inner = step.tasks.filter((task) => withSubgraphs && task.node && task.steps.some((each) => each.nodes.length)).map((task) => [task.node, walk(task.steps, `${prefix}${task.node}:`)]);
      const within = new Map(inner);
      const names = (side) => step.nodes.flatMap((name) => (within.get(name)?.[side].length ? within.get(name)[side] : [prefix + name]));
      for (const name of step.nodes) if (!within.has(name)) up(nodes, prefix + name);
      take(before, names("first"));
      first ||= names("first");
      before = names("last");
      if (step.tasks.some((task) => task.state !== "done")) before = start;
    }
    if (before !== start) take(before, end);
    return { first: first || [], last: before };
  };
  walk([...steps].reverse(), "");
  if (nodes.size) nodes.set("__start__", 1);
  if ([...edges.keys()].some((key) => JSON.parse(key)[1] === "__end__")) nodes.set("__end__", 1);
  return { nodes, edges };
}

// Layers by the longest way from the start, with edges that lead back turned around; long edges get a place in each
// layer between. Within a layer the order follows the neighbours above.
function layout(graph) {
  const ids = graph.nodes.map((node) => node.id);
  const out = new Map(ids.map((id) => [id, []]));
  const edges = graph.edges.filter((edge) => out.has(edge.source) && out.has(edge.target));
  for (const edge of edges) out.get(edge.source).push(edge);
  const state = new Map();
  const order = [];
  const visit = (first) => {
    const stack = [[first, 0]];
    state.set(first, 1);
    while (stack.length) {
      const top = stack.at(-1);
      const edge = out.get(top[0])[top[1]++];
      if (!edge) {
        state.set(top[0], 2);
        order.push(top[0]);
        stack.pop();
      } else if (!state.has(edge.target)) {
        state.set(edge.target, 1);
        stack.push([edge.target, 0]);
      } else if (state.get(edge.target) === 1) edge.isBack = true;
    }
  };
  for (const id of [...ids.filter((each) => each === "__start__"), ...ids]) if (!state.has(id)) visit(id);
  const layer = new Map(ids.map((id) => [id, 0]));
  for (const id of order.reverse()) for (const edge of out.get(id)) if (!edge.isBack) layer.set(edge.target, Math.max(layer.get(edge.target), layer.get(id) + 1));
  const layers = [];
  const put = (level, cell) => (layers[level] ||= []).push(cell);
  const cells = new Map(graph.nodes.map((node) => [node.id, { id: node.id, width: width(node), above: [] }]));
  for (const id of ids) put(layer.get(id), cells.get(id));
  const lines = edges.map((edge) => {
    const [from, to] = edge.isBack ? [edge.target, edge.source] : [edge.source, edge.target];
    const chain = [cells.get(from)];
    for (let level = layer.get(from) + 1; level < layer.get(to); level += 1) {
      const dummy = { width: 12, above: [] };
      put(level, dummy);
      chain.push(dummy);
    }
    if (from !== to) chain.push(cells.get(to));
    for (let at = 1; at < chain.length; at += 1) chain[at].above.push(chain[at - 1]);
    return { edge, chain };
  });
  layers.forEach((cellsOf, level) => {
    if (level) cellsOf.sort((a, b) => middle(a) - middle(b));
    cellsOf.forEach((cell, index) => (cell.order = index));
  });
  const wide = Math.max(...layers.map((cellsOf) => cellsOf.reduce((sum, cell) => sum + cell.width + BETWEEN, -BETWEEN)));
  layers.forEach((cellsOf, level) => {
    let x = (wide - cellsOf.reduce((sum, cell) => sum + cell.width + BETWEEN, -BETWEEN)) / 2;
    for (const cell of cellsOf) {
      Object.assign(cell, { x: x + cell.width / 2, y: level * (HEIGHT + GAP) });
      x += cell.width + BETWEEN;
    }
  });
  return { cells, lines, wide, high: layers.length * (HEIGHT + GAP) - GAP };
}

const middle = (cell) => (cell.above.length ? cell.above.reduce((sum, each) => sum + each.order, 0) / cell.above.length : 0);
const label = (node) => {
  const name = NAMES.get(node.id) || node.id.replaceAll(":", " / ");
  return name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name;
};
const pen = document.createElement("canvas").getContext("2d");
pen.font = "13px system-ui, sans-serif";
const width = (node) => Math.max(48, pen.measureText(label(node)).width + 24);

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function draw(graph, taken, visits) {
  const { cells, lines, wide, high } = layout(graph);
  const count = (edge) => taken.edges.get(JSON.stringify([edge.source, edge.target])) || 0;
  const paths = lines.map(({ edge, chain }) => svg("path", { d: path(edge, chain), class: `edge${edge.conditional ? " is-conditional" : ""}${count(edge) ? " is-taken" : ""}`, "marker-end": `url(#${count(edge) ? "tip-taken" : "tip"})` }, svg("title", {}, `${edge.source} → ${edge.target}${edge.label ? `, ${edge.label}` : ""}${count(edge) ? `, taken ${count(edge)} times` : ""}`)));
  const boxes = graph.nodes.map((node) => {
    const cell = cells.get(node.id);
    const times = NAMES.has(node.id) ? 0 : taken.nodes.get(node.id);
    const word = svg("text", { x: cell.x, y: cell.y + HEIGHT / 2 + 4, "text-anchor": "middle" }, label(node));
    return svg("g", { class: `box${taken.nodes.has(node.id) ? " is-taken" : ""}` }, svg("title", {}, node.id),
      svg("rect", { x: cell.x - cell.width / 2, y: cell.y, width: cell.width, height: HEIGHT, rx: NAMES.has(node.id) ? HEIGHT / 2 : 6 }), word,
      times ? svg("text", { x: cell.x + cell.width / 2 + 3, y: cell.y + 10, class: "times" }, `${times}×`) : null);
  });
  const tip = (id) => svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 10, markerHeight: 10, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" }, svg("path", { d: "M0 0 8 4 0 8z" }));
  const words = `The graph: ${graph.nodes.map((node) => NAMES.get(node.id) || node.id).join(", ")}. ${visits.length ? `Ran: ${visits.join(", ")}.` : ""}`;
  const drawing = svg("svg", { viewBox: `-30 -6 ${wide + 90} ${high + 12}`, width: wide + 90, role: "img", "aria-label": words }, svg("defs", {}, tip("tip"), tip("tip-taken")), ...paths, ...boxes);
  // A wide graph is scrolled rather than made too small to read.
  drawing.style.minWidth = `${Math.round((wide + 90) * SMALLEST)}px`;
  return drawing;
}

// A curve through the places of an edge's chain, from its source's edge to its target's.
function path(edge, chain) {
  if (chain.length === 1) {
    const { x, y, width: wide } = chain[0];
    return `M${x + wide / 2} ${y + 8}c26 -6 26 20 0 14`;
  }
  const places = edge.isBack ? [...chain].reverse() : chain;
  const side = edge.isBack ? 10 : 0;
  const points = places.map((cell, index) => {
    const isEnd = index === places.length - 1;
    const y = index === 0 ? (edge.isBack ? cell.y : cell.y + HEIGHT) : isEnd ? (edge.isBack ? cell.y + HEIGHT : cell.y) : cell.y + HEIGHT / 2;
    return [cell.x + side, y];
  });
  let d = `M${points[0].join(" ")}`;
  for (let at = 1; at < points.length; at += 1) {
    const [x0, y0] = points[at - 1];
    const [x1, y1] = points[at];
    const half = (y1 - y0) / 2;
    d += `C${x0} ${y0 + half} ${x1} ${y1 - half} ${x1} ${y1}`;
  }
  return d;
}
