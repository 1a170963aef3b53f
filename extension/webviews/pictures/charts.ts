// The charts: each draws its data as one or more SVG pictures, says under them what is pointed at, and has it all as a table.

import type { MemoryCurve, NamedPlace, Pictures, Roofline } from "../../src/server/protocol";
import { alternative, button, element, roving, shape } from "./dom";
import { colourOf, decades, fitted, flame, points, shares, timeline, type FlameBox } from "./figures";
import { bytesText, counted, numberText, operationsText, percentText, rateText, secondsText, ticks } from "./format";

export interface Drawing {
  pictures: Pictures;
  width: number;
  open: (place: NamedPlace) => void;
  /** Runs the function on its example inputs. */
  run: () => void;
  /** Runs the file in a terminal. */
  follow: () => void;
  redraw: () => void;
}
export type Draw = (drawing: Drawing) => Node[];

/** What was zoomed to, by the chart's name. */
export const picked = new Map<string, string>();

const CHARACTER = 7.25; // of the editor's font at 12 px
const LEFT = 78;

function placeOf({ pictures }: Drawing, number: number | null): NamedPlace | undefined {
  return number === null ? undefined : pictures.places[number];
}

function lineButton(drawing: Drawing, number: number | null): Node | string {
  const place = placeOf(drawing, number);
  return place === undefined ? "" : button(place.name, { class: "link" }, () => drawing.open(place));
}

function chart(width: number, height: number, label: string, ...children: Node[]): SVGSVGElement {
  return shape("svg", { class: "chart", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label }, ...children);
}

function words(x: number, y: number, text: string, kind: string, anchor = "start"): SVGTextElement {
  return shape("text", { x, y, class: kind, "text-anchor": anchor }, text);
}

/** What is written on parts that have a label of their own, which is read out instead. */
function written(...texts: (Node | undefined)[]): SVGGElement {
  return shape("g", { "aria-hidden": "true", class: "written" }, ...texts);
}

/** Says what is pointed at, for those who see it; others hear the label of what has the focus. */
function telling(items: readonly { made: SVGElement; text: string }[], silence: string): HTMLElement {
  const told = element("p", { class: "told", "aria-hidden": "true" }, silence);
  for (const { made, text } of items) {
    const say = (): void => void (told.textContent = text);
    made.addEventListener("pointerenter", say);
    made.addEventListener("focus", say);
    made.setAttribute("aria-label", text);
    made.setAttribute("role", "button");
  }
  return told;
}

/** Why there is nothing to draw, and what to do. */
function nothing(title: string, text: string, act?: HTMLElement): Node[] {
  return [element("div", { class: "nothing" }, element("h2", {}, title), element("p", {}, text), act)];
}

// --- memory ---

export const drawMemory: Draw = (drawing) => {
  const { pictures } = drawing;
  if (pictures.memory.length === 0) {
    return nothing("No memory curve", "The graphs of this function hold no memory of their own, or they run eagerly.");
  }
  const intro = element("p", { class: "intro" }, "What each graph holds while a call runs, from kernel to kernel: values on their way, results, and what is saved for the backward. Inputs are the caller's. Sizes are those of the example inputs. With a card or a limit in the settings, a whole step of training comes first.");
  const rows = (): (Node | string)[][] =>
    pictures.memory.flatMap(({ graph, phase, steps }) =>
      steps.map(({ name, bytes, place }, k) => [graph === null ? phase : `${graph} ${phase}`, String(k + 1), name, bytesText(bytes), lineButton(drawing, place)]),
    );
  return [intro, ...pictures.memory.flatMap((curve) => memoryCurve(drawing, curve)), alternative("Memory as a table", ["Graph", "Step", "Kernel or call", "Holds", "Line"], rows)];
};

