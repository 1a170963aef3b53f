// Patches of libraries that the project keeps: the commands of the palette, for the file that is shown.

import * as vscode from "vscode";
import type { Session } from "../server/session";

export class Patches implements vscode.Disposable {
  private readonly registrations: vscode.Disposable[];

  constructor(
    private readonly session: Session,
    private readonly output: vscode.LogOutputChannel,
  ) {
    this.registrations = [
      this.command("patchLibraries", "fuselens.server.patchLibrary"),
      this.command("removePatch", "fuselens.server.removePatch"),
    ];
  }

  dispose(): void {
    this.registrations.forEach((item) => item.dispose());
  }

  private command(name: string, ofServer: string): vscode.Disposable {
    return vscode.commands.registerCommand(`fuselens.${name}`, async (given?: vscode.Uri | string) => {
      const uri = given ?? vscode.window.activeTextEditor?.document.uri;
      try {
        await this.session.execute(ofServer, [uri?.toString()]);
      } catch (error) {
        const message = error instanceof Error ? error.message : String(error);
        this.output.error(`fuselens.${name}: ${message}`);
        void vscode.window.showErrorMessage(`Fuselens: ${message}`);
      }
    });
  }
}
