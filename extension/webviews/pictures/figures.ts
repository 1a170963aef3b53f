// The geometry of the charts: pure.

import type { LastRun, Moment, TimedKernel, TimedPart } from "../../src/server/protocol";

export interface FlameBox {
  /** Names from the root on, with "/" between them. */
  path: string;
  name: string;
  seconds: number;
  depth: number;
  /** As shares of the whole width. */
  left: number;
  width: number;
  /** It leads back out. */
  ancestor: boolean;
  /** It is what no part of its parent accounts for. */
  rest: boolean;
}

export const REST = "capture and the rest";

/** The flame of `root`, zoomed to the part at `path`: what that is in takes the whole width. */
export function flame(root: TimedPart, path: string): FlameBox[] {
  const found: FlameBox[] = [];
  const names = path.split("/");
  const place = (part: TimedPart, at: string, depth: number, left: number, width: number): void => {
    const inside = path === at || !path.startsWith(`${at}/`);
    found.push({ path: at, name: part.name, seconds: part.seconds, depth, left, width, ancestor: path !== at && !inside, rest: false });
    const next = inside ? undefined : part.parts.find(({ name }) => name === names[depth + 1]);
    if (next !== undefined) {
      place(next, `${at}/${next.name}`, depth + 1, left, width);
      return;
    }
    let x = left;
    for (const inner of part.parts) {
      const share = part.seconds > 0 ? (inner.seconds / part.seconds) * width : 0;
      place(inner, `${at}/${inner.name}`, depth + 1, x, share);
      x += share;
    }
    const rest = part.seconds - part.parts.reduce((sum, { seconds }) => sum + seconds, 0);
    if (depth === 0 && part.parts.length > 0 && rest > part.seconds * 0.002) {
      found.push({ path: `${at}/${REST}`, name: REST, seconds: rest, depth: 1, left: x, width: left + width - x, ancestor: false, rest: true });
    }
  };
  place(root, root.name, 0, 0, 1);
  return found;
}

export interface Share {
  kernel: TimedKernel;
  /** Bytes a second; undefined where it is not known how many a call moves. */
  rate: number | undefined;
  /** Of what its limit allows; undefined where that is not known. */
  share: number | undefined;
}

export function shares(kernels: readonly TimedKernel[]): Share[] {
  return kernels.map((kernel) => ({
    kernel,
    rate: kernel.bytes === null ? undefined : kernel.bytes / kernel.seconds,
    share: kernel.share ?? undefined,
  }));
}

/** A kernel below the roof: operations for each byte, and operations a second. */
export interface Point {
  kernel: TimedKernel;
  /** Its position in the list of kernels. */
  number: number;
  intensity: number;
  speed: number;
}

/** Kernels that do operations on bytes; the others have no place below a roof. */
export function points(kernels: readonly TimedKernel[]): Point[] {
  return kernels.flatMap((kernel, number) =>
    kernel.bytes !== null && kernel.bytes > 0 && kernel.operations !== null && kernel.operations > 0
      ? [{ kernel, number, intensity: kernel.operations / kernel.bytes, speed: kernel.operations / kernel.seconds }]
      : [],
  );
}

/** The powers of ten from the one below `least` to the one above `most`. */
export function decades(least: number, most: number): number[] {
  const [first, last] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))];
  return Array.from({ length: last - first + 1 }, (_, k) => 10 ** (first + k));
}

export interface Timeline {
  /** Seconds at the left and right ends. */
  begin: number;
  end: number;
  lanes: { title: string; moments: Moment[] }[];
}

const LANES: readonly [string, readonly Moment["kind"][]][] = [
  ["compiled", ["compiled"]],
  ["recompiled", ["recompiled"]],
  ["breaks, notes", ["broken", "found"]],
];

export function timeline(run: LastRun): Timeline {
  const begin = Math.min(0, ...run.moments.map(({ at, seconds }) => at - seconds));
  const end = Math.max(begin + 0.001, ...run.moments.map(({ at }) => at));
  return { begin, end, lanes: LANES.map(([title, kinds]) => ({ title, moments: run.moments.filter(({ kind }) => kinds.includes(kind)) })) };
}

/** The same colour for the same name, of `count`. */
export function colourOf(name: string, count: number): number {
  let sum = 7;
  for (const character of name) {
    sum = (sum * 31 + character.charCodeAt(0)) >>> 0;
  }
  return sum % count;
}

/** A text that fits, or its beginning. */
export function fitted(text: string, width: number, character: number): string {
  const room = Math.floor(width / character);
  return text.length <= room ? text : room < 3 ? "" : `${text.slice(0, room - 1)}…`;
}
