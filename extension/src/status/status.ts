// What the language status item says.

import type { ServerStatus } from "../server/protocol";

const MAXIMUM_DETAIL = 60;

export interface StatusView {
  text: string;
  detail: string;
  severity: "information" | "error";
  busy: boolean;
  /** What a click offers. */
  action: "showOutput" | "selectInterpreter";
}

/** `problem` is set when no server runs at all. */
export function statusView(status: ServerStatus, problem?: string): StatusView {
  const interpreter = status.interpreter ?? "";
  if (problem !== undefined) {
    return { text: "Fuselens: not running", detail: shortened(problem), severity: "error", busy: false, action: "selectInterpreter" };
  }
  switch (status.state) {
    case "starting":
      return view("Fuselens: starting", status.message || interpreter, true);
    case "compiling":
      return view(`Fuselens: ${compiling(status.message)}`, interpreter, true);
    case "ready":
      return {
        ...view(status.torch ? `Fuselens: torch ${status.torch}` : "Fuselens: ready", interpreter, false),
        action: "selectInterpreter",
      };
    case "error":
      return {
        text: "Fuselens: problem",
        detail: shortened(firstLine(status.message)) || "see the output",
        severity: "error",
        busy: false,
        action: "showOutput",
      };
  }
}

function view(text: string, detail: string, busy: boolean): StatusView {
  return { text, detail, severity: "information", busy, action: "showOutput" };
}

function compiling(message: string | undefined): string {
  const what = firstLine(message);
  return what === "" ? "compiling" : /^compil/i.test(what) ? what : `compiling ${baseName(what)}`;
}

/** The item is one line; the notification and the output have the whole text. */
function shortened(text: string): string {
  return text.length <= MAXIMUM_DETAIL ? text : `${text.slice(0, MAXIMUM_DETAIL - 1).trimEnd()}…`;
}

function firstLine(text: string | undefined): string {
  return (text ?? "").trim().split("\n", 1)[0] ?? "";
}

function baseName(path: string): string {
  return path.split(/[\\/]/).pop() ?? path;
}

/** What is known of the file that is shown. */
export interface FileFindings {
  name: string;
  functions: number;
  breaks: number;
  compiling: boolean;
  failed: boolean;
}

export interface StatusBarView {
  /** With icons, as the item shows it. */
  text: string;
  /** In words alone. */
  said: string;
  leads: "tree" | "log";
  warns: boolean;
}

/** The item in the status bar: what goes on comes before what was found. `onDisk`: the text that is shown is a file of this machine. */
export function statusBarView(
  status: ServerStatus,
  problem: string | undefined,
  file: FileFindings | undefined,
  onDisk: boolean,
): StatusBarView {
  const item = (icon: string, said: string, leads: StatusBarView["leads"] = "tree", warns = false): StatusBarView => ({
    text: `$(${icon}) ${said}`, said, leads, warns,
  });
  if (problem !== undefined) {
    return { ...item("circle-slash", "Fuselens"), said: `not running: ${problem}` };
  }
  if (status.state === "starting") {
    return item("sync~spin", "starting", "log");
  }
  if (status.state === "error") {
    return { ...item("error", "Fuselens", "log", true), said: firstLine(status.message) || "problem" };
  }
  if (file?.compiling) {
    return item("sync~spin", `compiling ${file.name}`, "log");
  }
  if (!onDisk) {
    return { ...item("zap", "not on disk"), said: "not on the disk: save this text as a file here to compile its functions" };
  }
  if (file === undefined || file.functions === 0) {
    return { ...item("zap", "Fuselens"), said: "this file compiles nothing" };
  }
  if (file.failed) {
    return item("zap", "not compiled");
  }
  return item("zap", file.breaks === 0 ? "no breaks" : `${file.breaks} break${file.breaks === 1 ? "" : "s"}`);
}
