// One thread: its facts, its timeline or branches, and the checkpoint that is selected.

import { get } from "./api.js";
import { facts, field, fill, focusIfLost, long, make, number, pages, runLink, shortId, status, threadStatus, time } from "./dom.js";
import { address } from "./address.js";
import { actions } from "./actions.js";
import { agent } from "./agent.js";
import { showCheckpoint } from "./checkpoint.js";
import { conversation } from "./conversation.js";
import { files } from "./files.js";
import { messages } from "./messages.js";
import { picture } from "./picture.js";
import { showSteps } from "./steps.js";

const VIEWS = [["steps", "Steps"], ["conversation", "Conversation"], ["agent", "Agent"], ["files", "Files"], ["graph", "Graph"], ["timeline", "Checkpoints"], ["branches", "Branches"], ["messages", "Inbox"]];

export async function showThread(main, asked) {
  const id = asked.id || "";
  let about = await get("thread", { id });
  let selected = asked;

  const detail = make("section.detail", { "aria-label": "Checkpoint" });
  const list = make("div.timeline");
  const left = make("div.left");
  const top = make("div");
  const place = make("div.split", {}, left, detail);
  fill(main,
    make("p", {}, make("a", { href: address("threads") }, "← Threads")),
    make("h1.name-of-thread", { title: about.title || id }, about.title || id),
    about.title ? make("p.quiet", {}, make("code", {}, id)) : null,
    about.permissions.includes("replay") && about.has_state ? make("p", {}, make("a", { href: address("replay", { id }) }, "Replay by a graph")) : null,
    top,
    place);
  const showTop = () => fill(top, header(about), make("div.actions", {}, actions(about, () => ({ checkpoint: selected.checkpoint || "", namespace: selected.namespace || "" }), changed)));

  // After an action: the thread as it is now, at the new checkpoint if there is one.
  async function changed(checkpoint) {
    about = await get("thread", { id });
    showTop();
    await choose(view);
    const next = link(checkpoint || selected.checkpoint);
    if (checkpoint && location.hash !== next) location.hash = next;
    else await select();
    focusIfLost(main.querySelector("h1"));
  }
  showTop();

  const namespaces = Object.keys(about.heads);
  const namespace = make("select", {}, (namespaces.length ? namespaces : [""]).map((name) => make("option", { value: name, selected: name === (asked.namespace || "") }, name || "the graph itself")));
  const compact = make("input", { type: "checkbox", checked: localStorage.getItem("perdure.compact") === "yes" });
  const views = make("div.tabs", { role: "group", "aria-label": "History as" }, VIEWS.map(([name, text]) => make("button", { type: "button", "data-view": name, onclick: () => turnTo(name) }, text)));
  const ofSubgraphs = field("Subgraph", namespace);
  ofSubgraphs.dataset.of = "steps conversation agent files timeline branches";
  const controls = make("div.row", {}, views, make("label.check", { "data-of": "timeline" }, compact, " runs only"), namespaces.length > 1 ? ofSubgraphs : null);
  fill(left, controls, list);
  compact.addEventListener("change", () => {
    localStorage.setItem("perdure.compact", compact.checked ? "yes" : "no");
    list.classList.toggle("is-compact", compact.checked);
  });
  list.classList.toggle("is-compact", compact.checked);
  namespace.addEventListener("change", () => (location.hash = address("thread", { id, namespace: namespace.value, view })));

  const link = (checkpoint) => address("thread", { id, namespace: selected.namespace, checkpoint, view: view === "steps" ? "" : view });
  let watcher = null;
  let view = VIEWS.some(([name]) => name === asked.view) ? asked.view : "steps";
  let turn = 0;

  // The address has the view, so that a link to it can be shared.
  async function turnTo(name) {
    view = name;
    history.replaceState(null, "", link(selected.checkpoint));
    await choose(name);
  }

  async function choose(name) {
    view = name;
    const mine = ++turn;
    for (const each of controls.querySelectorAll("[data-of]")) each.hidden = !each.dataset.of.split(" ").includes(name);
    for (const button of views.children) button.setAttribute("aria-pressed", button.dataset.view === name);
    watcher?.disconnect();
    watcher = null;
    list.replaceChildren(make("p.quiet", {}, "Loading…"));
    // What comes late for a view that was left meanwhile is dropped.
    const place = make("div");
    let found = null;
    try {
      if (name === "branches") await branches(place);
      else if (name === "messages") fill(place, await messages(id));
      else if (name === "conversation") fill(place, await conversation(id, selected.namespace, selected.words));
      else if (name === "agent") fill(place, await agent({ id, namespace: selected.namespace, checkpoint: selected.checkpoint }));
      else if (name === "files") fill(place, await files({ id, namespace: selected.namespace, checkpoint: selected.checkpoint }));
      else if (name === "graph") fill(place, await picture(id));
      else if (name === "steps") found = await showSteps(place, about, selected, mark);
      else found = await timeline(place);
    } catch (error) {
      fill(place, make("p.problem", { role: "alert" }, error.message));
    }
    if (mine !== turn) return found?.disconnect();
    watcher = found;
    fill(list, name === "messages" || name === "branches" || name === "agent" || name === "files" || name === "graph" ? null : waiting(about), place);
    mark();
  }

  async function timeline(place) {
    const groups = make("div");
    let cursor = null;
    let last = null;
    let shown = 0;
    const load = async () => {
      const page = await get("timeline", { id, namespace: selected.namespace, before: cursor });
      for (const each of page.checkpoints) {
        if (!last || last.dataset.run !== (each.run_id || "")) {
          last = group(id, each.run_id, page.runs[each.run_id]);
          groups.append(last);
        }
        last.lastChild.append(entry(each, link, about.heads[each.namespace]));
        if (each.is_cut) last.lastChild.append(make("li.cut", {}, "Older checkpoints between were removed."));
      }
      cursor = page.cursor;
      shown += page.checkpoints.length;
      if (!page.checkpoints.length && !groups.children.length) fill(groups, make("p.quiet", {}, "No checkpoint is stored yet."));
      mark();
      return cursor !== null;
    };
    const { line, end, watch } = pages(load, groups, () => (cursor === null ? "" : `The newest ${number(shown)} checkpoints`));
    fill(place, line, groups, end);
    return watch();
  }

  async function branches(place) {
    const tree = await get("branches", { id, namespace: selected.namespace });
    fill(place, make("p.quiet", {}, `${number(tree.total)} checkpoints in ${number(tree.branches.length)} ${tree.branches.length === 1 ? "branch" : "branches"}.`),
      make("ul.tree", {}, tree.branches.map((branch) => make("li", { "data-depth": String(Math.min(branch.depth, 8)) },
        make("a", { href: link(branch.last), "data-checkpoint": branch.last }, `${branch.has_head ? "● " : "○ "}${number(branch.count)} ${branch.count === 1 ? "checkpoint" : "checkpoints"}, to step ${branch.steps[1]}`),
        make("span.quiet", {}, branch.forked_from ? `  from ${shortId(branch.forked_from)}` : "  from the start", branch.has_head ? ", the latest" : "", branch.source === "fork" ? ", a fork" : ""),
        branch.tags.map((name) => make("span.tag", {}, name))))));
  }

  function mark() {
    for (const each of list.querySelectorAll("a[data-checkpoint]")) {
      if (each.dataset.checkpoint === selected.checkpoint) each.setAttribute("aria-current", "true");
      else each.removeAttribute("aria-current");
    }
    place.classList.toggle("has-selection", Boolean(selected.checkpoint));
  }

  async function select() {
    mark();
    if (!selected.checkpoint && !about.has_state) return fill(detail);
    try {
      await showCheckpoint(detail, about, selected);
    } catch (error) {
      fill(detail, make("p.problem", { role: "alert" }, error.message));
    }
    // Within the list alone: the page stays where its reader is.
    const step = selected.step && list.querySelector('a[aria-current="true"]');
    if (step) left.scrollTop += step.getBoundingClientRect().top - left.getBoundingClientRect().top - left.clientHeight / 2;
  }

  const follow = async (event) => {
    const before = selected;
    selected = event.detail;
    const isStep = Boolean(selected.step) && selected.step !== before.step;
    const next = isStep ? "steps" : VIEWS.some(([name]) => name === selected.view) ? selected.view : view;
    const isElsewhere = (before.namespace || "") !== (selected.namespace || "");
    const isEarlier = (next === "files" || next === "agent") && (before.checkpoint || "") !== (selected.checkpoint || "");
    if (next !== view || isElsewhere || isStep || isEarlier) await choose(next);
    await select();
    if (selected.checkpoint && selected.checkpoint !== before.checkpoint) detail.querySelector("h2")?.focus({ preventScroll: !isNarrow() });
    else if (!selected.checkpoint && before.checkpoint) list.querySelector(`a[data-checkpoint="${CSS.escape(before.checkpoint)}"]`)?.focus();
  };
  addEventListener("selected", follow);
  // Arrow keys move along the checkpoints, Enter opens one.
  list.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const links = [...list.querySelectorAll("a[data-checkpoint]")].filter((each) => each.offsetParent);
    const next = links[links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1)];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  });
  await choose(view);
  await select();
  list.querySelector("[data-found]")?.focus();
  return () => {
    removeEventListener("selected", follow);
    watcher?.disconnect();
  };
}

