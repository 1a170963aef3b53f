// What the language status item says.

import type { ServerStatus } from "./protocol";

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
