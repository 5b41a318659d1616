// Bundles the page beside it; styles and fonts are not needed.
import { build } from "esbuild";

const nothing = { ".css": "empty", ".woff": "empty", ".woff2": "empty", ".ttf": "empty", ".svg": "empty" };

await build({
  entryPoints: ["page.jsx"],
  outfile: "page.js",
  bundle: true,
  format: "iife",
  jsx: "automatic",
  loader: nothing,
  define: { "process.env.NODE_ENV": '"production"' },
  logLevel: "error",
});
