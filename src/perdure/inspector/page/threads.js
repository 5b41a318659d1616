// The list of threads: search, order, pages that load as one scrolls, and news every few seconds.

import { get } from "./api.js";
import { THREAD_BYTES, announce, brief, bytes, count, field, fill, hide, make, number, cell, threadStatus, time, userLink, whenSeen } from "./dom.js";
import { address } from "./address.js";
import { changedIn, savedFilters } from "./filters.js";
import { money } from "./steps.js";

const EVERY_MS = 4000;
const LARGEST = 50; // As many as an answer has: those that it leaves out are smaller.
const HEADINGS = ["Thread", "Status", "Graph", "User", "Activity", "Created", "Metadata"];
const STATUSES = ["", "idle", "busy", "interrupted", "error"];
const SEARCHED = ["words", "user", "graph", "error", "tag", "cost", "since"]; // Conditions for which threads are read one by one.
const PARTS_MAX = 25; // Requests for one page, where few threads match.

export async function showThreads(main, asked) {
  const id = make("input", { type: "search", name: "id", value: asked.id || "", autocomplete: "off", spellcheck: false, placeholder: "beginning of an id" });
  const title = make("input", { type: "search", name: "title", value: asked.title || "", autocomplete: "off", placeholder: "a part of it" });
  const metadata = make("input", { type: "search", name: "metadata", value: asked.metadata || "", autocomplete: "off", spellcheck: false, placeholder: 'key=value or {"key": …}' });
  const state = make("select", { name: "status" }, STATUSES.map((name) => make("option", { value: name, selected: name === (asked.status || "") }, name || "any")));
  const sort = make("select", { name: "sort" }, [["activity", "latest activity"], ["newest", "newest first"], ["age", "oldest first"], ["size", "largest first"], ["id", "by id"]].map(([value, text]) => make("option", { value, selected: value === (asked.sort || "activity") }, text)));
  const text = (name, placeholder) => make("input", { type: "search", name, value: asked[name] || "", autocomplete: "off", maxLength: 300, placeholder });
  const [words, user, graph, error, tag] = [text("words", "in a message or the title"), text("user", "user_id or owner"), text("graph", "its whole name"), text("error", "of the newest run"), text("tag", "its whole name")];
  const cost = make("input", { type: "number", name: "cost", value: asked.cost || "", min: "0", step: "any", autocomplete: "off", placeholder: "at least" });
  const since = changedIn(asked.since);
  const further = { words, user, graph, error, tag, cost, since };
  let chosen = sort.value; // Threads that are searched by id come by id or by size, whatever was chosen before.
  for (const each of [words, id, title, user, metadata]) each.size = 15;
  words.dataset.search = ""; // The key / leads here.
  const orders = () => {
    const isSearched = SEARCHED.some((name) => further[name].value.trim());
    for (const option of sort.options) option.disabled = isSearched ? option.value !== (id.value ? "id" : "activity") : Boolean(id.value) && !["id", "size"].includes(option.value);
    sort.value = isSearched ? (id.value ? "id" : "activity") : id.value && chosen !== "size" ? "id" : chosen;
  };
  orders();
  const form = make("form", { role: "search" },
    make("div.row", {}, field("Words", words), field("Id", id), field("Title", title), field("User", user), field("Metadata", metadata), field("Status", state), field("Order", sort), make("button", { type: "submit" }, "Search")),
    make("details", { open: SEARCHED.some((name) => !["words", "user"].includes(name) && asked[name]) }, make("summary", {}, "Graph, error, tag, cost, time"),
      make("p.quiet", {}, "Of these, the words and the user, only the time is indexed: threads are read, the latest activity first."),
      make("div.row", {}, field("Graph", graph), field("Error", error), field("Tag", tag), field("Cost", cost), field("Changed in", since))));
  const filter = () => ({ id: id.value, title: title.value, metadata: metadata.value, status: state.value, ...Object.fromEntries(SEARCHED.map((name) => [name, further[name].value.trim()])), sort: chosen === "activity" ? "" : chosen });
  const go = (event) => {
    event.preventDefault();
    orders();
    history.replaceState(null, "", address("threads", filter()));
    load().catch(failed);
  };
  form.addEventListener("submit", go);
  state.addEventListener("change", go);
  sort.addEventListener("change", (event) => {
    chosen = sort.value;
    go(event);
  });
  since.addEventListener("change", go);
  id.addEventListener("input", orders);

  const body = make("tbody");
  const note = make("p.quiet", { role: "status" });
  const stop = make("button", { type: "button", hidden: true }, "Stop");
  const end = make("p.end");
  const head = make("tr");
  const shown = make("table.cards", {}, make("caption.unseen", {}, "Threads"), make("thead", {}, head), body);
  fill(main, make("h1", {}, "Threads"), form, savedFilters("threads", filter), make("div.row", {}, note, stop), shown, end);

  let cursor = null;
  let pages = 0;
  let turn = 0; // Of the last search: answers to earlier ones are passed over.
  const query = () => ({ id: id.value, title: title.value.trim(), metadata: asJson(metadata.value), status: state.value, sort: sort.value, ...Object.fromEntries(SEARCHED.map((name) => [name, further[name].value.trim()])) });
  const isLimited = () => [id, title, metadata, state].some((each) => each.value.trim());
  const isSearched = () => SEARCHED.some((name) => further[name].value.trim());
  const failed = (error) => {
    note.textContent = error.message;
    note.className = "problem";
  };

  // Sizes are not kept anywhere: threads are measured a part at a time, and the largest so far are shown.
  async function measured(mine) {
    let examined = 0;
    let matching = 0;
    let total = 0;
    let place = null;
    let largest = [];
    cursor = null;
    stop.hidden = false;
    body.replaceChildren();
    do {
      const page = await get("threads", { ...query(), cursor: place });
      if (mine !== turn) return;
      examined += page.examined;
      matching += page.measured;
      total += page.bytes;
      largest = [...largest, ...page.threads].sort((a, b) => (b.bytes ?? -1) - (a.bytes ?? -1)).slice(0, LARGEST);
      place = page.cursor;
      const held = body.contains(document.activeElement) ? document.activeElement.closest("tr").dataset.id : null;
      body.replaceChildren(...largest.map((each) => row(each, words.value.trim())));
      if (held !== null) body.querySelector(`tr[data-id="${CSS.escape(held)}"] a`)?.focus();
      const extent = place === null ? ", which is all" : " so far";
      const sum = isLimited() ? `${number(examined)} threads examined${extent}; ${count(matching, "matches", "match")}, with ${bytes(total)}.` : `${number(examined)} threads measured${extent}: ${bytes(total)}.`;
      note.textContent = `${sum}${largest.length === LARGEST ? ` The ${LARGEST} largest of them are shown.` : ""} ${THREAD_BYTES}`;
    } while (place !== null);
    hide(stop, note);
    announce(note.textContent);
  }
  stop.onclick = () => {
    turn += 1;
    note.textContent += " Stopped.";
    hide(stop, note);
  };

  // Threads are read one by one, a part at a time, until a page is full.
  async function searched(mine) {
    let examined = 0;
    cursor = null;
    stop.hidden = false;
    body.replaceChildren();
    for (let part = 0; part < PARTS_MAX && body.children.length < 50; part += 1) {
      const page = await get("threads", { ...query(), cursor });
      if (mine !== turn) return;
      examined += page.examined;
      cursor = page.cursor;
      body.append(...page.threads.map((each) => row(each, words.value.trim())));
      note.textContent = `${number(body.children.length)} found in ${number(examined)} threads${cursor === null ? ", which are all" : " so far"}.`;
      if (cursor === null) break;
    }
    hide(stop, note);
    announce(note.textContent);
  }

  async function load() {
    const mine = ++turn;
    note.className = "quiet";
    note.textContent = "";
    stop.hidden = true;
    fill(head, (sort.value === "size" ? [...HEADINGS, "Size"] : HEADINGS).map((text) => make("th", { scope: "col" }, text)));
    if (sort.value === "size") {
      pages = 1;
      return measured(mine).catch((error) => {
        if (mine !== turn) return;
        stop.hidden = true;
        failed(error);
      });
    }
    if (isSearched()) {
      pages = 2; // It is not repeated by itself: it may have taken a while.
      return searched(mine);
    }
    const page = await get("threads", query());
    if (mine !== turn) return;
    body.replaceChildren(...page.threads.map((each) => row(each, words.value.trim())));
    cursor = page.cursor;
    pages = 1;
    note.textContent = page.threads.length || cursor ? "" : "No thread matches.";
    announce(`${page.threads.length}${cursor ? " and more" : ""} threads`);
  }

  async function more() {
    if (!cursor) return true;
    const mine = turn;
    try {
      const page = await get("threads", { ...query(), cursor });
      if (mine !== turn) return true;
      const known = new Set([...body.children].map((each) => each.dataset.id));
      body.append(...page.threads.filter((each) => !known.has(each.thread_id)).map((each) => row(each, words.value.trim())));
      cursor = page.cursor;
      pages += 1;
      if (!cursor && !body.children.length) note.textContent = "No thread matches.";
    } catch (error) {
      failed(error);
    }
    return true;
  }

  if (sort.value === "size" || isSearched()) load().catch(failed);
  else await load();
  const watcher = whenSeen(end, more);
  const news = setInterval(async () => {
    // Further pages would move under the reader.
    if (document.hidden || sort.value === "size" || pages > 1 || body.contains(document.activeElement)) return;
    await load().catch(failed);
  }, EVERY_MS);
  return () => {
    turn += 1;
    clearInterval(news);
    watcher.disconnect();
  };
}

