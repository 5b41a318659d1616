// One thread as the page knows it: its stored state, messages on their way, and the events of the current run. Only
// messages that the server reported as stored are shown as stored. `changed` is called on every change.

import * as api from "./api.js";
import { contentWith, isUser, joined, partsBeside, shaped, textOf } from "./content.js";
import { identifier } from "./dom.js";
import * as link from "./link.js";
import * as outbox from "./outbox.js";
import { Progress } from "./progress.js";
import { stepsUntil, Tree } from "./tree.js";

const TITLE = 80;
const LIVE = ["pending", "running"];
const JOURNAL = 200;
const STEPS = 100;

const inputOf = ({ text, parts, id }) => ({ input: { messages: [{ role: "user", content: contentWith(text, parts ?? []), id }] } });

// Returns true for an answer that was stopped, and kept as far as it had been written.
export const isStopped = (message) => message?.response_metadata?.stopped === true;

export const titleOf = (text) => {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= TITLE ? line : `${line.slice(0, TITLE).replace(/\s\S*$/, "")}…`;
};

export class Conversation {
  constructor(id, changed) {
    this.id = id ?? identifier();
    this.isNew = !id;
    this.isLoading = !this.isNew;
    this.graph = null;
    this.title = null;
    this.values = {};
    this.messages = [];
    this.partial = new Map(); // partial answers, by their ids
    this.earlier = new Map(); // partial answers of an attempt that was interrupted and is repeated
    this.outgoing = []; // sent messages that are in no state yet: {key, text, parts, id, state, runId, checkpoint, steers}
    this.leftovers = []; // answers that were stopped while a message waited: {after, messages}
    this.keeping = null; // resolves when the answer that was stopped is kept
    this.progress = new Progress();
    this.journal = []; // what happened while the page was open: {at, kind, ...}
    this.live = null; // the streamed run: {runId, key}; without a runId it is not accepted yet
    this.forks = new Map();
    this.questions = [];
    this.waits = []; // sleeps, and waits for signals: {kind, until, signal}
    this.problem = null; // {text, action}: the reason why the conversation cannot continue
    this.wasStopped = false;
    this.resumed = null; // what an interruption of the run that is or was streamed last cost: {stayed, again}, names of steps
    this.updatedAt = null;
    this.tree = new Tree(this.id);
    this.leaf = null; // the last checkpoint of the visible branch
    this.path = [];
    this._recalled = new Set(); // runs whose events were read for their partial answers
    this._abort = new AbortController();
    this._changed = changed;
    this._syncing = null;
    this._streamed = 0; // states that runs have streamed
    this._accepted = Promise.resolve(); // resolves when the request before the next one was answered
  }

  // Returns a conversation with the messages that an earlier load of the page had sent, but not seen accepted.
  static of(kept, changed) {
    const [{ thread, isNew, graph, title }] = kept;
    const restored = Object.assign(new Conversation(thread, changed), { isNew, isLoading: !isNew, graph, title });
    restored.outgoing = kept.map(({ message }) => message);
    return restored;
  }

  get isBusy() {
    return this.live !== null || this.outgoing.some(({ state }) => state !== "failed");
  }

  // True while it has messages that only this page knows.
  get isUnsent() {
    return this.outgoing.some(({ state }) => ["sending", "failed"].includes(state));
  }

  close() {
    this._abort.abort();
  }

  _notify(what = "state") {
    if (!this._abort.signal.aborted) this._changed(this, what);
  }

  // Reads the thread's current state, and follows its current run. If it is being read already, it is read once more
  // afterwards: the cause of this call may be newer.
  async sync() {
    if (this.isNew) return;
    const before = this._syncing;
    const own = (async () => {
      await before?.catch(() => undefined); // reported by the earlier call
      await this._sync();
    })();
    this._syncing = own;
    try {
      await own;
    } finally {
      if (this._syncing === own) this._syncing = null;
    }
  }

  // An answer is visible before its place in the tree is known.
  async _settled() {
    while (this._syncing) await this._syncing;
  }

