// The cache of compiled kernels: how much there is, and its end.

import * as vscode from "vscode";
import type { Session } from "../server/session";
import { output } from "./running";

const SECONDS = 60;

export async function clearCache(session: Session): Promise<void> {
  const python = session.currentInterpreter?.path;
  if (python === undefined) {
    throw new Error("no Python interpreter is in use.");
  }
  const cache = (...more: string[]): Promise<string> => output(python, ["-m", "fuselens.cli", "cache", ...more], SECONDS);
  const [found = ""] = (await cache()).trim().split("\n");
  const clear = "Clear";
  const options = { modal: true, detail: `${found}\n\nWhat is compiled next is built anew, which takes longer once. Your files are not touched.` };
  if ((await vscode.window.showWarningMessage("Clear the cache of compiled kernels?", options, clear)) === clear) {
    const [done = ""] = (await cache("clear")).trim().split("\n");
    void vscode.window.showInformationMessage(`Fuselens: ${done}.`);
    await session.restart("the cache was cleared");
  }
}
