import assert from "node:assert/strict";
import { test } from "node:test";
import { changeItems } from "../src/changes/items";

test("changes keep the server's order, and all that was tried comes last", () => {
  const offered = [
    { title: "Leave out .clone()", gain: "−11 % time", detail: "line 3" },
    { title: "dynamic=True", gain: "−25 % time of the first calls", detail: "line 2" },
  ];
  const items = changeItems({ headline: "2 changes gain up to 25 %", document: "fuselens://report/f/what-if.txt?file=x", offered });
  assert.deepEqual(
    items.map(({ label, description, change }) => [label, description, change]),
    [
      ["Leave out .clone()", "−11 % time", 0],
      ["dynamic=True", "−25 % time of the first calls", 1],
      ["All That Was Tried", "and what was refused, and why", undefined],
    ],
  );
});
