import assert from "node:assert/strict";
import { test } from "node:test";
import { statusBarView, statusView } from "../src/status/status";

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

test("the item in the status bar: what goes on, else the breaks of the file", () => {
  const file = { name: "toy.py", functions: 1, breaks: 2, compiling: false, failed: false };
  const text = (status: Parameters<typeof statusBarView>[0], given?: typeof file, problem?: string): string => statusBarView(status, problem, given, true).text;
  assert.equal(text({ state: "starting" }, file), "$(sync~spin) starting");
  assert.equal(text({ state: "ready" }, { ...file, compiling: true }), "$(sync~spin) compiling toy.py");
  assert.equal(text({ state: "ready" }, file), "$(zap) 2 breaks");
  assert.equal(text({ state: "compiling" }, { ...file, breaks: 1 }), "$(zap) 1 break", "another file is compiled");
  assert.equal(text({ state: "ready" }, { ...file, breaks: 0 }), "$(zap) no breaks");
  assert.equal(text({ state: "ready" }, { ...file, failed: true }), "$(zap) not compiled");
  assert.equal(text({ state: "ready" }, { ...file, functions: 0 }), "$(zap) Fuselens");
  assert.equal(text({ state: "ready" }), "$(zap) Fuselens");
  assert.equal(statusBarView({ state: "ready" }, undefined, undefined, false).text, "$(zap) not on disk");
});

test("the item leads to the view, or to the log where something is wrong", () => {
  const file = { name: "toy.py", functions: 1, breaks: 0, compiling: false, failed: false };
  assert.equal(statusBarView({ state: "ready" }, undefined, file, true).leads, "tree");
  const error = statusBarView({ state: "error", message: "worker died\nlong" }, undefined, file, true);
  assert.deepEqual([error.leads, error.said, error.warns], ["log", "worker died", true]);
  assert.equal(statusBarView({ state: "error" }, "no interpreter", file, true).leads, "tree", "its welcome says what to do");
});
