// Elements, times and sizes. Text is only ever set as text nodes, so that no text can become markup or script.

import { address } from "./address.js";

const LONG = 240;

export const at = (id) => document.getElementById(id);

// make("a.name", {href: "…", onclick}, ...children): an element with a class; null children are left out.
export function make(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("aria-") || key.startsWith("data-") || key === "for" || key === "role" || key === "colspan") made.setAttribute(key, value);
    else made[key] = value;
  }
  if (classes.length) made.className = classes.join(" ");
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export const fill = (element, ...children) => element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));

// Moves the focus to what came in place of an element that had it and is gone or cannot be used.
export function focusIfLost(element) {
  if (!element || (document.activeElement !== document.body && !document.activeElement.disabled && !document.activeElement.hidden)) return;
  if (!element.matches("a, button, input, select, textarea, summary")) element.tabIndex = -1;
  element.focus();
}

export function hide(button, instead) {
  const hadFocus = document.activeElement === button;
  button.hidden = true;
  if (hadFocus) focusIfLost(instead);
}

export function announce(words) {
  at("announcer").textContent = words;
}

export function bytes(count) {
  if (count === null || count === undefined) return "";
  if (count < 1000) return `${count} B`;
  if (count < 1e6) return `${(count / 1e3).toFixed(1)} kB`;
  if (count < 1e9) return `${(count / 1e6).toFixed(1)} MB`;
  return `${(count / 1e9).toFixed(1)} GB`;
}

// What the bytes of a thread are, and why those of all threads are not the bytes of the database.
export const THREAD_BYTES = "A thread's size is that of its checkpoints, values and writes, each stored piece once; the database has messages, runs, replies, events, the store, indexes and free space, too.";

export const number = (count) => count.toLocaleString("en");

// A time in microseconds, as text for people, with the exact one as a tooltip.
export function time(micros) {
  if (!micros) return document.createTextNode("");
  const date = new Date(micros / 1000);
  if (Number.isNaN(date.getTime())) return document.createTextNode(String(micros));
  return make("time", { dateTime: date.toISOString(), title: date.toISOString() }, ago(date));
}

function ago(date) {
  const seconds = (Date.now() - date.getTime()) / 1000;
  if (seconds < 0) return `in ${span(-seconds)}`;
  if (seconds < 86400 * 2) return seconds < 1 ? "now" : `${span(seconds)} ago`;
  return date.toISOString().slice(0, 16).replace("T", " ");
}

export function span(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// A duration in microseconds, as the command line writes it.
export function duration(micros) {
  if (micros < 1e6) return `${micros < 1e4 ? Number((micros / 1000).toPrecision(3)) : Math.floor(micros / 1000)} ms`;
  if (micros < 6e7) return `${(Math.floor(micros / 1e5) / 10).toFixed(1)} s`;
  if (micros < 3.6e9) return `${Math.floor(micros / 6e7)} min ${Math.floor((micros % 6e7) / 1e6)} s`;
  return `${Math.floor(micros / 3.6e9)} h ${Math.floor((micros % 3.6e9) / 6e7)} min`;
}

// A run that waits has asked a question, or sleeps: messages wait, too, and that is something else.
const STATES = { waiting: "asks or sleeps" };

export const status = (name) => make(`span.status.is-${/^[a-z_]+$/.test(name || "") ? name : "other"}`, {}, STATES[name] ?? (name || "unknown"));

// The status of a thread: LangGraph calls one interrupted that asks, and one that sleeps or waits for a signal.
export const threadStatus = (thread) => (thread.status === "interrupted" ? make("span", {}, status("interrupted"), make("span.quiet", {}, thread.is_asleep ? " sleeps" : " asks")) : status(thread.status));

export const shortId = (id) => (id && id.length > 16 ? `…${id.slice(-12)}` : id || "");

// Text of any length, of which the beginning is shown at first.
export function long(text) {
  if (!text || text.length <= LONG) return text;
  return make("details", {}, make("summary", {}, `${text.slice(0, LONG)}…`), text);
}

// The beginning of a text, on one line.
export function cut(text, most = 100) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

// The beginning of a text in a list; its whole is on the page that the list links to.
export function brief(text) {
  return text ? make("span.brief", {}, cut(String(text), LONG)) : "";
}

export const count = (amount, one, many) => `${number(amount)} ${amount === 1 ? one : many}`;

export function field(label, input) {
  return make("label.field", {}, make("span", {}, label), input);
}

export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make("dl.facts", {}, shown.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

// `caption` is seen if no heading stands above the table.
export function table(caption, headings, rows, isCaptionSeen = false) {
  const head = make("thead", {}, make("tr", {}, headings.map((text) => make("th", { scope: "col" }, text))));
  const body = make("tbody", {}, rows.map((cells) => make("tr", {}, cells.map((content, index) => cell(headings[index], content)))));
  return make("div.scroll", { role: "region", tabIndex: 0, "aria-label": caption }, make("table.cards", {}, make(isCaptionSeen ? "caption" : "caption.unseen", {}, caption), head, body));
}

const SHORT = 20; // Characters that stay on one line.

export function cell(heading, content) {
  const isShort = typeof content === "string" && content.length <= SHORT;
  return make(isShort ? "td.short" : "td", { "data-label": heading }, content ?? "");
}

// Links to a user, to a thread by its title, and to a run with its traceback.
export const userLink = (name) => (name ? make("a.user", { href: address("user", { user: name }) }, name) : "");

export const threadLink = (id, title) => make("span", {}, make("a.brief", { href: address("thread", { id }) }, id), title ? make("span.title", {}, title) : null);

export const runLink = (id, run, words) => make("a", { href: address("runs", { id, run, state: "any" }), title: run }, words);

// A list that is loaded page by page: a line that says how much of it is shown, with a button for more, which comes by
// scrolling, too. `load` returns whether there is more, `words` the text of the line.
export function pages(load, list, words) {
  const button = make("button", { type: "button", hidden: true }, "Earlier");
  const text = make("span.quiet", {});
  const line = make("p.loaded", {}, text, " ", button);
  const end = make("p.end");
  let going = null;
  let goesOn = true;
  const more = () => {
    going ??= load().then((isMore) => (goesOn = isMore)).finally(() => (going = null)).then(draw);
    return going;
  };
  const draw = () => {
    fill(text, words());
    button.hidden = !goesOn;
    return goesOn;
  };
  const links = () => [...list.querySelectorAll("a[data-checkpoint]")];
  button.onclick = async () => {
    const known = new Set(links().map((each) => each.dataset.checkpoint));
    try {
      await more();
      links().find((each) => !known.has(each.dataset.checkpoint))?.focus();
    } catch (error) {
      line.append(make("span.problem", { role: "alert" }, error.message));
    }
  };
  return { line, end, watch: async () => ((await more()) ? whenSeen(end, more) : null) };
}

// Calls `more` when the element comes into view, again and again until it returns false.
export function whenSeen(element, more) {
  let busy = false;
  const watcher = new IntersectionObserver(async (entries) => {
    if (busy || !entries.some((entry) => entry.isIntersecting)) return;
    busy = true;
    const goesOn = await more();
    busy = false;
    watcher.unobserve(element);
    if (goesOn) watcher.observe(element);
  }, { rootMargin: "600px" });
  watcher.observe(element);
  return watcher;
}
