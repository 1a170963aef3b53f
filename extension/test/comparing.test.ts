import assert from "node:assert/strict";
import { test } from "node:test";
import { diffTitle, inOrder, revisionItems, sideName } from "../src/comparing/stages";
import { debugConfiguration, debuggerType } from "../src/debugging/configuration";

const stage = (title: string, differs: boolean) => ({ title, name: "cpp.cpp", graph: 1, before: "", after: "", differs });

test("stages that differ come first", () => {
  const stages = [stage("a", false), stage("b", true), stage("c", false), stage("d", true)];
  assert.deepEqual(inOrder(stages).map(({ title }) => title), ["b", "d", "a", "c"]);
});

test("a side's name ends in what tells its language", () => {
  assert.equal(sideName("Net.forward", "cuda:sm_90", stage("x", true)), "Net.forward cuda_sm_90/graph1/cpp.cpp");
  assert.equal(sideName("toy", "last save", stage("x", true)), "toy last_save/graph1/cpp.cpp");
});

test("the title of a difference", () => {
  assert.equal(diffTitle("toy", { before: "last save", after: "now" }, { title: "graph 1 · cpp" }), "toy · graph 1 · cpp: last save ↔ now");
});

test("the debugger is Python's, whatever else is installed", () => {
  assert.equal(debuggerType(["node", "python", "debugpy"]), "debugpy");
  assert.equal(debuggerType(["node", "python"]), "python");
  assert.equal(debuggerType(["node"]), undefined);
});

test("the launcher is told the file and the function", () => {
  const made = debugConfiguration("debugpy", "/env/bin/python", "/w/a b.py", "Net.forward", "/w");
  assert.deepEqual(made.args, ["/w/a b.py", "Net.forward"]);
  assert.equal(made.module, "fuselens.stepping");
  assert.match(made.name, /uncompiled/);
});

test("what a person types is a revision, too", () => {
  const known = [{ name: "main", about: "Merge feature" }];
  assert.deepEqual(revisionItems(known, ""), [{ label: "main", description: "Merge feature" }]);
  assert.deepEqual(revisionItems(known, " HEAD~3 ").map(({ label }) => label), ["main", "HEAD~3"]);
  assert.deepEqual(revisionItems(known, "main").map(({ label }) => label), ["main"]);
});
