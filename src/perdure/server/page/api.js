// Client of LangGraph's HTTP API, as far as the page needs it. Error responses become a Failure with the server's
// message. If its `away` is true, the server is temporarily unavailable, and the request may be retried.

import { pause } from "./dom.js";

const BASE = new URL("..", document.baseURI);
const SILENCE = 15_000; // ms; the server sends heartbeats more often, so a longer silence is a lost connection
const TOKEN = "perdure.token";

export class Failure extends Error {
  constructor(message, { status = 0, away = false } = {}) {
    super(message);
    this.status = status;
    this.away = away;
  }
}

export const signIn = (token) => sessionStorage.setItem(TOKEN, token);

const gone = () => new Failure("The server does not answer.", { away: true });
const of = (thread, rest = "") => `threads/${encodeURIComponent(thread).replace(/^(\.\.?)$/, (dots) => dots.replaceAll(".", "%2E"))}${rest}`;
const run = (thread, id, rest = "") => of(thread, `/runs/${encodeURIComponent(id)}${rest}`);

async function request(method, path, { body, headers = {}, signal, keepalive = false } = {}) {
  headers = { ...headers, "X-End-Frame": "true" };
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers = { ...headers, Authorization: `Bearer ${token}` };
  // Also without a body: behind a proxy that changes the host name, it marks a request that no other site can make.
  if (method !== "GET") headers = { ...headers, "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(new URL(path, BASE), { method, headers, signal, keepalive, body: JSON.stringify(body) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw gone();
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  const detail = typeof answer?.detail === "string" ? answer.detail : `The server answered ${response.status}.`;
  throw new Failure(detail, { status: response.status, away: [502, 503, 504].includes(response.status) });
}

// Anything but JSON is not an answer of this server, but that of a proxy or a sign-in page in between, or was cut off.
const read = (response) => response.json().catch(() => { throw gone(); });
const json = async (...asked) => read(await request(...asked));

let described = null;
export const about = () => {
  described ??= json("GET", "chat/about.json").catch((failure) => { described = null; throw failure; });
  return described;
};

// Number of entries per request: as many as are wanted, up to the server's maximum.
export const most = async (wanted) => Math.min(wanted, (await about()).page_max ?? wanted);

// Returns the first entries of a listing, as many as are wanted. `ask` takes a limit and an offset, and returns
// entries, which the field `name` identifies: they may move between two pages.
async function listed(wanted, name, ask) {
  const size = await most(wanted);
  const found = new Map();
  for (let offset = 0; ; offset += size) {
    const page = await ask(Math.min(size, wanted - offset), offset);
    for (const one of page) found.set(one[name], one);
    if (page.length < size || offset + size >= wanted) return [...found.values()];
  }
}

export const memory = () => json("GET", "memory");
export const forget = (id) => request("DELETE", `memory/${encodeURIComponent(id)}`);
export const alive = () => json("GET", "ok?check_db=1");
export const graphs = () => json("GET", "chat/graphs.json");

const LISTED = ["thread_id", "metadata", "status", "updated_at", "waits"];
export const threads = async (wanted) => {
  let more = false;
  const rows = await listed(wanted, "thread_id", async (limit, offset) => {
    const response = await request("POST", "threads/search", { body: { limit, offset, select: LISTED } });
    more = response.headers.has("X-Pagination-Next");
    return read(response);
  });
  return { rows, more };
};
export const firstMessages = async (ids) => {
  const size = await most(ids.length);
  const found = [];
  for (let start = 0; start < ids.length; start += size) {
    const some = ids.slice(start, start + size);
    const body = { ids: some, limit: some.length, select: ["thread_id"], extract: { first: "values.messages[0].content", second: "values.messages[1].content", kind: "values.messages[0].type" } };
    found.push(...(await json("POST", "threads/search", { body })));
  }
  return found;
};
export const thread = (id) => json("GET", of(id));
export const makeThread = (id, metadata) => json("POST", "threads", { body: { thread_id: id, metadata, if_exists: "do_nothing" } });
export const rename = (id, title) => json("PATCH", of(id), { body: { metadata: { title } } });
export const remove = (id, how) => request("DELETE", of(id), how);

const TREE = ["checkpoint_id", "parent_checkpoint_id", "next"];
export const history = (id, limit, before) => json("POST", of(id, "/history"), { body: { limit, before, select: TREE } });
export const state = (id, checkpoint) => json("GET", of(id, checkpoint ? `/state/${checkpoint}` : "/state"));
export const messagesAt = async (id, checkpoint) =>
  (await json("GET", of(id, `/state/${checkpoint}?select=values.messages`))).values?.messages ?? [];

export const update = (id, body) => json("POST", of(id, "/state"), { body });
export const found = (words, cursor) => json("GET", `chat/search.json?${new URLSearchParams({ q: words, cursor })}`);
export const serverProcess = () => json("GET", "chat/process.json");
export const kill = () => json("POST", "chat/process/kill", { body: {} });

export const runs = (id) =>
  listed(100, "run_id", (limit, offset) => json("GET", of(id, `/runs?limit=${limit}&offset=${offset}`)));
export const cancel = (id, runId) => request("POST", run(id, runId, "/cancel"));

const STREAMED = { stream_mode: ["messages-tuple", "values", "updates", "custom"], stream_resumable: true, on_disconnect: "continue" };

// Creates a run. `key` is its idempotency key. With `follows` the response streams its events. A response that names no
// run is not this server's.
export async function makeRun(id, body, key, follows) {
  const path = of(id, follows ? "/runs/stream" : "/runs");
  const response = await request("POST", path, { body: { ...STREAMED, ...body }, headers: { "Idempotency-Key": key } });
  const runId = decodeURIComponent((response.headers.get("Content-Location") ?? "").split("/runs/")[1] ?? "");
  if (!runId) throw gone();
  return { runId, response: follows ? response : null };
}

// Yields {name, data} for every event of a run until its end, from its beginning or from the open stream `response`.
// After a lost connection it resumes after the last event; `lost` is awaited before that.
export async function* follow(id, runId, { response = null, signal, lost }) {
  let last = "-1";
  let tries = 0;
  for (;;) {
    const watch = new AbortController();
    const end = () => watch.abort();
    signal.addEventListener("abort", end);
    try {
      response ??= await request("GET", run(id, runId, "/stream"), { headers: { "Last-Event-ID": last }, signal: watch.signal });
      for await (const event of events(response)) {
        if (event.id) last = event.id;
        tries = 0;
        // The run does not exist, or belongs to another user.
        if (event.name === "error" && event.data?.message?.startsWith("404: ")) throw new Failure(event.data.message.slice(5), { status: 404 });
        yield event;
        if (event.name === "end") return;
      }
    } catch (error) {
      if (signal.aborted || !(error instanceof Failure) || !error.away) throw error;
    } finally {
      signal.removeEventListener("abort", end);
      response?.body?.cancel().catch(() => undefined);
      response = null;
    }
    if (signal.aborted) return;
    await lost();
    tries += 1;
    await pause(Math.min(4000, 100 * 2 ** tries));
    if (signal.aborted) return;
  }
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const piece = await heard(reader);
      if (piece.done) return;
      held += piece.value.replaceAll("\r", "");
      const blocks = held.split("\n\n");
      held = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

async function heard(reader) {
  let timer;
  const silence = new Promise((_, reject) => { timer = setTimeout(() => reject(gone()), SILENCE); });
  try {
    return await Promise.race([reader.read(), silence]);
  } catch {
    throw gone();
  } finally {
    clearTimeout(timer);
  }
}

function parsed(block) {
  let name = "message";
  let id = null;
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("id:")) id = line.slice(3).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { name, id, data: JSON.parse(data.join("\n")) } : null;
}
