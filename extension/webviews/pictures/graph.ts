// The picture of the fused graph: a canvas that is panned and zoomed without laying out again, and what surrounds it.

import layoutWorker from "worker:./layout.worker.ts";
import type { Pictures, Place } from "../../src/server/protocol";
import { CanvasSurface } from "./canvas";
import { alternative, button, element } from "./dom";
import { bytesText, counted } from "./format";
import { NO_MARKS, nodeKey, paint, type Marks, type Theme } from "./paint";
import { HEADER, kernelKey, matches, nodeTitle, type Box, type KernelBox, type NodeBox, type Scene } from "./scene";
import { SvgSurface } from "./surface";
import { onTheme, readTheme } from "./theme";

const LARGEST = 3;
const SMALLEST = 0.02;
const FIRST_SMALLEST = 0.8; // at first one sees the begin of a large graph, not a thumbnail of all of it
const LARGEST_PNG = 8192;
const MANY_INPUTS = 40; // a model's weights: at first they are left out
const HINT = "Click an operation to go to its line.";
const KEYS: readonly [string, string][] = [
  ["Drag, arrow keys", "pan; with Shift farther"],
  ["Wheel, + and −", "zoom"],
  ["0", "show all"],
  ["Page Down, Page Up", "the next operation, the one before"],
  ["Enter", "go to the line of the operation"],
  ["Space", "collapse or expand its kernel"],
  ["/", "search; Enter goes from one to the next"],
  ["Esc", "choose nothing"],
];

export interface Picture {
  svg: string;
  png: () => Promise<string>;
}

export class GraphView {
  readonly element: HTMLElement;
  private readonly canvas = element("canvas", { "aria-hidden": "true" });
  private readonly stage: HTMLElement;
  private readonly search: HTMLInputElement;
  private readonly count = element("span", { class: "count", role: "status" });
  private readonly told = element("span", { class: "told" });
  private readonly spoken = element("span", { class: "spoken", role: "status" });
  private readonly table = element("div");
  private readonly inputs: HTMLButtonElement;
  private readonly folding: HTMLButtonElement;

  private pictures: Pictures | undefined;
  private subject = "";
  private scene: Scene | undefined;
  private theme: Theme = readTheme();
  private view = { x: 0, y: 0, k: 1 };
  private marks: Marks = NO_MARKS;
  private found: { graph: number; node: number }[] = [];
  private foundAt = -1;
  private readonly collapsed = new Set<string>();
  private due = false;
  private worker: Worker | undefined;
  private asked = 0;
  private keepsView = false;

  constructor(private readonly open: (place: Place) => void) {
    this.search = element("input", { type: "search", placeholder: "Search operations, kernels, lines", "aria-label": "Search the graph" });
    this.inputs = button("Inputs", { "aria-pressed": "true", title: "Show what the graph is given" }, () => this.toggleInputs());
    this.folding = button("Collapse", { title: "Collapse or expand all kernels" }, () => this.foldAll());
    const tools = element(
      "div",
      { class: "tools", role: "toolbar", "aria-label": "Graph" },
      this.search,
      this.count,
      element("span", { class: "grow" }),
      this.inputs,
      this.folding,
      button("−", { "aria-label": "Zoom out", title: "Zoom out" }, () => this.zoom(1 / 1.3)),
      button("+", { "aria-label": "Zoom in", title: "Zoom in" }, () => this.zoom(1.3)),
      button("Fit", { title: "Show all of the graph" }, () => this.fit(SMALLEST)),
    );
    const legend = element("div", { class: "legend", "aria-hidden": "true" });
    for (const [kind, text] of [["memory", "goes through memory"], ["inside", "stays in its kernel"], ["result", "is returned or saved"]] as const) {
      legend.append(element("span", { class: `key ${kind}` }), text);
    }
    this.stage = element("div", {
      class: "stage", tabindex: 0, role: "application", "aria-label": "Fused graph", "aria-describedby": "graph-help",
    });
    this.stage.append(this.canvas);
    this.element = element(
      "div",
      { class: "graph" },
      tools,
      this.stage,
      element("div", { class: "strip" }, this.told, element("span", { class: "grow" }), legend),
      this.spoken,
      element("p", { id: "graph-help", class: "spoken" }, KEYS.map(([keys, effect]) => `${keys}: ${effect}.`).join(" ")),
      element(
        "details",
        { class: "keys" },
        element("summary", {}, "Keys"),
        element("dl", {}, ...KEYS.flatMap(([keys, effect]) => [element("dt", {}, keys), element("dd", {}, effect)])),
      ),
      this.table,
    );
    this.listen();
    onTheme(() => {
      this.theme = readTheme();
      this.draw();
    });
    new ResizeObserver(() => this.resize()).observe(this.stage);
  }