function memoryCurve(drawing: Drawing, curve: MemoryCurve): Node[] {
  const { width } = drawing;
  const [top, height, bottom] = [62, drawing.pictures.memory.length > 2 ? 96 : 150, 26];
  const peak = curve.steps.reduce((most, step) => (step.bytes > most.bytes ? step : most));
  const room = Math.max(40, width - LEFT - 14);
  const limit = curve.limit !== null && curve.limit < 2 * peak.bytes ? curve.limit : null;
  const scale = height / (Math.max(peak.bytes, limit ?? 0) || 1);
  const step = room / curve.steps.length;
  const y = (bytes: number): number => top + height - bytes * scale;
  const outline = curve.steps.map(({ bytes }, k) => `L${LEFT + k * step} ${y(bytes)}H${LEFT + (k + 1) * step}`).join("");
  const floor = top + height;
  const made: Node[] = [];
  made.push(words(0, 16, curve.title, "title"));
  const where = placeOf(drawing, peak.place);
  made.push(words(0, 33, `${bytesText(peak.bytes)} at most, in ${peak.name}${where === undefined ? "" : ` (${where.name})`}`, "faint"));
  for (const value of ticks(peak.bytes, 3, 2).filter((value) => value * scale < height - 12 || value === peak.bytes)) {
    made.push(shape("line", { x1: LEFT, x2: LEFT + room, y1: y(value), y2: y(value), class: "rule" }));
    made.push(words(LEFT - 8, y(value) + 4, bytesText(value), "tick", "end"));
  }
  made.push(shape("path", { d: `M${LEFT} ${floor}${outline}V${floor}Z`, class: "area" }));
  made.push(shape("path", { d: `M${LEFT} ${floor}${outline}V${floor}`, class: "curve" }));
  made.push(shape("line", { x1: LEFT, x2: LEFT + room, y1: y(peak.bytes), y2: y(peak.bytes), class: "peak" }));
  made.push(words(LEFT + room, y(peak.bytes) - 6, `peak ${bytesText(peak.bytes)}`, "mark", "end"));
  if (limit !== null) {
    made.push(shape("line", { x1: LEFT, x2: LEFT + room, y1: y(limit), y2: y(limit), class: "limit" }));
    made.push(words(LEFT + 6, y(limit) - 6, `limit ${bytesText(limit)}`, "mark"));
  }
  made.push(words(LEFT + room, floor + 18, `${counted(curve.steps.length, "step")}, in the order they run`, "tick", "end"));
  const items = curve.steps.map((each, k) => {
    const bar = shape("rect", { x: LEFT + k * step, y: top - 4, width: step, height: height + 4, class: "hit" });
    bar.dataset["key"] = `${curve.title} ${k}`;
    const place = placeOf(drawing, each.place)?.name;
    const text = `${each.name} holds ${bytesText(each.bytes)}${each === peak ? ", the peak" : ""}${place === undefined ? "" : ` · ${place}`}`;
    return { made: bar, text };
  });
  const names = curve.steps.map(({ name, bytes }, k) => {
    const text = fitted(name, step - 12, CHARACTER);
    return text === "" || bytes * scale < 22 ? undefined : words(LEFT + (k + 0.5) * step, floor - 8, text, "label", "middle");
  });
  const peakAt = curve.steps.indexOf(peak);
  made.push(shape("circle", { cx: LEFT + (peakAt + 0.5) * step, cy: y(peak.bytes), r: 4, class: "dot" }));
  const told = telling(items, "Press a step to go to its line.");
  roving(items.map((item) => item.made), (k) => {
    const place = placeOf(drawing, curve.steps[k]?.place ?? null);
    if (place !== undefined) {
      drawing.open(place);
    }
  });
  const label = `Memory: ${curve.title}: ${counted(curve.steps.length, "step")}, at most ${bytesText(peak.bytes)}`;
  return [element("figure", {}, chart(width, top + height + bottom, label, ...made, written(...names), ...items.map((item) => item.made)), told)];
}

// --- compile time ---

