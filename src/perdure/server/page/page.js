// The page: the visible conversation, keyboard and button actions, and notices of errors.

import * as api from "./api.js";
import * as attaching from "./attaching.js";
import { isAnswer, textOf } from "./content.js";
import { Conversation } from "./conversation.js";
import { announce, at, element, icon, pause } from "./dom.js";
import * as link from "./link.js";
import { draw, editLast, toEnd } from "./messages.js";
import * as outbox from "./outbox.js";
import * as serverProcess from "./process.js";
import * as stored from "./stored.js";
import * as threads from "./threads.js";

const NEW = "New conversation";
const POLL = 8000;
const NAMED = 8; // names of steps in a notice
const THEMES = { auto: ["auto", "Colours: as the system"], light: ["sun", "Colours: light"], dark: ["moon", "Colours: dark"] };
const text = at("text");
const touch = matchMedia("(hover: none)");

let shown = null; // the visible conversation
const unsent = new Map(); // others with messages that the server has not accepted, by their ids
let graphs = [];
let described = null; // resolves when the server's description has been read
let server = {};
let focused = null; // the element that has the focus, or lost it by a change of the page
let isDrawing = false;
let renamed = Promise.resolve(); // resolves when the name before the next one is stored

// Rendering

function changed(conversation, what) {
  if (conversation !== shown) {
    if (!conversation.isUnsent) leave(conversation);
    return;
  }
  if (what === "made") {
    history.replaceState(null, "", `#${encodeURIComponent(conversation.id)}`);
    attaching.become(conversation.id);
    threads.select(conversation.id);
  }
  if (["made", "accepted", "ended"].includes(what)) refresh();
  if (what === "sent") toEnd();
  if (what === "ended") {
    const last = conversation.messages.at(-1);
    if (last && isAnswer(last)) announce(`Answer: ${textOf(last)}`);
  } else if (what === "accepted") {
    announce("An answer is being written.");
  }
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    show();
  });
}

function show() {
  const conversation = shown;
  const isEmpty = !conversation.messages.length && !conversation.outgoing.length && !conversation.live;
  draw(conversation, actions);
  at("welcome")?.remove();
  if (conversation.isLoading) at("messages").append(element("div", { id: "welcome", className: "loading", textContent: "Loading…" }));
  else if (isEmpty && !Object.keys(conversation.values ?? {}).length && !conversation.problem) at("messages").append(welcome());
  const title = conversation.title || NEW;
  at("title").textContent = title;
  document.title = title === NEW ? "Perdure" : `${title} · Perdure`;
  at("graph").hidden = graphs.length < 2;
  at("graph").disabled = !conversation.isNew;
  if (conversation.graph) at("graph").value = conversation.graph;
  const isLive = conversation.live !== null;
  at("stop").hidden = !isLive;
  at("when").hidden = !isLive;
  at("attach").disabled = conversation.questions.length > 0;
  at("inspect").hidden = !server.inspector || conversation.isNew;
  at("inspect").href = `../inspect/#/thread?${new URLSearchParams({ id: conversation.id })}`;
  stored.draw(conversation);
  serverProcess.draw();
  text.disabled = conversation.questions.length > 0;
  text.placeholder = text.disabled ? "Answer the question above to go on" : isLive ? "Write the next message" : "Write a message";
  allowSending();
  notice();
  keepFocus();
}

const canHaveFocus = (one) => one.isConnected && !one.disabled && one.getClientRects().length > 0;

// An element that is removed, hidden or disabled leaves the focus to the page's body, from where Tab begins at the top.
function keepFocus() {
  if (focused === null || touch.matches || document.activeElement !== document.body || canHaveFocus(focused)) return;
  (document.querySelector(".question button, .question textarea") ?? text).focus();
}

addEventListener("focusin", (event) => (focused = event.target));
// A click on the page itself takes the focus away on purpose. An element being removed is still there during the event.
addEventListener("focusout", ({ target }) => setTimeout(() => {
  if (focused === target && canHaveFocus(target)) focused = null;
}));

