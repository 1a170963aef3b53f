import assert from "node:assert/strict";
import { test } from "node:test";
import { byGraph, kernelLine } from "../src/documents/stages";

const document = (path: string) => ({ uri: `fuselens://report/${path}?file=x`, title: path, kind: "stage" });

test("documents are grouped by graph, in the server's order", () => {
  const groups = byGraph([
    document("toy/guards.txt"),
    document("toy/graph0/capture.py"),
    document("toy/graph1/capture.py"),
    document("toy/graph0/kernel.cpp"),
  ]);
  assert.deepEqual(
    groups.map(({ title, documents }) => [title, documents.length]),
    [
      ["whole function", 1],
      ["graph 0", 2],
      ["graph 1", 1],
    ],
  );
});

test("groups of several functions carry the function's name", () => {
  const titles = byGraph([document("f/graph0/capture.py"), document("g/graph0/capture.py")]).map(({ title }) => title);
  assert.deepEqual(titles, ["f · graph 0", "g · graph 0"]);
});

test("a kernel's source opens at the kernel, not at what every file begins with", () => {
  const cpp = [
    "// Kernels of graph graph0.",
    "typedef float f32x8;",
    "",
    "// abs_0: aten.abs.default  // toy.py:12",
    'extern "C" void abs_0() {}',
    "// sum_0: aten.sum.default  // toy.py:13, toy.py:130",
  ].join("\n");
  assert.equal(kernelLine(cpp), 4);
  assert.equal(kernelLine(cpp, "toy.py:13"), 6);
  assert.equal(kernelLine(cpp, "toy.py:1"), 4, "a line's number is compared as a whole");
  assert.equal(kernelLine("import triton\n\n@triton.jit\ndef abs_0(): ..."), 3);
  assert.equal(kernelLine("graph graph0\n"), undefined);
});
