// Progress of a run: the steps that ended, the one that writes, the tools that were called and have not answered, and what
// the graph reports itself.

import { shaped } from "./content.js";

const SHOWN = 6;
const LONGEST = 160;

export class Progress {
  constructor() {
    this.done = []; // names of the nodes that ended
    this.current = null; // the node that writes
    this.tools = new Map(); // names of the calls without an answer, by their ids
    this.report = ""; // the last report of the graph
  }

  writing(about) {
    const node = (about?.langgraph_checkpoint_ns ?? "").split(":")[0] || about?.langgraph_node;
    if (node) this.current = node;
  }

  // Puts the steps that an earlier attempt had ended before those of this one.
  stayed(names) {
    this.done.unshift(...names);
  }

  finished(update) {
    if (update?.__metadata__?.cached) return; // it had ended before an interruption
    for (const [node, values] of Object.entries(update ?? {})) {
      if (node.startsWith("__")) continue;
      this.done.push(node);
      if (this.current === node) this.current = null;
      const written = values?.messages ?? [];
      this._read((Array.isArray(written) ? written : [written]).map(shaped));
    }
    this.report = "";
  }

  stored(messages) {
    this.tools.clear();
    this._read(messages);
  }

  _read(messages) {
    for (const message of messages) {
      for (const call of message.tool_calls ?? []) this.tools.set(call.id, call.name);
      if (message.type === "tool") this.tools.delete(message.tool_call_id);
    }
  }

  // A report is a text, or has one in a field that is usual for it.
  reported(data) {
    const words = typeof data === "string" ? data : [data?.message, data?.text, data?.status, data?.progress].find((held) => ["string", "number"].includes(typeof held));
    if (words !== undefined) this.report = String(words).slice(0, LONGEST);
  }

  // One step that writes its answer needs no list.
  get isShown() {
    return this.done.length > 0 || this.tools.size > 0 || this.report !== "";
  }

  // Returns the steps to show: {name, state, detail}; state is "done" or "now".
  get steps() {
    const done = this.done.slice(-SHOWN).map((name) => ({ name, state: "done" }));
    const now = [...this.tools.values()].map((name) => ({ name, state: "now", isTool: true }));
    if (this.current) now.push({ name: this.current, state: "now" });
    if (this.report) now.push({ name: this.report, state: "now", isReport: true });
    return [...done, ...now];
  }
}
