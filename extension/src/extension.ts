// Activation: one server session, and what shows its work.

import * as vscode from "vscode";
import { FunctionCommands } from "./commands";
import { Notes, StageDocuments } from "./documents";
import { watchSources } from "./environments";
import { selectInterpreter } from "./selectInterpreter";
import { Session } from "./session";
import { StatusItem } from "./statusItem";

/** A change of these needs a new server; it follows changes of the others by itself. */
const RESTARTING = ["fuselens.interpreter", "fuselens.serverInterpreter"];

let session: Session | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const output = vscode.window.createOutputChannel("Fuselens", { log: true });
  const status = new StatusItem();
  const notes = new Notes();
  const current = new Session(output);
  session = current;

  context.subscriptions.push(
    output,
    status,
    notes,
    current,
    new StageDocuments(current),
    new FunctionCommands(current, notes, output).register(),
    current.onStatus(({ status: now, problem }) => status.show(now, problem)),
    tellProblemsOnce(current),
    watchSources(() => void current.reconsider("the environment changed")),
    vscode.workspace.onDidChangeConfiguration((event) => {
      const changed = RESTARTING.find((name) => event.affectsConfiguration(name));
      if (changed !== undefined) {
        void current.restart(`${changed} changed`);
      } else if (event.affectsConfiguration("fuselens.inlayHints")) {
        current.refreshInlayHints();
      }
    }),
    vscode.commands.registerCommand("fuselens.restart", () => current.restart("asked for")),
    vscode.commands.registerCommand("fuselens.showOutput", () => output.show()),
    vscode.commands.registerCommand("fuselens.selectInterpreter", () => selectInterpreter(current)),
  );
  await current.restart("activation");
}

export async function deactivate(): Promise<void> {
  await session?.stop();
}

/** A server that cannot run at all is worth a message, but not the same one twice. */
function tellProblemsOnce(current: Session): vscode.Disposable {
  const told = new Set<string>();
  return current.onStatus(({ problem }) => {
    if (problem === undefined || told.has(problem)) {
      return;
    }
    told.add(problem);
    const actions = { "Select Interpreter": "fuselens.selectInterpreter", "Show Output": "fuselens.showOutput" };
    void vscode.window.showErrorMessage(`Fuselens: ${problem}`, ...Object.keys(actions)).then((action) => {
      if (action !== undefined) {
        void vscode.commands.executeCommand(actions[action as keyof typeof actions]);
      }
    });
  });
}
