// The panel that shows what is stored of a conversation, and what happened while the page was open: accepted messages,
// attempts, steps, lost connections, and in development the processes of the server.

import { at, element, icon } from "./dom.js";
import * as link from "./link.js";
import * as serverProcess from "./process.js";

const LINES = 40;
let isShown = false;
let changed = () => undefined;
let drawn = "";

export function begin(listener) {
  changed = listener;
  at("open-stored").addEventListener("click", () => show(!isShown));
  at("stored").addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    show(false);
    at("open-stored").focus();
  });
}

function show(wanted) {
  isShown = wanted;
  at("stored").hidden = !wanted;
  at("open-stored").setAttribute("aria-expanded", String(wanted));
  changed();
}

const TEXTS = {
  accepted: () => "Message accepted: stored before it is answered",
  attempt: ({ attempt }) => (attempt > 1 ? `Attempt ${attempt} began, from the last stored checkpoint` : "The answer began"),
  resumed: ({ stayed, again }) => `Done again: ${again.join(", ") || "nothing"}. Kept: ${stayed.join(", ") || "your message"}`,
  step: ({ node }) => `Step “${node}” ended; its checkpoint is stored`,
  lost: () => "Connection lost",
  back: () => "The server answers again; events continue after the last one received",
  kept: () => "The stopped answer was stored as far as it had been written",
  ended: ({ status }) => `The run ended: ${status}`,
  killed: ({ pid }) => `Process ${pid} was killed with SIGKILL`,
  process: ({ pid, isNext }) => (isNext ? `Process ${pid} took over` : `Process ${pid} answers`),
};

function lines(conversation) {
  const found = [...conversation.journal, ...serverProcess.events()];
  return found.sort((one, other) => one.at - other.at).slice(-LINES);
}

const clock = (moment) => new Date(moment).toLocaleTimeString("en-GB");

export function draw(conversation) {
  if (!isShown) return;
  const process = serverProcess.current();
  const run = conversation.live?.runId ? `attempt ${conversation.attempt ?? 1} is open` : conversation.runs?.[0]?.status ?? "none";
  const facts = [
    ["Messages stored", conversation.messages.length],
    ["Checkpoints stored", conversation.tree.nodes.size],
    ["Newest checkpoint", conversation.tree.head ?? "none"],
    ["Waiting to be answered", conversation.outgoing.filter(({ runId }) => runId).length],
    ["Latest run", run],
    ...(process ? [["Server process", link.isAway() ? `${process.pid} does not answer` : `${process.pid}, since ${clock(process.startedAt)}`]] : []),
  ];
  const events = lines(conversation);
  const wanted = JSON.stringify([facts, events]);
  if (wanted === drawn) return;
  drawn = wanted;
  const hadFocus = at("stored").contains(document.activeElement);
  const log = element("ol", { id: "journal" }, ...events.map((one) => element("li", {}, element("time", { textContent: clock(one.at) }), ` ${TEXTS[one.kind](one)}`)));
  log.tabIndex = 0;
  log.setAttribute("aria-label", "What happened while this page was open");
  at("stored").replaceChildren(
    element("div", { className: "facts" },
      element("h2", {}, icon("stored"), "What is stored"),
      element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: String(value) })]))),
    log);
  log.scrollTop = log.scrollHeight;
  if (hadFocus) log.focus();
}