export const drawTiming: Draw = (drawing) => {
  const { pictures, width } = drawing;
  const root = pictures.timing;
  if (root === null || root.seconds === 0) {
    return nothing("No times", "Nothing of this function was compiled: its graphs were taken as they were.");
  }
  const boxes = flame(root, picked.get("timing") ?? root.name);
  const row = 34;
  const depth = Math.max(...boxes.map((box) => box.depth)) + 1;
  const items = boxes
    .filter((box) => box.width * width > 0.8)
    .map((box) => {
      const made = flameBox(box, width, row);
      const inner = root.seconds > 0 ? ` · ${percentText(box.seconds / root.seconds)}` : "";
      return { box, made, text: `${box.name}: ${secondsText(box.seconds)}${inner}` };
    });
  const told = telling(items, "Press a part to look into it, the row above it to come back.");
  roving(items.map((item) => item.made), (k) => {
    const box = items[k]?.box;
    if (box !== undefined && !box.rest) {
      picked.set("timing", box.path);
      drawing.redraw();
    }
  });
  const all = flame(root, root.name);
  const rows = (): string[][] => all.map((box) => [`${" ".repeat(box.depth)}${box.name}`, secondsText(box.seconds), percentText(box.seconds / root.seconds)]);
  const label = `Compile time of ${root.name}: ${secondsText(root.seconds)}`;
  const svg = chart(width, depth * row + 30, label, words(0, 16, `${root.name} took ${secondsText(root.seconds)} to compile`, "title"), ...items.map((item) => item.made), written(...items.map(({ box }) => flameName(box, width, row))));
  const intro = element("p", { class: "intro" }, "Where the time of the last check went, stage by stage. What the cache knew took no time.");
  return [intro, element("figure", {}, svg, told), alternative("Compile time as a table", ["Part", "Time", "Share"], rows)];
};

function flamePlace(box: FlameBox, width: number, row: number): { x: number; y: number; w: number } {
  return { x: box.left * width + 1, y: 30 + box.depth * row, w: Math.max(1, box.width * width - 2) };
}

function flameBox(box: FlameBox, width: number, row: number): SVGGElement {
  const { x, y, w } = flamePlace(box, width, row);
  const plain = box.ancestor || box.depth === 0 || /^graph \d+$/.test(box.name);
  const kind = box.rest ? "rest" : plain ? "plain" : `colour-${colourOf(box.name, 8)}`;
  const made = shape("g", { class: `flame ${kind}` }, shape("rect", { x, y, width: w, height: row - 2, rx: Math.min(3, w / 2) }));
  made.dataset["key"] = box.path;
  return made;
}

function flameName(box: FlameBox, width: number, row: number): SVGTextElement | undefined {
  const { x, y, w } = flamePlace(box, width, row);
  const both = `${box.name} · ${secondsText(box.seconds)}`;
  const text = [both, box.name].find((each) => each.length * CHARACTER < w - 12) ?? fitted(box.name, w - 12, CHARACTER);
  return text === "" ? undefined : words(x + 7, y + row / 2 + 3, text, "label");
}

// --- roofline ---

export const drawRoofline: Draw = (drawing) => {
  const { pictures } = drawing;
  const run = button("Run and Time the Kernels", { class: "primary" }, drawing.run);
  const follow = button("Run the File and Follow It", {}, drawing.follow);
  const actions = element("div", { class: "actions" }, run, follow);
  if (pictures.rooflines.length === 0) {
    const text = "Run calls the function on its example inputs, compiled and eagerly, and times each kernel: the first time it measures what this machine can do, too. Kernels for the CPU are timed in your own runs, too, once a graph was called 32 times.";
    return nothing("No kernel has been timed", text, actions);
  }
  const rows = (): (Node | string)[][] =>
    pictures.rooflines.flatMap(({ source, kernels }) =>
      shares(kernels).map(({ kernel, rate, share }) => [
        source, kernel.name, kernel.phase, secondsText(kernel.seconds), kernel.bytes === null ? "?" : bytesText(kernel.bytes),
        rate === undefined ? "?" : rateText(rate), share === undefined ? "?" : percentText(share), kernel.told, lineButton(drawing, kernel.place),
      ]),
    );
  const intro = element("p", { class: "intro" }, "What each kernel needs at least, by its bytes and its operations on this machine, as a share of what it took. The roof is what memory allows on the left, where there are few operations for each byte, and what the processor does at most on the right. A function such as exp counts as so many additions as it takes the time of.");
  const columns = ["Measured in", "Kernel", "Phase", "Time", "Bytes", "Rate", "Share", "Limit", "Line"];
  return [intro, ...pictures.rooflines.flatMap((each) => [...roof(drawing, each), roofline(drawing, each)]), alternative("Roofline as a table", columns, rows), actions];
};

