// Places in Python files as the compiler counts them: columns are bytes.

import * as vscode from "vscode";
import type { Place } from "./history";

/** Opens a file at a place, beside nothing: where code is edited. */
export async function openPlace(place: Place): Promise<void> {
  const document = await vscode.workspace.openTextDocument(vscode.Uri.file(place.file));
  const position = positionOf(document, place);
  const shown = vscode.window.visibleTextEditors.find((editor) => editor.document === document);
  const column = shown?.viewColumn ?? vscode.ViewColumn.One;
  const editor = await vscode.window.showTextDocument(document, { viewColumn: column });
  editor.selection = new vscode.Selection(position, position);
  editor.revealRange(editor.selection, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
}

export function positionOf(document: vscode.TextDocument, place: Place): vscode.Position {
  const line = Math.min(Math.max(place.line - 1, 0), document.lineCount - 1);
  const before = Buffer.from(document.lineAt(line).text).subarray(0, place.column).toString();
  return new vscode.Position(line, before.length);
}
