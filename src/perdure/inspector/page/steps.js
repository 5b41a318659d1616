// The way of a thread by its nodes: runs with their steps, tasks and subgraphs as a tree, with a waterfall of times.

import { get } from "./api.js";
import { address } from "./address.js";
import { announce, duration, field, fill, long, make, number, pages, runLink, shortId, status, time } from "./dom.js";

const WAY = 24;
const FEW = 12;
const PAUSE = 1e6;
const STATES = { asked: ["is-asked", "waits for an answer"], failed: ["is-bad", "failed"], open: ["is-asked", "not over"] };

// Fills the list with a namespace's steps, from the step that is selected by its number or else the newest, page by page
// as they come into view; returns the watcher, if there is more. A step that is selected so becomes the selected checkpoint.
export async function showSteps(list, about, selected, mark) {
  const id = about.thread_id;
  const sums = make("div.sums");
  const groups = make("div");
  const problem = make("p.problem", { role: "alert", hidden: true });
  const wanted = make("input", { type: "number", name: "step", min: "-1", step: "1", required: true, value: selected.step || "" });
  const form = make("form.row.go", {}, field("Go to step", wanted), make("button", { type: "submit" }, "Go"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = address("thread", { id, namespace: selected.namespace, step: wanted.value });
  });
  const shown = [];
  let cursor = null;
  let newest = null;
  let step = selected.step;
  const load = async () => {
    let page = null;
    try {
      page = await get("steps", { id, namespace: selected.namespace, before: cursor, step });
    } catch (error) {
      if (!step) throw error;
      problem.textContent = error.message;
      problem.hidden = false;
      page = await get("steps", { id, namespace: selected.namespace });
    }
    newest ??= page.newest;
    if (step) selected.checkpoint ||= page.steps.find((each) => String(each.step) === step)?.checkpoint_id || "";
    step = null;
    add(shown, groups, page.steps, about);
    cursor = page.cursor;
    if (!shown.length) fill(groups, make("p.quiet", {}, "No step is stored yet."));
    sum(sums, shown, id, cursor === null && !selected.namespace && hasAll(shown, Object.keys(about.heads)));
    mark();
    return cursor !== null;
  };
  const range = () => {
    const numbers = shown.flatMap((group) => group.steps.map((each) => each.step)).filter((each) => each !== null);
    if (!numbers.length) return [];
    const [first, last] = [Math.min(...numbers), Math.max(...numbers)];
    const most = Math.max(last, newest ?? last);
    return [`Steps ${number(first)} to ${number(last)} of ${number(most)} `, last < most ? make("a", { href: address("thread", { id, namespace: selected.namespace, step: String(most) }) }, "Latest") : null];
  };
  const { line, end, watch } = pages(load, groups, range);
  fill(list, sums, make("div.row.place", {}, line, form), problem, groups, end);
  return watch();
}

