// Activation: one server session, and what shows its work.

import * as vscode from "vscode";
import { LanguageModels } from "./agents/languageModels";
import { FunctionCommands } from "./functions/commands";
import { Notes, StageDocuments } from "./documents/stageDocuments";
import { Kernels } from "./kernels/kernels";
import { LinkedView } from "./linked/linkedView";
import { Patches } from "./patches/patches";
import { PicturesPanel } from "./pictures/panel";
import { Agreement } from "./runs/agreement";
import { Runs } from "./runs/runs";
import { Onboarding } from "./onboarding/onboarding";
import { Overviews } from "./overview/overviews";
import { OverviewTree } from "./overview/tree";
import { watchSources } from "./server/environments";
import { lacksPackages } from "./server/probe";
import { selectInterpreter } from "./server/selectInterpreter";
import { Session } from "./server/session";
import { StatusBar } from "./status/statusBar";
import { StatusItem } from "./status/statusItem";

/** A change of these needs a new server; it follows changes of the others by itself. */
const RESTARTING = ["fuselens.interpreter", "fuselens.serverInterpreter"];

let session: Session | undefined;

/** Does not wait for the server: commands do. */
export function activate(context: vscode.ExtensionContext): void {
  const begun = performance.now();
  const output = vscode.window.createOutputChannel("Fuselens", { log: true });
  const status = new StatusItem();
  const notes = new Notes();
  const current = new Session(output);
  session = current;
  const linked = new LinkedView(current, context.extension);
  const runs = new Runs(context.extensionUri, current, output);
  const overviews = new Overviews(current);
  const tree = new OverviewTree(current, overviews, runs.last);
  const statusBar = new StatusBar(overviews);

  context.subscriptions.push(
    output,
    status,
    notes,
    current,
    new StageDocuments(current),
    runs,
    new Agreement(current, runs),
    new FunctionCommands(current, notes, output, linked, runs).register(),
    current.onStatus(({ status: now, problem }) => status.show(now, problem)),
    tellProblemsOnce(current),
    watchSources(() => void current.reconsider("the environment changed")),
    vscode.workspace.onDidChangeConfiguration((event) => {
      const changed = RESTARTING.find((name) => event.affectsConfiguration(name));
      if (changed !== undefined) {
        void current.restart(`${changed} changed`);
      }
    }),
    vscode.commands.registerCommand("fuselens.restart", () => current.restart("asked for")),
    vscode.commands.registerCommand("fuselens.showOutput", () => output.show()),
    vscode.commands.registerCommand("fuselens.selectInterpreter", () => selectInterpreter(current)),
    linked,
    new Kernels(current, output),
    new Patches(current, output),
    new PicturesPanel(current, output, context.extensionUri),
    overviews,
    tree,
    statusBar,
    new Onboarding(context, current, notes),
    new LanguageModels(context.extension, current),
    runs.onDidRun(() => tree.rebuild()),
    current.onStatus(({ status: now, problem }) => statusBar.show(now, problem)),
  );
  void current.restart("activation");
  output.info(`activated in ${Math.round(performance.now() - begun)} ms`);
}

export async function deactivate(): Promise<void> {
  await session?.stop();
}

/** A file that has something to do with us. */
const CONCERNED = /^[ \t]*(?:import|from)[ \t]+(?:torch|fuselens)\b/m;

/**
 * A server that cannot run at all is worth a message, but not the same one twice, and not in a project that has nothing to do with
 * PyTorch. A warning, because an error with buttons stays on the screen when all is well again.
 */
function tellProblemsOnce(current: Session): vscode.Disposable {
  const told = new Set<string>();
  let pending: string | undefined;
  const tell = (): void => {
    const problem = pending;
    if (problem === undefined || told.has(problem) || !vscode.workspace.textDocuments.some(isConcerned)) {
      return;
    }
    told.add(problem);
    const actions: Record<string, string> = {
      ...(lacksPackages(problem) ? { Install: "fuselens.install" } : {}),
      "Select Interpreter": "fuselens.selectInterpreter",
      "Show Log": "fuselens.showOutput",
    };
    void vscode.window.showWarningMessage(`Fuselens: ${problem}`, ...Object.keys(actions)).then((action) => {
      const command = action && actions[action];
      if (command !== undefined && command !== "") {
        void vscode.commands.executeCommand(command);
      }
    });
  };
  return vscode.Disposable.from(
    vscode.workspace.onDidOpenTextDocument(tell),
    current.onStatus(({ problem }) => {
      pending = problem;
      tell();
    }),
  );
}

function isConcerned(document: vscode.TextDocument): boolean {
  return document.languageId === "python" && CONCERNED.test(document.getText());
}
