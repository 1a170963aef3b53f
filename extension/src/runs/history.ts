// The runs of this session, and what the run panel says of one of them: plain data, so that the page only draws.

import { bytes, comparison, duration, headline, significant, succeeded } from "../functions/runResult";
import type { ComparedValue, KernelRun, RunResult, SourceSpan } from "../server/protocol";

/** Older runs are forgotten. */
const MOST_RUNS = 50;
/** Bytes by which two runs must differ: memory is measured in whole pages, and some come and go. */
const LEAST_MEMORY = 64 * 1024;

export interface Run {
  id: number;
  /** URI of the Python file. */
  file: string;
  at: Date;
  result: RunResult;
}

/** A place that the page may ask to be opened. */
export type Place = Pick<SourceSpan, "file" | "line" | "column">;

export interface ValueRow {
  name: string;
  type: string;
  absolute: string;
  relative: string;
  verdict: string;
  /** "differs" makes it stand out. */
  state: "agrees" | "differs" | "excused";
  /** The first differing element, or the reason. */
  detail: string;
}

export interface KernelRow {
  name: string;
  where: string;
  time: string;
  rate: string;
  share: string;
  place?: Place;
}

export interface RunRow {
  id: number;
  name: string;
  time: string;
  verdict: string;
  eager: string;
  compiled: string;
  speedup: string;
  change: string;
  shown: boolean;
}

export interface FigureRow {
  name: string;
  time: string;
  spread: string;
  memory: string;
}

/** What the page shows. A mark stands before the verdict, because colour alone tells not everybody. */
export interface RunPage {
  title: string;
  verdict: string;
  state: "good" | "bad" | "unknown";
  notes: string[];
  /** The first difference, and where it comes from. */
  failure?: { text: string; place?: Place; link?: string };
  figures: FigureRow[];
  values: ValueRow[];
  moreValues: number;
  kernels: KernelRow[];
  kernelNote: string;
  runs: RunRow[];
}

export class History {
  private runs: Run[] = [];
  private next = 1;

  /** What the last run of a function said, in a few words; undefined where it was not run. */
  last(file: string, name: string): string | undefined {
    const found = this.runs.findLast((run) => run.file === file && run.result.function === name);
    if (found === undefined) {
      return undefined;
    }
    const { eager_seconds: eager, compiled_seconds: compiled } = found.result;
    const times = typeof eager === "number" && typeof compiled === "number" ? comparison(eager, compiled) : "";
    return succeeded(found.result) ? times : "Run failed";
  }

  add(file: string, result: RunResult, at = new Date()): Run {
    const run = { id: this.next++, file, at, result };
    this.runs = [...this.runs, run].slice(-MOST_RUNS);
    return run;
  }

  /** The run to show: the one with this number, or the last one. */
  get(id?: number): Run | undefined {
    return this.runs.find((run) => run.id === id) ?? this.runs.at(-1);
  }

  /** The last run of the same function before this one. */
  before(run: Run): Run | undefined {
    return this.runs.filter((other) => other.id < run.id && other.file === run.file && other.result.function === run.result.function).at(-1);
  }

  page(id?: number): RunPage | undefined {
    const shown = this.get(id);
    return shown && { ...pageOf(shown), runs: [...this.runs].reverse().map((run) => this.row(run, run === shown)) };
  }

  private row(run: Run, shown: boolean): RunRow {
    const { result } = run;
    return {
      id: run.id,
      name: result.function,
      time: run.at.toTimeString().slice(0, 8),
      verdict: shortVerdict(result),
      eager: seconds(result.eager_seconds),
      compiled: seconds(result.compiled_seconds),
      speedup: factor(result.speedup),
      change: change(this.before(run)?.result, result),
      shown,
    };
  }
}

function pageOf(run: Run): Omit<RunPage, "runs"> {
  const { result } = run;
  const { values = [], kernels = [] } = result;
  const failed = values.find((value) => !value.agrees);
  const notes = [result.detail, result.instead, result.uncompiled].filter((note): note is string => Boolean(note) && note !== result.error?.message);
  const failure = failureOf(result, failed);
  return {
    title: result.function,
    verdict: headline(result).split(" · ")[0] ?? "",
    state: result.repeatable === false || result.compiled === false ? "unknown" : succeeded(result) ? "good" : "bad",
    notes: result.error ? [result.error.explanation ?? "", ...(result.error.hints ?? [])].filter(Boolean) : failure ? notes.slice(1) : notes,
    ...(failure ? { failure } : {}),
    figures: figures(result),
    values: values.map(valueRow),
    moreValues: result.more_values ?? 0,
    kernels: kernels.map(kernelRow),
    kernelNote: kernelNote(kernels),
  };
}

function failureOf(result: RunResult, failed: ComparedValue | undefined): RunPage["failure"] {
  const span = result.error ? result.error.span : result.span;
  const place = span ? { place: { file: span.file, line: span.line, column: span.column }, link: `line ${span.line}` } : {};
  if (result.error) {
    return { text: result.error.message, ...place };
  }
  if (failed === undefined) {
    return result.agrees || result.repeatable === false ? undefined : { text: result.detail, ...place };
  }
  return { text: `${failed.name}: ${difference(failed)}`, ...place };
}

/** What is different about a value, in words. */
export function difference(value: ComparedValue): string {
  if (value.note) {
    return value.note;
  }
  const both = `eager ${value.eager ?? ""}, compiled ${value.compiled ?? ""}`;
  if (!value.first) {
    return both;
  }
  const many = `${value.differing ?? 0} of ${value.elements ?? 0} elements differ`;
  return `${many}, the first at ${index(value.first)}: ${both}`;
}

