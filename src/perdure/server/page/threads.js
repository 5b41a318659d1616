// The sidebar with the list of conversations: newest first, searched, renamed in place, deleted with undo; on a narrow
// screen it is a drawer.

import * as api from "./api.js";
import { titleOf } from "./conversation.js";
import { announce, at, element, iconButton } from "./dom.js";
import * as link from "./link.js";

const PAGE = 40;
const FOUND_MOST = 100;
const UNDO = 6000;
const STATUS = { busy: "Answering…", interrupted: "Waits for you", error: "Failed" };
const STEPS = [[60, "second", 1], [3600, "minute", 60], [86400, "hour", 3600], [604800, "day", 86400], [2629800, "week", 604800], [31557600, "month", 2629800], [Infinity, "year", 31557600]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

const titles = new Map(); // of threads without a title: their first message
const deleted = new Map(); // timers of threads that are about to be deleted
let rows = [];
let more = false;
let limit = PAGE;
let current = null;
let renaming = null;
let search = null; // {words, rows, isOver}
let actions = {};

function when(moment) {
  const ago = (Date.now() - Date.parse(moment)) / 1000;
  if (!(ago >= 45)) return "Just now";
  const [, unit, seconds] = STEPS.find(([end]) => ago < end);
  const words = relative.format(-Math.round(ago / seconds), unit);
  return words[0].toUpperCase() + words.slice(1);
}

export const titled = (row) => row.metadata?.title ?? row.metadata?.name ?? titles.get(row.thread_id) ?? "Untitled conversation";

export function begin(done) {
  actions = done;
  at("find").addEventListener("input", () => find(at("find").value.trim()));
  at("find").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && at("find").value) {
      event.stopPropagation();
      at("find").value = "";
      find("");
    } else if (event.key === "ArrowDown") {
      event.preventDefault();
      at("threads").querySelector(".thread")?.focus();
    }
  });
}

// Searches titles and messages. The server reads a part of the conversations for each request, the newest first.
async function find(words) {
  const own = search = words ? { words, rows: [], isOver: false } : null;
  draw();
  let cursor = 0;
  while (own && search === own && cursor !== null && own.rows.length < FOUND_MOST) {
    let page;
    try {
      page = await link.persist(() => api.found(words, cursor));
    } catch (failure) {
      own.fault = failure.message;
      break;
    }
    // A conversation that goes on meanwhile moves to the front, and others by one place.
    own.rows.push(...page.found.filter((row) => !own.rows.some((one) => one.thread_id === row.thread_id)));
    cursor = page.cursor;
    if (search === own) draw();
  }
  if (!own || search !== own) return;
  own.isOver = true;
  draw();
}

// Reloads the list, and returns the row of a thread, if it is in the list.
export async function refresh() {
  const found = await api.threads(limit);
  const unnamed = found.rows.filter((row) => !row.metadata?.title && !row.metadata?.name && !titles.has(row.thread_id));
  if (unnamed.length) {
    for (const { thread_id: id, extracted } of await api.firstMessages(unnamed.map((row) => row.thread_id))) {
      const first = extracted?.kind === "system" ? extracted.second : extracted?.first; // the user's
      const text = Array.isArray(first) ? first.map((part) => part.text ?? "").join(" ") : first;
      if (typeof text === "string" && text.trim()) titles.set(id, titleOf(text));
    }
  }
  ({ rows, more } = found);
  draw();
  return rows;
}