  /** Shows other data. Of the same function, one stays where one was. */
  show(pictures: Pictures, subject: string): void {
    this.keepsView = this.keepsView && subject === this.subject;
    if (subject !== this.subject) {
      const inputs = pictures.graphs.reduce((sum, { nodes }) => sum + nodes.filter(({ kernel }) => kernel === null).length, 0);
      this.inputs.setAttribute("aria-pressed", String(inputs <= MANY_INPUTS));
      this.collapsed.clear();
      this.marks = NO_MARKS;
    }
    this.subject = subject;
    const same = JSON.stringify(pictures.graphs) === JSON.stringify(this.pictures?.graphs) && this.keepsView;
    this.pictures = pictures;
    const rows = (): (Node | string)[][] => pictures.graphs.flatMap((_, graph) => this.rows(graph));
    this.table.replaceChildren(alternative("The graph as a table", ["Graph", "Operation", "Type", "Bytes", "Kernel", "Reads", "Line"], rows));
    if (!same) {
      this.layout();
    }
  }

  /** Marks what the line with the editor's cursor became. */
  follow(uri: string, line: number): void {
    const { pictures } = this;
    const here = (number: number | null): boolean => {
      const place = number === null ? undefined : pictures?.places[number];
      return place !== undefined && place.uri === uri && place.range.start.line <= line && line <= place.range.end.line;
    };
    const current = pictures?.graphs.flatMap(({ nodes }, graph) => nodes.flatMap(({ place }, node) => (here(place) ? [nodeKey({ graph, node })] : [])));
    this.mark({ current: new Set(current) });
  }

  picture(): Picture | undefined {
    const { scene, theme } = this;
    if (scene === undefined) {
      return undefined;
    }
    const all = { x: -16, y: -16, width: scene.width + 32, height: scene.height + 32 };
    const svg = new SvgSurface(theme.fonts);
    paint(svg, scene, theme, all, 1, NO_MARKS);
    return {
      svg: svg.document(all.x, all.y, all.width, all.height, theme.background, `Fused graph of ${this.pictures?.function ?? ""}`),
      png: async () => {
        const scale = Math.min(2, LARGEST_PNG / Math.max(all.width, all.height));
        const canvas = element("canvas", { width: Math.round(all.width * scale), height: Math.round(all.height * scale) });
        const context = canvas.getContext("2d") as CanvasRenderingContext2D;
        context.fillStyle = theme.background;
        context.fillRect(0, 0, canvas.width, canvas.height);
        context.setTransform(scale, 0, 0, scale, -all.x * scale, -all.y * scale);
        paint(new CanvasSurface(context, theme.fonts), scene, theme, all, Math.max(1, scale), NO_MARKS);
        return canvas.toDataURL("image/png").replace(/^.*,/, "");
      },
    };
  }

  // --- layout ---

  private layout(): void {
    if (this.pictures === undefined) {
      return;
    }
    this.worker ??= this.startWorker();
    this.asked += 1;
    this.stage.classList.add("busy");
    const { clientWidth, clientHeight } = this.stage;
    const inputs = this.inputs.getAttribute("aria-pressed") === "true";
    this.worker.postMessage({ number: this.asked, graphs: this.pictures.graphs, options: { collapsed: [...this.collapsed], inputs, aspect: clientWidth / (clientHeight || 1) } });
  }

  private startWorker(): Worker {
    const url = URL.createObjectURL(new Blob([layoutWorker], { type: "text/javascript" }));
    const worker = new Worker(url);
    URL.revokeObjectURL(url);
    worker.onmessage = ({ data }: MessageEvent<{ number: number; scene: Scene }>) => {
      if (data.number === this.asked) {
        this.laidOut(data.scene);
      }
    };
    return worker;
  }

