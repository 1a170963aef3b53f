// How the outcome of running a function is told.

import type { RunResult } from "./protocol";

/** One line for a notification. */
export function headline(result: RunResult): string {
  if (result.error) {
    return `${result.function}: ${result.error.message}`;
  }
  const parts = [`${result.function} ${result.agrees ? "agrees with eager" : "DIFFERS from eager"}`];
  if (result.agrees) {
    if (result.gradients_agree === true) {
      parts[0] += ", gradients too";
    } else if (result.gradients_agree === false) {
      parts[0] += ", but its gradients DIFFER";
    }
  } else if (result.detail) {
    parts.push(result.detail);
  }
  const { eager_seconds: eager, compiled_seconds: compiled } = result;
  if (isNumber(eager) && isNumber(compiled)) {
    parts.push(`${comparison(eager, compiled)} (${duration(eager)} → ${duration(compiled)})`);
  }
  if (result.instead) {
    parts.push(result.instead);
  }
  return parts.join(" · ");
}

/** Whether everything that was compared agreed. */
export function succeeded(result: RunResult): boolean {
  return !result.error && result.agrees && result.gradients_agree !== false;
}

/** The whole outcome as Markdown. */
export function details(result: RunResult, file: string): string {
  const lines = [`# ${result.function}`, "", headline(result), "", `File: ${file}`, ""];
  const rows: [string, string][] = [];
  const row = (name: string, value: number | null | undefined, show: (value: number) => string): void => {
    if (isNumber(value)) {
      rows.push([name, show(value)]);
    }
  };
  row("eager, median", result.eager_seconds, duration);
  row("compiled, median", result.compiled_seconds, duration);
  row("compilation", result.compile_seconds, duration);
  row("eager, memory at most", result.eager_bytes, bytes);
  row("compiled, memory at most", result.compiled_bytes, bytes);
  row("largest difference", result.max_error, (value) => (value === 0 ? "0" : value.toExponential(2)));
  if (typeof result.gradients_agree === "boolean") {
    rows.push(["gradients", result.gradients_agree ? "agree" : "differ"]);
  }
  if (rows.length > 0) {
    const width = Math.max(...rows.map(([name]) => name.length));
    const valueWidth = Math.max(5, ...rows.map(([, value]) => value.length));
    lines.push(`| ${"".padEnd(width)} | ${"value".padStart(valueWidth)} |`, `|${"-".repeat(width + 2)}|${"-".repeat(valueWidth + 1)}:|`);
    lines.push(...rows.map(([name, value]) => `| ${name.padEnd(width)} | ${value.padStart(valueWidth)} |`), "");
  }
  if (result.detail) {
    lines.push("## Compared", "", result.detail, "");
  }
  if (result.error) {
    lines.push(`## ${result.error.code}`, "", result.error.explanation || result.error.message, "");
    lines.push(...(result.error.hints ?? []).map((hint) => `- ${hint}`));
  }
  return lines.join("\n").trimEnd() + "\n";
}

/** "3.1× faster", "1.4× slower", "as fast". */
export function comparison(eager: number, compiled: number): string {
  const ratio = eager / compiled;
  if (!Number.isFinite(ratio) || ratio <= 0) {
    return "not comparable";
  }
  if (ratio > 0.97 && ratio < 1.03) {
    return "as fast";
  }
  const factor = ratio >= 1 ? ratio : 1 / ratio;
  return `${factor >= 10 ? factor.toFixed(0) : factor.toFixed(1)}× ${ratio >= 1 ? "faster" : "slower"}`;
}

/** Seconds with three significant digits and a fitting unit. */
export function duration(seconds: number): string {
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]] as const) {
    if (seconds >= size * 0.9995) {
      return `${significant(seconds / size)} ${unit}`;
    }
  }
  return `${significant(seconds * 1e9)} ns`;
}

/** Binary units, three significant digits. */
export function bytes(count: number): string {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]] as const) {
    if (count >= size) {
      return `${significant(count / size)} ${unit}`;
    }
  }
  return `${count} B`;
}

function significant(value: number): string {
  return value >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

function isNumber(value: number | null | undefined): value is number {
  return typeof value === "number" && Number.isFinite(value);
}
