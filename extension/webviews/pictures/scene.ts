// From graphs to where everything is: pure, so that it runs in a worker. Operations are laid out inside of their kernel, and
// kernels inside of their graph: so a kernel that is collapsed, or that comes again in each layer, costs no more than one.

import { Graph as Dagre, layout } from "@dagrejs/dagre";
import type { FusedGraph, KernelNode, OperationNode } from "../../src/server/protocol";
import { bytesText, counted } from "./format";

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Of `graph` the number in the list of graphs, of `kernel` and `node` those in the graph's lists. */
export interface NodeBox extends Box {
  graph: number;
  node: number;
  kernel: number | null;
  /** Its kernel's. */
  colour: number;
  title: string;
  detail: string;
  kind: "operation" | "input" | "call";
  result: boolean;
}

export interface KernelBox extends Box {
  graph: number;
  kernel: number;
  colour: number;
  title: string;
  detail: string;
  collapsed: boolean;
}

/** Between kernels and inputs: what goes through memory. Inside of a kernel: what does not. Ends are keys of units. */
export interface Edge {
  graph: number;
  points: { x: number; y: number }[];
  bytes: number;
  inside: boolean;
  from: string;
  to: string;
}

export interface FrameBox extends Box {
  graph: number;
  title: string;
  detail: string;
}

export interface Scene extends Box {
  frames: FrameBox[];
  kernels: KernelBox[];
  nodes: NodeBox[];
  edges: Edge[];
}

export interface Options {
  /** Keys of kernels ({@link kernelKey}). */
  collapsed: readonly string[];
  inputs: boolean;
  /** How wide the place for the picture is, by its height. */
  aspect: number;
}

export const HEADER = 34;
export const NODE = 34;
export const FRAME_HEADER = 44;
const PADDING = 12;
const GAP = 36;
const CHARACTER = 6.9; // about the width of one, in the picture's units
const SMALL = 5.7;

export function kernelKey(graph: FusedGraph, kernel: number): string {
  return `${graph.id}/${graph.phase}/${graph.kernels[kernel]?.name ?? kernel}`;
}

/** An operation's operator; an input's name, as the program would write it: "blocks.0.weight". */
export function nodeTitle(node: OperationNode): string {
  return node.operator || node.name.replace(/^self_/, "").replace(/_*_modules__(\w+?)___/g, ".$1.");
}

export function kernelDetail({ kind, backend, read, written }: KernelNode): string {
  const moved = read === null || written === null ? [] : [`${bytesText(read)} in`, `${bytesText(written)} out`];
  return [backend === "" ? "library call" : `${backend === "cpp" ? "C++" : "Triton"} ${kind}`, ...moved].join(" · ");
}

/** An operation that is a kernel by itself has no second box around it where it is a library's. */
function isCall(graph: FusedGraph, kernel: number | null): boolean {
  return kernel !== null && graph.kernels[kernel]?.backend === "";
}

/** Bytes of values that are made and used inside of one kernel, which therefore never go through memory. */
export function spared(graph: FusedGraph): number {
  const leaves = new Set<number>();
  const used = new Set<number>();
  for (const { kernel, reads } of graph.nodes) {
    for (const source of reads) {
      used.add(source);
      if (graph.nodes[source]?.kernel !== kernel) {
        leaves.add(source);
      }
    }
  }
  const stays = graph.nodes.filter(({ kernel, result }, k) => kernel !== null && !result && used.has(k) && !leaves.has(k));
  return stays.reduce((total, { bytes }) => total + bytes, 0);
}

const textWidth = (title: string, detail: string): number => Math.max(title.length * CHARACTER, detail.length * SMALL);

interface Inner {
  width: number;
  height: number;
  boxes: Map<number, Box>;
  edges: { from: number; to: number; points: { x: number; y: number }[] }[];
}

