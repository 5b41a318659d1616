// Runs of all threads: those that failed, grouped by error, and running them again.

import { act, get } from "./api.js";
import { address } from "./address.js";
import { inParts } from "./bulk.js";
import { savedFilters } from "./filters.js";
import { announce, cut, duration, facts, field, fill, make, number, shortId, status, time, userLink } from "./dom.js";

const STATES = [["stands", "failed, not made good"], ["failed", "all failed, made good or not"], ["", "any"], ["open", "open"], ["waiting", "asks or sleeps"], ["done", "done"], ["interrupted", "interrupted"], ["rolled_back", "rolled back"]];
const SPANS = [["", "any time"], ["15m", "the last 15 minutes"], ["1h", "the last hour"], ["6h", "the last 6 hours"], ["noon", "since noon"], ["midnight", "today"], ["1d", "the last 24 hours"], ["7d", "the last week"], ["30d", "the last 30 days"]];
const PARTS_MAX = 25; // Requests for one page, where few threads match.

// The last time that this machine's clock showed an hour, in microseconds; spans are as they are.
function sinceOf(value) {
  if (value !== "noon" && value !== "midnight") return value;
  const at = new Date();
  at.setHours(value === "noon" ? 12 : 0, 0, 0, 0);
  if (at > new Date()) at.setDate(at.getDate() - 1);
  return String(at.getTime() * 1000);
}

const options = (pairs, chosen) => pairs.map(([value, text]) => make("option", { value, selected: value === chosen }, text));
const text = (name, value, placeholder) => make("input", { type: "search", name, value: value || "", autocomplete: "off", spellcheck: false, maxLength: 300, placeholder });

