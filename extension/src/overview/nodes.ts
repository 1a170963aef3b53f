// The tree of compiled functions as plain data: file → function → breaks, graphs (→ kernels, stages) and guards.

import { bytes, duration } from "../functions/runResult";
import type {
  Overview,
  OverviewFinding,
  OverviewFunction,
  OverviewGraph,
  OverviewKernel,
  Place,
  StageDocument,
} from "../server/protocol";

export type Kind = "file" | "function" | "finding" | "graph" | "kernel" | "stages" | "stage" | "guards" | "guard" | "document";

export interface Node {
  /** Stays the same from one version of the file to the next, so that the tree keeps what is unfolded. */
  id: string;
  kind: Kind;
  label: string;
  description: string;
  tooltip: string;
  /** Names of a codicon and of a theme colour. */
  icon: string;
  colour?: string;
  /** undefined where there is nothing to unfold. */
  unfolded?: boolean;
  children: Node[];
  parent?: Node;
  /** Where it is in the code. */
  place?: Place | null;
  /** Which generated document it is in, and at which line (from 1). */
  document?: { uri: string; line?: number; language?: string };
  /** URI of the file, and the function that it belongs to. */
  file: string;
  function?: string;
}

/** What the last *Run* of a function said: "3.1× faster". */
export type Runs = (file: string, name: string) => string | undefined;

/** Functions are unfolded at first in a file that has no more of them; so are the graphs of a function. */
const FEW = 3;
const GREEN = "testing.iconPassed";
const YELLOW = "list.warningForeground";
const RED = "list.errorForeground";

/** How many graph breaks a file has. */
export function breaksOf(overview: Overview): number {
  return overview.functions.flatMap(({ findings }) => findings).filter((finding) => finding.breaks).length;
}

/** "2 breaks" */
export function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** A file with what is below it; undefined where there is nothing to show. */
export function fileNode(overview: Overview, runs: Runs, unfolded: boolean, breaksOnly: boolean): Node | undefined {
  const { uri, functions, failures } = overview;
  const children = [
    ...failures.map((failure, index) => findingNode(failure, uri, `${uri}#failure${index}`)),
    ...functions.map((found) => functionNode(found, overview, runs, functions.length <= FEW, breaksOnly)),
  ].filter((node) => !breaksOnly || node.kind === "finding" || node.children.length > 0);
  if (children.length === 0) {
    return undefined;
  }
  const breaks = breaksOf(overview);
  const parts = [count(functions.length, "function"), breaks > 0 ? count(breaks, "break") : "", overview.stale ? "stale" : ""];
  return parent({
    id: uri,
    kind: "file",
    label: decodeURIComponent(uri.split("/").pop() ?? uri),
    description: said(parts),
    tooltip: "",
    icon: "file",
    unfolded,
    children,
    file: uri,
  });
}

function functionNode(found: OverviewFunction, { uri, stale }: Overview, runs: Runs, unfolded: boolean, breaksOnly: boolean): Node {
  const id = `${uri}#${found.name}`;
  const about = { file: uri, function: found.name };
  const findings = found.findings.map((finding, index) => findingNode(finding, uri, `${id}/finding${index}`, found.name));
  const breaks = found.findings.filter((finding) => finding.breaks).length;
  const guards: Node = parent({
    id: `${id}/guards`,
    kind: "guards",
    label: "guards",
    description: String(found.guards.length + found.moreGuards),
    tooltip: "What must hold for the compiled code to be used again",
    icon: "shield",
    unfolded: false,
    children: found.guards.map(({ expression, about: roots, place }, index) => ({
      id: `${id}/guard${index}`,
      kind: "guard",
      label: expression,
      description: place === null ? "" : `line ${place.range.start.line + 1}`,
      tooltip: roots === "" ? expression : `${expression}\n\nIt hangs on ${roots}.`,
      icon: "symbol-boolean",
      children: [],
      place,
      ...about,
    })),
    ...documentOf(found.documents, "guards"),
    ...about,
  });
  const children = breaksOnly
    ? findings
    : [
        ...findings,
        ...found.graphs.map((graph) => graphNode(graph, id, about, found.graphs.length <= FEW)),
        ...(found.guards.length > 0 ? [guards] : []),
      ];
  const graphs = count(found.graphs.length, "graph");
  const headline = found.graphs.length > 0 ? `${graphs} · ${count(breaks, "break")}` : found.headline;
  const run = runs(uri, found.name);
  return parent({
    id: children.length > 0 ? id : `${id}?`, // a row that gets children later is a new one, which is unfolded at first
    kind: "function",
    label: found.name,
    description: said([headline, run]),
    tooltip: said([found.headline, found.inputs && `inputs ${found.inputs}`, run && `last Run: ${run}`, found.lastRun, stale && "from before the last changes"], "\n\n"),
    ...STATES[found.state],
    ...(children.length > 0 ? { unfolded } : {}),
    children,
    place: found.place,
    ...documentOf(found.documents, "summary"),
    ...about,
  });
}

const STATES: Record<OverviewFunction["state"], { icon: string; colour?: string }> = {
  waiting: { icon: "circle-outline" },
  compiling: { icon: "loading~spin" },
  compiled: { icon: "check", colour: GREEN },
  broken: { icon: "warning", colour: YELLOW },
  failed: { icon: "error", colour: RED },
};

function findingNode(finding: OverviewFinding, file: string, id: string, name?: string): Node {
  const message = finding.message.replace(/^graph break: /, "").split("\n", 1)[0] ?? "";
  const [, code, rest] = /^`([^`]+)` (.*)$/.exec(message) ?? [];
  const error = finding.severity === "error";
  return {
    id,
    kind: "finding",
    label: (code ?? message).replaceAll("`", ""),
    description: said([finding.place && `line ${finding.place.range.start.line + 1}`, rest?.replaceAll("`", "")]),
    tooltip: `${finding.code}: ${finding.message}`,
    icon: error ? "error" : finding.breaks ? "debug-disconnect" : "warning",
    colour: error ? RED : YELLOW,
    children: [],
    place: finding.place,
    file,
    ...(name === undefined ? {} : { function: name }),
  };
}

