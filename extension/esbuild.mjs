// Bundles the extension into dist/extension.js and each page of webviews/ (a script with a style sheet beside it) into
// dist/webviews/, or with --tests every unit test into out/test/.
import { build } from "esbuild";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";

/** `import text from "worker:./NAME"`: the script of a worker, bundled. A page may start one only from a text that it has. */
const workers = {
  name: "workers",
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /^worker:/ }, ({ path, resolveDir }) => ({ path: join(resolveDir, path.slice(7)), namespace: "worker" }));
    onLoad({ filter: /./, namespace: "worker" }, async ({ path }) => {
      const { outputFiles } = await build({ ...browser, entryPoints: [path], minify: true, write: false });
      return { contents: outputFiles[0].text, loader: "text" };
    });
  },
};

const browser = { bundle: true, platform: "browser", target: "chrome122", format: "iife", logLevel: "warning" };

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
  const shape = { minify: !debug, sourcemap: debug ? "linked" : false };
  await build({ ...common, ...shape, entryPoints: ["src/extension.ts"], outfile: "dist/extension.js" });
  const pages = readdirSync("webviews").filter((name) => name.endsWith(".ts") && existsSync(`webviews/${name.slice(0, -3)}.css`));
  await build({
    ...browser,
    ...shape,
    plugins: [workers],
    entryPoints: pages.flatMap((name) => [`webviews/${name}`, `webviews/${name.slice(0, -3)}.css`]),
    outdir: "dist/webviews",
  });
}
