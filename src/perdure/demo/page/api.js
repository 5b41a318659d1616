// The page's requests. A refusal becomes a Failure with the server's own words; a server that is not there becomes a
// Failure with the code "unreachable".

export class Failure extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const gone = () => new Failure("unreachable", "The server does not answer.");
const path = (id, rest = "") => `/api/threads/${encodeURIComponent(id)}${rest}`;

async function request(method, url, body) {
  const options = { method };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(url, options);
  } catch {
    throw gone();
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  throw new Failure(told?.error?.code ?? "http", told?.error?.message ?? `The server answered ${response.status}.`);
}

const json = async (method, url) => (await request(method, url)).json();

export const about = () => json("GET", "/api/about");
export const threads = async () => (await json("GET", "/api/threads")).threads;
export const thread = (id) => json("GET", path(id));
export const newThread = async () => (await json("POST", "/api/threads")).id;
export const remove = (id) => request("DELETE", path(id));
export const send = (id, message) => request("POST", path(id, "/messages"), message);
export const resume = (id) => request("POST", path(id, "/continue"));

// Yields {name, data} for each event of a streamed answer; a stream that ends without "done" or "error" is a Failure.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      let piece;
      try {
        piece = await reader.read();
      } catch {
        throw gone();
      }
      if (piece.done) throw gone();
      held += piece.value.replaceAll("\r", "");
      const blocks = held.split("\n\n");
      held = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (!event) continue;
        yield event;
        if (event.name === "done" || event.name === "error") return;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

function parsed(block) {
  let name = "message";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data += line.slice(5).trim();
  }
  return data ? { name, data: JSON.parse(data) } : null;
}
