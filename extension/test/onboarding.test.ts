import assert from "node:assert/strict";
import { test } from "node:test";
import { installation, shown, type EnvironmentFacts } from "../src/onboarding/installing";
import { report, type Facts, type PythonFacts } from "../src/onboarding/report";

const venv: EnvironmentFacts = {
  interpreter: "/w/.venv/bin/python", prefix: "/w/.venv", virtual: true, pip: true, madeByUv: false, conda: false, managed: true,
};
const lines = (...given: Parameters<typeof installation>): string[] | undefined => installation(...given)?.commands.map(shown);

test("pip where there is pip", () => {
  assert.deepEqual(lines(venv, {}, "/w"), ['/w/.venv/bin/python -m pip install "fuselens[server]"']);
  assert.deepEqual(lines(venv, { uv: "/bin/uv" }, "/w"), ['/w/.venv/bin/python -m pip install "fuselens[server]"']);
});

test("uv where uv made the environment, and where there is no pip", () => {
  const byUv = ['/bin/uv pip install --python /w/.venv/bin/python "fuselens[server]"'];
  assert.deepEqual(lines({ ...venv, madeByUv: true }, { uv: "/bin/uv" }, "/w"), byUv);
  assert.deepEqual(lines({ ...venv, pip: false }, { uv: "/bin/uv" }, "/w"), byUv);
  assert.deepEqual(lines({ ...venv, pip: false }, {}, "/w"), [
    "/w/.venv/bin/python -m ensurepip",
    '/w/.venv/bin/python -m pip install "fuselens[server]"',
  ]);
});

test("conda's environments get pip from conda", () => {
  const conda = { ...venv, interpreter: "/c/envs/t/bin/python", prefix: "/c/envs/t", virtual: false, conda: true, managed: false };
  assert.deepEqual(lines(conda, { conda: "/c/bin/conda" }, "/w"), ['/c/envs/t/bin/python -m pip install "fuselens[server]"']);
  assert.deepEqual(lines({ ...conda, pip: false }, { conda: "/c/bin/conda" }, "/w"), [
    "/c/bin/conda install --yes --prefix /c/envs/t pip",
    '/c/envs/t/bin/python -m pip install "fuselens[server]"',
  ]);
});

test("the system's own Python is left alone", () => {
  const system = { ...venv, interpreter: "/usr/bin/python3", prefix: "/usr", virtual: false };
  assert.deepEqual(lines(system, {}, "/my work"), [
    '/usr/bin/python3 -m venv "/my work/.venv"',
    '"/my work/.venv/bin/python" -m pip install "fuselens[server]"',
  ]);
  assert.equal(installation(system, {}, "/w")?.interpreter, "/w/.venv/bin/python");
  assert.equal(installation(system, {}, "C:\\w", true)?.interpreter, "C:\\w\\.venv\\Scripts\\python.exe");
  assert.deepEqual(lines(system, { uv: "uv" }, "/w"), [
    "uv venv --python /usr/bin/python3 /w/.venv",
    'uv pip install --python /w/.venv/bin/python "fuselens[server]"',
  ]);
  assert.equal(installation(system, {}, undefined), undefined);
});

const python: PythonFacts = {
  python: "3.12.1",
  packages: { torch: "2.13.0+cpu", fuselens: "0.1.0", triton: null, pygls: "2.1.1", lsprotocol: "2025.0.0" },
  compiler: { value: "g++ 12.2.0" },
  gpu: { value: null },
  cache: { value: { folder: "/home/ada/.cache/fuselens", files: 3, bytes: 2048, problem: "" } },
};
const facts: Facts = {
  editor: "VS Code 1.100.3", extension: "0.1.0", system: "linux", interpreter: { path: "/py", origin: "the workspace" }, problem: undefined,
  python: { value: python }, settings: { "fuselens.live": true },
};

test("a report where all is well", () => {
  const text = report(facts);
  assert.match(text, /^All is well\.$/m);
  assert.match(text, /^✓ cache +\/home\/ada\/\.cache\/fuselens: 3 files, 2\.00 KiB$/m);
  assert.match(text, /^· triton +not installed/m);
  assert.match(text, /^· fuselens\.live +true$/m);
  assert.doesNotMatch(text, /✗ |→/);
});

test("a report says what to do", () => {
  const packages = { ...python.packages, torch: "2.9.1", fuselens: null };
  const text = report({ ...facts, problem: "/py lacks fuselens", python: { value: { ...python, python: "3.15.0", packages } }, settings: {} });
  assert.match(text, /^4 things are to be done \(✗\)\.$/m);
  assert.match(text, /^✗ python +3\.15\.0\n +→ select an interpreter of Python 3\.11 to 3\.14$/m);
  assert.match(text, /^✗ torch +2\.9\.1\n +→ update it/m);
  assert.match(text, /^✗ fuselens +not installed\n +→ run Fuselens: Install/m);
  assert.doesNotMatch(text, /C\+\+ compiler/, "nobody could tell without fuselens");
});

test("a report without an interpreter", () => {
  const text = report({ ...facts, interpreter: undefined, problem: "No Python interpreter was found.", python: { reason: "" } });
  assert.match(text, /^✗ interpreter +none was found\n +→ run Fuselens: Select Python Interpreter$/m);
});
