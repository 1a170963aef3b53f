// The panel of pictures: it asks the server for their data, again when that changes, and does for the page what only the
// extension may: open a line, write a file, start a terminal.

import { dirname } from "node:path";
import * as vscode from "vscode";
import { parseAddress } from "../documents/uris";
import { quoted, resolveTarget } from "../functions/commands";
import { PICTURES, type Pictures, type PicturesParams, type Place } from "../server/protocol";
import type { Session } from "../server/session";
import { page, webviewOptions } from "../webviews/page";
import type { FromPage, ToPage } from "./messages";

const TITLE = "Fuselens Pictures";
/** After an edit the places of lines are asked for anew, once typing pauses. */
const PAUSE_MS = 400;

export class PicturesPanel implements vscode.Disposable {
  private panel: vscode.WebviewPanel | undefined;
  private shown: PicturesParams | undefined;
  /** The function whose pictures the page has. */
  private pictured: string | undefined;
  private asking: vscode.CancellationTokenSource | undefined;
  private pause: NodeJS.Timeout | undefined;
  private readonly registrations: vscode.Disposable[];

  constructor(
    private readonly session: Session,
    private readonly output: vscode.LogOutputChannel,
    private readonly extension: vscode.Uri,
  ) {
    this.registrations = [
      vscode.commands.registerCommand("fuselens.openPictures", (file?: string, name?: string) => this.open(file, name)),
      session.onDocuments((uris) => this.follow(uris === "all" ? uris : uris.flatMap((uri) => parseAddress(uri)?.file ?? []))),
      session.onPictures((uris) => this.follow(uris)),
      vscode.workspace.onDidChangeTextDocument(({ document, contentChanges }) => {
        if (contentChanges.length > 0 && document.uri.toString() === this.shown?.uri) {
          clearTimeout(this.pause);
          this.pause = setTimeout(() => void this.refresh(), PAUSE_MS);
        }
      }),
      vscode.window.onDidChangeTextEditorSelection(({ textEditor }) => this.tellCursor(textEditor)),
    ];
  }

  dispose(): void {
    clearTimeout(this.pause);
    this.panel?.dispose();
    this.registrations.forEach((item) => item.dispose());
  }

  /** Shows the pictures of a function: that of a lens, or the one at the cursor. */
  private async open(file?: string, name?: string): Promise<void> {
    const target = await resolveTarget(file, name);
    if (target === undefined) {
      return;
    }
    this.shown = { uri: vscode.Uri.parse(target.file).toString(), function: target.function ?? null };
    if (this.panel === undefined) {
      this.panel = this.create();
    } else {
      this.panel.reveal(undefined, true);
      await this.refresh();
    }
  }

