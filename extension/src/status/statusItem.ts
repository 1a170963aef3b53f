// The language status item: the `{}` entry beside the language in the status bar.

import * as vscode from "vscode";
import type { ServerStatus } from "../server/protocol";
import { statusView } from "./status";

const ACTIONS = {
  showOutput: { title: "Show Log", command: "fuselens.showOutput" },
  selectInterpreter: { title: "Select Interpreter", command: "fuselens.selectInterpreter" },
} as const;

export class StatusItem implements vscode.Disposable {
  private readonly item = vscode.languages.createLanguageStatusItem("fuselens.status", { language: "python" });

  constructor() {
    this.item.name = "Fuselens";
    this.show({ state: "starting" });
  }

  show(status: ServerStatus, problem?: string): void {
    const view = statusView(status, problem);
    this.item.text = view.text;
    this.item.detail = view.detail;
    this.item.busy = view.busy;
    this.item.command = ACTIONS[view.action];
    this.item.severity =
      view.severity === "error" ? vscode.LanguageStatusSeverity.Error : vscode.LanguageStatusSeverity.Information;
  }

  dispose(): void {
    this.item.dispose();
  }
}
