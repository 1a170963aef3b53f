// What passes between the extension and the language server beside the Language Server Protocol.

/** Sent by the server whenever what it is doing changes. */
export interface ServerStatus {
  state: "starting" | "ready" | "compiling" | "error";
  message?: string;
  torch?: string;
  interpreter?: string;
}
export const STATUS = "fuselens/status";

/** Asks for the text of a virtual document. */
export interface DocumentContentParams {
  uri: string;
}
export interface DocumentContent {
  text: string;
}
export const DOCUMENT_CONTENT = "fuselens/documentContent";

/** Sent by the server when virtual documents have new text. */
export interface DocumentsChanged {
  uris: string[];
}
export const DOCUMENTS_CHANGED = "fuselens/documentsChanged";

/** Tells the server which file is looked at, so that it compiles that one before others. */
export const FOCUS = "fuselens/focus";

/** One entry of the list that the command `fuselens.server.documents` returns. */
export interface StageDocument {
  uri: string;
  title: string;
  kind: string;
  language?: string;
}

/** A diagnostic of the compiler, as it appears inside other messages. Fields at their default are left out. */
export interface CompilerDiagnostic {
  code: string;
  message: string;
  explanation?: string;
  hints?: string[];
  span?: SourceSpan | null;
}

/** What the command `fuselens.server.run` returns. Times are medians in seconds; fields at their default are left out. */
export interface RunResult {
  function: string;
  agrees: boolean;
  detail: string;
  /** false where eager itself gives another result each time. */
  repeatable?: boolean;
  max_error?: number | null;
  gradients_agree?: boolean | null;
  eager_seconds?: number | null;
  compiled_seconds?: number | null;
  compile_seconds?: number | null;
  eager_bytes?: number | null;
  compiled_bytes?: number | null;
  error?: CompilerDiagnostic | null;
  instead?: string;
  /** Why nothing was compiled, or (`compiled`) not all. */
  uncompiled?: string;
  compiled?: boolean;
  /** First and third quartiles of the same measurements. */
  eager_quartiles?: [number, number] | null;
  compiled_quartiles?: [number, number] | null;
  /** The median of eager by compiled, of calls made in turn. */
  speedup?: number | null;
  speedup_quartiles?: [number, number] | null;
  values?: ComparedValue[];
  /** How many more agree. */
  more_values?: number;
  kernels?: KernelRun[];
  /** Where the value is made that differs. */
  span?: SourceSpan | null;
}

/** A range of a Python file. Lines count from 1, columns are UTF-8 bytes from 0, the end is not part of it. */
export interface SourceSpan {
  file: string;
  line: number;
  column: number;
  end_line: number;
  end_column: number;
}

/** A value that both calls gave. */
export interface ComparedValue {
  name: string;
  kind: "value" | "gradient" | "state";
  agrees: boolean;
  dtype?: string;
  shape?: number[];
  elements?: number;
  differing?: number;
  max_absolute?: number | null;
  max_relative?: number | null;
  /** The index of the first element that differs, and the elements there; of what is no tensor the whole values. */
  first?: number[] | null;
  eager?: string;
  compiled?: string;
  note?: string;
}

/** A kernel, or an operator of a library, that a run called; seconds are medians, null where nothing can tell. `limits` are the seconds
 * that the machine needs for it at least, by what takes them. */
export interface KernelRun {
  name: string;
  graph: number;
  phase: string;
  spans?: SourceSpan[];
  read?: number | null;
  written?: number | null;
  library?: boolean;
  seconds?: number | null;
  limits?: Record<string, number>;
}

/** A place in a file; `name` is for reading: "toy.py:12". */
export interface NamedPlace extends Place {
  name: string;
}

/** An operation of a graph or, without an operator, an input. `reads`, `kernel` and `place` are positions in lists. */
export interface OperationNode {
  name: string;
  operator: string;
  type: string;
  bytes: number;
  reads: number[];
  kernel: number | null;
  result: boolean;
  place: number | null;
}

/** A kernel, or a call of an operator of PyTorch's, which has no `backend`. */
export interface KernelNode {
  name: string;
  backend: string;
  kind: string;
  read: number | null;
  written: number | null;
  takes: string;
  /** That of its lines in the editor, from 0. */
  colour: number;
  place: number | null;
}