export async function showRuns(main, asked) {
  const about = await get("about");
  const [mayRetry, mayCancel] = ["retry", "cancel"].map((name) => about.permissions.includes(name));
  const state = make("select", { name: "state" }, options(STATES, asked.state === "any" ? "" : asked.state || "stands"));
  const error = text("error", asked.error, "in its type or message");
  error.dataset.search = "";
  const user = text("user", asked.user, "user_id or owner");
  const since = make("select", { name: "since" }, options(SPANS, asked.since || ""));
  const graph = text("graph", asked.graph, "its whole name");
  const version = text("version", asked.version, "of its graph");
  const id = text("id", asked.id, "beginning of an id");
  const form = make("form.row", { role: "search" }, field("State", state), field("Error", error), field("User", user), field("Changed in", since), field("Thread", id), field("Graph", graph), field("Version", version), make("button", { type: "submit" }, "Search"));
  const note = make("p.quiet", { role: "status" });
  const groups = make("section", { hidden: true });
  const list = make("section");
  const more = make("button", { type: "button", hidden: true }, "More");
  const result = make("p", { role: "status", tabIndex: -1 });
  const one = make("section");
  fill(main, make("h1", {}, "Runs"), form, savedFilters("runs", filter), one, note, result, groups, list, more);

  let cursor = null;
  let examined = 0;
  let unreadable = 0;
  let asking = {}; // What the list shows; the form may have been changed since.
  let turn = 0;
  let found = [];
  let errors = new Map();
  let group = asked.group || "";

  const query = () => ({
    state: state.value === "stands" ? "failed" : state.value, stands: state.value === "stands" ? "1" : "",
    error: error.value.trim(), user: user.value.trim(), since: sinceOf(since.value), id: id.value.trim(), graph: graph.value.trim(), version: version.value.trim(), group,
  });
  const failed = (problem) => {
    note.textContent = problem.message;
    note.className = "problem";
  };

  async function load(goesOn) {
    const mine = ++turn;
    const wanted = goesOn ? found.length + 50 : 50;
    if (!goesOn) [cursor, examined, unreadable, found, errors, asking] = [null, 0, 0, [], new Map(), query()];
    note.className = "quiet";
    for (let part = 0; part < PARTS_MAX; part += 1) {
      const page = await get("runs", { ...asking, cursor });
      if (mine !== turn) return;
      examined += page.examined;
      unreadable += page.unreadable;
      found.push(...page.runs);
      for (const each of page.groups) errors.set(each.group, joined(errors.get(each.group), each));
      cursor = page.cursor;
      show();
      if (cursor === null || found.length >= wanted) break;
    }
    announce(note.textContent);
  }

  function show() {
    more.hidden = cursor === null;
    note.textContent = `${several(found.length, "run")} in ${several(new Set(found.map((each) => each.thread_id)).size, "thread")}, of ${number(examined)} examined${cursor === null ? "" : " so far"}.${unreadable ? ` ${number(unreadable)} cannot be read: run perdure fsck.` : ""}`;
    const all = [...errors.values()].sort((a, b) => b.runs - a.runs || b.last_at - a.last_at);
    groups.hidden = !all.length;
    const rest = make("p.quiet", { role: "status" });
    const every = make("button", { type: "button", onclick: () => repeatAll({}, every, rest) }, `Run all ${number(found.length)}${cursor === null ? "" : " and the rest"} again`);
    fill(groups, make("h2", {}, "By error"), mayRetry && asking.stands && all.length > 1 ? make("div.row", {}, every, rest) : null, all.map(groupShown), group ? make("p", {}, make("button", { type: "button", onclick: () => choose("") }, "Show all errors")) : null);
    fill(list, make("h2", {}, "Newest first"), mayCancel && asking.state === "open" && found.length ? stopShown() : null, found.length ? found.map((each) => runShown(each, mayRetry, again)) : make("p.quiet", {}, cursor === null ? "No run matches." : "None so far."));
  }

  function groupShown(each) {
    const outcome = make("p.quiet", { role: "status" });
    const repeat = make("button", { type: "button", onclick: () => repeatAll(each, repeat, outcome) }, "Run these again");
    repeat.setAttribute("aria-label", `Run these again, which failed with ${cut(each.is_hidden ? each.kind : `${each.kind}: ${each.message}`)}`);
    return make("div.channel", {},
      make("p", {}, make("strong", {}, `${number(each.runs)}${cursor === null ? "" : " so far"} × ${each.kind}`), each.nodes.length ? ` in ${each.nodes.map(nodeShown).join(", ")}` : "", each.is_hidden ? hidden(each.example.run_id) : [": ", make("span", {}, each.message)]),
      make("p.mark", {}, "last ", time(each.last_at), ", first ", time(each.first_at), ...versionsShown(each)),
      make("div.row", {}, group ? null : make("button", { type: "button", onclick: () => choose(each.group) }, "Show only these"), mayRetry && asking.stands ? repeat : null), outcome);
  }

  // The rest of a filter is kept, so that only what is shown is run again, and what the list has not loaded yet.
  async function repeatAll({ group: name = asking.group }, button, outcome) {
    const wanted = { ...asking, group: name };
    outcome.className = "quiet";
    button.disabled = true;
    try {
      const total = await count(wanted, outcome);
      if (total === null) return;
      if (!total) return await renew("None of them stands failed any more.");
      const sure = make("button", { type: "button" }, `Run ${number(total)} again`);
      const not = make("button", { type: "button" }, "Leave them");
      not.onclick = () => {
        fill(outcome);
        button.disabled = false;
        button.focus();
      };
      sure.onclick = () => repeat(wanted, total, outcome);
      outcome.onkeydown = (event) => {
        if (event.key === "Escape" && not.isConnected) not.click();
      };
      fill(outcome, `Run ${several(total, "failed run")} again${cursor === null ? "" : ", also those that the list has not loaded yet"}? `, sure, " ", not);
      not.focus();
    } catch (problem) {
      button.disabled = false;
      outcome.textContent = problem.message;
      outcome.className = "problem";
    }
  }

  // Returns null if the view was left.
  async function count(wanted, outcome) {
    let [runs, place] = [0, null];
    do {
      outcome.textContent = `Counting: ${number(runs)} so far …`;
      const page = await get("runs", { ...wanted, cursor: place });
      if (!outcome.isConnected) return null;
      runs += page.runs.length;
      place = page.cursor;
    } while (place !== null);
    return runs;
  }

  async function repeat(wanted, total, outcome) {
    const done = { accepted: 0, "repeated before": 0, stays: 0 };
    let reason = "";
    const add = (part) => {
      for (const one of part.reruns) {
        done[one.outcome] += 1;
        if (one.outcome === "stays") reason ||= one.reason;
      }
    };
    const words = (isOver) => {
      const tried = done.accepted + done["repeated before"] + done.stays;
      const before = done["repeated before"] ? ` ${number(done["repeated before"])} had been run again before.` : "";
      const stay = done.stays ? ` ${number(done.stays)} ${done.stays === 1 ? "stays as it was" : "stay as they were"}: ${cut(reason, 300)}.` : "";
      return isOver ? `${number(done.accepted)} of ${several(tried, "failed run")} accepted again.${before}${stay}` : `Running failed runs again: ${number(tried)} of ${number(Math.max(total, tried))} …`;
    };
    const { error: part, user: whose, since: from, id: beginning, graph: ran, version: name, group: of } = wanted;
    const isOver = await inParts("rerun-failed", { error: part, user: whose, since: from, id: beginning, graph: ran, version: name, group: of }, outcome, add, words);
    if (!isOver || !outcome.isConnected) return ended(outcome);
    fill(outcome);
    await renew(words(true));
  }

  // Reads the list anew, and says above it what was done.
  async function renew(words) {
    result.textContent = words;
    result.focus();
    await load(false).catch(failed);
  }

  function ended(outcome) {
    const look = make("button", { type: "button", onclick: () => load(false).catch(failed) }, "Look again");
    outcome.append(" ", look);
    if (document.activeElement === document.body && outcome.isConnected) look.focus();
  }

  // The open runs that the filter finds, and what waits on their threads.
  function stopShown() {
    const [outcome, sure] = [make("p.quiet", { role: "status" }), make("input", { type: "checkbox" })];
    const stop = make("button", { type: "button", disabled: true }, "Stop these runs");
    const { user: name, id: beginning } = asking;
    let stopped = 0;
    sure.onchange = () => (stop.disabled = !sure.checked);
    stop.onclick = async () => {
      stop.disabled = true;
      await inParts("stop-runs", { user: name, id: beginning }, outcome, (part) => (stopped += part.stopped.length), () => `${several(stopped, "run")} stopped.`);
      ended(outcome);
    };
    const whose = name ? `of ${name}` : beginning ? `of threads ${beginning}…` : "of everybody";
    return make("div.row", {}, make("label.check", {}, sure, ` all open runs, and the messages that wait, ${whose}`), stop, outcome);
  }

  async function again(each) {
    const done = await act("rerun", { id: each.thread_id, run_id: each.run_id });
    return done.was_repeated ? `It was run again before, as ${shortId(done.run_id)}.` : `It is run again, as ${shortId(done.run_id)}.`;
  }

  function choose(name) {
    group = name;
    go();
  }

  function filter() {
    return { state: state.value === "stands" ? "" : state.value || "any", error: error.value.trim(), user: user.value.trim(), since: since.value, id: id.value.trim(), graph: graph.value.trim(), version: version.value.trim(), group };
  }

  function go(event) {
    event?.preventDefault();
    fill(result);
    fill(one);
    history.replaceState(null, "", address("runs", filter()));
    load(false).catch(failed);
  }
  form.addEventListener("submit", (event) => {
    group = "";
    go(event);
  });
  for (const select of [state, since]) select.addEventListener("change", go);
  more.onclick = () => load(true).catch(failed);
  if (asked.run && asked.id) {
    try {
      const box = runShown(await get("run", { id: asked.id, run: asked.run }), mayRetry, again);
      box.open = true;
      fill(one, make("h2", {}, "This run"), box);
    } catch (problem) {
      fill(one, make("p.problem", { role: "alert" }, problem.message));
    }
  }
  await load(false);
  return () => {
    turn += 1;
  };
}

