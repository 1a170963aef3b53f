import assert from "node:assert/strict";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { inWords, lacksPackages, obstacle, parseAbilities, probe } from "../src/server/probe";

const versions = { torch: "2.13.0", fuselens: "" };

test("an interpreter tells its version and which packages it lacks", async () => {
  const abilities = await probe("python3", ["json", "no_such_package"], process.env);
  assert.match(abilities.version, /^3\.\d+\.\d+$/);
  assert.deepEqual(abilities.missing, ["no_such_package"]);
  assert.deepEqual(Object.keys(abilities.versions), ["torch", "fuselens"]);
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
  const answer = { version: "3.12.1", missing: [], versions };
  assert.deepEqual(parseAbilities(`sitecustomize says hello\n{"a": 1}\n${JSON.stringify(answer)}\n`), answer);
  assert.equal(parseAbilities("hello\n"), undefined);
});

test("obstacles name what to do", () => {
  assert.equal(obstacle("py", { version: "3.14.0", missing: [], versions }), undefined);
  assert.match(obstacle("py", { version: "3.9.2", missing: [], versions }) ?? "", /Python 3\.9\.2.*supports 3\.11/);
  assert.match(obstacle("py", { version: "3.15.0", missing: [], versions }) ?? "", /Python 3\.15\.0/);
  assert.match(obstacle("py", { version: "3.11.7", missing: ["pygls"], versions }) ?? "", /lacks pygls: install "fuselens\[server\]"/);
});

test("an interpreter that hangs is told from one that fails", async () => {
  const folder = mkdtempSync(join(tmpdir(), "fuselens-"));
  try {
    const script = join(folder, "python");
    writeFileSync(script, "#!/bin/sh\nexec sleep 60\n");
    chmodSync(script, 0o755);
    await assert.rejects(probe(script, [], process.env, 0.2), /gives no answer/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("what an interpreter has, in words", () => {
  assert.equal(inWords({ version: "3.12.1", missing: [], versions }), "Python 3.12.1 · torch 2.13.0 · no fuselens");
});

test("only missing packages can be installed", () => {
  assert.ok(lacksPackages(obstacle("py", { version: "3.11.7", missing: ["pygls"], versions }) ?? ""));
  assert.ok(!lacksPackages(obstacle("py", { version: "3.9.2", missing: ["pygls"], versions }) ?? ""));
});