export function select(id) {
  current = id;
  for (const button of document.querySelectorAll(".thread")) {
    if (button.dataset.id === id) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
}

export const rowOf = (id) => [...rows, ...(search?.rows ?? [])].find((row) => row.thread_id === id);

function draw() {
  if (renaming) return;
  const list = at("threads");
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  const place = focused && { id: focused.closest("li")?.dataset.id, act: focused.dataset.act };
  const top = list.scrollTop;
  const listed = search ? search.rows : rows;
  const lines = listed.map((row) => (deleted.has(row.thread_id) ? tombstone(row) : line(row)));
  at("found").hidden = !search;
  at("found").textContent = !search ? "" : search.fault ? `The search failed: ${search.fault}` : !search.isOver ? "Searching…" : lines.length ? `${lines.length} found` : "Nothing found";
  if (!lines.length && !search) lines.push(element("li", { className: "empty", textContent: "Nothing is stored yet. What you say is, from the first message on." }));
  if (more && !search) lines.push(element("li", {}, element("button", { type: "button", className: "more", textContent: "Show older ones", onclick: () => { limit += PAGE; actions.refresh(); } })));
  list.replaceChildren(...lines);
  list.scrollTop = top;
  if (place?.id) list.querySelector(`li[data-id="${CSS.escape(place.id)}"] [data-act="${place.act}"]`)?.focus();
  select(current);
}

function line(row) {
  const id = row.thread_id;
  const title = titled(row);
  const status = element("span", { className: "thread-when", textContent: (row.waits?.length ? "Asleep" : STATUS[row.status]) ?? when(row.updated_at) });
  status.dataset.status = row.status;
  const open = element("button", { type: "button", className: "thread", title, onclick: () => actions.open(id) },
    element("span", { className: "thread-title", textContent: title }),
    ...(row.excerpt ? [element("span", { className: "thread-when excerpt", textContent: row.excerpt })] : []), status);
  open.dataset.id = id;
  open.dataset.act = "open";
  open.ondblclick = () => rename(row, item);
  open.onkeydown = (event) => {
    if (event.key === "F2") rename(row, item);
    if (event.key === "Delete") remove(row);
  };
  const edit = iconButton("edit", `Rename ${title}`, () => rename(row, item));
  edit.dataset.act = "rename";
  const gone = iconButton("trash", `Delete ${title}`, () => remove(row), "icon-button delete");
  gone.dataset.act = "delete";
  const item = element("li", {}, open, element("span", { className: "row-tools" }, edit, gone));
  item.dataset.id = id;
  return item;
}

function rename(row, item) {
  const field = element("input", { value: titled(row), maxLength: 120, className: "rename" });
  field.setAttribute("aria-label", "The conversation's name");
  renaming = row.thread_id;
  let isOver = false;
  const end = async (isKept) => {
    if (isOver) return;
    isOver = true;
    renaming = null;
    const title = field.value.trim();
    if (isKept && title && title !== titled(row)) {
      row.metadata = { ...row.metadata, title };
      draw();
      await actions.rename(row.thread_id, title);
    } else {
      draw();
    }
    document.querySelector(`li[data-id="${CSS.escape(row.thread_id)}"] .thread`)?.focus();
  };
  field.onkeydown = (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter") end(true);
    if (event.key === "Escape") {
      event.stopPropagation();
      end(false);
    }
  };
  field.onblur = () => end(true);
  item.replaceChildren(field);
  field.focus();
  field.select();
}

function remove(row) {
  const id = row.thread_id;
  deleted.set(id, setTimeout(() => end(id), UNDO));
  draw();
  announce(`${titled(row)} is deleted. Undo is possible for a few seconds.`);
  document.querySelector(`li[data-id="${CSS.escape(id)}"] .undo`)?.focus();
  actions.removing(id);
}

async function end(id, how) {
  clearTimeout(deleted.get(id));
  deleted.set(id, null); // can no longer be undone
  draw();
  await actions.remove(id, how);
  deleted.delete(id);
  rows = rows.filter((one) => one.thread_id !== id);
  if (search) search.rows = search.rows.filter((one) => one.thread_id !== id);
  draw();
}

// What the page shows as deleted is deleted, also when it is left before the time to undo it is over.
addEventListener("pagehide", () => {
  for (const [id, timer] of deleted) if (timer !== null) end(id, { keepalive: true });
});

function tombstone(row) {
  const undo = element("button", { type: "button", className: "undo", textContent: "Undo", onclick: () => {
    clearTimeout(deleted.get(row.thread_id));
    deleted.delete(row.thread_id);
    draw();
    document.querySelector(`li[data-id="${CSS.escape(row.thread_id)}"] .thread`)?.focus();
  } });
  undo.dataset.act = "undo";
  const isOver = deleted.get(row.thread_id) === null;
  const item = element("li", { className: "deleted" }, element("span", { textContent: "Deleted" }), ...(isOver ? [] : [undo]));
  item.dataset.id = row.thread_id;
  return item;
}

// The drawer

const narrow = matchMedia("(max-width: 48rem)");

export const isNarrow = () => narrow.matches;
export const isDrawerOpen = () => document.body.classList.contains("list-open");

export function showDrawer(shown) {
  if (shown === isDrawerOpen()) return;
  document.body.classList.toggle("list-open", shown);
  at("shade").hidden = !shown;
  document.querySelector("main").inert = shown;
  at("open-list").setAttribute("aria-expanded", String(shown));
  (shown ? at("close-list") : at("open-list")).focus();
}

at("open-list").addEventListener("click", () => showDrawer(true));
at("close-list").addEventListener("click", () => showDrawer(false));
at("shade").addEventListener("click", () => showDrawer(false));
narrow.addEventListener("change", () => showDrawer(false));
