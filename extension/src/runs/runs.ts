// Runs of functions, from wherever they are asked for, and the panel that shows them.

import * as vscode from "vscode";
import { headline, succeeded } from "../functions/runResult";
import { type RunResult, SERVER_RUN } from "../server/protocol";
import type { Session } from "../server/session";
import { page, webviewOptions } from "../webviews/page";
import { History, type Place, type Run } from "./history";
import { openPlace } from "./places";

export const RUNS_VIEW = "fuselens.runs";

/** What the page says. */
type FromPage = { kind: "ready" } | { kind: "select"; id: number } | { kind: "open"; place: Place };

export class Runs implements vscode.WebviewViewProvider, vscode.Disposable {
  private readonly history = new History();
  private readonly ran = new vscode.EventEmitter<void>();
  /** A function was run. */
  readonly onDidRun = this.ran.event;
  private readonly registration = vscode.window.registerWebviewViewProvider(RUNS_VIEW, this);
  private view: vscode.WebviewView | undefined;
  private shown: number | undefined;

  constructor(
    private readonly extension: vscode.Uri,
    private readonly session: Session,
    private readonly output: vscode.LogOutputChannel,
  ) {}

  dispose(): void {
    this.registration.dispose();
    this.ran.dispose();
  }

  /** What the last run of a function said, in a few words. */
  readonly last = (file: string, name: string): string | undefined => this.history.last(file, name);

  /** Runs a function as it was saved, and keeps the outcome. undefined when the file was not saved. */
  async run(file: vscode.Uri, name: string, token?: vscode.CancellationToken): Promise<Run | undefined> {
    const document = vscode.workspace.textDocuments.find((open) => open.uri.toString() === file.toString());
    if (document?.isDirty && !(await document.save())) {
      return undefined;
    }
    const result = await this.session.execute<RunResult | null>(SERVER_RUN, [file.toString(), name], token);
    if (!result) {
      return undefined;
    }
    this.output.info(headline(result));
    const run = this.history.add(file.toString(), result);
    this.select(run.id);
    this.ran.fire();
    return run;
  }

  /** One line, and a way to all the rest. */
  tell({ id, result }: Run): void {
    const place = result.error?.span ?? result.span;
    const actions = ["Show Details", ...(place ? ["Go to Line"] : [])];
    const tell = succeeded(result) ? vscode.window.showInformationMessage : vscode.window.showWarningMessage;
    void tell(`Fuselens: ${headline(result)}`, ...actions).then(async (action) => {
      if (action === "Show Details") {
        await this.show(id);
      } else if (action !== undefined && place) {
        await openPlace(place);
      }
    });
  }

  private async show(id: number): Promise<void> {
    this.select(id);
    await vscode.commands.executeCommand(`${RUNS_VIEW}.focus`);
  }

  resolveWebviewView(view: vscode.WebviewView): void {
    this.view = view;
    view.webview.options = webviewOptions(this.extension);
    view.webview.onDidReceiveMessage((message: FromPage) => this.heard(message));
    view.onDidDispose(() => {
      this.view = undefined;
    });
    view.webview.html = page(view.webview, this.extension, "runs", "Fuselens runs");
  }

  private heard(message: FromPage): void {
    if (message.kind === "select") {
      this.select(message.id);
    } else if (message.kind === "open") {
      void openPlace(message.place);
    } else {
      this.draw();
    }
  }

  private select(id: number): void {
    this.shown = id;
    this.draw();
  }

  private draw(): void {
    void this.view?.webview.postMessage(this.history.page(this.shown) ?? null);
  }
}