function joined(before, each) {
  if (!before) return each;
  const newer = each.last_at > before.last_at ? each : before;
  const versions = { ...before.versions };
  for (const [name, runs] of Object.entries(each.versions)) versions[name] = (versions[name] ?? 0) + runs;
  return { ...newer, runs: before.runs + each.runs, first_at: Math.min(before.first_at, each.first_at), nodes: [...new Set([...before.nodes, ...each.nodes])].sort(), versions };
}

// How many of a group's runs are of each version of the graph.
function versionsShown(each) {
  const all = Object.entries(each.versions);
  return all.length ? [", version ", all.map(([name, runs]) => (all.length > 1 ? `${name} (${number(runs)})` : name)).join(", ")] : [];
}

const several = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;

const nodeShown = (node) => node.replaceAll("|", " › ");

function runShown(each, mayRetry, again) {
  const detail = make("div");
  const error = each.error && [each.error.is_hidden ? each.error.kind : cut(`${each.error.kind}: ${each.error.message}`), each.error.node ? ` in ${nodeShown(each.error.node)}` : ""];
  const summary = make("summary", {}, status(each.state), " ", make("strong", {}, each.thread_id), each.user ? ` of ${each.user}` : "", ` · ${each.graph} · `, each.state === "open" ? make("span", {}, "since ", time(each.started_at)) : make("span", {}, time(each.updated_at), `, took ${duration(each.updated_at - each.started_at)}`),
    each.is_repeated ? " (run again)" : each.state === "failed" && !each.stands ? " (the thread went on)" : "", error ? make("span.error-line", {}, error) : null);
  const box = make("details.channel", {}, summary, detail);
  box.addEventListener("toggle", async () => {
    if (!box.open || detail.childNodes.length) return;
    try {
      fill(detail, ...detailShown(await get("run", { id: each.thread_id, run: each.run_id }), mayRetry, again));
    } catch (problem) {
      fill(detail, make("p.problem", { role: "alert" }, problem.message));
    }
  });
  return box;
}

