import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { asks, parts, question, serverArguments, serverName, working } from "../src/agents/answers";

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

test("a person agrees to what writes, and sees what that is", () => {
  const given = { target: "a.py", fix: "FL101-1", write: true };
  assert.deepEqual([asks("check", { target: "a.py" }), asks("apply_fix", { ...given, write: false }), asks("apply_fix", given)], [false, false, true]);
  assert.equal(question(given, undefined).message, "Write the fix FL101-1 into a.py?");
  const shown = { text: "", data: { fix: { title: "Use torch.where", diff: "-a\n+b\n" } }, failed: false };
  assert.equal(question(given, shown).message, "Write the fix \"Use torch.where\" into a.py?\n\n```diff\n-a\n+b\n```");
});

test("the MCP server looks at the folders that are open", () => {
  assert.deepEqual(serverArguments(["/a", "/b"]), ["-P", "-m", "fuselens.cli", "mcp", "--root", "/a", "--root", "/b"]);
});