/** The roof of the machine, and below it the kernels that do operations: both axes are logarithmic. */
function roof(drawing: Drawing, { source, sentences, roof: limits, kernels }: Roofline): HTMLElement[] {
  const said = sentences.map((text) => element("p", { class: "sentence" }, text));
  const below = points(kernels);
  if (limits === null || below.length === 0) {
    return said;
  }
  const flat = [["additions", limits.additions] as const, ...Object.entries(limits.products).map(([dtype, speed]) => [`products, ${dtype}`, speed] as const)]
    .filter(([name]) => name === "additions" || name === "products, float32" || name === "products, bfloat16");
  const highest = Math.max(...flat.map(([, speed]) => speed));
  const across = decades(Math.min(0.1, ...below.map(({ intensity }) => intensity)), Math.max((2 * highest) / limits.memory, ...below.map(({ intensity }) => intensity)));
  const up = decades(Math.min(highest / 1000, ...below.map(({ speed }) => speed)), Math.max(highest, ...below.map(({ speed }) => speed)));
  const { width } = drawing;
  const [top, height, foot] = [56, 260, 42];
  const [left, room] = [LEFT + 14, Math.max(120, width - LEFT - 30)];
  const position = (value: number, all: readonly number[]): number => (Math.log10(value) - Math.log10(all[0] ?? 1)) / Math.max(1, all.length - 1);
  const x = (intensity: number): number => left + Math.min(1, Math.max(0, position(intensity, across))) * room;
  const y = (speed: number): number => top + (1 - Math.min(1, Math.max(0, position(speed, up)))) * height;
  const made: Node[] = [words(0, 16, `${source}, below the machine's roof`, "title"), words(0, 33, `${limits.name} · memory ${rateText(limits.memory)}, caches up to ${rateText(limits.cache)}`, "faint")];
  for (const value of up) {
    made.push(shape("line", { x1: left, x2: left + room, y1: y(value), y2: y(value), class: "rule" }), words(left - 8, y(value) + 4, operationsText(value), "tick", "end"));
  }
  for (const value of across) {
    made.push(shape("line", { x1: x(value), x2: x(value), y1: top, y2: top + height, class: "rule" }), words(x(value), top + height + 16, numberText(value), "tick", "middle"));
  }
  made.push(words(left + room, top + height + 34, "operations for each byte", "tick", "end"));
  const slope = (bandwidth: number, kind: string): void => {
    const [first, last] = [across[0] ?? 1, across[across.length - 1] ?? 1];
    const from = Math.max(first, (up[0] ?? 1) / bandwidth);
    const to = Math.min(last, (bandwidth === limits.memory ? highest : limits.additions) / bandwidth);
    if (to > from) {
      made.push(shape("line", { x1: x(from), y1: y(from * bandwidth), x2: x(to), y2: y(to * bandwidth), class: kind }));
    }
  };
  slope(limits.memory, "peak");
  slope(limits.cache, "limit");
  for (const [name, speed] of flat) {
    const from = Math.max(across[0] ?? 1, speed / (name === "additions" ? limits.cache : limits.memory));
    made.push(shape("line", { x1: x(from), x2: left + room, y1: y(speed), y2: y(speed), class: name === "additions" ? "peak" : "limit" }));
    made.push(words(left + room, y(speed) - 6, `${name} ${operationsText(speed)}`, "mark", "end"));
  }
  const longest = Math.max(...below.map(({ kernel }) => kernel.seconds));
  const items = below.map(({ kernel, number, intensity, speed }) => {
    const size = 4 + 8 * Math.sqrt(kernel.seconds / longest);
    const dot = shape("g", { class: `point colour-${number % 8}` }, shape("circle", { cx: x(intensity), cy: y(speed), r: size, class: "value" }));
    dot.dataset["key"] = `${source} point ${number}`;
    const where = placeOf(drawing, kernel.place)?.name;
    return { made: dot, text: [`${kernel.name} (${kernel.phase})`, kernel.told, `${numberText(intensity)} operations for each byte`, where].filter(Boolean).join(" · ") };
  });
  const told = telling(items, "Press a kernel to go to its line. The larger, the longer it takes.");
  roving(items.map((item) => item.made), (k) => {
    const place = placeOf(drawing, below[k]?.kernel.place ?? null);
    if (place !== undefined) {
      drawing.open(place);
    }
  });
  const svg = chart(width, top + height + foot, `${source}: ${counted(below.length, "kernel")} below the roof`, ...made, ...items.map((item) => item.made));
  return [...said, element("figure", {}, svg, told)];
}