function index(position: readonly number[]): string {
  return `[${position.join(", ")}]`;
}

function figures(result: RunResult): FigureRow[] {
  const { eager_seconds: eager, compiled_seconds: compiled, eager_bytes: before, compiled_bytes: after } = result;
  if (!isNumber(eager) || !isNumber(compiled)) {
    return [];
  }
  const ratio = isNumber(result.speedup) ? factor(result.speedup) : comparison(eager, compiled);
  const less = isNumber(before) && isNumber(after) && before !== after ? signed(after - before) : "";
  const rows = [
    { name: "Eager", time: duration(eager), spread: spread(result.eager_quartiles, duration), memory: isNumber(before) ? bytes(before) : "" },
    { name: "Compiled", time: duration(compiled), spread: spread(result.compiled_quartiles, duration), memory: isNumber(after) ? bytes(after) : "" },
    { name: "Speed-up", time: ratio, spread: spread(result.speedup_quartiles, factor), memory: less },
  ];
  const first = { name: "First call", time: seconds(result.compile_seconds), spread: "", memory: "" };
  return first.time === "" ? rows : [...rows, first];
}

function spread(quartiles: readonly [number, number] | null | undefined, show: (value: number) => string): string {
  return quartiles ? `${show(quartiles[0])} – ${show(quartiles[1])}` : "";
}

/** "+64 B" */
function signed(count: number): string {
  return `${count < 0 ? "−" : "+"}${bytes(Math.abs(count))}`;
}

function valueRow(value: ComparedValue): ValueRow {
  const state = !value.agrees ? "differs" : value.note ? "excused" : "agrees";
  return {
    name: value.name,
    type: value.dtype ? `${value.dtype}${value.elements || value.shape?.length ? index(value.shape ?? []) : ""}` : "",
    absolute: small(value.max_absolute),
    relative: small(value.max_relative),
    verdict: { agrees: "agrees", differs: "differs", excused: "not counted" }[state],
    state,
    detail: state === "agrees" ? "" : difference(value),
  };
}

function kernelRow(kernel: KernelRun): KernelRow {
  const { seconds: took, read } = kernel;
  const moved = isNumber(read) || isNumber(kernel.written) ? (read ?? 0) + (kernel.written ?? 0) : undefined;
  const least = Math.max(...Object.values(kernel.limits ?? {}));
  const [span] = kernel.spans ?? [];
  return {
    name: kernel.library === true ? `${kernel.name} (library)` : kernel.name,
    where: `${kernel.graph} ${kernel.phase}`,
    time: isNumber(took) ? duration(took) : "not timed",
    rate: isNumber(took) && took > 0 && isNumber(moved) ? `${significant(moved / took / 1e9)} GB/s` : "",
    share: isNumber(took) && took > 0 && least > 0 ? `${Math.min(100, Math.round((100 * least) / took))} %` : "",
    ...(span ? { place: { file: span.file, line: span.line, column: span.column } } : {}),
  };
}

function kernelNote(kernels: readonly KernelRun[]): string {
  if (kernels.length === 0) {
    return "";
  }
  return "Kernels are timed in calls of their own. “Of its limit” is what this machine needs at least for their bytes and operations, of that.";
}

/** How the compiled call changed since the run before: "12 % faster; memory +64 B". */
export function change(before: RunResult | undefined, now: RunResult): string {
  if (before === undefined) {
    return "";
  }
  const parts: string[] = [];
  if (succeeded(before) !== succeeded(now)) {
    parts.push(succeeded(now) ? "agrees now" : "does not agree any more");
  }
  const { compiled_seconds: old } = before;
  const { compiled_seconds: current } = now;
  if (isNumber(old) && isNumber(current) && old > 0) {
    const percent = Math.round(100 * (current / old - 1));
    const beyond = apart(before.compiled_quartiles, now.compiled_quartiles);
    parts.push(percent === 0 || !beyond ? "as fast" : `${Math.abs(percent)} % ${percent < 0 ? "faster" : "slower"}`);
  }
  const { compiled_bytes: held } = before;
  const { compiled_bytes: holds } = now;
  if (isNumber(held) && isNumber(holds) && Math.abs(held - holds) >= LEAST_MEMORY) {
    parts.push(`memory ${signed(holds - held)}`);
  }
  const kernels = (now.kernels?.length ?? 0) - (before.kernels?.length ?? 0);
  if (kernels !== 0) {
    parts.push(`${kernels > 0 ? "+" : "−"}${Math.abs(kernels)} kernel${Math.abs(kernels) === 1 ? "" : "s"}`);
  }
  return parts.join("; ");
}

/** Whether two spreads do not overlap; medians of those that do say nothing. */
function apart(one: readonly [number, number] | null | undefined, other: readonly [number, number] | null | undefined): boolean {
  return !one || !other || one[1] < other[0] || other[1] < one[0];
}

function shortVerdict(result: RunResult): string {
  if (result.error) {
    return result.error.code;
  }
  if (result.repeatable === false) {
    return "not repeatable";
  }
  return result.compiled === false ? "not compiled" : succeeded(result) ? "agrees" : "differs";
}

function seconds(value: number | null | undefined): string {
  return isNumber(value) ? duration(value) : "";
}

function factor(value: number | null | undefined): string {
  return isNumber(value) ? `${value >= 10 ? value.toFixed(0) : value.toFixed(2)}×` : "";
}

function small(value: number | null | undefined): string {
  return isNumber(value) ? (value === 0 ? "0" : value >= 0.01 && value < 1000 ? value.toPrecision(2) : value.toExponential(1)) : "";
}

function isNumber(value: number | null | undefined): value is number {
  return typeof value === "number" && Number.isFinite(value);
}
