import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { consent, parts, serverArguments, serverName, working } from "../src/agents/answers";

const manifest = JSON.parse(readFileSync("package.json", "utf8")) as {
  contributes: { languageModelTools: { name: string; inputSchema: { properties: Record<string, unknown> } }[] };
};

test("each declared tool is one of the server's, and says what it does", () => {
  const names = manifest.contributes.languageModelTools.map(({ name }) => serverName(name));
  assert.deepEqual(names, ["check", "explain", "run", "verify", "what_if", "apply_fix", "codes"]);
  for (const { name } of manifest.contributes.languageModelTools) {
    assert.match(name, /^fuselens_\w+$/);
    assert.match(working(serverName(name), { target: "a.py" }), / a\.py$/);
  }
});

test("a model reads the text with its evidence, and the data where it is short", () => {
  const answer = { text: "whole\n\nevidence 0: …", data: { files: [] }, failed: false };
  assert.deepEqual(parts(answer), [answer.text, '{"files":[]}']);
  const [text, data] = parts({ ...answer, data: { long: "x".repeat(40_000) } });
  assert.equal(text, answer.text);
  assert.match(data ?? "", /left out/);
});

test("a person agrees to what writes", () => {
  assert.equal(consent("check", { target: "a.py" }), undefined);
  assert.equal(consent("apply_fix", { target: "a.py", fix: "FL101-1" }), undefined);
  assert.match(consent("apply_fix", { target: "a.py", fix: "FL101-1", write: true })?.message ?? "", /^Write the fix FL101-1 into a\.py/);
});

test("the MCP server looks at the folders that are open", () => {
  assert.deepEqual(serverArguments(["/a", "/b"]), ["-m", "fuselens.cli", "mcp", "--root", "/a", "--root", "/b"]);
});
