// The example, as a file of the person's own: it can be changed and saved, and stays as it was left.

import * as vscode from "vscode";

const NAME = "toy.py";

export async function openExample(context: vscode.ExtensionContext): Promise<void> {
  const folder = vscode.Uri.joinPath(context.globalStorageUri, "example");
  const file = vscode.Uri.joinPath(folder, NAME);
  await vscode.workspace.fs.createDirectory(folder);
  try {
    await vscode.workspace.fs.copy(vscode.Uri.joinPath(context.extensionUri, "media", NAME), file, { overwrite: false });
  } catch (error) {
    if (!(error instanceof vscode.FileSystemError && error.code === "FileExists")) {
      throw error;
    }
  }
  await vscode.window.showTextDocument(file, { preview: false });
}
