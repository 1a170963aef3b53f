// The run panel: a run's figures, its values and its kernels, and the runs before it.

import type { RunPage } from "../src/runs/history";
import { host, whenReleased } from "./host";

const root = document.getElementById("root")!;

window.addEventListener("message", ({ data }: MessageEvent<RunPage | null>) => whenReleased(() => show(data)));
host.postMessage({ kind: "ready" });

function show(data: RunPage | null): void {
  const focused = document.activeElement?.id ?? "";
  root.replaceChildren(...(data ? pageOf(data) : [element("p", "empty", "Press Run above a compiled function: what it does, compiled and eagerly, is shown here.")]));
  document.getElementById(focused)?.focus();
}

function pageOf(page: RunPage): HTMLElement[] {
  const summary = element("section", "summary");
  const verdict = element("p", "verdict");
  verdict.append(mark(page.state), page.verdict);
  verdict.setAttribute("role", "status");
  summary.append(element("h1", "", page.title), verdict);
  if (page.failure) {
    const failure = element("p", "failure", page.failure.text);
    if (page.failure.place && page.failure.link) {
      failure.append(" · ", link("failure", page.failure.link, { kind: "open", place: page.failure.place }));
    }
    summary.append(failure);
  }
  summary.append(...page.notes.map((note) => element("p", "note", note)));
  if (page.figures.length > 0) {
    const rows = page.figures.map((row) => [row.name, row.time, row.spread, row.memory]);
    const note = "Times are medians, and half of the calls lie in the range. The first call compiles. Memory is the most that a call holds.";
    summary.append(table("Figures", note, ["", "Time of a call", "Range", "Memory"], rows));
  }
  summary.append(runs(page));
  const details = element("section", "details");
  if (page.values.length > 0) {
    details.append(values(page));
  }
  if (page.kernels.length > 0) {
    details.append(kernels(page));
  }
  return [summary, details];
}

function values(page: RunPage): HTMLElement {
  const rows = page.values.map((value) => {
    const verdict = element("span", value.state);
    verdict.append(mark(value.state === "differs" ? "bad" : value.state === "agrees" ? "good" : "unknown"), value.verdict);
    return [value.name, value.type, value.absolute, value.relative, verdict];
  });
  const more = page.moreValues > 0 ? `${page.moreValues} more values agree, too.` : "";
  const columns = ["Value", "Type", "Largest difference", "Relative", "Compared"];
  return table("Values and gradients", more, columns, rows, [2, 3], page.values.map(({ detail }) => detail));
}

function kernels(page: RunPage): HTMLElement {
  const rows = page.kernels.map((kernel, number) => [
    kernel.place ? link(`kernel-${number}`, kernel.name, { kind: "open", place: kernel.place }) : kernel.name,
    kernel.where, kernel.time, kernel.rate, kernel.share,
  ]);
  return table("Kernels", page.kernelNote, ["Kernel", "Graph", "Time", "Moves", "Of its limit"], rows, [2, 3, 4]);
}

function runs(page: RunPage): HTMLElement {
  const rows = page.runs.map((run) => {
    const choose = link(`run-${run.id}`, `${run.time} ${run.name}`, { kind: "select", id: run.id });
    if (run.shown) {
      choose.setAttribute("aria-current", "true");
    }
    return [choose, run.verdict, run.eager, run.compiled, run.speedup];
  });
  const changes = page.runs.map(({ change }) => (change === "" ? "" : `Against the run before: ${change}`));
  return table("Runs of this session", "", ["Run", "Compared", "Eager", "Compiled", "Speed-up"], rows, [2, 3, 4], changes);
}

/**
 * A heading, a table whose first column names its rows, and a note. Columns of figures are aligned on the right. What there is to
 * say about a row stands below it, in `details`.
 */
function table(
  title: string, note: string, columns: string[], rows: (string | Node)[][], figures: number[] = [1, 2, 3], details: string[] = [],
): HTMLElement {
  const part = element("section", "part");
  const heading = element("h2", "", title);
  heading.id = title.toLowerCase().replaceAll(" ", "-");
  const grid = element("table", "");
  grid.setAttribute("aria-labelledby", heading.id);
  const line = (cells: (string | Node)[], head: boolean): HTMLElement => {
    const row = element("tr", "");
    cells.forEach((cell, number) => {
      const names = (head && cell !== "") || (!head && number === 0);
      const made = element(names ? "th" : "td", figures.includes(number) ? "figure" : "");
      if (names) {
        made.setAttribute("scope", head ? "col" : "row");
      }
      made.append(cell);
      row.append(made);
    });
    return row;
  };
  const head = element("thead", "");
  head.append(line(columns, true));
  const body = element("tbody", "");
  rows.forEach((row, number) => {
    body.append(line(row, false));
    if (details[number]) {
      const below = element("tr", "below");
      const cell = element("td", "words", details[number]);
      cell.setAttribute("colspan", String(columns.length));
      below.append(cell);
      body.append(below);
    }
  });
  grid.append(head, body);
  const scroll = element("div", "scroll");
  scroll.append(grid);
  scroll.tabIndex = 0; // it scrolls where the panel is narrow, by keys too
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-labelledby", heading.id);
  part.append(heading, scroll, ...(note === "" ? [] : [element("p", "note", note)]));
  return part;
}

/** A sign in the theme's colour; the words beside it say the same. */
function mark(state: RunPage["state"]): HTMLElement {
  const made = element("span", `mark ${state}`, { good: "✓", bad: "✗", unknown: "?" }[state]);
  made.setAttribute("aria-hidden", "true");
  return made;
}

function link(id: string, text: string, message: unknown): HTMLElement {
  const button = element("button", "link", text);
  button.id = id;
  button.setAttribute("type", "button");
  button.addEventListener("click", () => host.postMessage(message));
  return button;
}

function element(tag: string, name: string, text = ""): HTMLElement {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  return made;
}
