// Bundles the extension into dist/extension.js, or with --tests every unit test into out/test/.
import { build } from "esbuild";
import { readdirSync } from "node:fs";

const common = {
  bundle: true,
  platform: "node",
  target: "node20",
  format: "cjs",
  external: ["vscode"],
  logLevel: "warning",
};

if (process.argv.includes("--tests")) {
  const tests = readdirSync("test").filter((name) => name.endsWith(".test.ts"));
  await build({ ...common, entryPoints: tests.map((name) => `test/${name}`), outdir: "out/test", sourcemap: "inline" });
} else {
  const debug = process.argv.includes("--debug");
  await build({
    ...common,
    entryPoints: ["src/extension.ts"],
    outfile: "dist/extension.js",
    minify: !debug,
    sourcemap: debug ? "linked" : false,
  });
}
