// One thread as the page knows it: its stored state, messages on their way, and the events of the current run. Only
// messages that the server reported as stored are shown as stored. `changed` is called on every change.

import * as api from "./api.js";
import { identifier } from "./dom.js";
import * as link from "./link.js";
import { Tree } from "./tree.js";

const TITLE = 80;
const LIVE = ["pending", "running"];

export const titleOf = (text) => {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= TITLE ? line : `${line.slice(0, TITLE).replace(/\s\S*$/, "")}…`;
};

export const textOf = (message) => {
  const { content } = message;
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return content == null ? "" : JSON.stringify(content);
  return content.map((part) => (typeof part === "string" ? part : part.text ?? (/image/.test(part.type) ? "[image]" : ""))).join("");
};

export const isUser = (message) => message.type === "human" || message.role === "user";
export const isAnswer = (message) => /^ai/i.test(message.type ?? "") || message.role === "assistant";

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
    this.outgoing = []; // sent messages that are in no state yet: {key, text, id, state, runId, checkpoint}
    this.live = null; // the streamed run: {runId, key}; without a runId it is not accepted yet
    this.forks = new Map();
    this.questions = [];
    this.problem = null; // {text, action}: the reason why the conversation cannot continue
    this.wasStopped = false;
    this.updatedAt = null;
    this.tree = new Tree(this.id);
    this.leaf = null; // the last checkpoint of the visible branch
    this.path = [];
    this._abort = new AbortController();
    this._changed = changed;
    this._syncing = null;
  }

  get isBusy() {
    return this.live !== null || this.outgoing.some(({ state }) => state !== "failed");
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
    const [thread, runs] = await link.persist(() => Promise.all([api.thread(this.id), api.runs(this.id)]));
    const latest = await link.persist(() => api.state(this.id));
    await link.persist(() => this.tree.update(latest.checkpoint_id));
    const isBranch = this.wantsBranch && this.tree.nodes.has(this.leaf);
    this.leaf = isBranch ? this.tree.newestUnder(this.leaf) : this.tree.head;
    const state = this.leaf === this.tree.head ? latest : await link.persist(() => api.state(this.id, this.leaf));
    this.path = this.tree.path(this.leaf);
    const forks = await link.persist(() => this.tree.forks(this.path));
    if (this._abort.signal.aborted) return;
    this.title = thread.metadata?.title ?? this.title;
    this.graph = thread.metadata?.graph_id ?? this.graph;
    this.updatedAt = thread.updated_at;
    this.forks = forks;
    this._take(state.values ?? {});
    const open = runs.filter(({ status }) => LIVE.includes(status)).reverse();
    const isAtHead = this.leaf === this.tree.head;
    this.questions = open.length || !isAtHead ? [] : (state.interrupts ?? []); // an answer resumes the newest checkpoint
    this.problem = null;
    if (!open.length && isAtHead && !this.questions.length && state.next?.length) {
      if (thread.status === "error" && thread.error) this.problem = { kind: "failed", error: thread.error };
      else this.problem = { kind: "cut" };
    } else if (!open.length && !this.leaf && thread.error) {
      this.problem = { kind: "failed", error: thread.error };
    }
    if (!this.problem || this.problem.kind === "failed") this.partial.clear();
    this.isLoading = false;
    this._queue(open);
    this._notify("loaded");
    const next = open.find(({ status }) => status === "running") ?? open[0];
    if (next && !this.live) this._watch(next.run_id);
  }

  // Queued messages are shown as queued, from whichever client they came.
  _queue(open) {
    const stored = new Set(this.messages.map(({ id }) => id));
    this.outgoing = this.outgoing.filter(({ id, state, runId }) =>
      !stored.has(id) && (state === "sending" || state === "failed" || !runId || open.some((run) => run.run_id === runId)));
    for (const run of open) {
      const known = this.outgoing.find(({ runId }) => runId === run.run_id);
      const unseen = (run.kwargs?.input?.messages ?? []).filter((message) => isUser(message) && !stored.has(message.id));
      if (known) known.state = run.status === "running" ? "stored" : "queued";
      else if (unseen.length) {
        this.outgoing.push({ key: run.run_id, id: unseen.at(-1).id ?? run.run_id, runId: run.run_id, text: unseen.map(textOf).join("\n"), state: run.status === "running" ? "stored" : "queued" });
      }
    }
  }

  _take(values) {
    this.values = values;
    this.messages = Array.isArray(values?.messages) ? values.messages : [];
    const stored = new Set(this.messages.map(({ id }) => id));
    this.outgoing = this.outgoing.filter(({ id }) => !stored.has(id));
    for (const id of stored) this.partial.delete(id);
  }

  // Actions

  async send(text) {
    const message = { key: identifier(), id: identifier(), text, state: "sending", runId: null };
    const checkpoint = this.wantsBranch && !this.isBusy ? this.leaf : null;
    await this._start(message, { input: { messages: [{ role: "user", content: text, id: message.id }] } }, checkpoint);
  }

  // Replaces a message in a new branch; the old branch stays.
  async edit(place, text) {
    const message = { key: identifier(), id: identifier(), text, state: "sending", runId: null };
    await this._settled();
    const { parent } = await this._before(place);
    this._take({ ...this.values, messages: this.messages.slice(0, place) });
    await this._start(message, { input: { messages: [{ role: "user", content: text, id: message.id }] } }, parent);
  }

  // Has the message before a place answered again, in a new branch.
  async regenerate(place) {
    await this._settled();
    while (place >= 0 && !isUser(this.messages[place])) place -= 1;
    const first = await link.persist(() => this.tree.firstWith(this.path, place));
    this._take({ ...this.values, messages: this.messages.slice(0, place + 1) });
    await this._start(null, { input: null }, this.forks.get(place + 1)?.parent ?? first);
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
    await this._start(message, { input: { messages: [{ role: "user", content: message.text, id: message.id }] } }, message.checkpoint);
  }

  async showBranch(checkpoint) {
    this.leaf = this.tree.newestUnder(checkpoint);
    this.wantsBranch = this.leaf !== this.tree.head;
    await this.sync();
  }

  async stop() {
    const runId = this.live?.runId;
    if (!runId) return;
    this.wasStopped = true;
    await this._ended(runId);
  }

  // Cancels a queued message.
  async withdraw(message) {
    this.outgoing = this.outgoing.filter((one) => one !== message);
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

  async _start(message, body, checkpoint, refused = () => undefined) {
    const key = message?.key ?? identifier();
    const follows = !this.isBusy;
    if (message && !this.outgoing.includes(message)) this.outgoing.push(message);
    if (message) Object.assign(message, { state: "sending", checkpoint });
    if (follows) this.live = { runId: null, key };
    this.problem = null;
    this.wasStopped = false;
    if (checkpoint) body = { ...body, checkpoint: { checkpoint_id: checkpoint } };
    this._notify("sent");
    try {
      await this._make(message);
      const asked = { assistant_id: this.graph, multitask_strategy: "enqueue", ...body };
      const { runId, response } = await link.persist(
        () => api.makeRun(this.id, asked, key, follows),
        () => { if (message) message.state = "waiting"; this._notify(); },
      );
      this.wantsBranch = false;
      if (message) Object.assign(message, { runId, state: follows ? "stored" : "queued" });
      this._notify("accepted");
      if (follows) this._watch(runId, response);
      else if (!this.live) await this.sync();
    } catch (failure) {
      if (message) Object.assign(message, { state: "failed", reason: failure.message });
      if (follows) this.live = null;
      refused();
      this.problem = message ? null : { kind: "refused", reason: failure.message };
      this._notify();
      if (!message) throw failure;
    }
  }

  async _make(message) {
    if (!this.isNew) return;
    this.title ??= titleOf(message?.text ?? "");
    const metadata = { graph_id: this.graph, title: this.title };
    await link.persist(() => api.makeThread(this.id, metadata), () => { if (message) message.state = "waiting"; this._notify(); });
    this.isNew = false;
    this._notify("made");
  }

  // Streaming

  async _watch(runId, response = null) {
    this.live = { runId };
    this.partial.clear();
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
    this.live = null;
    try {
      await this.sync();
    } catch (failure) {
      this.problem = { kind: "refused", reason: failure.message };
    }
    if (cut?.size && !this.live) this.partial = cut;
    this._notify("ended");
  }

  _heard(name, data) {
    if (name === "metadata") {
      this.attempt = data.attempt;
      this.partial.clear();
    } else if (name === "values") {
      const { __interrupt__: asked, ...values } = data ?? {};
      this._take(values);
    } else if (name === "messages") {
      this._piece(data[0]);
    } else if (name === "end") {
      return data;
    }
    this._notify("streamed");
    return null;
  }

  _piece(message) {
    if (!isAnswer(message) || this.messages.some(({ id }) => id === message.id)) return;
    const before = this.partial.get(message.id);
    const text = /chunk/i.test(message.type) ? (before ? textOf(before) : "") + textOf(message) : textOf(message);
    this.partial.set(message.id, { ...message, type: "ai", content: text });
  }

  async _lost() {
    this._notify();
    await link.back();
  }
}