function roofline(drawing: Drawing, { source, kernels }: Roofline): HTMLElement {
  const { width } = drawing;
  const all = shares(kernels);
  const [row, top] = [34, 62];
  const name = Math.min(30 + CHARACTER * Math.max(...kernels.map((kernel) => kernel.name.length)), width * 0.4);
  const room = Math.max(60, width - name - 20);
  const most = Math.max(1.12, ...all.map(({ share }) => share ?? 0)) * 1.02;
  const x = (share: number): number => name + (share / most) * room;
  const height = top + all.length * row + 10;
  const total = kernels.reduce((sum, { seconds }) => sum + seconds, 0);
  const made: Node[] = [words(0, 16, source, "title"), words(0, 33, `${counted(all.length, "kernel")}, ${secondsText(total)} together; 100 % is what its limit allows`, "faint")];
  for (const value of ticks(most, most > 3 ? 5 : 4)) {
    made.push(shape("line", { x1: x(value), x2: x(value), y1: top - 8, y2: height - 8, class: "rule" }), words(x(value), top - 12, percentText(value), "tick", "middle"));
  }
  made.push(shape("line", { x1: x(1), x2: x(1), y1: top - 8, y2: height - 8, class: "peak" }));
  const items = all.map(({ kernel, rate, share }, k) => {
    const y = top + k * row;
    const told = [...(share === undefined ? [] : [percentText(share)]), ...(rate === undefined ? [] : [rateText(rate)]), secondsText(kernel.seconds)].join(" · ");
    const end = x(share ?? 0);
    const inside = end + 10 + told.length * CHARACTER > width;
    const bar = shape(
      "g",
      { class: `bar colour-${k % 8}` },
      shape("rect", { x: 1, y, width: width - 2, height: row - 4, rx: 3, class: "back" }),
      shape("rect", { x: name, y: y + 4, width: Math.max(share === undefined ? 0 : 2, end - name), height: row - 12, rx: 3, class: "value" }),
    );
    const texts = [
      words(name - 10, y + 19, fitted(kernel.name, name - 14, CHARACTER), "label", "end"),
      words(inside ? width - 8 : end + 8, y + 19, told, "label over", inside ? "end" : "start"),
    ];
    bar.dataset["key"] = `${source} ${kernel.phase} ${kernel.name} ${k}`;
    const where = placeOf(drawing, kernel.place)?.name;
    const moved = kernel.bytes === null ? undefined : `${bytesText(kernel.bytes)} a call`;
    return { made: bar, texts, text: [`${kernel.name} (${kernel.phase}${kernel.library ? ", library" : ""})`, kernel.told, moved, where].filter(Boolean).join(" · ") };
  });
  const told = telling(items, "Press a kernel to go to its line.");
  roving(items.map((item) => item.made), (k) => {
    const place = placeOf(drawing, kernels[k]?.place ?? null);
    if (place !== undefined) {
      drawing.open(place);
    }
  });
  const svg = chart(width, height, `${source}: ${counted(all.length, "kernel")}`, ...made, ...items.map((item) => item.made), written(...items.flatMap((item) => item.texts)));
  return element("figure", {}, svg, told);
}

// --- recompiles ---