function nodeWidth(node: OperationNode): number {
  return Math.max(64, Math.round(textWidth(nodeTitle(node), node.type)) + 22);
}

/** The operations of one kernel. `known` has those of kernels that look the same. */
function inside(graph: FusedGraph, members: number[], known: Map<string, Inner>): Inner {
  const position = new Map(members.map((node, k) => [node, k]));
  const of = (node: number): OperationNode => graph.nodes[node] as OperationNode;
  const reads = members.map((node) => of(node).reads.flatMap((r) => position.get(r) ?? []));
  const key = JSON.stringify(members.map((node, k) => [nodeWidth(of(node)), reads[k]]));
  let found = known.get(key);
  if (found === undefined) {
    const dagre = new Dagre();
    dagre.setGraph({ rankdir: "TB", nodesep: 14, ranksep: 22, ranker: members.length > 60 ? "tight-tree" : "network-simplex" });
    dagre.setDefaultEdgeLabel(() => ({}));
    members.forEach((node, k) => dagre.setNode(String(k), { width: nodeWidth(of(node)), height: NODE }));
    reads.forEach((sources, k) => sources.forEach((source) => dagre.setEdge(String(source), String(k), {})));
    layout(dagre);
    const boxes = new Map<number, Box>(dagre.nodes().map((k: string): [number, Box] => [Number(k), corner(dagre.node(k) as Box)]));
    const edges: Inner["edges"] = dagre.edges().map(({ v, w }: { v: string; w: string }) => ({ from: Number(v), to: Number(w), points: pointsOf(dagre.edge(v, w)) }));
    const { width = 0, height = 0 } = dagre.graph() as { width?: number; height?: number };
    found = { width, height, boxes, edges };
    known.set(key, found);
  }
  return found;
}

const corner = ({ x, y, width, height }: Box): Box => ({ x: x - width / 2, y: y - height / 2, width, height });

function pointsOf(edge: unknown): { x: number; y: number }[] {
  return ((edge as { points?: { x: number; y: number }[] }).points ?? []).map(({ x, y }) => ({ x, y }));
}

