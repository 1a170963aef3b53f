import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { byColour, Links, runs } from "../src/linked/links";
import { keyOf, marksOf, picture } from "../src/linked/marks";
import { palettes } from "../src/linked/palette";
import type { Correspondence } from "../src/server/protocol";

// Two kernels are shown: the first is of the lines 4 and 5, the second of line 6; a third is in another graph.
const DATA: Correspondence = {
  version: 1,
  kernels: [
    { name: "abs_0", colour: 0 },
    { name: "sum_0", colour: 1 },
    { name: "mul_0", colour: 2 },
  ],
  source: [
    [4, [0], [0]],
    [5, [0, 2], [0, 1]],
    [6, [2, 1], [0, 1]],
    [7, [2], [1]],
    [9, [], [0]],
  ],
  shown: [
    [10, [0], [4, 5]],
    [11, [0], [4]],
    [12, [0], [5]],
    [13, [0], [5]],
    [20, [1], [6]],
    [30, [], [9]],
  ],
  documents: ["fuselens://report/f/graph0/cpp.cpp?file=x", "fuselens://report/f/graph1/cpp.cpp?file=x"],
  forms: {},
  breaks: [7, 8],
  heat: [
    { line: 4, share: 0.8, seconds: "8 ms", recompiles: 0 },
    { line: 6, share: 0.01, seconds: "1 µs", recompiles: 0 },
    { line: 11, share: 0, seconds: "", recompiles: 3 },
  ],
  since: [
    { line: 7, direction: "worse", texts: ["1 break added"] },
    { line: 13, direction: "better", texts: ["kernels: 3 → 1"] },
  ],
};
const links = new Links(DATA);

test("a line leads to what came from the fewest others, and back", () => {
  assert.deepEqual(links.fromSource(4), [11]);
  assert.deepEqual(links.fromSource(5), [12, 13]);
  assert.deepEqual(links.fromSource(7), []);
  assert.deepEqual(links.fromShown(10), [4, 5]);
  assert.deepEqual(links.fromShown(99), []);
});

test("lines have the colours of kernels that are shown", () => {
  assert.deepEqual([4, 5, 6, 7, 9].map((line) => links.colourOfSource(line)), [0, 0, 1, undefined, undefined]);
  assert.deepEqual([10, 20, 30].map((line) => links.colourOfShown(line)), [0, 1, undefined]);
  assert.equal(links.firstKernel, 10);
});

test("lines of other graphs lead to those", () => {
  assert.deepEqual(links.documentsOf(7), ["fuselens://report/f/graph1/cpp.cpp?file=x"]);
  assert.equal(links.documentsOf(6).length, 2);
  assert.deepEqual(links.documentsOf(1), []);
});

test("consecutive lines are one run", () => {
  assert.deepEqual(runs([3, 1, 2, 2, 7]), [
    { first: 1, last: 3 },
    { first: 7, last: 7 },
  ]);
  const found = byColour([1, 2, 3, 4, 5], (line) => ({ 1: 0, 2: 0, 3: 1, 5: 0 })[line]);
  assert.deepEqual(found.get(0), [
    { first: 1, last: 2 },
    { first: 5, last: 5 },
  ]);
  assert.deepEqual([...found.keys()], [0, 1]);
});

test("thousands of lines are looked up in no time that grows with their square", () => {
  const lines = Array.from({ length: 20_000 }, (_, n): [number, number[], number[]] => [n, [n % 3], [n % 10]]);
  const large = new Links({ ...DATA, shown: lines });
  assert.equal(large.fromSource(3).length, 2000);
});

test("marks of a line", () => {
  const marks = marksOf({ ...DATA, source: [[4, [0, 1, 2, 0], []], ...DATA.source.slice(1)] });
  assert.deepEqual(marks.get(4), { colours: [0, 1, 2], breaks: false, recompiles: false, heat: 4, since: "" });
  assert.deepEqual(marks.get(7), { colours: [2], breaks: true, recompiles: false, heat: 0, since: "worse" });
  assert.deepEqual(marks.get(8), { colours: [], breaks: true, recompiles: false, heat: 0, since: "" });
  assert.deepEqual(marks.get(6), { colours: [2, 1], breaks: false, recompiles: false, heat: 1, since: "" });
  assert.deepEqual(marks.get(11), { colours: [], breaks: false, recompiles: true, heat: 0, since: "" });
  assert.deepEqual(marks.get(13), { colours: [], breaks: false, recompiles: false, heat: 0, since: "better" });
  assert.equal(marks.has(9), false);
  assert.notEqual(keyOf(marks.get(7)!), keyOf(marks.get(8)!));
});

const MANIFEST = JSON.parse(readFileSync("package.json", "utf8"));
const PALETTES = palettes(MANIFEST.contributes.colors);

test("a mark's picture has a bar of each kernel's colour", () => {
  const address = picture({ colours: [0, 7], breaks: true, recompiles: true, heat: 2, since: "worse" }, PALETTES.dark);
  const svg = Buffer.from(address.split(",")[1] ?? "", "base64").toString();
  for (const colour of [PALETTES.dark.kernels[0], PALETTES.dark.kernels[7], PALETTES.dark.break, PALETTES.dark.heat, PALETTES.dark.worse]) {
    assert.ok(svg.includes(`fill="${colour}"`), `${colour} in ${svg}`);
  }
  assert.ok(!svg.includes("undefined") && !svg.includes(PALETTES.dark.recompile));
});

// --- the colours -----------------------------------------------------------------------------------------------------

type Colour = [number, number, number];
// Machado, Oliveira and Fernandes (2009): what is seen without one kind of cones, as matrices over linear RGB.
const EYES: Record<string, Colour[]> = {
  all: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

function linear(colour: string): Colour {
  return [1, 3, 5].map((at) => {
    const value = Number.parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  }) as Colour;
}

/** In CIELAB, where distances are those that people see. */
function seen(colour: string, eyes: Colour[]): Colour {
  const [r, g, b] = eyes.map((row) => linear(colour).reduce((sum, v, n) => sum + v * row[n]!, 0)).map((v) => Math.min(1, Math.max(0, v))) as Colour;
  const f = (t: number): number => (t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116);
  const x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505);
  const y = f(0.2126 * r + 0.7152 * g + 0.0722 * b);
  const z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089);
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

test("kernels are told apart with any eyes, in light and in dark themes", () => {
  for (const [theme, { kernels }] of Object.entries(PALETTES)) {
    for (const [eyes, matrix] of Object.entries(EYES)) {
      for (const [n, one] of kernels.entries()) {
        for (const [m, other] of kernels.entries()) {
          const [a, b] = [seen(one, matrix), seen(other, matrix)];
          const distance = Math.hypot(...a.map((v, k) => v - b[k]!));
          assert.ok(n === m || distance > 20, `${theme}, ${eyes}: ${n + 1} and ${m + 1} differ by ${distance}`);
        }
      }
    }
  }
});

test("each theme has a value for each colour", () => {
  const colors: { id: string; defaults: Record<string, string> }[] = MANIFEST.contributes.colors;
  const linked = colors.filter(({ id }) => /^fuselens\.(kernel|linked)/.test(id));
  assert.equal(linked.length, 3 * 8 + 1);
  for (const { id, defaults } of linked) {
    for (const theme of ["dark", "light", "highContrast", "highContrastLight"]) {
      assert.match(defaults[theme] ?? "", /^#[0-9A-F]{6}([0-9A-F]{2})?$/, `${id}, ${theme}`);
    }
  }
});
