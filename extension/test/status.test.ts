import assert from "node:assert/strict";
import { test } from "node:test";
import { statusView } from "../src/status";

test("starting, compiling and ready", () => {
  const starting = statusView({ state: "starting", interpreter: "/py" });
  assert.deepEqual([starting.text, starting.detail, starting.busy], ["Fuselens: starting", "/py", true]);

  const compiling = statusView({ state: "compiling", message: "/home/ada/toy.py", interpreter: "/py" });
  assert.deepEqual([compiling.text, compiling.busy], ["Fuselens: compiling toy.py", true]);
  assert.equal(statusView({ state: "compiling", message: "compiling toy.py" }).text, "Fuselens: compiling toy.py");
  assert.equal(statusView({ state: "compiling" }).text, "Fuselens: compiling");

  const ready = statusView({ state: "ready", torch: "2.13.0", interpreter: "/py" });
  assert.deepEqual([ready.text, ready.detail, ready.busy, ready.severity], ["Fuselens: torch 2.13.0", "/py", false, "information"]);
  assert.equal(statusView({ state: "ready" }).text, "Fuselens: ready");
});

test("an error of the server leads to the output", () => {
  const view = statusView({ state: "error", message: "worker died\nlong trace" });
  assert.deepEqual([view.detail, view.severity, view.action], ["worker died", "error", "showOutput"]);
  assert.equal(statusView({ state: "error" }).detail, "see the output");
});

test("no server at all leads to the interpreter", () => {
  const view = statusView({ state: "error" }, "there is no interpreter at /py.");
  assert.deepEqual([view.text, view.detail, view.action], ["Fuselens: not running", "there is no interpreter at /py.", "selectInterpreter"]);
});

test("a long reason is cut", () => {
  const { detail } = statusView({ state: "error" }, `there is no interpreter at ${"/deep".repeat(40)}.`);
  assert.equal(detail.length, 60);
  assert.ok(detail.endsWith("…"));
});