function welcome() {
  const starts = (server.starts ?? []).map((words) => element("button", { type: "button", textContent: words, onclick: () => send(words) }));
  return element("div", { id: "welcome", className: "welcome" },
    element("img", { src: "icon.svg", alt: "", width: 52, height: 52 }),
    element("h2", { textContent: "A conversation that stays" }),
    element("p", { textContent: "What you say is stored before it is answered. Reload the page or kill the server in the middle of an answer: the conversation is here, and the answer goes on." }),
    element("div", { className: "starts" }, ...starts));
}

function waitOf({ kind, until, signal }) {
  const when = until ? ` until ${new Date(until).toLocaleString()}` : "";
  return kind === "sleep" ? `The agent sleeps${when}.` : `The agent waits for ${signal}${when}.`;
}

function notice() {
  const { problem, live } = shown;
  const again = (label, run) => ({ label, run: () => attempt(run) });
  if (link.isAway()) notify("busy", "The server does not answer. What was accepted is stored; this goes on by itself when it is back.");
  else if (shown.needsToken) notify("bad", "This server wants to know who you are.", { label: "Give a token", run: askForToken });
  else if (problem?.kind === "failed") {
    const { error, message } = problem.error;
    notify("bad", `The answer failed with ${error}${message ? `: ${message}` : ""}. Your message is stored.`, again("Try again", () => shown.goOn()));
  } else if (shown.keeping && shown.partial.size) notify("busy", "Stopped. What was written is being stored.");
  else if (problem?.kind === "cut") notify("warn", "This answer was stopped before its end.", again("Go on", () => shown.goOn()));
  else if (problem?.kind === "refused") notify("bad", problem.reason, again("Reload", () => shown.sync()));
  else if (shown.waits.length && !live) notify("busy", shown.waits.map(waitOf).join(" "));
  else if (shown.isKept) notify("warn", "Stopped. What was written is kept, and the conversation goes on from there.", again("Answer again", () => shown.regenerate(shown.messages.length - 1)));
  else if (shown.resumed) notify(live ? "warn" : "good", interruption(shown.resumed, live !== null));
  else if (live && shown.attempt > 1) notify("warn", "The process was interrupted; the answer goes on from what is stored.");
  else notify("", "");
}

// Says which steps an interruption hit, and which it spared.
function interruption({ stayed, again, isAnew }, isOpen) {
  const named = (names) => names.map((name) => `“${name}”`).join(", ");
  if (isAnew) return `The server process was interrupted before a step had begun; your message was stored, and the answer ${isOpen ? "begins" : "began"} anew.`;
  const verb = again.length > 1 ? (isOpen ? "are" : "were") : isOpen ? "is" : "was";
  const hit = again.length ? `during ${named(again)}, which ${verb} done again.` : "after the last step, and none is done again.";
  const before = stayed.length > NAMED ? `${stayed.length - NAMED} more, ` : "";
  const kept = stayed.length ? `Stored before, and kept: ${before}${named(stayed.slice(-NAMED))}.` : "No step had ended before it.";
  return `The server process was interrupted ${hit} ${kept}`;
}

function notify(kind, words, action) {
  const area = at("notice");
  area.hidden = !words;
  area.dataset.kind = kind;
  if (at("notice-text").textContent !== words) at("notice-text").textContent = words;
  const button = at("notice-action");
  button.hidden = !action;
  button.textContent = action?.label ?? "";
  button.onclick = action?.run ?? null;
}

// Actions

async function attempt(work) {
  const conversation = shown;
  try {
    await work();
  } catch (failure) {
    failed(conversation, failure);
  }
}

function failed(conversation, failure) {
  if (failure.name === "AbortError") return;
  if (!(failure instanceof api.Failure)) throw failure;
  if (failure.away) {
    link.back();
    return;
  }
  if (failure.status === 401) conversation.needsToken = true;
  else conversation.problem = { kind: "refused", reason: failure.message };
  conversation.isLoading = false;
  changed(conversation, "state");
}

const actions = {
  edit: (place, words) => attempt(() => shown.edit(place, words)),
  regenerate: (place) => attempt(() => shown.regenerate(place)),
  showBranch: (checkpoint) => attempt(() => shown.showBranch(checkpoint)),
  answer: (value) => attempt(() => shown.answer(value)),
  keep: () => attempt(() => shown.keep()),
  again: (message) => attempt(() => shown.again(message)),
  withdraw: (message) => attempt(() => shown.withdraw(message)),
};

