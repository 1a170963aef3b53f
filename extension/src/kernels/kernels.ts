// Kernels that the person edits: the commands of the palette, on the document that is shown, and our text beside a draft.

import * as vscode from "vscode";
import { toServer } from "../documents/stageDocuments";
import { SCHEME } from "../documents/uris";
import { resolveTarget } from "../functions/commands";
import type { Session } from "../server/session";
import { oursBeside } from "./paths";

/** On a draft or a pinned kernel. */
const ON_KERNELS = ["verifyKernel", "pinKernel", "unpinKernel", "discardKernel"];

export class Kernels implements vscode.Disposable {
  private readonly registrations: vscode.Disposable[];

  constructor(
    private readonly session: Session,
    private readonly output: vscode.LogOutputChannel,
  ) {
    this.registrations = [
      this.command("editKernel", () => this.edit()),
      this.command("compareKernel", (uri) => this.compare(uri)),
      ...ON_KERNELS.map((name) => this.command(name, (uri) => this.onKernel(name, uri))),
    ];
  }

  dispose(): void {
    this.registrations.forEach((item) => item.dispose());
  }

  private command(name: string, body: (uri: vscode.Uri | undefined) => Promise<unknown>): vscode.Disposable {
    return vscode.commands.registerCommand(`fuselens.${name}`, async (given?: vscode.Uri | string) => {
      const uri = typeof given === "string" ? vscode.Uri.parse(given) : (given ?? vscode.window.activeTextEditor?.document.uri);
      try {
        await body(uri);
      } catch (error) {
        const message = error instanceof Error ? error.message : String(error);
        this.output.error(`fuselens.${name}: ${message}`);
        void vscode.window.showErrorMessage(`Fuselens: ${message}`);
      }
    });
  }

  /** Of the kernel at the cursor of a generated document, or the first kernels of the function at the cursor. */
  private async edit(): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (editor?.document.uri.scheme === SCHEME) {
      await this.session.execute("fuselens.server.editKernel", [toServer(editor.document.uri), editor.selection.active.line + 1]);
      return;
    }
    const target = await resolveTarget(undefined, undefined);
    if (target !== undefined) {
      await this.session.execute("fuselens.server.editKernel", [target.file, null, target.function ?? null]);
    }
  }

  private async onKernel(name: string, uri: vscode.Uri | undefined): Promise<void> {
    const document = vscode.workspace.textDocuments.find((open) => open.uri.toString() === uri?.toString());
    if (document?.isDirty && name !== "discardKernel" && !(await document.save())) {
      return;
    }
    await this.session.execute(`fuselens.server.${name}`, [uri?.toString()]);
  }

  private async compare(uri: vscode.Uri | undefined): Promise<void> {
    if (uri !== undefined) {
      await vscode.commands.executeCommand("vscode.diff", uri.with({ path: oursBeside(uri.path) }), uri, "our kernel ↔ yours");
    }
  }
}
