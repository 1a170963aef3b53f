// The way to a first compiled function, and out of trouble: the view's welcome, the example, the installation, the report.

import * as vscode from "vscode";
import type { Notes } from "../documents/stageDocuments";
import { lacksPackages } from "../server/probe";
import type { Session } from "../server/session";
import { clearCache } from "./cache";
import { doctor } from "./doctor";
import { openExample } from "./example";
import { install } from "./install";

const STATE = "fuselens.state";
const WALKTHROUGH = "start";

export class Onboarding implements vscode.Disposable {
  private readonly parts: vscode.Disposable[];

  constructor(context: vscode.ExtensionContext, session: Session, notes: Notes) {
    const command = (id: string, body: () => Promise<unknown>): vscode.Disposable =>
      vscode.commands.registerCommand(id, () =>
        body().catch((error: unknown) => {
          void vscode.window.showErrorMessage(`Fuselens: ${error instanceof Error ? error.message : String(error)}`);
        }),
      );
    this.parts = [
      session.onStatus(({ status, problem }) => {
        const state = problem === undefined ? (status.state === "starting" ? "starting" : "ready") : lacksPackages(problem) ? "missing" : "problem";
        void vscode.commands.executeCommand("setContext", STATE, state);
      }),
      command("fuselens.openExample", () => openExample(context)),
      command("fuselens.install", () => install(session)),
      command("fuselens.doctor", () => doctor(context, session, notes)),
      command("fuselens.clearCache", () => clearCache(session)),
      command("fuselens.openWalkthrough", async () =>
        vscode.commands.executeCommand("workbench.action.openWalkthrough", `${context.extension.id}#${WALKTHROUGH}`, false),
      ),
    ];
  }

  dispose(): void {
    this.parts.forEach((part) => part.dispose());
  }
}
