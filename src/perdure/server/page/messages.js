// Rendering of a conversation's messages: an element for each, kept as long as the message is visible.

import { isAnswer, isUser, reasoningOf, showAttachments, textOf } from "./content.js";
import { isStopped } from "./conversation.js";
import { at, copy, element, icon, iconButton } from "./dom.js";
import * as link from "./link.js";
import { show } from "./markdown.js";
import { RECALLED, makeMemory } from "./memory.js";
import { questionsOf } from "./questions.js";

const area = at("messages");
const scroller = at("scroller");
const STATES = { sending: "Sending…", stored: "Stored", failed: "Not sent" };

let shown = new Map();
let owner = null;
let isFollowing = true;
let asked = "";

// Updates the elements to a conversation. `actions` are the functions of the messages' buttons.
export function draw(conversation, actions) {
  if (owner !== conversation) {
    owner = conversation;
    shown = new Map();
    asked = "";
    isFollowing = true;
    area.replaceChildren();
  }
  const entries = listed(conversation);
  const kept = new Map();
  let previous = null;
  for (const entry of entries) {
    const drawn = shown.get(entry.key) ?? make(entry, conversation, actions);
    kept.set(entry.key, drawn);
    drawn.update(entry);
    const after = previous ? previous.nextSibling : area.firstChild;
    if (after !== drawn.element) area.insertBefore(drawn.element, after);
    previous = drawn.element;
  }
  for (const [key, drawn] of shown) if (!kept.has(key)) drawn.element.remove();
  shown = kept;
  drawQuestions(conversation, actions);
  if (isFollowing) toEnd();
  at("latest").hidden = isNearEnd();
}

function listed(conversation) {
  const { messages, partial, earlier, outgoing, forks, isBusy } = conversation;
  const entries = [];
  const keys = new Set();
  const add = (key, entry) => {
    while (keys.has(key)) key += "′";
    keys.add(key);
    entries.push({ key, ...entry });
  };
  messages.forEach((message, place) => {
    const fork = forks.get(place);
    const isLast = !messages[place + 1] || isUser(messages[place + 1]);
    if (message.id === RECALLED) add(RECALLED, { role: "memory", message, place });
    else if (isUser(message)) add(message.id ?? `at ${place}`, { role: "user", message, place, fork, isBusy });
    else if (isAnswer(message)) add(message.id ?? `at ${place}`, { role: "assistant", message, place, fork, isBusy, isLast });
    else if (message.type === "tool") add(message.id ?? `at ${place}`, { role: "tool", message, place });
    else if (message.type !== "system" && message.type !== "remove") add(message.id ?? `at ${place}`, { role: "tool", message, place });
    for (const { after, messages: left } of conversation.leftovers) {
      if (after !== undefined && after === message.id) for (const one of left) add(`left ${one.id}`, { role: "assistant", message: one, isCut: true, state: "Stopped. Not a part of the conversation, as the next message was waiting already." });
    }
  });
  const { live } = conversation;
  const isWriting = live !== null;
  const isAccepted = isWriting && live.runId !== null; // before that, partial answers are those of another run
  const isAnswered = (one) => isWriting && (isAccepted ? one.runId === live.runId : one.key === live.key);
  const queued = outgoing.filter(({ state, steers }) => state === "queued" && !steers);
  const pending = (one) => {
    const ahead = queued.indexOf(one);
    const state = one.steers && one.state === "queued" ? "Joins the answer at its next step" : one.state === "sending" && link.isAway() ? "Waits for the server" : ahead < 0 ? STATES[one.state] : ahead ? `Queued, number ${ahead + 1}` : "Queued: next";
    add(one.id, { role: "user", message: { content: [{ type: "text", text: one.text }, ...(one.parts ?? [])] }, outgoing: one, state });
  };
  const parts = () => {
    // What an interrupted attempt had written is shown until its repetition has written as much.
    const length = [...partial.values()].reduce((sum, message) => sum + textOf(message).length, 0);
    for (const message of earlier.values()) {
      if (textOf(message).length > length) add(`earlier ${message.id}`, { role: "assistant", message, isCut: true, state: "The process was interrupted here; the answer is written again." });
    }
    for (const message of partial.values()) add(message.id, { role: "assistant", message, isWriting: isAccepted, isCut: !isAccepted, isBusy: isBusy || conversation.keeping !== null });
  };
  // An answer is placed below the message that it answers, and above all messages sent later.
  if (!isAccepted) parts();
  outgoing.filter(isAnswered).forEach(pending);
  if (isAccepted) parts();
  const isSilent = isWriting && !(isAccepted && partial.size) && !conversation.questions.length;
  if (isSilent && entries.length) add("writing", { role: "assistant", message: { content: "" }, isWriting });
  if (isAccepted && conversation.progress.isShown) add("progress", { role: "progress", steps: conversation.progress.steps });
  const later = outgoing.filter((one) => !isAnswered(one));
  for (const isIn of [true, false]) later.filter(({ runId }) => (runId !== null) === isIn).forEach(pending);
  if (!entries.length && Object.keys(conversation.values ?? {}).length) {
    const { messages: _, ...values } = conversation.values;
    if (Object.keys(values).length) add("state", { role: "tool", message: { type: "tool", name: "state", content: JSON.stringify(values, null, 2) } });
  }
  return entries;
}

