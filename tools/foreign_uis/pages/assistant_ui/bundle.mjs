// Bundles the page beside it.
import { build } from "esbuild";

await build({
  entryPoints: ["page.jsx"],
  outfile: "page.js",
  bundle: true,
  format: "iife",
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
  logLevel: "error",
});
