import { call, callOnce } from "./api.js";

const entries = ({ messages, asks }) => [
  ...messages.map(({ role, text }) => ({ who: role === "human" ? "you" : "agent", text })),
  ...asks.map((text) => ({ who: "agent", text, note: "waits for your decision" })),
];

const decide = (decision, label) => ({
  label,
  async run({ thread }) {
    return { entries: entries(await callOnce("api/decisions", { thread, decision })) };
  },
});

export default {
  title: "Researcher",
  intro: "A deep agent plans, has three subagents look things up at once, writes a report, and asks before it is published. Ask for: durable threads",
  fields: [{ name: "thread", label: "Thread", value: "r1" }, { name: "user", label: "User", value: "ada" }],
  async history({ thread }) {
    return entries(await call("GET", `api/threads/${encodeURIComponent(thread)}`));
  },
  async send(subject, { thread, user }) {
    return entries(await callOnce("api/research", { thread, user, subject })).slice(1);
  },
  actions: [
    decide("approve", "Approve"),
    decide("reject", "Reject"),
    {
      label: "To-dos and files",
      async run({ thread }) {
        const { todos, files } = await call("GET", `api/threads/${encodeURIComponent(thread)}`);
        return { todos, files };
      },
    },
  ],
};