function make(entry, conversation, actions) {
  if (entry.role === "tool") return makeTool();
  if (entry.role === "memory") return makeMemory();
  if (entry.role === "progress") return makeProgress();
  const reasoning = element("details", { className: "tool reasoning", hidden: true }, element("summary"), element("div", { className: "thoughts" }));
  const body = element("div", { className: "body" });
  const files = element("div", { className: "files" });
  const calls = element("div", { className: "calls" });
  const state = element("span", { className: "state" });
  const tools = element("div", { className: "tools" });
  const article = element("article", { className: `message ${entry.role}` }, reasoning, files, body, calls, state, tools);
  article.setAttribute("aria-label", entry.role === "user" ? "You" : "Answer");
  let now = entry;
  let drawnTools = "";
  const update = (fresh) => {
    now = fresh;
    const text = textOf(fresh.message);
    article.dataset.id = fresh.key;
    article.classList.toggle("writing", Boolean(fresh.isWriting));
    article.classList.toggle("cut", Boolean(fresh.isCut));
    article.classList.toggle("failed", fresh.outgoing?.state === "failed");
    article.classList.toggle("queued", fresh.outgoing?.state === "queued");
    article.classList.toggle("bare", !text && !fresh.isWriting);
    drawReasoning(reasoning, reasoningOf(fresh.message), fresh.isWriting && !text);
    showAttachments(files, fresh.message);
    if (article.shownText !== text) {
      article.shownText = text;
      if (fresh.role === "user") body.textContent = text;
      else show(body, text);
    }
    const status = fresh.isCut ? fresh.state ?? "Unfinished, and not a part of the conversation." : isStopped(fresh.message) ? "Stopped here" : fresh.outgoing?.state === "failed" ? `Not sent: ${fresh.outgoing.reason}` : fresh.state ?? "";
    if (state.textContent !== status) state.textContent = status;
    drawCalls(calls, fresh.message.tool_calls ?? []);
    const wanted = JSON.stringify([fresh.fork, fresh.isBusy, fresh.isLast, fresh.outgoing?.state, fresh.place, fresh.isWriting, fresh.isCut, fresh.state]);
    if (wanted !== drawnTools && !article.contains(article.querySelector(".editor"))) {
      const focused = document.activeElement?.closest?.(".tools") === tools ? document.activeElement.dataset.act : null;
      drawnTools = wanted;
      tools.replaceChildren(...toolsOf(now, article, conversation, actions));
      if (focused) tools.querySelector(`[data-act="${focused}"]:not(:disabled)`)?.focus();
    }
  };
  return { element: article, update, edit: () => editing(article, now, actions) };
}

function toolsOf(entry, article, conversation, actions) {
  const made = [];
  const act = (name, button) => {
    button.dataset.act = name;
    return button;
  };
  if (entry.outgoing) {
    if (entry.outgoing.state === "failed") made.push(element("button", { type: "button", className: "word", textContent: "Send again", onclick: () => actions.again(entry.outgoing) }));
    if (["queued", "failed"].includes(entry.outgoing.state)) made.push(element("button", { type: "button", className: "word", textContent: "Take back", onclick: () => actions.withdraw(entry.outgoing) }));
    return made;
  }
  if (entry.isWriting) return made;
  if (entry.isCut && !entry.isBusy && !entry.state) {
    made.push(act("keep", element("button", { type: "button", className: "word", textContent: "Keep it as the answer", onclick: () => actions.keep() })));
    made.push(act("copy", iconButton("copy", "Copy", (event) => copy(textOf(entry.message), event.currentTarget))));
    return made;
  }
  const branches = entry.fork?.options.length > 1 ? [switcher(entry, conversation, actions, act)] : [];
  if (entry.place === undefined || (entry.role === "assistant" && entry.isLast === false)) return branches;
  made.push(act("copy", iconButton("copy", "Copy", (event) => copy(textOf(entry.message), event.currentTarget))));
  if (entry.role === "user") made.push(act("edit", iconButton("edit", "Edit this message", () => editing(article, entry, actions))));
  else made.push(act("again", iconButton("again", "Answer again", () => actions.regenerate(entry.place))));
  for (const button of made) if (["edit", "again"].includes(button.dataset.act)) button.disabled = entry.isBusy;
  // At the edge, where it does not move when the other buttons appear.
  return entry.role === "user" ? [...made, ...branches] : [...branches, ...made];
}

function switcher(entry, conversation, actions, act) {
  const { options, current } = entry.fork;
  const to = (step) => () => actions.showBranch(options[current + step]);
  const before = act("before", iconButton("left", "Show the branch before", to(-1)));
  const after = act("after", iconButton("right", "Show the branch after", to(1)));
  before.disabled = entry.isBusy || current === 0;
  after.disabled = entry.isBusy || current === options.length - 1;
  const number = element("span", { className: "branch", textContent: `${current + 1}/${options.length}` });
  number.setAttribute("aria-label", `Branch ${current + 1} of ${options.length}`);
  return element("span", { className: "switcher" }, before, number, after);
}