const isNarrow = () => matchMedia("(max-width: 60rem)").matches;

function header(about) {
  const queue = about.queue;
  return facts([
    ["Status", threadStatus(about)],
    ["Graph", about.graph_id || about.run?.graph],
    ["User", about.user ? make("a", { href: address("user", { user: about.user }) }, about.user) : null],
    ["Activity", about.updated_at ? time(about.updated_at) : null],
    ["Created", about.created_at ? time(about.created_at) : null],
    ["Error", about.run?.error ? make("span", {}, long(about.run.error), " ", runLink(about.thread_id, about.run.run_id, "Traceback")) : null],
    ["Cannot be read", about.fault],
    ["Messages that wait", queue.pending ? number(queue.pending) : null],
    ["Open run", queue.run_id ? runLink(about.thread_id, queue.run_id, queue.run_id) : null],
    ["Lease", queue.owner ? [queue.owner, " until ", time(queue.lease_until)].reduce((all, each) => (all.append(each), all), make("span")) : null],
    ["Next attempt", queue.retry_at ? time(queue.retry_at) : null],
    ["Run that asks", about.asks || !about.waits.length ? queue.waiting : null],
    ["Waits", about.waits.length ? make("span", {}, about.waits.map((wait) => make("span.tag", {}, wait.text, wait.until ? [" Until ", time(wait.until)] : null))) : null],
    ["Replies to send", about.outbox.pending ? number(about.outbox.pending) : null],
    ["Metadata", Object.keys(about.metadata).length ? long(JSON.stringify(about.metadata)) : null],
    ["Tags", about.tags.length ? make("span", {}, about.tags.map((tag) => make("a.tag", { href: address("thread", { id: about.thread_id, namespace: tag.namespace, checkpoint: tag.checkpoint_id }) }, tag.name))) : null],
  ]);
}

