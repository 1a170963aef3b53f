import assert from "node:assert/strict";
import { test } from "node:test";
import type { FusedGraph, LastRun, TimedPart } from "../src/server/protocol";
import { decades, fitted, flame, points, REST, shares, timeline } from "../webviews/pictures/figures";
import { bytesText, numberText, operationsText, percentText, secondsText, ticks } from "../webviews/pictures/format";
import { NO_MARKS, paint, type Theme } from "../webviews/pictures/paint";
import { arranged, kernelKey, matches, nodeTitle, spared, type Box, type Options } from "../webviews/pictures/scene";
import { SvgSurface } from "../webviews/pictures/surface";

const node = (name: string, operator: string, kernel: number | null, reads: number[], result = false) => ({
  name, operator, type: "f32[n]", bytes: 64, reads, kernel, result, place: kernel,
});
const kernel = (name: string, backend = "cpp") => ({
  name, backend, kind: "pointwise", read: 64, written: 64, takes: "", colour: 0, place: null,
});
const GRAPH: FusedGraph = {
  id: 0, frame: "toy", phase: "forward", place: null, eager: false,
  kernels: [kernel("abs_add_0"), kernel("mm_0", ""), kernel("neg_0")],
  nodes: [
    node("a", "", null, []), node("t0", "abs", 0, [0]), node("t1", "add", 0, [0, 1]),
    node("t2", "mm", 1, [2, 0]), node("t3", "neg", 2, [3], true),
  ],
};
const OPTIONS: Options = { collapsed: [], inputs: true, aspect: 1 };

const within = (inner: Box, outer: Box): boolean =>
  inner.x >= outer.x && inner.y >= outer.y && inner.x + inner.width <= outer.x + outer.width && inner.y + inner.height <= outer.y + outer.height;
const apart = (a: Box, b: Box): boolean =>
  a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y || b.y + b.height <= a.y;

test("operations lie in their kernel, kernels in their graph, and none on another", () => {
  const scene = arranged([GRAPH, { ...GRAPH, id: 1 }], OPTIONS);
  assert.equal(scene.frames.length, 2);
  assert.equal(scene.nodes.length, 2 * 5);
  assert.equal(scene.kernels.length, 2 * 2); // a library's call has no box around it
  for (const box of scene.nodes) {
    const around = scene.kernels.find((k) => k.graph === box.graph && k.kernel === box.kernel);
    assert.ok(around === undefined || within(box, around));
    assert.ok(within(box, scene.frames[box.graph] as Box));
    for (const other of scene.nodes) {
      assert.ok(box === other || apart(box, other));
    }
  }
  for (const box of scene.kernels) {
    assert.ok(scene.kernels.every((other) => other === box || apart(box, other)));
  }
  assert.ok(apart(scene.frames[0] as Box, scene.frames[1] as Box));
  assert.ok(scene.frames.every((box) => within(box, scene)));
});

test("edges between kernels carry the bytes of the values that go through memory", () => {
  const { edges } = arranged([GRAPH], OPTIONS);
  const between = edges.filter(({ inside }) => !inside).map(({ from, to, bytes }) => [from, to, bytes]);
  assert.deepEqual(between.sort(), [["k0.0", "k0.1", 64], ["k0.1", "k0.2", 64], ["n0.0", "k0.0", 64], ["n0.0", "k0.1", 64]]);
  const inner = edges.filter(({ inside }) => inside).map(({ from, to }) => [from, to]);
  assert.deepEqual(inner, [["n0.1", "n0.2"]]);
});

test("a collapsed kernel hides its operations, and its edges stay", () => {
  const scene = arranged([GRAPH], { ...OPTIONS, collapsed: [kernelKey(GRAPH, 0)] });
  assert.deepEqual(scene.nodes.map(({ title }) => title), ["a", "mm", "neg"]);
  assert.equal(scene.kernels.find(({ kernel: k }) => k === 0)?.collapsed, true);
  assert.equal(scene.edges.filter(({ inside }) => !inside).length, 4);
});

test("inputs can be left out", () => {
  const { nodes, edges } = arranged([GRAPH], { ...OPTIONS, inputs: false });
  assert.deepEqual(nodes.map(({ kind }) => kind).filter((kind) => kind === "input"), []);
  assert.ok(edges.every(({ from }) => from !== "n0.0"));
});

test("a graph that runs eagerly has a frame that says so", () => {
  const { frames, nodes } = arranged([{ ...GRAPH, eager: true, kernels: [], nodes: [] }], OPTIONS);
  assert.match(frames[0]?.detail ?? "", /runs eagerly/);
  assert.equal(nodes.length, 0);
  assert.deepEqual(arranged([], OPTIONS).frames, []);
});

test("graphs are put in rows that suit the room", () => {
  const graphs = [0, 1, 2, 3].map((id) => ({ ...GRAPH, id }));
  const wide = arranged(graphs, { ...OPTIONS, aspect: 8 });
  const tall = arranged(graphs, { ...OPTIONS, aspect: 0.2 });
  assert.ok(wide.width > wide.height);
  assert.ok(tall.height > tall.width);
});

test("what never leaves its kernel is counted", () => {
  assert.equal(spared(GRAPH), 64); // abs; add is read by another, neg is returned
});

test("a search finds operators, kernels, types and lines", () => {
  const found = (text: string) => matches([GRAPH], (place) => (place === null ? "" : `toy.py:${12 + place}`), text).map((m) => m.node);
  assert.deepEqual(found("abs"), [1, 2]); // an operator, and a kernel's name
  assert.deepEqual(found("ADD toy.py:12"), [1, 2]);
  assert.deepEqual(found("toy.py:13"), [3]);
  assert.deepEqual(found("  "), []);
});

