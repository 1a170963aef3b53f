// How the outcome of running a function is told.

import type { RunResult } from "../server/protocol";

/** One line for a notification. */
export function headline(result: RunResult): string {
  if (result.error) {
    return `${result.function}: ${result.error.message}`;
  }
  if (result.compiled === false && result.agrees) {
    return `${result.function} was not compiled, so there is nothing to compare with eager`;
  }
  const parts = [`${result.function} ${verdict(result)}`];
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

export function verdict(result: RunResult): string {
  if (result.repeatable === false) {
    return "cannot be compared with eager";
  }
  return result.agrees ? "agrees with eager" : "DIFFERS from eager";
}

/** Whether everything that was compared agreed. */
export function succeeded(result: RunResult): boolean {
  return !result.error && result.agrees && result.gradients_agree !== false;
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

export function significant(value: number): string {
  return value >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

function isNumber(value: number | null | undefined): value is number {
  return typeof value === "number" && Number.isFinite(value);
}
