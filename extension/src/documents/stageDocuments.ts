// Virtual documents: stages of a compilation, whose text the server has, and notes, whose text we have.

import * as vscode from "vscode";
import { DOCUMENT_CONTENT, type DocumentContent } from "../server/protocol";
import type { Session } from "../server/session";
import { addressKey, queryInEditor, queryOnServer, SCHEME } from "./uris";

export const NOTE_SCHEME = "fuselens-note";

/** The URI by which the editor has what the server calls `address`. */
export function toEditor(address: string): vscode.Uri {
  const uri = vscode.Uri.parse(address);
  return uri.with({ query: queryInEditor(uri) });
}

/** What the server calls a document of the editor. */
export function toServer(uri: vscode.Uri): string {
  return uri.with({ query: queryOnServer(uri) }).toString();
}

export class StageDocuments implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  private readonly registrations: vscode.Disposable[];
  readonly onDidChange = this.changed.event;

  constructor(private readonly session: Session) {
    this.registrations = [
      vscode.workspace.registerTextDocumentContentProvider(SCHEME, this),
      session.onDocuments((uris) => this.refresh(uris)),
      this.changed,
    ];
  }

  async provideTextDocumentContent(uri: vscode.Uri, token: vscode.CancellationToken): Promise<string> {
    try {
      const params = { uri: toServer(uri) };
      return (await this.session.request<DocumentContent>(DOCUMENT_CONTENT, params, token)).text;
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      return `This document is not available now: ${reason}\nIt is filled in when the file has been compiled again.\n`;
    }
  }

  dispose(): void {
    this.registrations.forEach((item) => item.dispose());
  }

  private refresh(uris: string[] | "all"): void {
    const wanted = uris === "all" ? undefined : new Set(uris.map(addressKey));
    for (const { uri } of vscode.workspace.textDocuments) {
      if (uri.scheme === SCHEME && (wanted === undefined || wanted.has(addressKey(uri.toString())))) {
        this.changed.fire(uri);
      }
    }
  }
}

/** Short texts made here: run results and explanations. The last one under each name is kept. */
export class Notes implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly texts = new Map<string, string>();
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changed.event; // before the registration, which looks for it
  private readonly registration = vscode.workspace.registerTextDocumentContentProvider(NOTE_SCHEME, this);

  /** Stores `text` under `name`; show it with {@link show}. */
  put(name: string, text: string): vscode.Uri {
    const uri = vscode.Uri.from({ scheme: NOTE_SCHEME, path: `/${name}` });
    this.texts.set(uri.path, text);
    this.changed.fire(uri);
    return uri;
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.path) ?? "";
  }

  dispose(): void {
    this.registration.dispose();
    this.changed.dispose();
  }
}

/** The line of a document to show, counted from 1. */
export type Line = (text: string) => number | undefined;

/** Opens a virtual document beside the code, in the same group as the one opened before. */
export async function show(uri: vscode.Uri, language?: string, lineOf?: Line): Promise<vscode.TextEditor> {
  let document = await vscode.workspace.openTextDocument(uri);
  if (language !== undefined && document.languageId !== language) {
    const known = await vscode.languages.getLanguages();
    if (known.includes(language)) {
      document = await vscode.languages.setTextDocumentLanguage(document, language);
    }
  }
  const shown = vscode.window.visibleTextEditors.find(
    ({ document: { uri: other } }) => other.scheme === SCHEME || other.scheme === NOTE_SCHEME,
  );
  const viewColumn = shown?.viewColumn ?? vscode.ViewColumn.Beside;
  const line = lineOf?.(document.getText());
  const editor = await vscode.window.showTextDocument(document, { viewColumn, preview: true, preserveFocus: false });
  if (line !== undefined) {
    const { range } = document.lineAt(Math.min(line, document.lineCount) - 1);
    editor.selection = new vscode.Selection(range.start, range.start);
    editor.revealRange(range, vscode.TextEditorRevealType.AtTop);
  }
  return editor;
}
