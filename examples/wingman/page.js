import { call, callOnce } from "./api.js";

const entries = ({ history }) => history.map(({ role, content, ...more }) => ({
  who: role === "user" ? "you" : "agent",
  text: content,
  note: (more.tags ?? more.additional_kwargs?.tags ?? []).includes("evaluator") ? "the evaluator" : "",
}));

let shown = 0;

async function history({ session }) {
  const found = entries(await call("GET", `api/history/${encodeURIComponent(session)}`));
  shown = found.length;
  return found;
}

export default {
  title: "Wingman",
  intro: "A worker answers, an evaluator judges, and rejected work is tried again. Ask: What is a lease?",
  fields: [{ name: "session", label: "Session", value: "s1" }, { name: "criteria", label: "Success criteria", value: "One sentence" }],
  history,
  async send(message, { session, criteria }) {
    const found = entries(await callOnce("api/chat", { session_id: session, message, success_criteria: criteria || null }));
    const fresh = found.slice(shown + 1); // without the message itself
    shown = found.length;
    return fresh;
  },
  actions: [{
    label: "Remove the session",
    async run({ session }) {
      await call("POST", "api/reset", { session_id: session });
      shown = 0;
      return { entries: [] };
    },
  }],
};
