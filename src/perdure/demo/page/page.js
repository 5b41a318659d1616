// The conversation on screen. What is shown as stored was reported as stored by the server; everything else is
// marked as on its way. When the server goes away the page waits for it and takes the conversation up again.

import * as api from "./api.js";
import { closeList, select, showCut, showThreads } from "./list.js";
import { element, rendered } from "./text.js";

const at = (id) => document.getElementById(id);
const messages = at("messages");
const scroller = at("scroller");
const text = at("text");
const notice = at("notice");

const STARTS = ["Tell me a long story about a lighthouse", "What is a good name for a cat?", "Explain tides to a child"];
const NEW = "New conversation";

// What is on screen: a thread's id (null before its first message), and whether an answer is being written in it. A
// request in flight compares its own view with this one and stops touching the page when they differ.
let view = { id: null, writing: false };
let limit = 8000;

const identifier = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function tell(kind, words, action) {
  notice.hidden = !words;
  notice.dataset.kind = kind;
  at("notice-text").textContent = words ?? "";
  const button = at("notice-action");
  button.hidden = !action;
  button.textContent = action?.label ?? "";
  button.onclick = action?.run ?? null;
}
const quiet = () => tell("", null);

function allowSending() {
  at("send").disabled = view.writing || !text.value.trim();
}

function writing(now) {
  view.writing = now;
  allowSending();
}

const nearEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
const toEnd = () => { scroller.scrollTop = scroller.scrollHeight; };

function addMessage({ id, role, text: words }) {
  messages.querySelector(".welcome")?.remove();
  const body = element("div", { className: "body" });
  const shown = element("article", { className: `message ${role}` }, body);
  shown.dataset.id = id ?? "";
  setText(shown, role, words);
  messages.append(shown);
  return shown;
}

function setText(shown, role, words) {
  const body = shown.querySelector(".body");
  if (role === "user") body.textContent = words;
  else body.replaceChildren(rendered(words));
}

function setState(shown, words) {
  shown.querySelector(".state")?.remove();
  if (words) shown.append(element("span", { className: "state", textContent: words }));
}

function welcome() {
  const starts = STARTS.map((words) => element("button", { type: "button", textContent: words, onclick: () => ask(words) }));
  messages.replaceChildren(
    element("div", { className: "welcome" },
      element("img", { src: "/page/icon.svg", alt: "" }),
      element("h2", { textContent: "A conversation that stays" }),
      element("p", { textContent: "Say something, kill the process in the middle of the answer, start it again: the conversation is here and goes on." }),
      element("div", { className: "starts" }, ...starts)),
  );
}

function entitle(words) {
  at("title").textContent = words;
  document.title = words === NEW ? "Perdure" : `${words} · Perdure`;
}

function begin(id) {
  view = { id, writing: false };
  history.replaceState(null, "", id ? `#${encodeURIComponent(id)}` : location.pathname);
  select(id);
  quiet();
  allowSending();
}

function startNew() {
  begin(null);
  entitle(NEW);
  welcome();
  closeList();
  text.focus();
}

async function open(id) {
  begin(id);
  closeList();
  const mine = view;
  let stored;
  try {
    stored = await api.thread(id);
  } catch (failure) {
    if (mine !== view) return;
    if (failure.code === "not_found") startNew();
    else if (failure.code === "unreachable") await outlast(mine, () => open(id));
    else tell("bad", failure.message, { label: "Try again", run: () => open(id) });
    return;
  }
  if (mine !== view) return;
  entitle(stored.title);
  messages.replaceChildren();
  stored.messages.forEach(addMessage);
  toEnd();
  if (stored.status === "unfinished") await goOn(true);
  else if (stored.status === "answering") await goOn(false);
}

async function goOn(cut) {
  const mine = view;
  if (cut) tell("busy", "This answer was cut off. Your message is stored, and the answer is being written again.");
  await watch(mine, () => api.resume(mine.id), { again: () => goOn(true), cut });
}

async function ask(words) {
  if (view.writing || !words.trim()) return;
  if (words.length > limit) {
    tell("bad", `The message has ${words.length} characters; ${limit} are allowed.`);
    return;
  }
  writing(true);
  quiet();
  const mine = view;
  const message = { id: identifier(), role: "user", text: words };
  const shown = addMessage(message);
  text.value = "";
  grow();
  toEnd();
  await put(mine, message, shown);
}