  private create(): vscode.WebviewPanel {
    const where = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true };
    const panel = vscode.window.createWebviewPanel("fuselens.pictures", TITLE, where, {
      ...webviewOptions(this.extension),
      retainContextWhenHidden: true, // where one is in a picture
    });
    panel.iconPath = vscode.Uri.joinPath(this.extension, "media", "icon.png");
    panel.webview.onDidReceiveMessage((message: FromPage) => this.receive(message));
    panel.onDidDispose(() => {
      this.panel = undefined;
      this.shown = undefined;
    });
    // Graphs are laid out in a worker, which a page may start from a blob only.
    panel.webview.html = page(panel.webview, this.extension, "pictures", TITLE, "worker-src blob:;");
    return panel;
  }

  private receive(message: FromPage): Promise<unknown> | undefined {
    switch (message.kind) {
      case "ready":
        return this.refresh();
      case "open":
        return this.reveal(message.place);
      case "function":
        this.shown = this.shown && { ...this.shown, function: message.name };
        return this.refresh();
      case "run":
        return this.run();
      case "follow":
        return this.runAndFollow();
      case "save":
        return this.save(message);
    }
  }

  private follow(uris: string[] | "all"): void {
    if (this.shown !== undefined && (uris === "all" || uris.some((uri) => vscode.Uri.parse(uri).toString() === this.shown?.uri))) {
      void this.refresh();
    }
  }

  /** Sends what is known now. An answer that is overtaken by another question is dropped. */
  private async refresh(): Promise<void> {
    if (this.panel === undefined || this.shown === undefined) {
      return;
    }
    this.asking?.cancel();
    const asking = (this.asking = new vscode.CancellationTokenSource());
    const params = this.shown;
    try {
      const pictures = await this.session.request<Pictures>(PICTURES, params, asking.token);
      if (asking === this.asking) {
        this.pictured = pictures.function || undefined;
        this.say({ kind: "pictures", file: vscode.workspace.asRelativePath(vscode.Uri.parse(params.uri)), pictures });
      }
    } catch (error) {
      if (asking === this.asking) {
        this.output.debug(`pictures: ${String(error)}`);
        this.say({ kind: "problem", text: error instanceof Error ? error.message : String(error) });
      }
    }
  }

  /** As the lens does; what it measured comes back as a change of the pictures. */
  private async run(): Promise<void> {
    const name = this.pictured;
    if (this.shown !== undefined && name !== undefined) {
      await vscode.commands.executeCommand("fuselens.runFunction", this.shown.uri, name);
    }
  }

  private say(message: ToPage): void {
    void this.panel?.webview.postMessage(message);
  }

  private tellCursor(editor: vscode.TextEditor): void {
    if (editor.document.languageId === "python") {
      this.say({ kind: "cursor", uri: editor.document.uri.toString(), line: editor.selection.active.line });
    }
  }

  private async reveal({ uri, range: { start, end } }: Place): Promise<void> {
    const target = vscode.Uri.parse(uri);
    const open = vscode.window.visibleTextEditors.find(({ document }) => document.uri.toString() === target.toString());
    const beside = this.panel?.viewColumn === vscode.ViewColumn.One ? vscode.ViewColumn.Two : vscode.ViewColumn.One;
    const selection = new vscode.Range(start.line, start.character, end.line, end.character);
    const editor = await vscode.window.showTextDocument(target, { viewColumn: open?.viewColumn ?? beside, selection });
    editor.revealRange(selection, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
  }

  /** Runs the file in a terminal, as its owner would, so that it says what it compiles and how long kernels take. */
  private async runAndFollow(): Promise<void> {
    const uri = this.shown && vscode.Uri.parse(this.shown.uri);
    const python = this.session.currentInterpreter?.path;
    if (uri?.scheme !== "file" || python === undefined) {
      void vscode.window.showInformationMessage("Fuselens: only a Python file on the disk can be run.");
      return;
    }
    const open = vscode.workspace.textDocuments.find((document) => document.uri.toString() === uri.toString());
    if (open?.isDirty && !(await open.save())) {
      return;
    }
    const terminal = vscode.window.createTerminal({ name: "Fuselens: run", cwd: dirname(uri.fsPath), env: { FUSELENS_LIVE: "1" } });
    terminal.show(true);
    terminal.sendText(`${quoted(python)} ${quoted(uri.fsPath)}`);
  }

  private async save({ name, suffix, content, base64 }: Extract<FromPage, { kind: "save" }>): Promise<void> {
    const folder = this.shown ? vscode.Uri.joinPath(vscode.Uri.parse(this.shown.uri), "..") : undefined;
    const filters = suffix === "svg" ? { "SVG picture": ["svg"] } : { "PNG picture": ["png"] };
    const defaultUri = folder && vscode.Uri.joinPath(folder, `${name}.${suffix}`);
    const target = await vscode.window.showSaveDialog({ filters, title: "Save Picture", ...(defaultUri && { defaultUri }) });
    if (target === undefined) {
      return;
    }
    try {
      await vscode.workspace.fs.writeFile(target, Buffer.from(content, base64 ? "base64" : "utf8"));
      void vscode.window.showInformationMessage(`Fuselens: the picture is in ${vscode.workspace.asRelativePath(target)}.`);
    } catch (error) {
      void vscode.window.showErrorMessage(`Fuselens: the picture was not written: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
}
