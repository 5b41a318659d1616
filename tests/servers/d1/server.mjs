// D1 on this machine: miniflare's engine behind the shape of Cloudflare's REST API.
//
//   node server.mjs TOKEN ACCOUNT DATABASE...
//
// Prints its address when it is ready and stops when its input ends. POST /empty/DATABASE drops every table
// of a database, which is how one of them becomes a fresh one.

import { Miniflare } from "miniflare";

const [token, account, ...ids] = process.argv.slice(2);
const bindings = Object.fromEntries(ids.map((id, place) => [`DB${place}`, id]));

const script = `
const TOKEN = ${JSON.stringify(token)};
const ACCOUNT = ${JSON.stringify(account)};
const PLACES = ${JSON.stringify(Object.fromEntries(ids.map((id, place) => [id, `DB${place}`])))};

function failure(status, code, message) {
  return Response.json({ success: false, errors: [{ code, message }], messages: [], result: [] }, { status });
}

function asRaw(rows) {
  const columns = rows.length ? Object.keys(rows[0]) : [];
  return { columns, rows: rows.map((row) => columns.map((column) => row[column])) };
}

async function empty(db) {
  const { results } = await db
    .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'" +
             " AND name NOT LIKE '\\\\_cf\\\\_%' ESCAPE '\\\\'")
    .all();
  if (results.length) await db.batch(results.map(({ name }) => db.prepare('DROP TABLE "' + name + '"')));
}

export default {
  async fetch(request, env) {
    const path = new URL(request.url).pathname;
    if (request.method !== "POST") return failure(405, 7001, "Method not allowed");
    if (request.headers.get("authorization") !== "Bearer " + TOKEN) {
      return failure(401, 10000, "Authentication error");
    }
    const fresh = path.match(/^\\/empty\\/([^/]+)$/);
    if (fresh) {
      await empty(env[PLACES[fresh[1]]]);
      return Response.json({ success: true });
    }
    const route = path.match(/^\\/client\\/v4\\/accounts\\/([^/]+)\\/d1\\/database\\/([^/]+)\\/(query|raw)$/);
    if (!route) return failure(404, 7000, "No route for that URI");
    if (route[1] !== ACCOUNT) return failure(403, 7403, "The given account is not valid");
    const db = env[PLACES[route[2]]];
    if (!db) return failure(404, 7404, "The database could not be found");
    let body;
    try {
      body = await request.json();
    } catch {
      return failure(400, 7400, "The request body is not JSON");
    }
    try {
      const queries = body.batch ?? [body];
      const answers = await db.batch(queries.map(({ sql, params }) => db.prepare(sql).bind(...(params ?? []))));
      const result = answers.map(({ success, meta, results }) => ({
        success,
        meta,
        results: route[3] === "raw" ? asRaw(results ?? []) : (results ?? []),
      }));
      return Response.json({ success: true, errors: [], messages: [], result });
    } catch (error) {
      return failure(400, 7500, String(error.message).replace(/^D1_ERROR: /, ""));
    }
  },
};
`;

const miniflare = new Miniflare({
  modules: true,
  host: "127.0.0.1",
  port: 0,
  compatibilityDate: "2025-01-01",
  script,
  d1Databases: bindings,
});

let stopping = false;
async function stop() {
  if (stopping) return;
  stopping = true;
  await miniflare.dispose();
  process.exit(0);
}

for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, stop);
process.stdin.on("end", stop).on("close", stop).resume();
console.log(`READY ${(await miniflare.ready).origin}`);
