// Serves the page on a port of this machine: node serve.mjs PORT SERVER
import { createServer } from "node:http";
import { readFileSync } from "node:fs";

const [port, server] = process.argv.slice(2);
const html =
  '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><div id="root"></div>' +
  `<script>window.server = ${JSON.stringify(server)}</script><script src="page.js"></script>`;
const page = readFileSync("page.js");

createServer((asked, answer) => {
  const isScript = asked.url.startsWith("/page.js");
  answer.setHeader("content-type", isScript ? "text/javascript; charset=utf-8" : "text/html; charset=utf-8");
  answer.end(isScript ? page : html);
}).listen(Number(port), "127.0.0.1");
