// Draws a scene. Pure, but for the surface: what is drawn on the screen and what goes into a file are the same.

import { bytesText } from "./format";
import { HEADER, type Box, type Edge, type KernelBox, type NodeBox, type Scene } from "./scene";
import type { Fonts, Surface } from "./surface";

export interface Theme {
  background: string;
  text: string;
  faint: string;
  line: string;
  panel: string;
  focus: string;
  found: string;
  /** In high contrast nothing is told by a shade alone. */
  contrast: boolean;
  kernels: readonly string[];
  fonts: Fonts;
}

export interface Marks {
  selected: NodeBox | undefined;
  hovered: NodeBox | KernelBox | undefined;
  /** "graph.node" of what was searched for. */
  found: ReadonlySet<string>;
  /** Of the line with the editor's cursor. */
  current: ReadonlySet<string>;
}

export const NO_MARKS: Marks = { selected: undefined, hovered: undefined, found: new Set(), current: new Set() };

export const nodeKey = ({ graph, node }: { graph: number; node: number }): string => `${graph}.${node}`;
export const kernelColour = (theme: Theme, kernel: number): string => theme.kernels[kernel % theme.kernels.length] ?? theme.text;

const overlaps = (a: Box, b: Box): boolean =>
  a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;

function around(edge: Edge): Box {
  const [xs, ys] = [edge.points.map(({ x }) => x), edge.points.map(({ y }) => y)];
  const [x, y] = [Math.min(...xs), Math.min(...ys)];
  return { x, y, width: Math.max(...xs) - x + 1, height: Math.max(...ys) - y + 1 };
}

/** Where edges lie, by the scene: looked at in each frame, worked out once. */
const boxes = new WeakMap<Scene, Box[]>();

/** The unit of a node, as edges name their ends. */
function ends(node: NodeBox): string[] {
  const own = `n${node.graph}.${node.node}`;
  return node.kernel === null || node.kind !== "call" ? [own] : [own, `k${node.graph}.${node.kernel}`];
}

/** Draws what lies in `view`. `scale` is how many points of the screen a unit takes: what would be too small is left out. */
export function paint(surface: Surface, scene: Scene, theme: Theme, view: Box, scale: number, marks: Marks): void {
  const readable = scale > 0.42;
  const seen = <B extends Box>(all: readonly B[]): B[] => all.filter((box) => overlaps(box, view));
  const { selected } = marks;
  const chosen = new Set(selected === undefined ? [] : ends(selected));

  for (const frame of seen(scene.frames)) {
    surface.box(frame.x, frame.y, frame.width, frame.height, 14, { fill: theme.panel, stroke: theme.line });
    if (scale > 0.12) {
      const size = scale < 0.3 ? Math.min(28, 13 / scale) : 15;
      surface.text(frame.x + 16, frame.y + 24, frame.title, { size, fill: theme.text, bold: true });
      if (readable) {
        surface.text(frame.x + 16, frame.y + 40, frame.detail, { size: 11, fill: theme.faint });
      }
    }
  }
  for (const kernel of seen(scene.kernels)) {
    const colour = kernelColour(theme, kernel.colour);
    const { x, y, width, height } = kernel;
    surface.box(x, y, width, height, 9, { fill: theme.background });
    if (!theme.contrast) {
      const far = scale < 0.16 ? 0.3 : 0; // a small thing needs a strong colour
      surface.box(x, y, width, height, 9, { fill: colour, alpha: far + (kernel === marks.hovered ? 0.2 : 0.12) });
    }
    surface.box(x, y, width, height, 9, { stroke: colour, width: theme.contrast || kernel === marks.hovered ? 2 : 1.2 });
    if (readable) {
      surface.box(x + 10, y + 9, 4, HEADER - 16, 2, { fill: colour });
      surface.text(x + 21, y + 16, kernel.title, { size: 12, fill: theme.text, bold: true, mono: true });
      surface.text(x + 21, y + 29, kernel.detail, { size: 10, fill: theme.faint });
      surface.text(x + width - 12, y + 18, kernel.collapsed ? "▸" : "▾", { size: 11, fill: theme.faint, anchor: "end" });
    } else if (scale > 0.16 && height > 40) {
      surface.text(x + 12, y + 26, kernel.title, { size: 15, fill: theme.text, mono: true });
    }
  }

  const where = boxes.get(scene) ?? scene.edges.map(around);
  boxes.set(scene, where);
  const labels: Edge[] = [];
  scene.edges.forEach((edge, k) => {
    const box = where[k] as Box;
    if (!overlaps(box, view) || (edge.inside && scale < 0.3) || Math.max(box.width, box.height) * scale < 4) {
      return;
    }
    const touched = chosen.has(edge.from) || chosen.has(edge.to);
    const ink = { stroke: touched ? theme.focus : edge.inside ? theme.faint : theme.text, alpha: touched ? 1 : edge.inside ? 0.75 : 0.5 };
    const width = edge.inside ? (touched ? 2 : 1) : Math.max(thickness(edge.bytes), 0.8 / scale);
    surface.arrow(edge.points, { ...ink, width, dash: edge.inside ? [3, 3] : [] }, scale > 0.2);
    if (!edge.inside) {
      labels.push(edge);
    }
  });
  for (const node of seen(scene.nodes)) {
    operation(surface, node, theme, marks, scale);
  }
  for (const edge of scale > 0.5 ? labels : []) {
    const { x, y } = edge.points[Math.floor(edge.points.length / 2)] as { x: number; y: number };
    surface.text(x, y + 3, bytesText(edge.bytes), { size: 9.5, fill: theme.text, anchor: "middle", halo: theme.panel });
  }
}

/** 1 for little, 5 for gigabytes. */
export function thickness(bytes: number): number {
  return Math.min(5, 1 + Math.max(0, Math.log2(Math.max(bytes, 1) / 1024)) * 0.18);
}

function operation(surface: Surface, node: NodeBox, theme: Theme, marks: Marks, scale: number): void {
  const { x, y, width, height, kind } = node;
  const key = nodeKey(node);
  const radius = kind === "input" ? height / 2 : 6;
  const colour = node.kernel === null || kind === "call" ? theme.faint : kernelColour(theme, node.colour);
  if (scale < 0.2 && !marks.found.has(key) && node !== marks.selected) {
    surface.box(x, y, width, height, radius, { fill: colour, alpha: 0.6 });
    return;
  }
  surface.box(x, y, width, height, radius, { fill: theme.background });
  if (marks.found.has(key)) {
    surface.box(x, y, width, height, radius, { fill: theme.found, alpha: theme.contrast ? 0.25 : 0.45 });
  } else if (marks.current.has(key)) {
    surface.box(x, y, width, height, radius, { fill: colour, alpha: 0.28 });
  }
  const strong = node === marks.hovered || marks.current.has(key);
  surface.box(x, y, width, height, radius, { stroke: colour, width: strong ? 2 : 1, dash: kind === "input" ? [4, 3] : [] });
  if (node === marks.selected) {
    surface.box(x - 4, y - 4, width + 8, height + 8, radius + 4, { stroke: theme.focus, width: 2 });
  }
  if (node.result && kind !== "input") {
    surface.box(x + width / 2 - 9, y + height - 2, 18, 4, 2, { fill: colour });
  }
  if (scale > 0.3) {
    surface.text(x + width / 2, y + 15, node.title, { size: 12, fill: theme.text, anchor: "middle", mono: true });
  }
  if (scale > 0.42) {
    surface.text(x + width / 2, y + 27, node.detail, { size: 10, fill: theme.faint, anchor: "middle", mono: true });
  }
}