  async _sync() {
    const streamed = this._streamed;
    const [thread, runs] = await link.persist(() => Promise.all([api.thread(this.id), api.runs(this.id)]));
    const latest = await link.persist(() => api.state(this.id));
    await link.persist(() => this.tree.update(latest.checkpoint_id));
    const isBranch = this.wantsBranch && this.tree.nodes.has(this.leaf);
    this.leaf = isBranch ? this.tree.newestUnder(this.leaf) : this.tree.head;
    const state = this.leaf === this.tree.head ? latest : await link.persist(() => api.state(this.id, this.leaf));
    this.path = this.tree.path(this.leaf);
    const forks = await link.persist(() => this.tree.forks(this.path));
    if (this._abort.signal.aborted) return;
    this.isLoading = false;
    // What a run streamed meanwhile is newer than what was read here, and is read again when it ends.
    if (this._streamed !== streamed && !this.wantsBranch) return;
    this.title = thread.metadata?.title ?? this.title;
    this.graph = thread.metadata?.graph_id ?? this.graph;
    this.updatedAt = thread.updated_at;
    this.forks = forks;
    this._take(state.values ?? {});
    const open = runs.filter(({ status }) => LIVE.includes(status)).reverse();
    const isAtHead = this.leaf === this.tree.head;
    this.questions = open.length || !isAtHead ? [] : (state.interrupts ?? []); // an answer resumes the newest checkpoint
    this.waits = open.length || !isAtHead ? [] : (state.waits ?? []);
    this.problem = null;
    // A run that was accepted after the runs were read explains a state that has a next step.
    if (!open.length && !this.live && isAtHead && !this.questions.length && !this.waits.length && state.next?.length) {
      if (thread.status === "error" && thread.error) this.problem = { kind: "failed", error: thread.error };
      else this.problem = { kind: "cut" };
    } else if (!open.length && !this.live && !this.leaf && thread.error) {
      this.problem = { kind: "failed", error: thread.error };
    }
    if (!this.problem) this.partial.clear();
    else await this._recall(runs[0]);
    if (this._abort.signal.aborted) return;
    this.runs = runs;
    this.isKept = !open.length && !this.live && isAtHead && !state.next?.length && isStopped(this.messages.at(-1));
    this._queue(open);
    this._notify("loaded");
    const next = open.find(({ status }) => status === "running") ?? open[0];
    if (next && !this.live) this._watch(next.run_id);
  }

  // Reads the partial answers of a run that was stopped or failed, as long as its events are stored.
  async _recall(run) {
    if (!run || LIVE.includes(run.status) || this.live || this.partial.size || this._recalled.has(run.run_id)) return;
    this._recalled.add(run.run_id);
    const found = new Map();
    try {
      for await (const { name, data } of api.follow(this.id, run.run_id, { signal: this._abort.signal, lost: () => link.back() })) {
        if (name === "messages") this._piece(data, found);
      }
    } catch (failure) {
      if (failure.status !== 404 && !this._abort.signal.aborted) throw failure; // 404: the events are not kept any more
    }
    this.partial = found;
  }

  // Queued messages are shown as queued, from whichever client they came.
  _queue(open) {
    const stored = new Set(this.messages.map(({ id }) => id));
    this.outgoing = this.outgoing.filter(({ id, state, runId }) =>
      !stored.has(id) && (state === "sending" || state === "failed" || !runId || open.some((run) => run.run_id === runId)));
    for (const run of open) {
      const unseen = (run.kwargs?.input?.messages ?? []).filter((message) => isUser(message) && !stored.has(message.id));
      const known = this.outgoing.find(({ runId, id }) => runId === run.run_id || unseen.some((message) => message.id === id));
      if (known) Object.assign(known, { runId: run.run_id, state: run.status === "running" ? "stored" : "queued" });
      else if (unseen.length) {
        this.outgoing.push({ key: run.run_id, id: unseen.at(-1).id ?? run.run_id, runId: run.run_id, text: unseen.map(textOf).join("\n"), parts: unseen.flatMap(partsBeside), steers: run.multitask_strategy === "steer", state: run.status === "running" ? "stored" : "queued" });
      }
    }
  }

