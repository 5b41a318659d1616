// Does with LangGraph's own client what a test says: each line of input is a JSON document that asks for one
// thing, each line of output the one that says what came of it.
import readline from "node:readline";
import { Client } from "@langchain/langgraph-sdk";
import { Line } from "./line.mjs";
import * as conversations from "./conversations.mjs";

// The client waits a second or more before it comes back; here a tenth of that.
const asIs = globalThis.setTimeout;
globalThis.setTimeout = (what, ms, ...rest) => asIs(what, ms >= 1000 && ms < 6000 ? ms / 10 : ms, ...rest);

const lines = new Map();

async function lineTo(url) {
  if (!lines.has(url)) {
    const line = await Line.to(url);
    const client = new Client({ apiUrl: line.url, apiKey: null, callerOptions: { maxRetries: 0 } });
    lines.set(url, { line, client });
  }
  return lines.get(url);
}

/** The client's method of a name such as `runs.wait`. */
function method(client, name) {
  const [part, verb] = name.split(".");
  return client[part][verb].bind(client[part]);
}

/** The arguments, of which the last has a callback for the run's ids where one is asked for. */
function listening(args, created) {
  const last = args.at(-1);
  if (last?.onRunCreated !== true) return args;
  return [...args.slice(0, -1), { ...last, onRunCreated: (ids) => created.push(ids) }];
}

/** What a stream tells. The line is cut after the frames that `cut` counts; after `leave` we go away. */
async function told(stream, line, { cut = [], leave = Infinity }) {
  const parts = [];
  for await (const part of stream) {
    parts.push(part);
    if (cut.includes(parts.length)) line.cut();
    if (parts.length >= leave) break;
  }
  return parts;
}

async function done(asked) {
  const { line, client } = await lineTo(asked.url);
  line.taken();
  const created = [];
  let value;
  try {
    if (asked.talk) {
      value = await conversations[asked.talk]({ client, line, ...asked.given });
    } else {
      const args = listening(asked.args, created);
      if (asked.streams) {
        const going = new AbortController();
        const last = args.at(-1);
        const options = { ...(typeof last === "object" ? last : {}), signal: going.signal };
        const stream = method(client, asked.name)(...args.slice(0, asked.streams), options);
        value = await told(stream, line, asked);
        going.abort();
      } else {
        value = await method(client, asked.name)(...args);
      }
    }
    return { value: value ?? null, created, requests: line.taken() };
  } catch (error) {
    const { name, message, status = null } = error;
    return { error: { name, message, status }, created, requests: line.taken() };
  }
}

for await (const text of readline.createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await done(JSON.parse(text)))}\n`);
}
process.exit(0);
