// What a tool's answer and its invocation say, without the editor.

import type { ToolAnswer } from "../server/protocol";

/** Characters of an answer's data that a model is given beside its text. */
const MOST_DATA = 30_000;
const PREFIX = "fuselens_";

/** The server's name of a tool that the manifest declares. */
export function serverName(declared: string): string {
  return declared.startsWith(PREFIX) ? declared.slice(PREFIX.length) : declared;
}

/** The parts that a model reads: the text with its evidence, and the data where it is not too long. */
export function parts({ text, data }: ToolAnswer): string[] {
  const written = JSON.stringify(data);
  return written.length <= MOST_DATA ? [text, written] : [text, `The data has ${written.length} characters and is left out: ask for less.`];
}

/** What the chat shows while a tool works. */
export function working(name: string, given: Record<string, unknown>): string {
  const about = [given.target, given.code].find((value) => typeof value === "string" && value !== "");
  const verb: Record<string, string> = {
    check: "Checking", explain: "Explaining", run: "Running", verify: "Verifying", what_if: "Measuring changes of", apply_fix: "Fixing", codes: "Looking up",
  };
  return `${verb[name] ?? name} ${typeof about === "string" ? about : "codes"}`;
}

/** Whether a person must agree: where a file is written. What is executed is what a save executes, too, and as confined. */
export function asks(name: string, given: Record<string, unknown>): boolean {
  return name === "apply_fix" && given.write === true;
}

/** What a person is asked, in Markdown: `shown` is what the tool answers when it writes nothing. */
export function question(given: Record<string, unknown>, shown: ToolAnswer | undefined): { title: string; message: string } {
  const fix = shown?.data.fix as { title: string; diff: string } | undefined;
  const what = fix === undefined ? `the fix ${String(given.fix)}` : `the fix "${fix.title}"`;
  const lines = fix === undefined ? "" : `\n\n\`\`\`diff\n${fix.diff.trimEnd()}\n\`\`\``;
  return { title: "Apply a fix of Fuselens", message: `Write ${what} into ${String(given.target)}?${lines}` };
}

/** What the MCP server is started with. */
export function serverArguments(folders: readonly string[]): string[] {
  return ["-P", "-m", "fuselens.cli", "mcp", ...folders.flatMap((folder) => ["--root", folder])];
}