// Steps come newest first; those of one run, or up to an input, are one group.
function add(shown, groups, steps, about) {
  const changed = new Set();
  for (const step of steps) {
    let group = shown.at(-1);
    if (!group || group.run !== step.run_id || group.isWhole) {
      group = { run: step.run_id, steps: [], isWhole: false, place: make("section.group", { "data-run": step.run_id || "" }) };
      shown.push(group);
      groups.append(group.place);
    }
    group.steps.unshift(step);
    if (!step.run_id && step.source !== "loop") group.isWhole = true;
    changed.add(group);
  }
  for (const group of changed) {
    const held = group.place.contains(document.activeElement) ? document.activeElement.dataset.checkpoint : null;
    fill(group.place, ...draw(group, about));
    if (held) group.place.querySelector(`a[data-checkpoint="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
  }
}

function draw(group, about) {
  const run = about.runs.find((each) => each.run_id === group.run);
  const steps = group.steps.filter((step) => step.tasks.length || step.nodes.length || step.source !== "loop");
  const began = group.steps.find((step) => step.began_at || step.ended_at);
  const scale = placed(steps);
  const usage = total(steps.map((step) => step.usage));
  const title = group.run ? ["Run ", runLink(about.thread_id, group.run, shortId(group.run)), " ", run ? status(run.state) : null] : [group.steps[0].source === "update" ? "Edit" : "Turn"];
  return [
    make("h2.run", {}, title, began ? make("span.when", {}, time(began.began_at || began.ended_at)) : null),
    way(steps),
    make("p.quiet", {}, [scale.total ? duration(scale.total) : null, tokens(usage)].filter(Boolean).join(" · ")),
    run?.error ? make("div.problem", {}, long(run.error), " ", runLink(about.thread_id, group.run, "Traceback")) : null,
    make("ol.waterfall", {}, rows(steps, scale, about, 0)),
  ];
}

// Whether the steps that are shown are those of all subgraphs too: a page has a limited number of them, and one that keeps
// its state between runs has steps that belong to no task.
function hasAll(groups, namespaces) {
  const found = new Set();
  let isCut = false;
  const walk = (step) => {
    found.add(step.namespace);
    for (const task of step.tasks) {
      isCut ||= task.is_cut;
      task.steps.forEach(walk);
    }
  };
  groups.forEach((group) => group.steps.forEach(walk));
  return !isCut && namespaces.every((name) => found.has(name));
}

// agent → tools → agent; what ran at once stands together.
function way(steps) {
  const parts = steps.map((step) => step.nodes).filter((nodes) => nodes.length);
  if (!parts.length) return null;
  const cut = parts.length > WAY ? parts.slice(0, WAY) : parts;
  const words = cut.map((nodes) => {
    const counts = new Map();
    for (const node of nodes) counts.set(node, (counts.get(node) || 0) + 1);
    const names = [...counts].map(([node, count]) => (count > 1 ? `${node} ×${count}` : node));
    return names.length > 1 ? `(${names.join(", ")})` : names[0];
  });
  return make("p.way", {}, words.flatMap((word, index) => [index ? make("span.arrow", { "aria-label": "then" }, " → ") : null, make("span.node", {}, word)]), parts.length > cut.length ? ` → … ${number(parts.length - cut.length)} more` : null);
}

// Where each step is on the axis of the time that steps took: pauses between them count nothing.
function placed(steps) {
  const starts = new Map();
  let total = 0;
  let last = null;
  for (const step of steps) {
    const took = step.began_at && step.ended_at ? Math.max(0, step.ended_at - step.began_at) : 0;
    starts.set(step, { at: total, pause: last && step.began_at ? step.began_at - last : 0 });
    total += took;
    last = step.ended_at || last;
  }
  return { starts, total, base: 0 };
}

function rows(steps, scale, about, depth) {
  return steps.flatMap((step) => {
    const start = scale.starts.get(step);
    const pause = start.pause > PAUSE ? make("li.pause", {}, `${duration(start.pause)} later`) : null;
    if (!step.tasks.length) return [pause, depth ? null : plainRow(step, about)];
    const tasks = step.tasks.filter((task) => !task.caller);
    return [pause, ...tasks.map((task) => taskRow(task, step, scale, about, depth))];
  });
}

function plainRow(step, about) {
  const name = step.nodes.length ? step.nodes.join(", ") : step.source;
  const took = step.nodes.length && step.began_at && step.ended_at ? duration(step.ended_at - step.began_at) : "";
  return make("li", {}, link(step, about, [make("span.name", {}, name)], took, "", null));
}

function taskRow(task, step, scale, about, depth) {
  const [kind, word] = task.state === "asked" && about.waits.length && !about.asks ? ["is-asked", about.waits.every((wait) => wait.kind === "sleep") ? "sleeps" : "waits"] : STATES[task.state] || [];
  const took = task.began_at && task.ended_at ? task.ended_at - task.began_at : null;
  const start = scale.starts.get(step);
  const at = start.at + (task.began_at && step.began_at ? task.began_at - step.began_at : 0);
  const bar = took === null || !scale.total ? null : make("span.bar");
  if (bar) {
    const from = Math.min(100, ((scale.base + at) / scale.total) * 100);
    bar.style.setProperty("--from", `${from}%`);
    bar.style.setProperty("--took", `${Math.min(100 - from, (took / scale.total) * 100)}%`);
  }
  const called = step.tasks.filter((each) => each.caller === task.task_id && each !== task);
  const inner = task.steps.filter((each) => each.tasks.length);
  const words = [make("span.name", {}, task.node || "a task"), word ? make(`span.tag.${kind}`, {}, word) : null];
  const row = make("li", {}, link(step, about, words, took === null ? "" : duration(took), tokens(task.usage), bar));
  if (called.length) row.append(make("ol", {}, called.map((each) => taskRow(each, step, scale, about, depth + 1))));
  if (inner.length || task.is_cut) row.append(subgraph(task, inner, scale, at, about, depth));
  return row;
}

// The steps of a task's subgraph, on the same axis.
function subgraph(task, inner, scale, at, about, depth) {
  const first = inner.find((step) => step.began_at)?.began_at;
  const starts = new Map(inner.map((step) => [step, { at: at + (task.began_at && step.began_at ? Math.max(0, step.began_at - task.began_at) : step.began_at && first ? step.began_at - first : 0), pause: 0 }]));
  const steps = rows(inner, { ...scale, starts }, about, depth + 1);
  const more = task.is_cut ? task.namespaces.map((namespace) => make("li", {}, make("a", { href: address("thread", { id: about.thread_id, namespace }) }, "All of its steps"))) : [];
  return make("details", { open: inner.length <= FEW }, make("summary.quiet", {}, `${number(inner.length)} ${inner.length === 1 ? "step" : "steps"} of its subgraph`), make("ol", {}, steps, more));
}

function link(step, about, words, took, counted, bar) {
  const checkpoint = step.checkpoint_id || step.parent_id;
  const href = address("thread", { id: about.thread_id, namespace: step.namespace, checkpoint });
  const numbered = step.step === null ? null : make("span.quiet", {}, make("span.unseen", {}, "step "), `${step.step} `);
  return make("a.step", { href, "data-checkpoint": checkpoint }, make("span.what", {}, numbered, words), make("span.took", {}, took), bar ? make("span.track", { "aria-hidden": "true" }, bar) : make("span"), counted ? make("span.quiet.counted", {}, counted) : null);
}

// Tokens and costs

export function total(usages) {
  const sum = { calls: 0, input: 0, output: 0, cache_read: 0, reasoning: 0, cost: null, currency: null, unpriced: [] };
  for (const each of usages) {
    for (const name of ["calls", "input", "output", "cache_read", "reasoning"]) sum[name] += each[name];
    if (each.cost !== null) sum.cost = (sum.cost || 0) + each.cost;
    sum.currency ||= each.currency;
    sum.unpriced = [...new Set([...sum.unpriced, ...each.unpriced])];
  }
  return sum;
}

export const money = (cost, currency) => `${cost === 0 ? "0" : Number(cost.toPrecision(4))} ${currency || ""}`.trim();

export function tokens(usage) {
  if (!usage.calls) return "";
  return `${number(usage.input)} tokens in, ${number(usage.output)} out${usage.cost === null ? "" : ` · ${money(usage.cost, usage.currency)}`}`;
}

function sum(place, groups, id, isWhole) {
  if (place.dataset.isCounted) return; // The count of the whole thread stays while further steps come.
  const usage = total(groups.flatMap((group) => group.steps).map((step) => step.usage));
  const words = isWhole ? "Tokens of this thread" : "Tokens of the steps below";
  fill(place,
    usage.calls ? make("p", {}, `${words}: `, ...details(usage)) : isWhole ? make("p.quiet", {}, "No tokens were counted: no answer of a model with a count is stored.") : null,
    isWhole ? null : make("button", { type: "button", onclick: (event) => count(place, id, event.target) }, "Count the whole thread"));
}

function details(usage) {
  const more = [usage.cache_read ? `${number(usage.cache_read)} in from a cache` : null, usage.reasoning ? `${number(usage.reasoning)} out of reasoning` : null].filter(Boolean);
  return [`${number(usage.input)} in, ${number(usage.output)} out, in ${number(usage.calls)} ${usage.calls === 1 ? "call" : "calls"}`, more.length ? make("span.quiet", {}, ` (${more.join(", ")})`) : null,
    usage.cost === null ? null : make("strong", {}, ` ${money(usage.cost, usage.currency)}`), usage.unpriced.length ? make("span.quiet", {}, ` without a price: ${usage.unpriced.slice(0, 5).join(", ")}`) : null];
}

// Reads all of a thread's answers, part by part; each call counts once.
async function count(place, id, button) {
  button.disabled = true;
  place.dataset.isCounted = "yes";
  const calls = new Map();
  const usage = { calls: 0, input: 0, output: 0, cache_read: 0, reasoning: 0, cost: null, currency: null, unpriced: [] };
  let cursor = null;
  try {
    do {
      const part = await get("usage", { id, cursor });
      for (const call of part.calls) {
        if (call.id !== null && calls.has(call.id)) continue;
        if (call.id !== null) calls.set(call.id, true);
        usage.calls += 1;
        for (const name of ["input", "output", "cache_read", "reasoning"]) usage[name] += call[name];
        if (call.cost !== null) usage.cost = (usage.cost || 0) + call.cost;
      }
      usage.currency ||= part.usage.currency;
      usage.unpriced = [...new Set([...usage.unpriced, ...part.usage.unpriced])];
      cursor = part.cursor;
      button.textContent = `Counted ${number(usage.calls)} calls…`;
    } while (cursor !== null && place.isConnected);
    const counted = make("p", { tabIndex: -1 }, "Tokens of this thread: ", ...details(usage));
    fill(place, counted);
    if (document.activeElement === document.body) counted.focus(); // The button had it, and is gone.
    announce("The thread is counted.");
  } catch (error) {
    delete place.dataset.isCounted;
    fill(place, make("p.problem", { role: "alert" }, error.message));
  }
}
