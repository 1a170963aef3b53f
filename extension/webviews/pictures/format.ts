// Numbers as people read them.

export function bytesText(count: number): string {
  const units = ["B", "KiB", "MiB", "GiB"];
  let [size, unit] = [count, 0];
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size >= 100 || Number.isInteger(size) ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

export function secondsText(seconds: number): string {
  const [value, unit] = seconds >= 1 || seconds === 0 ? [seconds, "s"] : seconds >= 1e-3 ? [seconds * 1e3, "ms"] : [seconds * 1e6, "µs"];
  return `${value >= 100 || value === 0 ? Math.round(value) : value.toPrecision(value >= 10 ? 3 : 2)} ${unit}`;
}

export function rateText(bytesPerSecond: number): string {
  return `${(bytesPerSecond / 1e9).toPrecision(3)} GB/s`;
}

/** "12 G/s": operations a second. */
export function operationsText(perSecond: number): string {
  const [unit, scale] = perSecond >= 1e12 ? ["T", 1e12] : perSecond >= 1e9 ? ["G", 1e9] : perSecond >= 1e6 ? ["M", 1e6] : ["k", 1e3];
  return `${numberText(perSecond / Number(scale))} ${unit}/s`;
}

export function numberText(value: number): string {
  return Number(value.toPrecision(3)).toString();
}

export function percentText(share: number): string {
  const percent = share * 100;
  return `${percent >= 10 || percent === 0 ? Math.round(percent) : percent.toPrecision(1)} %`;
}

/** "1 kernel", "3 kernels". */
export function counted(count: number, noun: string): string {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/** About `count` round values from 0 on that cover `largest`. */
export function ticks(largest: number, count: number, base = 10): number[] {
  if (!(largest > 0)) {
    return [0];
  }
  const raw = largest / count;
  const unit = base ** Math.floor(Math.log(raw) / Math.log(base));
  const steps = base === 2 ? [1, 2] : [1, 2, 5, 10];
  const step = unit * (steps.find((s) => s * unit >= raw) ?? base);
  return Array.from({ length: Math.floor(largest / step + 1e-9) + 1 }, (_, k) => k * step);
}