  private laidOut(scene: Scene): void {
    const { selected } = this.marks;
    this.scene = scene;
    this.stage.classList.remove("busy");
    this.stage.dataset["nodes"] = String(scene.nodes.length); // how much there is to draw
    this.folding.textContent = scene.kernels.some(({ collapsed }) => !collapsed) || scene.kernels.length === 0 ? "Collapse" : "Expand";
    this.mark({ selected: selected && scene.nodes.find((node) => nodeKey(node) === nodeKey(selected)), hovered: undefined });
    if (!this.keepsView && this.stage.clientWidth > 0) {
      this.fit(FIRST_SMALLEST);
    }
    this.draw();
  }

  private toggleInputs(): void {
    this.inputs.setAttribute("aria-pressed", String(this.inputs.getAttribute("aria-pressed") !== "true"));
    this.layout();
  }

  private foldAll(): void {
    const open = this.scene?.kernels.filter(({ collapsed }) => !collapsed) ?? [];
    if (open.length > 0) {
      open.forEach((box) => this.collapsed.add(this.keyOf(box)));
    } else {
      this.collapsed.clear();
    }
    this.layout();
  }

  private fold(box: KernelBox): void {
    const key = this.keyOf(box);
    if (!this.collapsed.delete(key)) {
      this.collapsed.add(key);
    }
    this.say(`${box.title} is ${this.collapsed.has(key) ? "collapsed" : "expanded"}.`);
    this.layout();
  }

  private keyOf({ graph, kernel }: KernelBox): string {
    const found = this.pictures?.graphs[graph];
    return found === undefined ? "" : kernelKey(found, kernel);
  }

  // --- the view ---

  private resize(): void {
    const { clientWidth: width, clientHeight: height } = this.stage;
    if (width === 0 || height === 0) {
      return;
    }
    this.canvas.width = Math.round(width * devicePixelRatio);
    this.canvas.height = Math.round(height * devicePixelRatio);
    if (!this.keepsView) {
      this.fit(FIRST_SMALLEST);
    }
    this.render(); // at once: a canvas of another size is empty
  }

  private fit(smallest: number): void {
    const { scene } = this;
    if (scene === undefined || this.stage.clientWidth === 0) {
      return;
    }
    const { clientWidth: width, clientHeight: height } = this.stage;
    const k = Math.max(smallest, Math.min(1.4, (width - 24) / (scene.width || 1), (height - 24) / (scene.height || 1)));
    const x = scene.width * k > width - 24 && smallest !== SMALLEST ? -12 / k : (scene.width - width / k) / 2;
    this.view = { k, x, y: Math.max((scene.height - height / k) / 2, -12 / k) };
    if (scene.height * k < height) {
      this.view.y = (scene.height - height / k) / 2;
    } else if (smallest !== SMALLEST) {
      this.view.y = -12 / k;
    }
    this.keepsView = true;
    this.draw();
  }

  /** Zooms; what is at a point of the stage, or in its middle, stays there. */
  private zoom(factor: number, at = { x: this.stage.clientWidth / 2, y: this.stage.clientHeight / 2 }): void {
    const k = Math.min(LARGEST, Math.max(SMALLEST, this.view.k * factor));
    this.view.x += at.x / this.view.k - at.x / k;
    this.view.y += at.y / this.view.k - at.y / k;
    this.view.k = k;
    this.draw();
  }

  private pan(dx: number, dy: number): void {
    this.view.x += dx / this.view.k;
    this.view.y += dy / this.view.k;
    this.draw();
  }

  /** Brings a box to the middle, in a size that can be read. */
  private center(box: Box): void {
    const k = Math.max(this.view.k, 0.8);
    const { clientWidth: width, clientHeight: height } = this.stage;
    this.view = { k, x: box.x + box.width / 2 - width / k / 2, y: box.y + box.height / 2 - height / k / 2 };
    this.draw();
  }

  private draw(): void {
    if (!this.due) {
      this.due = true;
      requestAnimationFrame(() => this.render());
    }
  }

