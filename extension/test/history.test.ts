import assert from "node:assert/strict";
import { test } from "node:test";
import { change, difference, History } from "../src/runs/history";
import type { RunResult } from "../src/server/protocol";

const at = new Date(2026, 0, 1, 12, 30, 5);
const toy: RunResult = {
  function: "toy",
  agrees: true,
  detail: "values agree",
  gradients_agree: true,
  eager_seconds: 12e-6,
  compiled_seconds: 4e-6,
  compile_seconds: 0.25,
  eager_quartiles: [11e-6, 13e-6],
  compiled_quartiles: [3.5e-6, 4.5e-6],
  speedup: 3,
  speedup_quartiles: [2.75, 3.25],
  eager_bytes: 8192,
  compiled_bytes: 4096,
  values: [{ name: "result", kind: "value", agrees: true, dtype: "float32", shape: [2, 3], elements: 6, max_absolute: 1.31e-7, max_relative: 0 }],
  kernels: [
    { name: "add_0", graph: 0, phase: "forward", read: 1 << 19, written: 1 << 19, seconds: 1e-4, limits: { start: 1e-7, traffic: 5e-5 }, spans: [{ file: "/t.py", line: 3, column: 4, end_line: 3, end_column: 9 }] },
    { name: "sum_0", graph: 1, phase: "backward", read: 64, seconds: null },
  ],
};

test("nothing was run yet", () => assert.equal(new History().page(), undefined));

test("figures stand beside their spread", () => {
  const history = new History();
  history.add("file:///t.py", toy, at);
  const page = history.page();
  assert.ok(page);
  assert.equal(page.state, "good");
  assert.equal(page.verdict, "toy agrees with eager, gradients too");
  assert.equal(page.failure, undefined);
  assert.deepEqual(page.figures, [
    { name: "Eager", time: "12.0 µs", spread: "11.0 µs – 13.0 µs", memory: "8.00 KiB" },
    { name: "Compiled", time: "4.00 µs", spread: "3.50 µs – 4.50 µs", memory: "4.00 KiB" },
    { name: "Speed-up", time: "3.00×", spread: "2.75× – 3.25×", memory: "−4.00 KiB" },
    { name: "First call", time: "250 ms", spread: "", memory: "" },
  ]);
  assert.deepEqual(page.values[0], {
    name: "result", type: "float32[2, 3]", absolute: "1.3e-7", relative: "0", verdict: "agrees", state: "agrees", detail: "",
  });
});

test("kernels say what they reach, and those without a time say so", () => {
  const history = new History();
  history.add("file:///t.py", toy, at);
  const [timed, other] = history.page()?.kernels ?? [];
  assert.deepEqual(timed, { name: "add_0", where: "0 forward", time: "100 µs", rate: "10.5 GB/s", share: "50 %", place: { file: "/t.py", line: 3, column: 4 } });
  assert.deepEqual(other, { name: "sum_0", where: "1 backward", time: "not timed", rate: "", share: "" });
});

test("a failure leads to the first element and the line", () => {
  const history = new History();
  const differing = { name: "result[1]", kind: "value" as const, agrees: false, dtype: "float32", shape: [2], elements: 2, differing: 1, first: [1], eager: "1", compiled: "2" };
  const span = { file: "/t.py", line: 7, column: 4, end_line: 7, end_column: 12 };
  history.add("file:///t.py", { ...toy, agrees: false, values: [...(toy.values ?? []), differing], span }, at);
  const page = history.page();
  assert.equal(page?.state, "bad");
  assert.deepEqual(page?.failure, {
    text: "result[1]: 1 of 2 elements differ, the first at [1]: eager 1, compiled 2",
    place: { file: "/t.py", line: 7, column: 4 },
    link: "line 7",
  });
  assert.equal(page?.values[1]?.state, "differs");
});

test("an error has the place where it was raised", () => {
  const history = new History();
  const span = { file: "/t.py", line: 9, column: 0, end_line: 9, end_column: 1 };
  history.add("file:///t.py", { function: "toy", agrees: false, detail: "it raised", error: { code: "FL909", message: "it raised", hints: ["Look."], span } }, at);
  const page = history.page();
  assert.equal(page?.failure?.link, "line 9");
  assert.deepEqual(page?.notes, ["Look."]);
  assert.equal(page?.runs[0]?.verdict, "FL909");
});

test("what is excused says why", () => {
  assert.equal(difference({ name: "b", kind: "state", agrees: true, note: "rounding decides it" }), "rounding decides it");
  assert.equal(difference({ name: "n", kind: "state", agrees: false, dtype: "int", eager: "1", compiled: "2" }), "eager 1, compiled 2");
});

test("runs are compared with the run before of the same function", () => {
  const history = new History();
  history.add("file:///t.py", toy, at);
  history.add("file:///t.py", { ...toy, function: "other" }, at);
  history.add("file:///t.py", { ...toy, compiled_seconds: 2e-6, compiled_quartiles: [1.9e-6, 2.1e-6], compiled_bytes: 4096 + 65536, kernels: [] }, at);
  const rows = history.page(1)?.runs ?? [];
  assert.deepEqual(rows.map(({ id, change: what }) => [id, what]), [[3, "50 % faster; memory +64.0 KiB; −2 kernels"], [2, ""], [1, ""]]);
  assert.deepEqual(rows.map(({ shown }) => shown), [false, false, true]);
});

test("spreads that overlap are as fast", () => {
  const slower = { ...toy, compiled_seconds: 4.4e-6, compiled_quartiles: [4e-6, 5e-6] as [number, number] };
  assert.equal(change(toy, slower), "as fast");
  assert.equal(change(toy, { ...toy, agrees: false }), "does not agree any more; as fast");
});

test("old runs are forgotten", () => {
  const history = new History();
  for (let n = 0; n < 60; n++) {
    history.add("file:///t.py", toy, at);
  }
  assert.equal(history.page()?.runs.length, 50);
  assert.equal(history.page()?.runs[0]?.id, 60);
});