  _take(values) {
    this.values = values;
    this.messages = Array.isArray(values?.messages) ? values.messages.map(shaped) : [];
    const stored = new Set(this.messages.map(({ id }) => id));
    this.outgoing = this.outgoing.filter(({ id }) => !stored.has(id));
    for (const id of stored) this.partial.delete(id);
    for (const id of stored) this.earlier.delete(id);
  }

  // Actions

  // Sends a message. With `steers` the run that is open takes it up at its next step; otherwise it waits for its end.
  async send(text, parts = [], { steers = false } = {}) {
    const message = { key: identifier(), id: identifier(), text, parts, state: "sending", runId: null, steers: steers && this.isBusy };
    const checkpoint = this.wantsBranch && !this.isBusy ? this.leaf : null;
    await this._start(message, inputOf(message), checkpoint);
  }

  // Sends the messages of an earlier load of the page again. Those that had arrived are the same messages.
  async resume() {
    const restored = this.outgoing.filter(({ state }) => state === "sending");
    try {
      await this.sync();
    } finally {
      for (const message of restored) {
        if (this.outgoing.includes(message)) this._start(message, inputOf(message), message.checkpoint);
        else outbox.drop(message);
      }
    }
  }

  // Replaces a message in a new branch; the old branch stays, and the attachments too.
  async edit(place, text) {
    const message = { key: identifier(), id: identifier(), text, parts: partsBeside(this.messages[place]), state: "sending", runId: null };
    await this._start(message, inputOf(message), async () => {
      await this._settled();
      const { parent } = await this._before(place);
      this._take({ ...this.values, messages: this.messages.slice(0, place) });
      return parent;
    });
  }

  // Has the message before a place answered again, in a new branch.
  async regenerate(place) {
    if (this.isBusy) return; // a second click, before the button is disabled
    await this._start(null, { input: null }, async () => {
      await this._settled();
      while (place >= 0 && !isUser(this.messages[place])) place -= 1;
      const first = await link.persist(() => this.tree.firstWith(this.path, place));
      this._take({ ...this.values, messages: this.messages.slice(0, place + 1) });
      return this.forks.get(place + 1)?.parent ?? first;
    });
  }

  async _before(place) {
    const fork = this.forks.get(place);
    if (fork) return fork;
    const first = await link.persist(() => this.tree.firstWith(this.path, place));
    return { parent: this.tree.nodes.get(first)?.parent };
  }

  async goOn() {
    await this._start(null, { input: null }, null);
  }

  async answer(resume) {
    const asked = this.questions;
    this.questions = [];
    await this._start(null, { command: { resume } }, null, () => { this.questions = asked; });
  }

  // Sends a refused message once more, from the checkpoint that it was sent from.
  async again(message) {
    message.steers &&= this.isBusy;
    await this._start(message, inputOf(message), message.checkpoint);
  }

  async showBranch(checkpoint) {
    this.leaf = this.tree.newestUnder(checkpoint);
    this.wantsBranch = this.leaf !== this.tree.head;
    await this.sync();
  }

  async stop() {
    if (!this.live) return;
    this.wasStopped = true;
    if (this.live.runId) await this._ended(this.live.runId); // otherwise as soon as it is accepted
  }

  // Cancels a queued message, or removes a refused one.
  async withdraw(message) {
    this.outgoing = this.outgoing.filter((one) => one !== message);
    outbox.drop(message);
    this._notify();
    if (message.runId) await this._ended(message.runId);
  }

  async _ended(runId) {
    try {
      await link.persist(() => api.cancel(this.id, runId));
    } catch (failure) {
      if (failure.status !== 404) throw failure; // the run had ended already
    }
  }

