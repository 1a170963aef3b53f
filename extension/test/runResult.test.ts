import assert from "node:assert/strict";
import { test } from "node:test";
import { comparison, duration, headline, succeeded } from "../src/functions/runResult";

const agreeing = {
  function: "toy",
  agrees: true,
  detail: "2 outputs, rtol 1e-5",
  max_error: 1.19e-7,
  gradients_agree: true,
  eager_seconds: 12.3e-6,
  compiled_seconds: 4.1e-6,
  compile_seconds: 0.213,
};

test("agreement, with gradients and timings", () => {
  assert.equal(headline(agreeing), "toy agrees with eager, gradients too · 3.0× faster (12.3 µs → 4.10 µs)");
  assert.ok(succeeded(agreeing));
  const { gradients_agree: _, ...inference } = agreeing;
  assert.equal(headline(inference), "toy agrees with eager · 3.0× faster (12.3 µs → 4.10 µs)");
});

test("a difference says where", () => {
  const differs = { function: "toy", agrees: false, detail: "output 0 differs by 0.5 at [3]" };
  assert.equal(headline({ ...differs, repeatable: false }), "toy cannot be compared with eager · output 0 differs by 0.5 at [3]");
  assert.equal(headline(differs), "toy DIFFERS from eager · output 0 differs by 0.5 at [3]");
  assert.ok(!succeeded(differs));
  assert.match(headline({ ...agreeing, gradients_agree: false }), /agrees with eager, but its gradients DIFFER/);
  assert.ok(!succeeded({ ...agreeing, gradients_agree: false }));
});

test("an error is the headline", () => {
  const failed = {
    function: "toy",
    agrees: false,
    detail: "",
    error: { code: "FL909", message: "calling `toy` raised ValueError", hints: ["Look at the inputs."] },
  };
  assert.equal(headline(failed), "toy: calling `toy` raised ValueError");
  assert.ok(!succeeded(failed));
});

test("durations have three significant digits", () => {
  const cases: [number, string][] = [
    [0, "0.00 ns"],
    [3.4e-9, "3.40 ns"],
    [0.9999e-6, "1.00 µs"],
    [1.5e-6, "1.50 µs"],
    [123.4e-6, "123 µs"],
    [0.0456, "45.6 ms"],
    [1.234, "1.23 s"],
    [75, "75.0 s"],
  ];
  for (const [seconds, expected] of cases) {
    assert.equal(duration(seconds), expected);
  }
});

test("comparisons", () => {
  assert.equal(comparison(10, 10.1), "as fast");
  assert.equal(comparison(10, 1), "10× faster");
  assert.equal(comparison(1, 1.5), "1.5× slower");
  assert.equal(comparison(1, 0), "not comparable");
});

test("what was not compiled is not said to agree", () => {
  const eager = { ...agreeing, compiled: false, uncompiled: "it has no operation of torch" };
  assert.equal(headline(eager), "toy was not compiled, so there is nothing to compare with eager");
});
