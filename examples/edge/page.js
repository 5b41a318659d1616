import { call } from "./api.js";

const of = ({ thread }, rest) => `threads/${encodeURIComponent(thread)}${rest}`;

export default {
  title: "Edge",
  intro: "A thread whose past states can be named, kept and continued. Anchor a state, say more, compact, and go on from the anchor.",
  fields: [{ name: "thread", label: "Thread", value: "ada" }, { name: "anchor", label: "Anchor, to set or to go on from" }],
  async send(text, fields) {
    const { answer } = await call("POST", of(fields, "/messages"), { text, ...(fields.anchor ? { anchor: fields.anchor } : {}) });
    return [{ who: "agent", text: answer, note: fields.anchor ? `went on from ${fields.anchor}` : "" }];
  },
  actions: [
    { label: "Anchor this state", run: (fields) => call("PUT", of(fields, `/anchors/${encodeURIComponent(fields.anchor || "approved")}`), {}) },
    { label: "Anchors", run: (fields) => call("GET", of(fields, "/anchors")) },
    { label: "States", run: (fields) => call("GET", of(fields, "/states")) },
    { label: "Compact, as the schedule does", run: () => call("POST", "scheduled") },
  ],
};