export interface FusedGraph {
  id: number;
  frame: string;
  phase: string;
  place: number | null;
  eager: boolean;
  kernels: KernelNode[];
  nodes: OperationNode[];
}

/** What a graph holds in memory at each of its kernels and calls; or a step of training, which has to fit a limit. */
export interface MemoryCurve {
  graph: number | null;
  phase: string;
  title: string;
  limit: number | null;
  steps: { name: string; bytes: number; place: number | null }[];
}

/** A part of the time that compiling took. */
export interface TimedPart {
  name: string;
  seconds: number;
  parts: TimedPart[];
}

/** A kernel, or an operator of a library, that was timed. `seconds`, `bytes` and `operations` are those of a call; a function counts as so
 * many additions as it takes the time of. `share` is how much of its limit it reaches, and `told` says that in words. */
export interface TimedKernel {
  name: string;
  phase: string;
  library: boolean;
  seconds: number;
  bytes: number | null;
  operations: number | null;
  share: number | null;
  told: string;
  place: number | null;
}

/** What the machine can do: bytes a second of memory and of the fastest cache, additions a second, and operations of products by dtype. */
export interface Roof {
  name: string;
  memory: number;
  cache: number;
  additions: number;
  products: Record<string, number>;
}

/** The kernels of one measurement, the slowest first, and how far the whole is from its limits. */
export interface Roofline {
  source: string;
  sentences: string[];
  roof: Roof | null;
  kernels: TimedKernel[];
}

/** Something that cost time in a run; `at` is in seconds since its begin. */
export interface Moment {
  at: number;
  kind: "compiled" | "recompiled" | "broken" | "found";
  text: string;
  seconds: number;
  place: number | null;
}

export interface LastRun {
  program: string;
  calls: number;
  missed: number;
  seconds: number;
  dropped: number;
  moments: Moment[];
}

/** What pictures of a function are drawn from. `function` is empty where nothing was compiled. */
export interface Pictures {
  function: string;
  functions: string[];
  target: string;
  stale: boolean;
  places: NamedPlace[];
  graphs: FusedGraph[];
  memory: MemoryCurve[];
  timing: TimedPart | null;
  run: LastRun | null;
  rooflines: Roofline[];
}
export interface PicturesParams {
  uri: string;
  function: string | null;
}
export const PICTURES = "fuselens/pictures";

/** Sent by the server when a run said something new about files. */
export interface PicturesChanged {
  uris: string[];
}
export const PICTURES_CHANGED = "fuselens/picturesChanged";

/** Commands that the server executes. */
export const SERVER_RUN = "fuselens.server.run";
export const SERVER_DOCUMENTS = "fuselens.server.documents";
export const SERVER_EXPLAIN = "fuselens.server.explain";
export const SERVER_PREVIEW = "fuselens.server.preview";
export const SERVER_COMPARE = "fuselens.server.compare";
export const SERVER_FUNCTIONS = "fuselens.server.functions";
export const SERVER_FIRST_LINE = "fuselens.server.firstLine";
export const SERVER_VALUES = "fuselens.server.values";
export const SERVER_SINCE = "fuselens.server.since";
export const SERVER_REVISIONS = "fuselens.server.revisions";
export const SERVER_WHAT_IF = "fuselens.server.whatIf";
export const SERVER_APPLY_CHANGE = "fuselens.server.applyChange";

/** The changes of a function that can be made, the best first, and the address of all that was tried. */
export interface OfferedChanges {
  headline: string;
  document: string;
  offered: { title: string; gain: string; detail: string }[];
}

/** What the command `fuselens.server.since` returns: what became of a file since a revision; null where nothing is compared. */
export interface SinceRevision {
  /** "1 of 1 file affected: functions 1 worse." */
  sentence: string;
  /** "1a2b3c4d (Ann, 2026-03-01, "First") → the working tree" */
  sides: string;
}

/** One entry of the list that the command `fuselens.server.revisions` returns. */
export interface Revision {
  name: string;
  about: string;
}

export const SERVER_TOOL = "fuselens.server.tool";

/** What the command `fuselens.server.tool` returns: an answer with its evidence, as text and as data by the tool's schema. */
export interface ToolAnswer {
  text: string;
  data: Record<string, unknown>;
  /** Whether the tool could not do what was asked; the text says why. */
  failed: boolean;
}

