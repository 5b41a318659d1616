// The processes of a server in development: which one answers, and a button that kills it, where another one takes over.

import * as api from "./api.js";
import { announce, at } from "./dom.js";
import * as link from "./link.js";

const processes = []; // {pid, startedAt, at}: those that answered, oldest first
const deaths = []; // {pid, at}: killed from here
let canKill = false;
let isDying = false;
let fault = "";
let changed = () => undefined;

export const current = () => processes.at(-1);

// Returns what happened to them, for the journal of a conversation.
export const events = () => [
  ...deaths.map((one) => ({ ...one, kind: "killed" })),
  ...processes.map((one, number) => ({ ...one, kind: "process", isNext: deaths.some(({ pid }) => pid === processes[number - 1]?.pid) })),
];

export function begin(listener) {
  changed = listener;
  at("kill").addEventListener("click", kill);
  link.onChange((isAway) => { if (!isAway && !isDying) look(); });
  look();
}

// Asks which process answers. A server that is not in development does not tell.
async function look() {
  try {
    if (!(await link.persist(api.about)).process) return;
    const { pid, started_at: startedAt, can_kill: may } = await link.persist(api.serverProcess);
    canKill = may;
    fault = "";
    if (processes.at(-1)?.pid !== pid) processes.push({ pid, startedAt, at: Date.now() });
  } catch (failure) {
    if (failure.status !== 401) fault = failure.message; // without a token the page asks for one
  }
  changed();
}

async function kill() {
  if (isDying) return;
  isDying = true;
  const moment = Date.now();
  let { pid } = current();
  fault = "";
  changed();
  try {
    ({ pid } = await api.kill()); // of several processes another one may have taken the request
  } catch (failure) {
    if (failure instanceof api.Failure && !failure.away) { // a killed process may not answer to its end
      fault = failure.message;
      isDying = false;
      changed();
      return;
    }
  }
  deaths.push({ pid, at: moment });
  announce(`Process ${pid} is killed.`);
  await link.back();
  await look();
  isDying = false;
  changed();
}

export function draw() {
  at("crash").hidden = !canKill && !fault;
  at("kill").hidden = !canKill;
  at("kill").disabled = isDying || link.isAway();
  const words = fault || "As kill -9 would, also during an answer. Another process takes over: steps that ended stay, and the one under way is done again.";
  if (at("crash-text").textContent !== words) at("crash-text").textContent = words;
}
