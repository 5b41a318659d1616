// The panel that shows what is stored of a conversation, and what happened while the page was open: accepted messages,
// attempts, steps, lost connections, and in development the processes of the server, one of which can be killed here.

import * as api from "./api.js";
import { announce, at, element, icon } from "./dom.js";
import * as link from "./link.js";

const LINES = 40;
const processes = []; // {pid, startedAt, at}: those that answered, oldest first
const deaths = []; // {pid, at}: killed from here
let canKill = false;
let isShown = false;
let fault = "";
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
  link.onChange((isAway) => { if (!isAway && isShown) look(); });
}

function show(wanted) {
  isShown = wanted;
  at("stored").hidden = !wanted;
  at("open-stored").setAttribute("aria-expanded", String(wanted));
  if (wanted) look();
  changed();
}

// Asks which process answers. A server that is not in development does not tell.
async function look() {
  try {
    if (!(await api.about()).process) return;
    const { pid, started_at: startedAt, can_kill: may } = await link.persist(api.serverProcess);
    canKill = may;
    fault = "";
    if (processes.at(-1)?.pid !== pid) processes.push({ pid, startedAt, at: Date.now() });
  } catch (failure) {
    fault = failure.message;
  }
  changed();
}

async function kill() {
  const moment = Date.now();
  let { pid } = processes.at(-1);
  fault = "";
  try {
    ({ pid } = await api.kill()); // of several processes another one may have taken the request
  } catch (failure) {
    if (failure instanceof api.Failure && !failure.away) { // a killed process may not answer to its end
      fault = failure.message;
      changed();
      return;
    }
  }
  deaths.push({ pid, at: moment });
  announce(`Process ${pid} is killed.`);
  await link.back();
  await look();
}

const TEXTS = {
  accepted: () => "Message accepted: stored before it is answered",
  attempt: ({ attempt }) => (attempt > 1 ? `Attempt ${attempt} began, from the last stored checkpoint` : "The answer began"),
  step: ({ node }) => `Step “${node}” ended; its checkpoint is stored`,
  lost: () => "Connection lost",
  back: () => "The server answers again; events continue after the last one received",
  kept: () => "The stopped answer was stored as far as it had been written",
  ended: ({ status }) => `The run ended: ${status}`,
  killed: ({ pid }) => `Process ${pid} was killed with SIGKILL`,
  process: ({ pid, isNext }) => (isNext ? `Process ${pid} took over` : `Process ${pid} answers`),
};

function lines(conversation) {
  const found = [
    ...conversation.journal,
    ...deaths.map((one) => ({ ...one, kind: "killed" })),
    ...processes.map((one, number) => ({ ...one, kind: "process", isNext: deaths.some(({ pid }) => pid === processes[number - 1]?.pid) })),
  ];
  return found.sort((one, other) => one.at - other.at).slice(-LINES);
}

const clock = (moment) => new Date(moment).toLocaleTimeString("en-GB");

export function draw(conversation) {
  if (!isShown) return;
  const process = processes.at(-1);
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
  const wanted = JSON.stringify([facts, events, canKill, fault, link.isAway()]);
  if (wanted === drawn) return;
  drawn = wanted;
  const hadFocus = at("stored").contains(document.activeElement);
  const button = element("button", { type: "button", id: "kill", className: "danger", textContent: "Kill the server process", disabled: link.isAway(), onclick: kill });
  const log = element("ol", { id: "journal" }, ...events.map((one) => element("li", {}, element("time", { textContent: clock(one.at) }), ` ${TEXTS[one.kind](one)}`)));
  log.tabIndex = 0;
  log.setAttribute("aria-label", "What happened while this page was open");
  at("stored").replaceChildren(
    element("div", { className: "facts" },
      element("h2", {}, icon("stored"), "What is stored"),
      element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: String(value) })])),
      ...(canKill ? [button, element("p", { className: "quiet", textContent: "As kill -9 or a power cut would. Another process takes over." })] : []),
      ...(fault ? [element("p", { className: "fault", textContent: fault })] : [])),
    log);
  log.scrollTop = log.scrollHeight;
  if (hadFocus) (at("kill") ?? log).focus();
}
