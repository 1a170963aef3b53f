// The page "Fuselens Pictures": tabs, and what passes between them and the editor.

import type { FromPage, ToPage } from "../src/pictures/messages";
import type { Pictures, Place } from "../src/server/protocol";
import { host, whenReleased } from "./host";
import { drawMemory, drawRoofline, drawTiming, drawTimeline, picked, type Draw } from "./pictures/charts";
import { button, element } from "./pictures/dom";
import { GraphView, type Picture } from "./pictures/graph";
import { chartPicture } from "./pictures/save";

const send = (message: FromPage): void => host.postMessage(message);
const open = (place: Place): void => send({ kind: "open", place });

interface Tab {
  id: string;
  title: string;
  draw?: Draw;
}

const TABS: readonly Tab[] = [
  { id: "graph", title: "Fused graph" },
  { id: "memory", title: "Memory", draw: drawMemory },
  { id: "timing", title: "Compile time", draw: drawTiming },
  { id: "roofline", title: "Roofline", draw: drawRoofline },
  { id: "timeline", title: "Recompiles", draw: drawTimeline },
];

let pictures: Pictures | undefined;
let subject = "";
let current = (host.getState() as { tab?: string } | undefined)?.tab ?? "graph";

const graph = new GraphView(open);
const choice = element("select", { "aria-label": "Function" });
const file = element("span", { class: "file" });
const stale = element("span", { class: "stale", title: "The file was edited since, or does not compile now." });
const problem = element("p", { class: "problem", role: "status" });
const tabs = TABS.map(({ id, title }) =>
  element("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}` }, title),
);
const panels = TABS.map(({ id }) => element("section", { role: "tabpanel", id: `panel-${id}`, "aria-labelledby": `tab-${id}` }));

function select(id: string, focus = false): void {
  current = TABS.some((tab) => tab.id === id) ? id : "graph";
  host.setState({ tab: current });
  TABS.forEach((tab, k) => {
    const chosen = tab.id === current;
    tabs[k]?.setAttribute("aria-selected", String(chosen));
    tabs[k]?.setAttribute("tabindex", chosen ? "0" : "-1");
    if (chosen && focus) {
      tabs[k]?.focus();
    }
    if (panels[k] !== undefined) {
      panels[k].hidden = !chosen;
    }
  });
  drawCurrent();
}

/** Draws the chart that is looked at; the focus stays on the same part of it. */
function drawCurrent(): void {
  const number = TABS.findIndex(({ id }) => id === current);
  const [draw, panel] = [TABS[number]?.draw, panels[number]];
  if (draw === undefined || panel === undefined || pictures === undefined) {
    return;
  }
  const focused = panel.contains(document.activeElement) ? (document.activeElement as HTMLElement).dataset["key"] : undefined;
  const opened = panel.querySelector("details")?.open ?? false;
  panel.replaceChildren(...draw({ pictures, width: panel.clientWidth, open, run: () => send({ kind: "run" }), follow: () => send({ kind: "follow" }), redraw: drawCurrent }));
  const details = panel.querySelector("details");
  if (details !== null) {
    details.open = opened;
  }
  if (focused !== undefined) {
    panel.querySelector<HTMLElement>(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }
}

async function save(suffix: "svg" | "png"): Promise<void> {
  const number = TABS.findIndex(({ id }) => id === current);
  const picture: Picture | undefined = current === "graph" ? graph.picture() : chartPicture(panels[number] as HTMLElement);
  if (picture !== undefined && pictures !== undefined) {
    const name = `${pictures.function.replace(/[^\w.-]+/g, "_")}-${current}`;
    const content = suffix === "svg" ? picture.svg : await picture.png();
    send({ kind: "save", name, suffix, content, base64: suffix === "png" });
  }
}

function show(message: Extract<ToPage, { kind: "pictures" }>): void {
  pictures = message.pictures;
  const { functions, function: name } = pictures;
  if (subject !== `${message.file} ${name}`) {
    picked.clear();
  }
  subject = `${message.file} ${name}`;
  file.textContent = message.file;
  stale.textContent = pictures.stale ? "of the last good check" : "";
  choice.replaceChildren(...functions.map((each) => element("option", { value: each, selected: each === name }, each)));
  choice.hidden = functions.length === 0;
  problem.textContent = name === "" ? "Nothing of this file has been compiled yet. Its pictures are drawn as soon as it is." : "";
  document.body.classList.toggle("empty", name === "");
  graph.show(pictures, subject);
  drawCurrent();
}

window.addEventListener("message", ({ data }: MessageEvent<ToPage>) => {
  if (data.kind === "pictures") {
    whenReleased(() => show(data));
  } else if (data.kind === "cursor") {
    graph.follow(data.uri, data.line);
  } else if (pictures === undefined) {
    problem.textContent = `There are no pictures yet: ${data.text}`;
    document.body.classList.add("empty");
  }
});

choice.addEventListener("change", () => send({ kind: "function", name: choice.value }));
tabs.forEach((tab, k) => {
  tab.addEventListener("click", () => select(TABS[k]?.id ?? ""));
  tab.addEventListener("keydown", ({ key }) => {
    const next = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: TABS.length - 1 }[key];
    if (next !== undefined) {
      select(TABS[(next + TABS.length) % TABS.length]?.id ?? "", true);
    }
  });
});
panels[0]?.append(graph.element);
let width = 0;
new ResizeObserver(([entry]) => {
  if (entry !== undefined && Math.abs(entry.contentRect.width - width) > 1) {
    width = entry.contentRect.width;
    requestAnimationFrame(drawCurrent);
  }
}).observe(document.body);

const saving = element(
  "div",
  { class: "saving", role: "group", "aria-label": "Save this picture" },
  button("SVG", { title: "Save this picture as SVG" }, () => void save("svg")),
  button("PNG", { title: "Save this picture as PNG" }, () => void save("png")),
);
document.getElementById("root")?.append(
  element("h1", { class: "spoken" }, "Fuselens Pictures"),
  element("div", { class: "head" }, choice, file, stale, element("span", { class: "grow" }), saving),
  element("div", { class: "tabs", role: "tablist", "aria-label": "Pictures" }, ...tabs),
  problem,
  ...panels,
);
select(current);
send({ kind: "ready" });
