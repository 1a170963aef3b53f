import assert from "node:assert/strict";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { obstacle, parseAbilities, probe } from "../src/probe";

test("an interpreter tells its version and which packages it lacks", async () => {
  const abilities = await probe("python3", ["json", "no_such_package"], process.env);
  assert.match(abilities.version, /^3\.\d+\.\d+$/);
  assert.deepEqual(abilities.missing, ["no_such_package"]);
});

test("reasons why an interpreter does not run", async () => {
  const folder = mkdtempSync(join(tmpdir(), "fuselens-"));
  try {
    const script = join(folder, "python");
    writeFileSync(script, "#!/bin/sh\necho noise\necho 'cannot start: no encodings' >&2\nexit 1\n");
    await assert.rejects(probe(join(folder, "absent"), [], process.env), /there is no interpreter at/);
    if (process.getuid?.() !== 0) {
      chmodSync(script, 0o644);
      await assert.rejects(probe(script, [], process.env), /may not be executed/);
    }
    chmodSync(script, 0o755);
    await assert.rejects(probe(script, [], process.env), /does not run: cannot start: no encodings/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("noise before the answer is ignored", () => {
  const answer = '{"version": "3.12.1", "missing": []}';
  assert.deepEqual(parseAbilities(`sitecustomize says hello\n{"a": 1}\n${answer}\n`), { version: "3.12.1", missing: [] });
  assert.equal(parseAbilities("hello\n"), undefined);
});

test("obstacles name what to do", () => {
  assert.equal(obstacle("py", { version: "3.14.0", missing: [] }), undefined);
  assert.match(obstacle("py", { version: "3.9.2", missing: [] }) ?? "", /Python 3\.9\.2.*supports 3\.11/);
  assert.match(obstacle("py", { version: "3.15.0", missing: [] }) ?? "", /Python 3\.15\.0/);
  assert.match(obstacle("py", { version: "3.11.7", missing: ["pygls"] }) ?? "", /lacks pygls: install "fuselens\[server\]"/);
});