/** What the command `fuselens.server.compare` returns: two compilations of a function. */
export interface Comparison {
  /** "1 → 3 graphs; +1 break; peak +64 B" */
  sentence: string;
  /** What the two are called. */
  before: string;
  after: string;
  stages: ComparedStage[];
}

/** The texts are "" where one of them lacks the stage. `name` ends in an extension. */
export interface ComparedStage {
  title: string;
  name: string;
  graph: number;
  before: string;
  after: string;
  differs: boolean;
}

/** One entry of the list that the command `fuselens.server.functions` returns: where its name stands, counted from 0. */
export interface CompiledFunction {
  name: string;
  line: number;
  start: number;
  end: number;
}

/** What the server is told when it starts; it asks for the rest (`ServerSettings`) and is told when that changes. */
export interface InitializationOptions {
  interpreter: string;
  /** VS Code asks whether to trust a workspace, and the extension is not there in others: files may be run. */
  workspaceTrust: true;
  /** Hovers may link to commands. */
  commandLinks: true;
  /** The server's messages beyond LSP are heard ({@link STATUS}, {@link DOCUMENTS_CHANGED}). */
  notifications: true;
  /** Lines are coloured by kernel here ({@link CORRESPONDENCE}), and highlights would hide those of Python. */
  highlights: false;
}

/** Asks which lines of a file and of a document beside it belong together, and to which kernels. */
export const CORRESPONDENCE = "fuselens/correspondence";
export interface CorrespondenceParams {
  uri: string;
  document: string | null;
}

/** A line, its kernels, and what it belongs to: documents for a line of the file, lines of the file for one of a document. */
export type LinkedRow = [line: number, kernels: number[], others: number[]];

/** Lines count from 0; kernels and documents are numbers in the lists. null: no open file. */
export interface Correspondence {
  version: number | null;
  kernels: { name: string; colour: number }[];
  source: LinkedRow[];
  shown: LinkedRow[];
  documents: string[];
  /** What the document's place may show: "loops", "cpp", … */
  forms: Record<string, string>;
  breaks: number[];
  heat: { line: number; share: number; seconds: string; recompiles: number }[];
  /** What became of lines since a revision. */
  since: { line: number; direction: "worse" | "better"; texts: string[] }[];
}

/** Asks what there is to show of an open file; null where the server does not have it open. */
export const OVERVIEW = "fuselens/overview";
export interface OverviewParams {
  uri: string;
}

/** A place in a file. Lines and columns count from 0. */
export interface Place {
  uri: string;
  range: { start: { line: number; character: number }; end: { line: number; character: number } };
}
export interface OverviewFinding {
  code: string;
  message: string;
  severity: "error" | "warning" | "information" | "hint";
  /** Whether it is a graph break. */
  breaks: boolean;
  place: Place | null;
}
export interface OverviewGuard {
  expression: string;
  about: string;
  place: Place | null;
}
/** Bytes and seconds are those of a call; `line` counts from 1 in `document`. */
export interface OverviewKernel {
  name: string;
  backend: string;
  phase: string;
  kind: string;
  operations: string[];
  lines: number[];
  reads: number | null;
  writes: number | null;
  registers: number | null;
  takes: string;
  seconds: number | null;
  place: Place | null;
  document: string | null;
  line: number;
}
export interface OverviewGraph {
  id: number;
  frame: string;
  operations: number;
  training: boolean;
  cached: boolean;
  fallback: boolean;
  externs: string[];
  place: Place | null;
  kernels: OverviewKernel[];
  stages: StageDocument[];
}
export interface OverviewFunction {
  name: string;
  state: "waiting" | "compiling" | "compiled" | "broken" | "failed";
  headline: string;
  lastRun: string;
  inputs: string;
  place: Place;
  findings: OverviewFinding[];
  graphs: OverviewGraph[];
  guards: OverviewGuard[];
  moreGuards: number;
  documents: StageDocument[];
}
export interface Overview {
  uri: string;
  compiling: boolean;
  stale: boolean;
  functions: OverviewFunction[];
  /** Why the last check of the file gave nothing. */
  failures: OverviewFinding[];
}