  private render(): void {
    this.due = false;
    const context = this.canvas.getContext("2d");
    const { scene, theme } = this;
    if (context === null || scene === undefined) {
      return;
    }
    const { x, y, k } = this.view;
    const scale = k * devicePixelRatio;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(scale, 0, 0, scale, -x * scale, -y * scale);
    const view = { x, y, width: this.stage.clientWidth / k, height: this.stage.clientHeight / k };
    paint(new CanvasSurface(context, theme.fonts), scene, theme, view, k, this.marks);
  }

  // --- what a person does ---

  private listen(): void {
    const { stage, search } = this;
    let from: { x: number; y: number; moved: boolean } | undefined;
    stage.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX, y: event.clientY, moved: false };
      stage.setPointerCapture(event.pointerId);
    });
    stage.addEventListener("pointermove", (event) => {
      if (from === undefined) {
        this.hover(event);
        return;
      }
      const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
      if (from.moved || Math.hypot(dx, dy) > 4) {
        this.pan(-dx, -dy);
        from = { x: event.clientX, y: event.clientY, moved: true };
      }
    });
    stage.addEventListener("pointerup", (event) => {
      if (from !== undefined && !from.moved) {
        this.click(event);
      }
      from = undefined;
    });
    stage.addEventListener("pointerleave", () => this.mark({ hovered: undefined }));
    stage.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        if (event.shiftKey) {
          this.pan(event.deltaX + event.deltaY, 0);
        } else {
          this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), { x: event.offsetX, y: event.offsetY });
        }
      },
      { passive: false },
    );
    stage.addEventListener("keydown", (event) => this.key(event));
    search.addEventListener("input", () => this.look());
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        this.step(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") {
        search.value = "";
        this.look();
        stage.focus();
      }
    });
  }

  private key(event: KeyboardEvent): void {
    const step = event.shiftKey ? 240 : 60;
    const { selected } = this.marks;
    const kernel = this.scene?.kernels.find((box) => selected !== undefined && box.graph === selected.graph && box.kernel === selected.kernel);
    const actions: Record<string, () => void> = {
      ArrowLeft: () => this.pan(-step, 0),
      ArrowRight: () => this.pan(step, 0),
      ArrowUp: () => this.pan(0, -step),
      ArrowDown: () => this.pan(0, step),
      "+": () => this.zoom(1.3),
      "=": () => this.zoom(1.3),
      "-": () => this.zoom(1 / 1.3),
      "0": () => this.fit(SMALLEST),
      PageDown: () => this.next(1),
      PageUp: () => this.next(-1),
      Home: () => this.next(-Infinity),
      End: () => this.next(Infinity),
      Enter: () => selected && this.openNode(selected),
      " ": () => kernel && this.fold(kernel),
      "/": () => this.search.focus(),
      Escape: () => this.mark({ selected: undefined }),
    };
    if (!event.ctrlKey && !event.metaKey && !event.altKey && actions[event.key] !== undefined) {
      event.preventDefault();
      actions[event.key]?.();
    }
  }

  private next(by: number): void {
    const nodes = [...(this.scene?.nodes ?? [])].sort((a, b) => a.graph - b.graph || a.node - b.node);
    if (nodes.length > 0) {
      const { selected } = this.marks;
      const from = selected === undefined ? (by > 0 ? -1 : nodes.length) : nodes.findIndex((node) => nodeKey(node) === nodeKey(selected));
      const to = nodes[Math.min(nodes.length - 1, Math.max(0, from + by))] as NodeBox;
      this.select(to);
      this.center(to);
    }
  }

  private hit({ offsetX, offsetY }: MouseEvent): NodeBox | KernelBox | undefined {
    const x = offsetX / this.view.k + this.view.x;
    const y = offsetY / this.view.k + this.view.y;
    const within = (box: Box): boolean => box.x <= x && x <= box.x + box.width && box.y <= y && y <= box.y + box.height;
    return this.scene?.nodes.find(within) ?? this.scene?.kernels.find((box) => within({ ...box, height: Math.min(box.height, HEADER + 4) }));
  }

  private hover(event: MouseEvent): void {
    const hovered = this.hit(event);
    if (hovered !== this.marks.hovered) {
      this.stage.classList.toggle("pointed", hovered !== undefined);
      this.mark({ hovered });
    }
  }

  private click(event: MouseEvent): void {
    const hit = this.hit(event);
    if (hit === undefined) {
      this.mark({ selected: undefined });
    } else if ("node" in hit) {
      this.select(hit);
      this.openNode(hit);
    } else if (hit.collapsed || event.offsetX / this.view.k + this.view.x > hit.x + hit.width - 30) {
      this.fold(hit);
    } else {
      this.openPlace(this.pictures?.graphs[hit.graph]?.kernels[hit.kernel]?.place);
    }
  }

  private select(node: NodeBox): void {
    this.mark({ selected: node });
    this.say(`${this.described(node)}.`);
  }

  private openNode(node: NodeBox): void {
    this.openPlace(this.pictures?.graphs[node.graph]?.nodes[node.node]?.place);
  }

  private openPlace(number: number | null | undefined): void {
    const place = number == null ? undefined : this.pictures?.places[number];
    if (place !== undefined) {
      this.open(place);
    }
  }

  private look(): void {
    const { pictures, search } = this;
    this.found = pictures === undefined ? [] : matches(pictures.graphs, (place) => this.placeName(place), search.value);
    this.foundAt = -1;
    this.count.textContent = search.value.trim() === "" ? "" : counted(this.found.length, "match").replace("matchs", "matches");
    this.mark({ found: new Set(this.found.map(nodeKey)) });
  }

  /** To the next operation that was found, or to the kernel that it is hidden in. */
  private step(by: number): void {
    const { found, scene } = this;
    if (found.length === 0 || scene === undefined) {
      return;
    }
    this.foundAt = (this.foundAt + by + found.length) % found.length;
    const wanted = found[this.foundAt] as { graph: number; node: number };
    const kernel = this.pictures?.graphs[wanted.graph]?.nodes[wanted.node]?.kernel;
    const node = scene.nodes.find((box) => nodeKey(box) === nodeKey(wanted));
    const box = node ?? scene.kernels.find((other) => other.graph === wanted.graph && other.kernel === kernel);
    this.count.textContent = `${this.foundAt + 1} of ${found.length}`;
    if (node !== undefined) {
      this.select(node);
    }
    if (box !== undefined) {
      this.center(box);
    }
  }

  // --- in words ---

  private mark(changed: Partial<Marks>): void {
    this.marks = { ...this.marks, ...changed };
    const about = this.marks.hovered ?? this.marks.selected;
    this.told.textContent = about === undefined ? HINT : this.described(about);
    this.told.classList.toggle("hint", about === undefined);
    this.draw();
  }

  private say(text: string): void {
    this.spoken.textContent = text;
  }

  private placeName(number: number | null): string {
    return number === null ? "" : (this.pictures?.places[number]?.name ?? "");
  }

  private described(box: NodeBox | KernelBox): string {
    const graph = this.pictures?.graphs[box.graph];
    if (!("node" in box)) {
      const place = this.placeName(graph?.kernels[box.kernel]?.place ?? null);
      const takes = graph?.kernels[box.kernel]?.takes ?? "";
      return ["kernel " + box.title, box.detail, takes, place].filter(Boolean).join(" · ");
    }
    const node = graph?.nodes[box.node];
    if (graph === undefined || node === undefined) {
      return "";
    }
    const kernel = node.kernel === null ? "input" : box.kind === "call" ? "library call" : `in ${graph.kernels[node.kernel]?.name ?? ""}`;
    const size = node.bytes > 0 ? bytesText(node.bytes) : "";
    const result = node.result ? "returned or saved" : "";
    return [nodeTitle(node), node.type, size, kernel, result, this.placeName(node.place)].filter(Boolean).join(" · ");
  }

  private rows(number: number): (Node | string)[][] {
    const graph = this.pictures?.graphs[number];
    return (graph?.nodes ?? []).map((node) => {
      const kernel = node.kernel === null ? "input" : (graph?.kernels[node.kernel]?.name ?? "");
      const reads = node.reads.map((source) => nodeTitle(graph?.nodes[source] ?? node)).join(", ");
      const name = this.placeName(node.place);
      const line = name === "" ? "" : button(name, { class: "link" }, () => this.openPlace(node.place));
      return [`${graph?.id ?? ""} ${graph?.phase ?? ""}`, nodeTitle(node), node.type, bytesText(node.bytes), kernel, reads, line];
    });
  }
}
