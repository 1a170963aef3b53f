import assert from "node:assert/strict";
import { test } from "node:test";
import { breaksOf, copied, fileName, fileNode, functionAt, tellApart, type Node } from "../src/overview/nodes";
import type { Overview, OverviewFunction, Place } from "../src/server/protocol";

const URI = "file:///w/my%20toy.py";
const at = (line: number): Place => ({ uri: URI, range: { start: { line, character: 4 }, end: { line, character: 9 } } });

const toy: OverviewFunction = {
  name: "toy",
  state: "broken",
  headline: "1 graph · 1 break · 1 kernel",
  lastRun: "",
  inputs: "a: f32[16]",
  place: at(10),
  findings: [{ code: "FL101", message: "graph break: `b.sum() < 0` branches on a tensor's value", severity: "warning", breaks: true, place: at(12) }],
  graphs: [
    {
      id: 0, frame: "toy", operations: 5, training: false, cached: false, fallback: false, externs: [], place: at(11),
      kernels: [
        {
          name: "sum_lt_0", backend: "cpp", phase: "forward", kind: "reduction", operations: ["sum", "lt"], lines: [13], reads: 64, writes: 1,
          registers: 32, takes: "32 registers", seconds: 2e-6, place: at(12), document: "fuselens://report/toy/graph0/cpp.cpp?file=x", line: 7,
        },
      ],
      stages: [{ uri: "fuselens://report/toy/graph0/fuse.loop?file=x", title: "fuse", kind: "loop", language: "fuselens-loop" }],
    },
  ],
  guards: [{ expression: "a.dtype is torch.float32", about: "a", place: null }],
  moreGuards: 3,
  documents: [
    { uri: "fuselens://report/toy/summary.txt?file=x", title: "summary", kind: "summary" },
    { uri: "fuselens://report/toy/guards.txt?file=x", title: "guards", kind: "guards" },
  ],
};
const plain: OverviewFunction = { ...toy, name: "plain", state: "compiled", findings: [], place: at(20) };
const overview: Overview = { uri: URI, compiling: false, stale: false, functions: [toy, plain], failures: [] };
const nothing = (): undefined => undefined;

function tree(changes: Partial<Overview> = {}, breaksOnly = false, runs: (file: string, name: string) => string | undefined = nothing): Node {
  const found = fileNode({ ...overview, ...changes }, runs, true, breaksOnly);
  assert.ok(found);
  return found;
}

function written(node: Node, depth = 0): string[] {
  return [`${"  ".repeat(depth)}${node.label} | ${node.description}`, ...node.children.flatMap((child) => written(child, depth + 1))];
}

test("a file with its functions, in full", () => {
  assert.deepEqual(written(tree({ functions: [toy] })), [
    "my toy.py | 1 function · 1 break",
    "  toy | 1 graph · 1 break",
    "    b.sum() < 0 | line 13 · branches on a tensor's value",
    "    graph 0 | 5 operations · 1 kernel",
    "      sum_lt_0 | 2.00 µs · 64 B → 1 B · 32 registers",
    "      stages | 1",
    "        fuse | loops",
    "    guards | 4",
    "      a.dtype is torch.float32 | ",
  ]);
});

test("breaks only", () => {
  assert.deepEqual(written(tree({}, true)), [
    "my toy.py | 2 functions · 1 break",
    "  toy | 1 graph · 1 break",
    "    b.sum() < 0 | line 13 · branches on a tensor's value",
  ]);
  assert.equal(fileNode({ ...overview, functions: [plain] }, nothing, true, true), undefined);
  assert.equal(breaksOf(overview), 1);
});

test("the last run stands beside the counts", () => {
  const runs = (_file: string, name: string): string | undefined => (name === "toy" ? "3.1× faster" : undefined);
  assert.deepEqual(tree({}, false, runs).children.map(({ description }) => description), ["1 graph · 1 break · 3.1× faster", "1 graph · 0 breaks"]);
});

test("a file that could not be checked says why", () => {
  const failure = { code: "FL902", message: "`import nothing` failed", severity: "error", breaks: false, place: at(0) } as const;
  const waiting: OverviewFunction = { ...toy, state: "failed", headline: "not compiled", findings: [], graphs: [], guards: [], documents: [] };
  const file = tree({ functions: [waiting], failures: [failure] });
  assert.deepEqual(written(file), ["my toy.py | 1 function", "  import nothing | line 1 · failed", "  toy | not compiled"]);
  assert.equal(file.children[1]?.unfolded, undefined, "there is nothing to unfold");
  assert.equal(fileNode({ ...overview, functions: [] }, nothing, true, false), undefined);
});

test("ids are unique, and parents know their children", () => {
  const ids: string[] = [];
  const visit = (node: Node): void => {
    ids.push(node.id);
    node.children.forEach((child) => {
      assert.equal(child.parent, node);
      visit(child);
    });
  };
  visit(tree());
  assert.equal(new Set(ids).size, ids.length);
});

test("the function at a line, its decorator included", () => {
  const file = tree();
  const names = [0, 9, 10, 15, 19, 30].map((line) => functionAt(file, line)?.label);
  assert.deepEqual(names, [undefined, "toy", "toy", "toy", "plain", "plain"]);
});

test("what is copied", () => {
  const [function_] = tree().children;
  assert.ok(function_);
  assert.equal(copied(function_), "toy  1 graph · 1 break");
});

test("files of one name are told apart by their folders", () => {
  const roots = [tree(), tree({ uri: "file:///other/my%20toy.py" }), tree({ uri: "file:///w/else.py" })];
  tellApart(roots);
  const breaks = "2 functions · 1 break";
  assert.deepEqual(roots.map(({ description }) => description), [`w · ${breaks}`, `other · ${breaks}`, breaks]);
});

test("a row that gets something below it is a new row", () => {
  const before = tree({ functions: [{ ...toy, state: "compiling", findings: [], graphs: [], guards: [] }] });
  assert.notEqual(before.children[0]?.id, tree().children[0]?.id);
});

test("names of files that are saved", () => {
  assert.equal(fileName("fuselens://report/toy/graph0/cpp.cpp?file=file:///x.py"), "toy.graph0.cpp");
  assert.equal(fileName("fuselens://report/Model.forward/graph0/fuse.loop?file=x"), "Model.forward.graph0.fuse.loop");
  assert.equal(fileName("fuselens://report/toy/guards.txt?file=x"), "toy.guards.txt");
  assert.equal(fileName("fuselens://report/a%3Clocals%3E.b/guards.txt?file=x"), "a_locals_.b.guards.txt");
});