function send(words, { steers = at("when").value === "now" } = {}) {
  if ((!words.trim() && !attaching.isAny()) || text.disabled || attaching.isReading()) return;
  if (shown.isNew && !graphs.length) { // no graph is known yet
    const conversation = shown;
    described?.then(() => { if (graphs.length && conversation === shown) send(text.value, { steers }); });
    return;
  }
  if (shown.isNew) shown.graph ??= at("graph").value || graphs[0];
  text.value = "";
  keepDraft();
  grow();
  at("when").value = "after";
  const parts = attaching.take();
  attempt(() => shown.send(words, parts, { steers }));
}

// Closes a conversation that is no longer shown, unless it has messages to send.
function leave(conversation) {
  if (conversation.isUnsent) {
    unsent.set(conversation.id, conversation);
  } else {
    unsent.delete(conversation.id);
    conversation.close();
  }
}

function open(id, { focus = true } = {}) {
  threads.showDrawer(false);
  if (shown && shown.id === id && !shown.isNew) return;
  if (shown) leave(shown);
  shown = unsent.get(id) ?? new Conversation(id, changed);
  unsent.delete(shown.id);
  if (threads.rowOf(shown.id)) shown.title = threads.titled(threads.rowOf(shown.id));
  const hash = shown.isNew ? "" : `#${encodeURIComponent(id)}`;
  if (location.hash !== hash) history.pushState(null, "", hash || location.pathname);
  threads.select(id);
  text.value = sessionStorage.getItem(draftKey()) ?? "";
  attaching.open(shown.isNew ? "" : shown.id);
  show();
  grow();
  if (focus && !touch.matches) text.focus();
  if (id) load(shown);
}

async function load(conversation) {
  try {
    await conversation.sync();
  } catch (failure) {
    if (conversation === shown && failure.status === 404) {
      open(null);
      notify("warn", "That conversation is not stored here (any more).");
    } else {
      failed(conversation, failure);
    }
  }
}

async function refresh() {
  try {
    await threads.refresh();
    const row = threads.rowOf(shown.id);
    if (row && !shown.isBusy && !shown.isNew && !shown.isLoading && !document.querySelector(".editor") && shown.updatedAt && Date.parse(row.updated_at) > Date.parse(shown.updatedAt)) await shown.sync();
  } catch (failure) {
    failed(shown, failure);
  }
}

threads.begin({
  open,
  refresh,
  rename: (id, title) => attempt(async () => {
    if (shown.id === id) shown.title = title;
    changed(shown, "state");
    renamed = renamed.catch(() => undefined).then(() => link.persist(() => api.rename(id, title))); // failures are reported below
    await renamed;
    await refresh();
  }),
  removing: (id) => { if (shown.id === id) open(null, { focus: false }); },
  remove: (id, how) => attempt(async () => {
    try {
      await link.persist(() => api.remove(id, how));
    } catch (failure) {
      if (failure.status !== 404) throw failure;
    }
  }),
});

function askForToken() {
  const field = element("input", { type: "password", autocomplete: "off", placeholder: "Token" });
  field.setAttribute("aria-label", "Token");
  const dialog = element("dialog", {}, element("form", { method: "dialog" },
    element("h2", { textContent: "Who are you?" }),
    element("p", { textContent: "The token goes with every request as Authorization: Bearer. It is kept until this tab is closed." }),
    field,
    element("div", { className: "answers" }, element("button", { type: "submit", className: "primary", textContent: "Go on" }))));
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (!field.value.trim()) return;
    api.signIn(field.value.trim());
    location.reload();
  });
  document.body.append(dialog);
  dialog.showModal();
}

// Writing

const draftKey = () => `perdure.draft.${shown.isNew ? "" : shown.id}`;

function keepDraft() {
  if (text.value) sessionStorage.setItem(draftKey(), text.value);
  else sessionStorage.removeItem(draftKey());
}

