// The link "Peek stages" of hovers: what code became, in the editor's own peek view.

import * as vscode from "vscode";
import { SCHEME } from "../documents/uris";

/** Opens the view at a place (counted from 0), because a hover may be far from the cursor. */
export async function peekStages(file: string, line: number, column: number): Promise<void> {
  const uri = vscode.Uri.parse(file);
  const position = new vscode.Position(line, column);
  const found = await vscode.commands.executeCommand<(vscode.Location | vscode.LocationLink)[]>(
    "vscode.executeImplementationProvider",
    uri,
    position,
  );
  const stages = found.map(location).filter((stage) => stage.uri.scheme === SCHEME); // others are another extension's
  if (stages.length === 0) {
    void vscode.window.showInformationMessage("Fuselens: nothing was made of this code.");
    return;
  }
  await vscode.commands.executeCommand("editor.action.peekLocations", uri, position, stages, "peek");
}

function location(found: vscode.Location | vscode.LocationLink): vscode.Location {
  return "targetUri" in found ? new vscode.Location(found.targetUri, found.targetSelectionRange ?? found.targetRange) : found;
}
