import assert from "node:assert/strict";
import { test } from "node:test";
import { levelOf } from "../src/server/log";

test("levels of log lines, however they are laid out", () => {
  const cases: [string, string][] = [
    ["ERROR:fuselens_server.server:no worker", "error"],
    ["2026-01-02 10:00:00,123 WARNING fuselens_server: slow", "warning"],
    ["2026-01-02 10:00:00,123 [INFO] ready", "info"],
    ["DEBUG sent 3 messages", "debug"],
    ["CRITICAL out of memory", "error"],
    ["Traceback (most recent call last):", "info"],
    ["this line mentions an ERROR somewhere behind", "info"],
    ["", "info"],
  ];
  for (const [line, level] of cases) {
    assert.equal(levelOf(line), level, line);
  }
});