  // Creates a run. `from` is the checkpoint that it starts from, or a function that finds it: what is sent meanwhile comes
  // after this run. A message is kept over a reload once its checkpoint is known.
  async _start(message, body, from, refused = () => undefined) {
    const key = message?.key ?? identifier();
    const follows = !this.isBusy;
    if (message && !this.outgoing.includes(message)) this.outgoing.push(message);
    const isKnown = typeof from !== "function";
    if (message) message.state = "sending";
    if (message && isKnown) outbox.keep(this, Object.assign(message, { checkpoint: from }));
    if (follows) this.live = { runId: null, key };
    if (follows) this.waits = [];
    this.problem = null;
    this.isKept = false;
    if (follows) this.wasStopped = false;
    if (follows) this.resumed = null;
    this._notify("sent");
    try {
      const { runId, response } = await this._inOrder(async () => {
        await this.keeping;
        await this._make(message);
        const checkpoint = isKnown ? from : await from();
        if (message && !isKnown) outbox.keep(this, Object.assign(message, { checkpoint }));
        const start = checkpoint ? { checkpoint: { checkpoint_id: checkpoint } } : {};
        const asked = { assistant_id: this.graph, multitask_strategy: message?.steers ? "steer" : "enqueue", ...body, ...start };
        return link.persist(() => api.makeRun(this.id, asked, key, follows));
      });
      this.wantsBranch = false;
      this._note("accepted", { runId });
      if (message) outbox.drop(Object.assign(message, { runId, state: follows ? "stored" : "queued" }));
      this._notify("accepted");
      if (follows) this._watch(runId, response);
      else if (!this.live) await this.sync();
    } catch (failure) {
      if (message) outbox.keep(this, Object.assign(message, { state: "failed", reason: failure.message }));
      if (follows) this.live = null;
      refused();
      this.problem = message ? null : { kind: "refused", reason: failure.message };
      this._notify();
      if (!message) throw failure;
    }
    if (follows && this.wasStopped) await this.stop();
  }

  // Makes a request when the one before it was answered: the server takes messages up in the order of their acceptance,
  // and several may have waited for it.
  _inOrder(request) {
    const answered = this._accepted.then(request);
    this._accepted = answered.catch(() => undefined); // reported to its own caller
    return answered;
  }

  async _make(message) {
    if (!this.isNew) return;
    this.title ??= titleOf(message?.text ?? "");
    const metadata = { graph_id: this.graph, title: this.title };
    await link.persist(() => api.makeThread(this.id, metadata));
    this.isNew = false;
    this._notify("made");
  }

  // Streaming

  async _watch(runId, response = null) {
    this.live = { runId };
    if (this._abort.signal.aborted) {
      response?.body.cancel();
      return;
    }
    this.partial = new Map();
    this.earlier = new Map();
    this.progress = new Progress();
    this.resumed = null;
    this._notify();
    let ending = null;
    try {
      const events = api.follow(this.id, runId, { response, signal: this._abort.signal, lost: () => this._lost() });
      for await (const { name, data } of events) {
        if (this._abort.signal.aborted) return;
        ending = this._heard(name, data) ?? ending;
      }
    } catch (failure) {
      if (this._abort.signal.aborted) return;
      if (failure.status !== 404) this.problem = { kind: "refused", reason: failure.message };
    }
    if (this._abort.signal.aborted) return;
    const cut = ending?.status === "interrupted" && this.wasStopped ? new Map(this.partial) : null;
    const answered = this.messages.at(-1)?.id;
    this.live = null;
    this.earlier = new Map();
    this._note("ended", { runId, status: ending?.status ?? "unknown" });
    this.keeping = this._afterwards(cut, answered).catch((failure) => { this.problem = { kind: "refused", reason: failure.message }; });
    await this.keeping;
    this.keeping = null;
    this._notify("ended");
  }