/** A graph's boxes, from its own origin on. */
function one(graph: FusedGraph, number: number, options: Options, known: Map<string, Inner>): Scene {
  const collapsed = new Set(options.collapsed);
  const scene: Scene = { x: 0, y: 0, width: 0, height: 0, frames: [], kernels: [], nodes: [], edges: [] };
  const members = graph.kernels.map((): number[] => []);
  graph.nodes.forEach(({ kernel }, node) => kernel !== null && members[kernel]?.push(node));

  const unitOf = (node: number): string => {
    const kernel = graph.nodes[node]?.kernel ?? null;
    return kernel === null ? `n${number}.${node}` : `k${number}.${kernel}`;
  };
  const dagre = new Dagre();
  // What ranks best takes 3 s for a GPT-2 of 12 layers; a tight tree, which looks the same, takes 1 s.
  const ranker = graph.kernels.length > 60 ? "tight-tree" : "network-simplex";
  dagre.setGraph({ rankdir: "TB", nodesep: 26, ranksep: 46, ranker });
  dagre.setDefaultEdgeLabel(() => ({}));
  const inner = new Map<number, Inner>();
  const width = new Map<number, number>();
  graph.kernels.forEach((kernel, k) => {
    const own = members[k] ?? [];
    const folded = isCall(graph, k) || collapsed.has(kernelKey(graph, k));
    const head = Math.round(textWidth(kernel.name, isCall(graph, k) ? "" : kernelDetail(kernel))) + 44;
    if (folded) {
      const title = isCall(graph, k) ? Math.max(80, ...own.map((node) => nodeWidth(graph.nodes[node] as OperationNode) + 8)) : head;
      dagre.setNode(`k${number}.${k}`, { width: title, height: isCall(graph, k) ? NODE + 4 : HEADER + 4 });
    } else {
      const found = inside(graph, own, known);
      inner.set(k, found);
      width.set(k, Math.max(head, found.width + 2 * PADDING));
      dagre.setNode(`k${number}.${k}`, { width: width.get(k), height: HEADER + found.height + 2 * PADDING });
    }
  });
  graph.nodes.forEach((node, k) => {
    if (node.kernel === null && options.inputs) {
      dagre.setNode(unitOf(k), { width: nodeWidth(node), height: NODE });
    }
  });
  const between = new Map<string, { from: string; to: string; values: Set<number> }>();
  graph.nodes.forEach((node, k) => {
    for (const source of node.reads) {
      const [from, to] = [unitOf(source), unitOf(k)];
      if (from !== to && dagre.hasNode(from) && dagre.hasNode(to)) {
        const edge = between.get(`${from} ${to}`) ?? { from, to, values: new Set() };
        between.set(`${from} ${to}`, edge);
        edge.values.add(source);
      }
    }
  });
  for (const { from, to, values } of between.values()) {
    const bytes = [...values].reduce((sum, value) => sum + (graph.nodes[value]?.bytes ?? 0), 0);
    dagre.setEdge(from, to, { bytes, width: bytesText(bytes).length * SMALL + 8, height: 12, labelpos: "c" });
  }
  layout(dagre);

  const boxOf = (key: string): Box => corner(dagre.node(key) as unknown as Box);
  graph.nodes.forEach((node, k) => {
    const kind = node.kernel === null ? "input" : isCall(graph, node.kernel) ? "call" : "operation";
    if (kind === "operation" || !dagre.hasNode(unitOf(k)) || (kind === "call" && members[node.kernel ?? -1]?.[0] !== k)) {
      return;
    }
    const { kernel, result, type } = node;
    const colour = kernel === null ? 0 : (graph.kernels[kernel]?.colour ?? 0);
    scene.nodes.push({ ...boxOf(unitOf(k)), graph: number, node: k, kernel, colour, title: nodeTitle(node), detail: type, kind, result });
  });
  graph.kernels.forEach((kernel, k) => {
    if (isCall(graph, k)) {
      return;
    }
    const box = boxOf(`k${number}.${k}`);
    const found = inner.get(k);
    const { colour } = kernel;
    scene.kernels.push({ ...box, graph: number, kernel: k, colour, title: kernel.name, detail: kernelDetail(kernel), collapsed: found === undefined });
    if (found === undefined) {
      return;
    }
    const own = members[k] ?? [];
    const x = box.x + (box.width - found.width) / 2;
    const y = box.y + HEADER + PADDING;
    found.boxes.forEach((at, position) => {
      const node = own[position] as number;
      const { result, type } = graph.nodes[node] as OperationNode;
      const title = nodeTitle(graph.nodes[node] as OperationNode);
      scene.nodes.push({ ...at, x: at.x + x, y: at.y + y, graph: number, node, kernel: k, colour, title, detail: type, kind: "operation", result });
    });
    for (const edge of found.edges) {
      const source = own[edge.from] as number;
      const bytes = graph.nodes[source]?.bytes ?? 0;
      const points = edge.points.map((point) => ({ x: point.x + x, y: point.y + y }));
      scene.edges.push({ graph: number, points, bytes, inside: true, from: `n${number}.${source}`, to: `n${number}.${own[edge.to] ?? 0}` });
    }
  });
  for (const { v, w } of dagre.edges()) {
    const edge = dagre.edge(v, w) as unknown as { bytes: number };
    scene.edges.push({ graph: number, points: pointsOf(edge), bytes: edge.bytes, inside: false, from: v, to: w });
  }
  const size = dagre.graph() as { width?: number; height?: number };
  const some = scene.nodes.length + scene.kernels.length > 0;
  scene.width = some ? (size.width ?? 0) : 0;
  scene.height = some ? (size.height ?? 0) : 0;
  return scene;
}