// A thread that was found by words opens at the message that has them.
function row(thread, words = "") {
  const place = words && thread.excerpt ? { view: "conversation", words } : {};
  const cells = [
    [make("a", { href: address("thread", { id: thread.thread_id, ...place }) }, thread.thread_id), thread.title ? make("span.title", {}, thread.title) : null, thread.excerpt ? make("span.excerpt", {}, `${thread.speaker ? `${thread.speaker}: ` : ""}${thread.excerpt}`) : null, thread.cost === undefined ? null : make("span.excerpt", {}, `cost ${money(thread.cost, thread.currency)}`)].filter(Boolean),
    [threadStatus(thread), thread.run && thread.run.attempts > 1 ? ` ${thread.run.attempts} attempts` : "", thread.fault ? make("span.problem", {}, brief(thread.fault)) : null].filter(Boolean),
    thread.graph_id || thread.run?.graph || "",
    make("span", {}, (thread.users || [thread.user]).filter((name) => name !== null).flatMap((name, index) => [index ? ", " : "", userLink(name)])),
    time(thread.updated_at),
    time(thread.created_at),
    make("span.metadata", {}, Object.entries(thread.metadata).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join("  ")),
  ];
  if (thread.bytes !== undefined) cells.push(bytes(thread.bytes));
  const headings = [...HEADINGS, "Size"];
  return make("tr", { "data-id": thread.thread_id }, cells.map((content, index) => cell(headings[index], content)));
}

// key=value pairs, or JSON as it is.
function asJson(text) {
  const trimmed = text.trim();
  if (!trimmed || trimmed.startsWith("{")) return trimmed;
  const pairs = trimmed.split(/\s+/).map((pair) => pair.split(/=(.*)/s));
  return JSON.stringify(Object.fromEntries(pairs.map(([name, value]) => [name, parsed(value ?? "")])));
}

function parsed(text) {
  return /^(true|false|null|-?\d+(\.\d+)?)$/.test(text) ? JSON.parse(text) : text;
}
