// The item in the status bar that is there while a Python file is shown: the breaks of the file, or what goes on.

import * as vscode from "vscode";
import { SCHEME } from "../documents/uris";
import { breaksOf } from "../overview/nodes";
import { type Overviews } from "../overview/overviews";
import { VIEW } from "../overview/tree";
import type { ServerStatus } from "../server/protocol";
import { statusBarView, type FileFindings } from "./status";

/** Of what a person sees that is compiled, or comes of it. */
const ON_DISK = new Set(["file", "vscode-notebook-cell", SCHEME]);

export class StatusBar implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("fuselens.status", vscode.StatusBarAlignment.Left, 0);
  private status: ServerStatus = { state: "starting" };
  private problem: string | undefined;
  private readonly listeners: vscode.Disposable[];

  constructor(private readonly overviews: Overviews) {
    this.item.name = "Fuselens";
    this.listeners = [
      this.item,
      overviews.onDidChange(() => this.draw()),
      vscode.window.onDidChangeActiveTextEditor(() => this.draw()),
    ];
    this.draw();
  }

  show(status: ServerStatus, problem?: string): void {
    this.status = status;
    this.problem = problem;
    this.draw();
  }

  dispose(): void {
    this.listeners.forEach((item) => item.dispose());
  }

  private draw(): void {
    const document = vscode.window.activeTextEditor?.document;
    if (document?.languageId !== "python" && document?.uri.scheme !== SCHEME) {
      this.item.hide();
      return;
    }
    const view = statusBarView(this.status, this.problem, this.file(), ON_DISK.has(document.uri.scheme));
    this.item.text = view.text;
    this.item.command = view.leads === "tree" ? `${VIEW}.focus` : "fuselens.showOutput";
    this.item.backgroundColor = view.warns ? new vscode.ThemeColor("statusBarItem.warningBackground") : undefined;
    this.item.accessibilityInformation = { label: `Fuselens: ${view.said}`, role: "button" };
    this.item.tooltip = tooltip(view.said, this.status);
    this.item.show();
  }

  private file(): FileFindings | undefined {
    const overview = this.overviews.active;
    if (overview === undefined) {
      return undefined;
    }
    const name = decodeURIComponent(overview.uri.split("/").pop() ?? "");
    const failed = overview.failures.length > 0 || overview.functions.some(({ state }) => state === "failed");
    return { name, functions: overview.functions.length, breaks: breaksOf(overview), compiling: overview.compiling, failed };
  }
}

function tooltip(said: string, { interpreter, torch }: ServerStatus): vscode.MarkdownString {
  const text = new vscode.MarkdownString("", true);
  text.isTrusted = { enabledCommands: ["fuselens.selectInterpreter", "fuselens.showOutput", "fuselens.restart", "fuselens.doctor"] };
  text.appendMarkdown("**Fuselens** · ").appendText(said);
  if (interpreter) {
    text.appendMarkdown("\n\n").appendText(`${torch ? `torch ${torch} · ` : ""}${interpreter}`);
  }
  text.appendMarkdown(
    "\n\n[Select Interpreter](command:fuselens.selectInterpreter) · [Show Log](command:fuselens.showOutput) · " +
      "[Restart](command:fuselens.restart) · [Doctor](command:fuselens.doctor)",
  );
  return text;
}
