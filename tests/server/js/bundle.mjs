// Bundles the pages into the folder that is named.
import { build } from "esbuild";

await build({
  entryPoints: ["pages/legacy.jsx", "pages/current.jsx"],
  outdir: process.argv[2],
  bundle: true,
  format: "iife",
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
  logLevel: "warning",
});