// Puts a message until the server says what became of it. Its id makes a repetition harmless.
async function put(mine, message, shown) {
  const again = () => put(mine, message, shown);
  shown.classList.remove("failed");
  setState(shown, "Sending…");
  const request = async () => {
    if (!mine.id) {
      mine.id = await api.newThread();
      if (mine === view) history.replaceState(null, "", `#${mine.id}`);
    }
    return api.send(mine.id, { id: message.id, text: message.text });
  };
  await watch(mine, request, {
    again,
    accepted: () => {
      setState(shown, "Stored");
      if (at("title").textContent === NEW) entitle(message.text.replace(/\s+/g, " ").slice(0, 60));
    },
    refused: () => {
      shown.classList.add("failed");
      setState(shown, "Not sent");
    },
  });
}

// Shows an answer as it is written. `again` repeats the request, `accepted` and `refused` say what became of it.
async function watch(mine, request, { again, accepted, refused, cut = false }) {
  writing(true);
  let answer = null;
  let words = "";
  const start = () => {
    answer = addMessage({ role: "assistant", text: "" });
    answer.classList.add("writing");
    toEnd();
  };
  try {
    for await (const { name, data } of api.events(await request())) {
      if (mine !== view) return;
      if (name === "accepted") {
        accepted?.();
        if (!answer) start();
        refreshList();
      } else if (name === "token") {
        if (!answer) start();
        const following = nearEnd();
        words += data.text;
        setText(answer, "assistant", words);
        if (following) toEnd();
      } else if (name === "done") {
        if (!answer) start();
        answer.dataset.id = data.message_id ?? "";
        setText(answer, "assistant", data.text ?? "");
        answer.classList.remove("writing");
        if (cut) setState(answer, "Written again after an interruption");
        quiet();
      } else if (name === "error") {
        throw new api.Failure(data.code, data.message);
      }
    }
    writing(false);
  } catch (failure) {
    if (mine !== view) return;
    answer?.classList.remove("writing");
    answer?.classList.add("cut");
    writing(false);
    refreshList();
    await recover(mine, failure, { again, refused, started: answer !== null });
  }
  await refreshList();
}

async function recover(mine, failure, { again, refused, started }) {
  if (failure.code === "unreachable" || failure.code === "stopped") {
    await outlast(mine, started ? () => open(mine.id) : again);
  } else if (failure.code === "nothing_unfinished") {
    await open(mine.id);
  } else if (started) {
    tell("bad", failure.message, { label: "Continue", run: () => open(mine.id) });
  } else {
    refused?.();
    tell("bad", failure.message, { label: "Try again", run: () => { quiet(); again(); } });
  }
}

// Waits for the server to be there again, then goes on with `then` if the same conversation is still on screen.
async function outlast(mine, then) {
  writing(true);
  tell("busy", "The program is not running. The conversation is stored; start it again and it goes on here.");
  for (;;) {
    await pause(700);
    if (mine !== view) return;
    try {
      await api.about();
      break;
    } catch (failure) {
      if (failure.code !== "unreachable") break;
    }
  }
  if (mine !== view) return;
  writing(false);
  quiet();
  await then();
}

async function refreshList() {
  try {
    showThreads(await api.threads(), view.id, { open, remove });
  } catch (failure) {
    if (failure.code === "unreachable") showCut();
    else tell("bad", failure.message);
  }
}

async function remove(id) {
  try {
    await api.remove(id);
    if (view.id === id) startNew();
  } catch (failure) {
    tell("bad", failure.message);
  }
  await refreshList();
}

function grow() {
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight}px`;
  allowSending();
}

text.addEventListener("input", grow);
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    ask(text.value);
  }
});
at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(text.value);
});
at("new-thread").addEventListener("click", startNew);
addEventListener("hashchange", () => {
  const id = decodeURIComponent(location.hash.slice(1));
  if (id && id !== view.id) open(id);
});
addEventListener("focus", refreshList);

async function start() {
  const id = decodeURIComponent(location.hash.slice(1));
  if (!id) startNew();
  await Promise.all([refreshList(), describe(), id ? open(id) : null]);
}

async function describe() {
  try {
    const told = await api.about();
    limit = told.message_characters;
    at("model").textContent = told.model.replace(/ \(.*/, "");
    at("model").title = told.model;
    at("about").textContent = `Stored in ${told.database}`;
  } catch (failure) {
    tell("bad", failure.message);
  }
}

start();