function editing(article, entry, actions) {
  if (entry.isBusy || article.querySelector(".editor")) return;
  const field = element("textarea", { value: textOf(entry.message), rows: 1 });
  field.setAttribute("aria-label", "Your message, edited");
  const close = () => {
    form.remove();
    article.classList.remove("editing");
    article.querySelector('[data-act="edit"]')?.focus();
  };
  const save = () => {
    const text = field.value.trim();
    close();
    if (text && text !== textOf(entry.message)) actions.edit(entry.place, text);
  };
  const form = element("form", { className: "editor", onsubmit: (event) => { event.preventDefault(); save(); } }, field,
    element("div", { className: "answers" },
      element("button", { type: "button", textContent: "Cancel", onclick: close }),
      element("button", { type: "submit", className: "primary", textContent: "Send" })));
  const grow = () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight}px`;
  };
  field.oninput = grow;
  field.onkeydown = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      save();
    }
  };
  article.classList.add("editing");
  article.append(form);
  grow();
  field.focus();
  field.setSelectionRange(field.value.length, field.value.length);
}

// Opens the user's last message for editing, and returns true if there is one.
export function editLast() {
  const last = [...shown.values()].reverse().find((drawn) => drawn.element.classList.contains("user") && drawn.element.querySelector('[data-act="edit"]:not(:disabled)'));
  last?.edit();
  return Boolean(last);
}

function drawReasoning(place, text, isThinking) {
  place.hidden = !text;
  place.firstChild.textContent = isThinking ? "Thinking…" : "Reasoning";
  if (text && place.lastChild.textContent !== text) place.lastChild.textContent = text;
}

function makeProgress() {
  const list = element("ol");
  const article = element("div", { className: "progress" }, list);
  article.setAttribute("role", "group");
  article.setAttribute("aria-label", "Progress");
  let before = "";
  const update = ({ steps }) => {
    const wanted = JSON.stringify(steps);
    if (wanted === before) return;
    before = wanted;
    list.replaceChildren(...steps.map(({ name, state, isTool, isReport }) => {
      const item = element("li", { className: isReport ? "report" : "" }, ...(state === "done" ? [icon("check")] : isTool ? [icon("tool")] : []), element("span", { textContent: name }));
      item.dataset.state = state;
      return item;
    }));
  };
  return { element: article, update };
}

function drawCalls(place, calls) {
  const wanted = JSON.stringify(calls);
  if (place.shownCalls === wanted) return;
  place.shownCalls = wanted;
  place.replaceChildren(...calls.map((call) => details(`Calls ${call.name}`, JSON.stringify(call.args ?? {}, null, 2))));
}

function details(summary, text) {
  return element("details", { className: "tool" }, element("summary", { textContent: summary }), element("pre", { tabIndex: 0 }, element("code", { textContent: text })));
}

function makeTool() {
  const article = element("article", { className: "message result" });
  let before = null;
  const update = ({ message }) => {
    const text = textOf(message);
    if (text === before) return;
    before = text;
    const name = message.name ?? message.type ?? "tool";
    article.replaceChildren(details(message.status === "error" ? `${name} failed` : name === "state" ? "The state of this thread" : `${name} answered`, text));
    if (name === "state") article.firstChild.open = true;
  };
  return { element: article, update };
}

function drawQuestions(conversation, actions) {
  const wanted = JSON.stringify(conversation.questions);
  if (wanted !== asked) {
    asked = wanted;
    area.querySelectorAll(".question").forEach((card) => card.remove());
    area.append(...questionsOf(conversation.questions, actions.answer));
    const first = area.querySelector(".question button, .question textarea");
    if (first && [document.body, at("text"), at("stop")].includes(document.activeElement)) first.focus({ preventScroll: true });
  }
  // An element that is moved loses the focus, so cards are moved only if messages came below them.
  const cards = [...area.querySelectorAll(".question")];
  if (cards.every((card, place) => card === area.children[area.children.length - cards.length + place])) return;
  const focused = document.activeElement;
  area.append(...cards);
  if (cards.some((card) => card.contains(focused))) focused.focus({ preventScroll: true });
}

// Scrolling: follows the end while the reader is there.

const isNearEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;

export function toEnd() {
  isFollowing = true;
  scroller.scrollTop = scroller.scrollHeight;
  at("latest").hidden = true;
}

let top = 0;
scroller.addEventListener("scroll", () => {
  if (scroller.scrollTop < top - 2 && !isNearEnd()) isFollowing = false;
  else if (isNearEnd()) isFollowing = true;
  top = scroller.scrollTop;
  at("latest").hidden = isNearEnd();
}, { passive: true });
new ResizeObserver(() => {
  if (isFollowing) toEnd();
}).observe(scroller);