function allowSending() {
  at("send").disabled = text.disabled || attaching.isReading() || (!text.value.trim() && !attaching.isAny());
}

function grow() {
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight}px`;
  allowSending();
}

text.addEventListener("input", () => {
  keepDraft();
  grow();
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) send(text.value, { steers: true });
    else send(text.value);
  } else if (event.key === "ArrowUp" && !text.value && editLast()) {
    event.preventDefault();
  }
});
at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send(text.value);
});
at("skip").addEventListener("click", (event) => {
  event.preventDefault();
  text.focus();
});
at("stop").addEventListener("click", () => attempt(() => shown.stop()));
at("latest").addEventListener("click", toEnd);
at("new-thread").addEventListener("click", () => startNew());

function startNew() {
  open(null);
  text.focus();
}

addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    startNew();
  } else if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === "f") {
    event.preventDefault();
    if (threads.isNarrow()) threads.showDrawer(true);
    at("find").focus();
  } else if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (threads.isDrawerOpen()) threads.showDrawer(false);
    else if (shown.live) attempt(() => shown.stop());
  }
});

// Surroundings

function theme(chosen) {
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  const [name, label] = THEMES[chosen];
  at("theme").replaceChildren(icon(name));
  at("theme").title = label;
  at("theme").setAttribute("aria-label", label);
  at("theme").onclick = () => {
    const next = { auto: "light", light: "dark", dark: "auto" }[chosen];
    if (next === "auto") localStorage.removeItem("perdure.theme");
    else localStorage.setItem("perdure.theme", next);
    theme(next);
    announce(THEMES[next][1]);
  };
}

function ofHash() {
  try {
    return decodeURIComponent(location.hash.slice(1)) || null;
  } catch {
    return null; // no address that this page wrote
  }
}
for (const sign of ["hashchange", "popstate"]) addEventListener(sign, () => { if (ofHash() !== (shown.isNew ? null : shown.id)) open(ofHash()); });
for (const sign of ["focus", "visibilitychange"]) addEventListener(sign, () => { if (!document.hidden && !link.isAway()) refresh(); });
link.onChange((isAway) => {
  if (isAway) announce("The server does not answer.");
  else {
    refresh();
    if (!shown.live && !shown.isNew) load(shown);
  }
  changed(shown, "state");
});

async function describe() {
  server = await link.persist(api.about);
  at("about").hidden = !server.database;
  at("about").textContent = server.database ? `Stored in ${server.database}` : "";
  at("model").hidden = !server.model;
  at("model").textContent = (server.model ?? "").replace(/ \(.*/, "");
  at("model").title = server.model ?? "";
  attaching.limit(server.body_max ?? 0);
  graphs = await link.persist(api.graphs);
  at("graph").replaceChildren(...graphs.map((name) => element("option", { value: name, textContent: name })));
}

for (const [id, name] of [["close-list", "close"], ["open-list", "menu"], ["stop", "stop"], ["send", "up"], ["attach", "clip"], ["inspect", "look"], ["open-stored", "stored"]]) at(id).append(icon(name));
at("new-thread").append(icon("plus"), NEW);
at("latest").append(icon("down"), "Latest");
theme(document.documentElement.dataset.theme ?? "auto");
attaching.begin(allowSending);
stored.begin(() => changed(shown, "state"));
serverProcess.begin(() => changed(shown, "state"));

// Sends what an earlier load of the page had not seen accepted. A conversation that is not stored yet has no address.
function resume() {
  const kept = outbox.all();
  for (const id of new Set(kept.map(({ thread }) => thread))) {
    unsent.set(id, Conversation.of(kept.filter(({ thread }) => thread === id), changed));
  }
  const restored = [...unsent.values()];
  open(ofHash() ?? restored.findLast(({ isNew }) => isNew)?.id ?? null);
  for (const conversation of restored) conversation.resume().catch((failure) => failed(conversation, failure));
}

async function start() {
  resume();
  described = attempt(describe);
  await described;
  changed(shown, "state");
  await refresh();
  for (;;) {
    await pause(POLL);
    if (!document.hidden && !link.isAway()) await refresh();
  }
}

start();
