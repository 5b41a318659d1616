// Serves the page, and CopilotKit's runtime for it, on a port of this machine: node serve.mjs PORT SERVER.
// What the runtime asks of the server, and is refused, is a JSON document at /failures until it was read.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";

const [port, server] = process.argv.slice(2);
const failures = [];
const asIs = globalThis.fetch;
globalThis.fetch = async (what, how) => {
  const url = String(what?.url ?? what);
  const told = `${how?.method ?? what?.method ?? "GET"} ${url}`;
  try {
    const answer = await asIs(what, how);
    if (answer.status >= 400 && url.startsWith(server)) failures.push(`${answer.status} ${told}`);
    return answer;
  } catch (error) {
    if (error.name !== "AbortError" && url.startsWith(server)) failures.push(`${error.message} ${told}`);
    throw error;
  }
};

const { CopilotRuntime, ExperimentalEmptyAdapter, copilotRuntimeNodeHttpEndpoint } = await import(
  "@copilotkit/runtime"
);
const { LangGraphAgent } = await import("@copilotkit/runtime/langgraph");

const runtime = new CopilotRuntime({
  agents: { agent: new LangGraphAgent({ deploymentUrl: server, graphId: "agent" }) },
});
const endpoint = "/api/copilotkit";
const answered = copilotRuntimeNodeHttpEndpoint({ endpoint, runtime, serviceAdapter: new ExperimentalEmptyAdapter() });
const html =
  '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><div id="root"></div>' +
  '<script src="page.js"></script>';
const page = readFileSync("page.js");

createServer((asked, answer) => {
  if (asked.url.startsWith(endpoint)) return answered(asked, answer);
  if (asked.url.startsWith("/failures")) {
    answer.setHeader("content-type", "application/json");
    return answer.end(JSON.stringify(failures.splice(0)));
  }
  const isScript = asked.url.startsWith("/page.js");
  answer.setHeader("content-type", isScript ? "text/javascript; charset=utf-8" : "text/html; charset=utf-8");
  return answer.end(isScript ? page : html);
}).listen(Number(port), "127.0.0.1");
