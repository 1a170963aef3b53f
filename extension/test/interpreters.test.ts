import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { chooseInterpreter, environmentsIn, expandPath, firstAble, firstExecutable, onSearchPath, serverEnvironment, type Source } from "../src/server/interpreters";

const source = (origin: string, find: () => Promise<string | undefined>): Source => ({ origin, find });
const never = (): never => assert.fail("no source may fail here");

test("the first source that names an interpreter wins, and later ones are not asked", async () => {
  const asked: string[] = [];
  const answer = (origin: string, path: string | undefined): Source =>
    source(origin, async () => {
      asked.push(origin);
      return path;
    });
  const sources = [answer("setting", ""), answer("environments", undefined), answer("python", "/py"), answer("path", "/usr/bin/python3")];
  assert.deepEqual(await chooseInterpreter(sources, never), { path: "/py", origin: "python" });
  assert.deepEqual(asked, ["setting", "environments", "python"]);
});

test("a source that fails is reported and passed over", async () => {
  const failures: string[] = [];
  const sources = [
    source("broken extension", () => Promise.reject(new Error("activation failed"))),
    source("path", async () => "/usr/bin/python3"),
  ];
  const chosen = await chooseInterpreter(sources, (origin, error) => failures.push(`${origin}: ${String(error)}`));
  assert.equal(chosen?.path, "/usr/bin/python3");
  assert.deepEqual(failures, ["broken extension: Error: activation failed"]);
});

test("no source, no interpreter", async () => {
  assert.equal(await chooseInterpreter([source("path", async () => undefined)], never), undefined);
});

test("variables in a configured path", () => {
  const variables = { home: "/home/ada", workspaceFolder: "/home/ada/models", environment: { CONDA_PREFIX: "/opt/conda" } };
  const cases: [string, string][] = [
    ["", ""],
    ["/usr/bin/python3", "/usr/bin/python3"],
    ["  ~/envs/torch/bin/python ", "/home/ada/envs/torch/bin/python"],
    ["~other/bin/python", "~other/bin/python"],
    ["${workspaceFolder}/.venv/bin/python", "/home/ada/models/.venv/bin/python"],
    ["${userHome}/py", "/home/ada/py"],
    ["${env:CONDA_PREFIX}/bin/python", "/opt/conda/bin/python"],
    ["${env:UNSET}/bin/python", "/bin/python"],
    ["${unknown}/python", "${unknown}/python"],
  ];
  for (const [text, expected] of cases) {
    assert.equal(expandPath(text, variables), expected, text);
  }
  assert.equal(expandPath("${workspaceFolder}/x", { ...variables, workspaceFolder: undefined }), "${workspaceFolder}/x");
});

test("a dollar sign in the home folder is not a pattern", () => {
  assert.equal(expandPath("~/p", { home: "/home/$&", environment: {} }), "/home/$&/p");
});

test("virtual environments of a workspace folder", () => {
  assert.deepEqual(environmentsIn("/w", false), ["/w/.venv/bin/python", "/w/venv/bin/python"]);
  assert.deepEqual(environmentsIn("C:\\work", true), ["C:\\work\\.venv\\Scripts\\python.exe", "C:\\work\\venv\\Scripts\\python.exe"]);
});

test("programs on the search path: python3 anywhere comes before python, and only what can be executed counts", async () => {
  const root = mkdtempSync(join(tmpdir(), "fuselens-"));
  try {
    const make = (folder: string, name: string, mode: number): string => {
      mkdirSync(join(root, folder), { recursive: true });
      const file = join(root, folder, name);
      writeFileSync(file, "#!/bin/sh\n");
      chmodSync(file, mode);
      return file;
    };
    const [old, plain, good] = [make("a", "python", 0o755), make("a", "python3", 0o644), make("b", "python3", 0o755)];
    assert.deepEqual(await onSearchPath([join(root, "a"), join(root, "none"), join(root, "b")].join(":")), [good, old]);
    assert.equal(await firstExecutable([join(root, "none", "python"), plain, good]), good);
    assert.equal(await firstExecutable([plain]), undefined);
  } finally {
    rmSync(root, { recursive: true });
  }
});

test("the server's streams are never unbuffered", () => {
  const environment = serverEnvironment({ PYTHONUNBUFFERED: "1", HOME: "/home/ada", UNSET: undefined });
  assert.deepEqual(environment, { HOME: "/home/ada", PYTHONUTF8: "1" });
});

test("a folder without the server does not silence the others", async () => {
  const obstacleOf = async (path: string): Promise<string | undefined> => (path === "/able" ? undefined : `${path} lacks it`);
  assert.deepEqual(await firstAble(["/bare", "/able", "/other"], obstacleOf), { path: "/able" });
  assert.deepEqual(await firstAble(["/bare", "/other"], obstacleOf), { path: "/bare", problem: "/bare lacks it" });
});
