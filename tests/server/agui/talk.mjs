// Talks to a graph through AG-UI's adapter for LangGraph, which is what CopilotKit's runtime does:
// node talk.mjs URL. Reads one JSON document, {graph, threadId, steps}, and writes one: of each step the kinds of
// events, the messages that are there then, and the requests that were refused.
import { randomUUID } from "node:crypto";
import { LangGraphAgent } from "@ag-ui/langgraph";

const url = process.argv[2];
let refused = [];
const asIs = globalThis.fetch;
globalThis.fetch = async (what, how) => {
  const answer = await asIs(what, how);
  if (answer.status >= 400) refused.push(`${answer.status} ${how?.method ?? "GET"} ${new URL(String(what)).pathname}`);
  return answer;
};

let text = "";
for await (const part of process.stdin) text += part;
const { graph, threadId, steps } = JSON.parse(text);

let messages = [];
const told = [];
for (const { say, again, resume, stopAfter } of steps) {
  const agent = new LangGraphAgent({ deploymentUrl: url, graphId: graph });
  agent.threadId = threadId;
  // Another answer to the last message of the user: what followed it, and what a client named itself, is left out.
  if (again) {
    const last = messages.findLastIndex(({ role }) => role === "user");
    messages = messages.slice(0, last + 1).map((each) => (each.role === "user" ? each : { ...each, id: randomUUID() }));
  }
  agent.messages = say === undefined ? messages : [...messages, { id: randomUUID(), role: "user", content: say }];
  const kinds = [];
  let written = 0;
  const onEvent = ({ event }) => {
    kinds.push(event.name ?? event.type);
    if (event.type === "TEXT_MESSAGE_CONTENT" && ++written === stopAfter) agent.abortRun();
  };
  const given = resume === undefined ? {} : { forwardedProps: { command: { resume } } };
  refused = [];
  let error = null;
  try {
    await agent.runAgent({ runId: randomUUID(), ...given }, { onEvent });
  } catch (raised) {
    error = raised.message;
  }
  messages = agent.messages;
  told.push({ kinds, error, refused, messages: messages.map(({ role, content }) => [role, content]) });
}
console.log(`\n${JSON.stringify(told)}`);
process.exit(0);
