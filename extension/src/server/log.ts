// Lines that the server writes on standard error.

export type Level = "debug" | "info" | "warning" | "error";

const LEVELS: Record<string, Level> = { DEBUG: "debug", INFO: "info", WARNING: "warning", ERROR: "error", CRITICAL: "error" };

/** The level that a line of Python's logging names among its first words; "info" for any other line. */
export function levelOf(line: string): Level {
  const name = /^(?:\S+ ){0,3}?\W*(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b/.exec(line)?.[1];
  return (name && LEVELS[name]) || "info";
}