export const drawTimeline: Draw = (drawing) => {
  const { pictures, width } = drawing;
  const { run } = pictures;
  if (run === null || run.moments.length === 0) {
    const text = run === null ? "No run of this file has been followed yet. A run says what it compiles, and which guard failed when it compiles again." : `The last run (${run.program}) compiled nothing: it found all in the cache of its process.`;
    return nothing("No compilation to show", text, button("Run the File and Follow It", { class: "primary" }, drawing.follow));
  }
  const { begin, end, lanes } = timeline(run);
  const [row, top] = [46, 56];
  const left = 118;
  const room = Math.max(60, width - left - 16);
  const x = (at: number): number => left + ((at - begin) / (end - begin)) * room;
  const height = top + lanes.length * row + 26;
  const made: Node[] = [words(0, 16, `${run.program}: ${counted(run.calls, "call")}, ${counted(run.missed, "recompile")}`, "title")];
  const spent = run.moments.reduce((sum, { seconds }) => sum + seconds, 0);
  const more = run.dropped > 0 ? `; ${counted(run.dropped, "more moment")} came after these` : "";
  made.push(words(0, 33, `${secondsText(spent)} went into compiling graphs of ${pictures.function}${more}`, "faint"));
  for (const value of ticks(end - begin, Math.max(2, Math.min(8, room / 90)))) {
    made.push(shape("line", { x1: x(begin + value), x2: x(begin + value), y1: top - 6, y2: height - 24, class: "rule" }));
    made.push(words(x(begin + value), height - 8, secondsText(value), "tick", "middle"));
  }
  const items: { made: SVGElement; text: string; place: number | null }[] = [];
  lanes.forEach(({ title, moments }, lane) => {
    const y = top + lane * row;
    made.push(words(left - 12, y + row / 2 + 4, title, "label", "end"));
    made.push(shape("line", { x1: left, x2: left + room, y1: y + row - 4, y2: y + row - 4, class: "rule" }));
    moments.forEach((moment, k) => {
      const text = `${moment.text}${moment.seconds > 0 ? ` in ${secondsText(moment.seconds)}` : ""} · at ${secondsText(Math.max(0, moment.at - begin))}`;
      const mark = moment.seconds > 0
        ? shape("rect", { x: x(moment.at - moment.seconds), y: y + 8, width: Math.max(5, x(moment.at) - x(moment.at - moment.seconds)), height: row - 20, rx: 3 })
        : shape("path", { d: `M${x(moment.at)} ${y + 8}l8 ${(row - 20) / 2}l-8 ${(row - 20) / 2}l-8 ${-(row - 20) / 2}Z` });
      const item = shape("g", { class: `moment ${moment.kind}` }, mark);
      item.dataset["key"] = `${lane} ${k}`;
      items.push({ made: item, text, place: moment.place });
    });
  });
  const told = telling(items, "Point at a mark; press it to go to the line whose guard failed.");
  roving(items.map((item) => item.made), (k) => {
    const place = placeOf(drawing, items[k]?.place ?? null);
    if (place !== undefined) {
      drawing.open(place);
    }
  });
  const rows = (): (Node | string)[][] =>
    run.moments.map((moment) => [secondsText(Math.max(0, moment.at - begin)), moment.kind, moment.text, moment.seconds > 0 ? secondsText(moment.seconds) : "", lineButton(drawing, moment.place)]);
  const again = run.moments.filter(({ kind }) => kind === "recompiled");
  const listed = element("ol", { class: "recompiles", "aria-label": "Recompiles" });
  for (const moment of again.slice(0, 50)) {
    listed.append(element("li", {}, element("span", { class: "when" }, secondsText(Math.max(0, moment.at - begin))), element("span", { class: "guard" }, moment.text.replace(/^recompiled: (`[^`]*`, because of )?/, "")), lineButton(drawing, moment.place)));
  }
  const svg = chart(width, height, `Compilations of ${run.program}`, ...made, ...items.map((item) => item.made));
  return [
    element("figure", {}, svg, told),
    ...(again.length > 0 ? [element("h2", {}, "Why it was compiled again"), listed] : [element("p", { class: "intro" }, "No guard failed: nothing was compiled twice.")]),
    alternative("The run as a table", ["At", "What", "Which", "Took", "Line"], rows),
    element("div", { class: "actions" }, button("Run Again", {}, drawing.follow)),
  ];
};