test("inputs are named as the program would name them", () => {
  assert.equal(nodeTitle(node("self_blocks__modules__0___before_bias", "", null, [])), "blocks.0.before_bias");
  assert.equal(nodeTitle(node("x", "", null, [])), "x");
});

const THEME: Theme = {
  background: "#000", text: "#fff", faint: "#999", line: "#333", panel: "#111", focus: "#00f", found: "#f80",
  contrast: false, kernels: ["#123456"], fonts: { plain: 'a "b"', mono: "m" },
};

test("a saved picture is whole, and its texts are escaped", () => {
  const scene = arranged([{ ...GRAPH, frame: "<lambda> & more" }], OPTIONS);
  const surface = new SvgSurface(THEME.fonts);
  paint(surface, scene, THEME, scene, 1, NO_MARKS);
  const text = surface.document(0, 0, scene.width, scene.height, "#000", "Fused <graph>");
  assert.match(text, /^<svg xmlns="http:\/\/www.w3.org\/2000\/svg"/);
  assert.ok(text.includes("abs_add_0"));
  assert.ok(text.includes("&#60;lambda&#62; &#38; more"));
  assert.ok(!text.includes("NaN"));
  assert.equal(text.match(/<text/g)?.length, text.match(/<\/text>/g)?.length);
});

const TIMES: TimedPart = {
  name: "toy", seconds: 1,
  parts: [
    { name: "graph 0", seconds: 0.5, parts: [{ name: "build", seconds: 0.25, parts: [{ name: "cpp", seconds: 0.2, parts: [] }] }] },
    { name: "graph 1", seconds: 0.3, parts: [] },
  ],
};

test("a flame's parts lie within what they are parts of", () => {
  const boxes = flame(TIMES, "toy");
  const of = (path: string) => boxes.find((box) => box.path === path);
  assert.deepEqual([of("toy")?.left, of("toy")?.width], [0, 1]);
  assert.deepEqual([of("toy/graph 1")?.left, of("toy/graph 1")?.width], [0.5, 0.3]);
  assert.equal(of("toy/graph 0/build/cpp")?.depth, 3);
  assert.ok(Math.abs((of(`toy/${REST}`)?.seconds ?? 0) - 0.2) < 1e-9);
});

test("a flame that is zoomed keeps the way back", () => {
  const boxes = flame(TIMES, "toy/graph 0/build");
  assert.deepEqual(boxes.map(({ path }) => path), ["toy", "toy/graph 0", "toy/graph 0/build", "toy/graph 0/build/cpp"]);
  assert.deepEqual(boxes.map(({ ancestor }) => ancestor), [true, true, false, false]);
  assert.equal(boxes[2]?.width, 1);
});

const RUN: LastRun = {
  program: "train.py", calls: 4, missed: 1, seconds: 1, dropped: 0,
  moments: [
    { at: 0.5, kind: "compiled", text: "graph 0", seconds: 0.75, place: null },
    { at: 2, kind: "recompiled", text: "a", seconds: 0, place: 0 },
    { at: 3, kind: "found", text: "b", seconds: 0, place: null },
  ],
};

const TIMED = { phase: "forward", library: false, told: "", place: null };

test("a kernel's share is that of its limit", () => {
  const [first, second] = shares([
    { ...TIMED, name: "k", seconds: 0.001, bytes: 5e6, operations: 1e6, share: 0.5 },
    { ...TIMED, name: "unknown", seconds: 0.01, bytes: null, operations: null, share: null },
  ]);
  assert.deepEqual([first?.rate, first?.share], [5e9, 0.5]);
  assert.deepEqual([second?.rate, second?.share], [undefined, undefined]);
});

test("kernels that do operations on bytes are below the roof", () => {
  const found = points([
    { ...TIMED, name: "copy", seconds: 0.001, bytes: 4e6, operations: 0, share: 0.9 },
    { ...TIMED, name: "exp", seconds: 0.001, bytes: 4e6, operations: 2e7, share: 0.5 },
    { ...TIMED, name: "unknown", seconds: 0.01, bytes: null, operations: null, share: null },
  ]);
  assert.deepEqual(found.map(({ number, intensity, speed }) => [number, intensity, speed]), [[1, 5, 2e10]]);
  assert.deepEqual(decades(0.2, 30), [0.1, 1, 10, 100]);
  assert.deepEqual([operationsText(1.36e11), numberText(0.1)], ["136 G/s", "0.1"]);
});

test("a timeline begins before what was compiled first", () => {
  const { begin, end, lanes } = timeline(RUN);
  assert.deepEqual([begin, end], [-0.25, 3]);
  assert.deepEqual(lanes.map(({ moments }) => moments.length), [1, 1, 1]);
});

test("numbers are short", () => {
  assert.deepEqual([0, 64, 1536, 12582912, 5 * 2 ** 30].map(bytesText), ["0 B", "64 B", "1.5 KiB", "12 MiB", "5 GiB"]);
  assert.deepEqual([0, 1.6e-6, 0.000484, 0.0123, 2].map(secondsText), ["0 s", "1.6 µs", "484 µs", "12.3 ms", "2.0 s"]);
  assert.deepEqual([0, 0.004, 0.527, 1.2].map(percentText), ["0 %", "0.4 %", "53 %", "120 %"]);
  assert.deepEqual(ticks(65, 3, 2), [0, 32, 64]);
  assert.deepEqual(ticks(2.9, 6), [0, 0.5, 1, 1.5, 2, 2.5]);
  assert.deepEqual(ticks(0, 6), [0]);
  assert.equal(fitted("abs_add_div_0", 50, 7), "abs_ad…");
  assert.equal(fitted("abs", 10, 7), "");
});