function waiting(about) {
  if (!about.queue.pending) return null;
  return make("p.notice", {}, `${number(about.queue.pending)} ${about.queue.pending === 1 ? "message waits" : "messages wait"} for a run.`);
}

function group(id, runId, run) {
  const title = runId
    ? make("h2.run", {}, "Run ", runLink(id, runId, shortId(runId)), " ", run ? status(run.state) : null)
    : make("h2.run", {}, "Outside of a run");
  const about = run
    ? make("p.quiet", {}, [run.graph, run.attempts > 1 ? `${run.attempts} attempts` : "1 attempt", run.last > run.first ? `messages ${run.first} to ${run.last}` : `message ${run.first}`].filter(Boolean).join(" · "), run.error ? make("span.problem", {}, " ", long(run.error), " ", runLink(id, runId, "Traceback")) : null)
    : null;
  return make("section.group", { "data-run": runId || "" }, title, about, make("ol"));
}

function entry(each, link, head) {
  const tasks = each.tasks.length;
  const asked = each.tasks.some((task) => task.asked);
  const answered = each.tasks.some((task) => task.answered);
  const failed = each.tasks.some((task) => task.failed);
  const words = [each.step === null ? "" : `step ${each.step}`, each.source, each.updated.length ? each.updated.join(", ") : ""].filter(Boolean).join(" · ");
  return make("li", {}, make("a", { href: link(each.checkpoint_id), "data-checkpoint": each.checkpoint_id },
    make("span", {}, words || "checkpoint"),
    each.checkpoint_id === head ? make("span.tag", {}, "latest") : null,
    each.tags.map((name) => make("span.tag", {}, name)),
    asked ? make("span.tag.is-asked", {}, answered ? "interrupt, answered" : "interrupt") : null,
    failed ? make("span.tag.is-bad", {}, "a task failed") : null,
    tasks ? make("span.quiet", {}, ` ${tasks} ${tasks === 1 ? "task" : "tasks"}`) : null,
    make("span.when", {}, time(each.at))));
}