function graphNode(graph: OverviewGraph, owner: string, about: { file: string; function: string }, unfolded: boolean): Node {
  const id = `${owner}/graph${graph.id}`;
  const kernels = graph.kernels.length > 0 ? count(graph.kernels.length, "kernel") : graph.fallback ? "runs eagerly" : "";
  const stages: Node = parent({
    id: `${id}/stages`,
    kind: "stages",
    label: "stages",
    description: String(graph.stages.length),
    tooltip: "What each stage of the compiler made of the graph",
    icon: "layers",
    unfolded: false,
    children: graph.stages.map((stage) => ({
      id: `${id}/${stage.title}.${stage.kind}`,
      kind: "stage",
      label: stage.title,
      description: NAMES[stage.kind] ?? "",
      tooltip: "",
      icon: ICONS[stage.kind] ?? "file",
      children: [],
      document: { uri: stage.uri, ...(stage.language === undefined ? {} : { language: stage.language }) },
      ...about,
    })),
    ...about,
  });
  return parent({
    id,
    kind: "graph",
    label: `graph ${graph.id}`,
    description: said([count(graph.operations, "operation"), kernels, graph.training ? "with backward" : ""]),
    tooltip: said([`${graph.frame}: ${count(graph.operations, "operation")}`, graph.externs.length > 0 && `called: ${graph.externs.join(", ")}`, graph.cached && "from the cache"], "\n\n"),
    icon: "type-hierarchy",
    unfolded,
    children: [...graph.kernels.map((kernel) => kernelNode(kernel, id, about)), ...(graph.stages.length > 0 ? [stages] : [])],
    place: graph.place,
    ...about,
  });
}

const NAMES: Record<string, string> = { kernel: "generated code", graph: "graph of operators", loop: "loops", host: "calls the kernels" };
const ICONS: Record<string, string> = { kernel: "file-code", graph: "type-hierarchy-sub", loop: "list-tree", host: "server-process" };

function kernelNode(kernel: OverviewKernel, owner: string, about: { file: string; function: string }): Node {
  const traffic = kernel.reads === null || kernel.writes === null ? "" : `${short(kernel.reads)} → ${short(kernel.writes)}`;
  const moved = [kernel.reads !== null && `reads ${bytes(kernel.reads)}`, kernel.writes !== null && `writes ${bytes(kernel.writes)}`];
  const time = kernel.seconds === null ? "" : duration(kernel.seconds);
  const registers = kernel.registers === null ? "" : count(kernel.registers, "register");
  const backward = kernel.phase === "backward" ? "backward" : "";
  const lines = kernel.lines.length > 0 ? `line${kernel.lines.length === 1 ? "" : "s"} ${kernel.lines.join(", ")}` : "";
  return {
    id: `${owner}/${kernel.phase}/${kernel.name}`,
    kind: "kernel",
    label: kernel.name,
    description: said([time, traffic, registers, backward]),
    tooltip: said([`${kernel.backend}, ${kernel.phase} ${kernel.kind}: ${kernel.operations.join(", ")}`, said([...moved, kernel.takes]), time && `${time} a call in the last run`, lines], "\n\n"),
    icon: "circuit-board",
    children: [],
    place: kernel.place,
    ...(kernel.document === null ? {} : { document: { uri: kernel.document, line: kernel.line } }),
    ...about,
  };
}

/** "4 KiB", not "4.00 KiB": a row is narrow. */
function short(size: number): string {
  return bytes(size).replace(/\.0+ /, " ");
}

function documentOf(documents: readonly StageDocument[], name: string): { document?: { uri: string } } {
  const found = documents.find(({ uri }) => uri.includes(`/${name}.txt`));
  return found === undefined ? {} : { document: { uri: found.uri } };
}

function parent(node: Node): Node {
  for (const child of node.children) {
    child.parent = node;
  }
  return node;
}

function said(parts: readonly (string | false | null | undefined)[], between = " · "): string {
  return parts.filter((part) => typeof part === "string" && part !== "").join(between);
}

/** Tells files of one name apart by their folders. */
export function tellApart(files: readonly Node[]): void {
  for (const file of files) {
    if (files.some((other) => other !== file && other.label === file.label)) {
      file.description = said([decodeURIComponent(file.file.split("/").at(-2) ?? ""), file.description]);
    }
  }
}

/** The function whose name is at or above a line (from 0), the nearest one. */
export function functionAt(file: Node, line: number): Node | undefined {
  const functions = file.children.filter(({ kind }) => kind === "function");
  const above = functions.filter(({ place }) => (place?.range.start.line ?? 0) <= line + 1); // a decorator is above the name
  return above.at(-1);
}

/** What *Copy* puts in the clipboard. */
export function copied(node: Node): string {
  return node.kind === "guard" ? node.label : said([node.label, node.description], "  ");
}

/** A name for the text of a document where it is saved: "toy.graph0.cpp.cpp" would say its kind twice. */
export function fileName(uri: string): string {
  const segments = uri.replace(/\?.*$/, "").split("/").slice(3).map(decodeURIComponent);
  const last = segments.pop() ?? "";
  const [name, suffix] = [last.replace(/\.[^.]*$/, ""), last.split(".").pop() ?? "txt"];
  return [...segments, ...(name === suffix ? [] : [name]), suffix].join(".").replace(/[^\w.-]+/g, "_");
}