/** All graphs, each in a frame of its own, in rows as long as lets them be seen largest. */
export function arranged(graphs: readonly FusedGraph[], options: Options): Scene {
  const known = new Map<string, Inner>();
  const all: Scene = { x: 0, y: 0, width: 0, height: 0, frames: [], kernels: [], nodes: [], edges: [] };
  const scenes = graphs.map((graph, number) => one(graph, number, options, known));
  const framed = graphs.map((graph, number) => frame(graph, number, scenes[number] as Scene));
  inRows(framed, options.aspect);
  framed.forEach((box, number) => {
    const { frames, kernels, nodes, edges, width } = scenes[number] as Scene;
    const dx = box.x + (box.width - width) / 2;
    const dy = box.y + FRAME_HEADER + PADDING;
    const moved = <B extends { x: number; y: number }>(it: B): B => ({ ...it, x: it.x + dx, y: it.y + dy });
    all.frames.push(box, ...frames);
    all.kernels.push(...kernels.map(moved));
    all.nodes.push(...nodes.map(moved));
    all.edges.push(...edges.map((edge) => ({ ...edge, points: edge.points.map(moved) })));
    all.width = Math.max(all.width, box.x + box.width);
    all.height = Math.max(all.height, box.y + box.height);
  });
  return all;
}

function frame(graph: FusedGraph, number: number, scene: Scene): FrameBox {
  const title = `Graph ${graph.id} · ${graph.phase}`;
  const operations = graph.nodes.filter(({ kernel }) => kernel !== null).length;
  const made = graph.kernels.filter(({ backend }) => backend !== "").length;
  const calls = graph.kernels.length - made;
  const what = [counted(operations, "operation"), counted(made, "kernel"), ...(calls > 0 ? [counted(calls, "library call")] : [])];
  const saved = spared(graph);
  const stays = saved > 0 ? ` · ${bytesText(saved)} never leave their kernel` : "";
  const detail = graph.eager ? "runs eagerly, as it was captured" : `${graph.frame} · ${what.join(", ")}${stays}`;
  const width = Math.max(scene.width, textWidth(title, detail) + 10) + 2 * PADDING;
  return { x: 0, y: 0, width, height: FRAME_HEADER + scene.height + 2 * PADDING, graph: number, title, detail };
}

/** Places boxes in rows, in their order. */
function inRows(boxes: FrameBox[], aspect: number): void {
  let best = { scale: -1, length: 1 };
  for (let length = 1; length <= boxes.length; length += 1) {
    const { width, height } = rows(boxes, length);
    const scale = Math.min(aspect / width, 1 / height);
    best = scale > best.scale * 1.02 ? { scale, length } : best;
  }
  rows(boxes, best.length);
}

/** Places boxes in rows of `length`. */
function rows(boxes: FrameBox[], length: number): { width: number; height: number } {
  let [x, y, width, height] = [0, 0, 0, 0];
  boxes.forEach((box, k) => {
    if (k % length === 0) {
      [x, y] = [0, height === 0 ? 0 : height + GAP];
    }
    box.x = x;
    box.y = y;
    x += box.width + GAP;
    width = Math.max(width, x - GAP);
    height = Math.max(height, y + box.height);
  });
  return { width, height };
}

/** What of the operations matches a search: operator, name, type, kernel or line. */
export function matches(graphs: readonly FusedGraph[], placeName: (place: number | null) => string, text: string): { graph: number; node: number }[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) {
    return [];
  }
  return graphs.flatMap((graph, number) =>
    graph.nodes.flatMap((node, k) => {
      const kernel = node.kernel === null ? "" : (graph.kernels[node.kernel]?.name ?? "");
      const all = `${node.operator} ${node.name} ${node.type} ${kernel} ${placeName(node.place)}`.toLowerCase();
      return words.every((word) => all.includes(word)) ? [{ graph: number, node: k }] : [];
    }),
  );
}