function detailShown(run, mayRetry, again) {
  const outcome = make("p.quiet", { role: "status" });
  const button = make("button", { type: "button" }, "Run again");
  button.onclick = async () => {
    button.disabled = true;
    try {
      outcome.textContent = await again(run);
      announce(outcome.textContent);
    } catch (problem) {
      outcome.textContent = problem.message;
      outcome.className = "problem";
    }
  };
  const from = run.state !== "failed" || run.repeated_by ? null : run.goes_on_from ? `from its last stored step, ${run.goes_on_from.step}` : run.stands ? "from its messages, as none of its steps is stored" : "if the thread has not gone on";
  return [
    facts([["Thread", make("a", { href: address("thread", { id: run.thread_id }) }, run.thread_id)], ["User", userLink(run.user)], ["Run", make("code", {}, run.run_id)], ["Graph", run.graph], ["Version of the graph", run.graph_version && make("a", { href: address("runs", { version: run.graph_version, state: "any" }) }, run.graph_version)], ["Channel", run.channel], ["Attempts", number(run.attempts)], ["Started", time(run.started_at)],
      ["Repeats", run.repeats ? make("code", {}, run.repeats) : null], ["Repeated by", run.repeated_by ? make("code", {}, run.repeated_by) : null], ["Runs again", from]]),
    make("div.row", {}, mayRetry && run.state === "failed" && !run.repeated_by ? button : null, outcome),
    ...(run.error ? errorShown(run) : []),
  ].filter(Boolean);
}

function errorShown({ run_id: id, error }) {
  if (error.is_hidden) return [make("p.problem", {}, error.kind, hidden(id))];
  return [
    make("pre.problem", {}, `${error.kind}: ${error.message}`),
    ...(error.traceback ? traced(error.traceback) : [make("p.quiet", {}, "No traceback is stored.")]),
  ];
}

// What to do where a server shows its users no texts of errors.
function hidden(id) {
  return make("span.quiet", {}, " Its text and traceback are not shown here: ", make("code", {}, `perdure runs show ${id}`), " prints them.");
}

const LIBRARIES = "\nframes of libraries:\n";

// The frames of the project, and those of libraries folded.
function traced(text) {
  const place = text.lastIndexOf(LIBRARIES);
  const trace = (words, label) => make("pre.trace", { tabIndex: 0, role: "region", "aria-label": label }, words);
  if (place < 0) return [trace(text, "Traceback")];
  return [trace(text.slice(0, place), "Traceback"), make("details", {}, make("summary", {}, "Frames of libraries"), trace(text.slice(place + LIBRARIES.length), "Frames of libraries"))];
}