  // Reads what a run left, and keeps the answer that was stopped. If the next message is being answered already, or has
  // been, what was written is shown where it was, but it is not a part of the conversation.
  async _afterwards(cut, answered) {
    await this.sync();
    if (!cut?.size) return;
    const isLast = this.messages.at(-1)?.id === answered;
    if (isLast && !this.live?.runId) { // a message that is not accepted yet waits for this
      this.partial = cut;
      await this.keep({ isAsked: false });
    } else {
      this.leftovers.push({ after: answered, messages: [...cut.values()] });
    }
  }

  // Stores the partial answer as the answer, so that the conversation goes on after it. Without being asked for, it leaves
  // the thread alone where that is impossible: after a step that other steps run beside, or in a graph that refuses it.
  async keep({ isAsked = true } = {}) {
    const written = [...this.partial.values()].filter((message) => textOf(message));
    const nodes = new Set(written.map(({ node }) => node));
    try {
      if (nodes.size !== 1 || nodes.has(undefined) || this.problem?.kind === "refused") throw new api.Failure("There is no one answer that could be kept.");
      const messages = written.map((message) => ({ type: "ai", id: message.id, content: textOf(message), response_metadata: { stopped: true } }));
      await link.persist(async () => {
        // A repeated request may have been answered before, and the thread may have gone on elsewhere.
        const { checkpoint_id: head, values } = await api.state(this.id);
        if (values?.messages?.some?.((one) => one?.id === messages[0].id)) return;
        if (head !== this.leaf) throw new api.Failure("The conversation has gone on, so this answer can no longer be kept.");
        await api.update(this.id, { values: { messages }, as_node: [...nodes][0], checkpoint: { checkpoint_id: head } });
      });
    } catch (failure) {
      if (!isAsked && failure instanceof api.Failure) return;
      throw failure;
    }
    this._note("kept");
    await this.sync();
  }

  _note(kind, facts = {}) {
    this.journal.push({ at: Date.now(), kind, ...facts });
    if (this.journal.length > JOURNAL) this.journal.shift();
  }

  _heard(name, data) {
    if (name === "metadata") {
      this.attempt = data.attempt;
      if (this.partial.size) this.earlier = this.partial;
      this.partial = new Map();
      this.progress = new Progress();
      this._note("attempt", { attempt: data.attempt });
      if (data.attempt > 1) this._resume(data);
    } else if (name === "values") {
      const { __interrupt__: asked, ...values } = data ?? {};
      this._streamed += 1;
      this._take(values);
      this.progress.stored(this.messages);
    } else if (name === "updates") {
      this.progress.finished(data);
      for (const node of Object.keys(data ?? {})) if (!node.startsWith("__")) this._note("step", { node });
    } else if (name === "custom") {
      this.progress.reported(data);
    } else if (name === "messages") {
      this.progress.writing(data[1]);
      this._piece(data, this.partial);
    } else if (name === "end") {
      return data;
    }
    this._notify("streamed");
    return null;
  }

  // Finds out which steps an interruption spared, and which it hit: the latter are done again. Without a checkpoint of the
  // run nothing of it had been stored.
  async _resume({ run_id: runId, attempt, checkpoint_id: checkpoint }) {
    let rows;
    try {
      rows = checkpoint ? await link.persist(async () => api.history(this.id, await api.most(STEPS))) : [];
    } catch (failure) {
      if (failure instanceof api.Failure) return; // the notice says less then
      throw failure;
    }
    if (this.attempt !== attempt || (this.live && this.live.runId !== runId)) return;
    this.resumed = stepsUntil(rows, checkpoint);
    this.progress.stayed(this.resumed.stayed);
    this._note("resumed", this.resumed);
    this._notify();
  }

  _piece([message, about], partial) {
    if (!/^ai/i.test(message.type ?? "") || this.messages.some(({ id }) => id === message.id)) return;
    const node = (about?.langgraph_checkpoint_ns ?? "").split(":")[0] || about?.langgraph_node;
    partial.set(message.id, { ...joined(partial.get(message.id), message), node });
  }

  async _lost() {
    this._note("lost");
    this._notify();
    await link.back();
    this._note("back");
  }
}
