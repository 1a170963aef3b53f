// Two compilations of a function side by side: one sentence, and the difference of the stage that a person chooses.

import * as vscode from "vscode";
import type { Notes } from "../documents/stageDocuments";
import { type Comparison, type ComparedStage, SERVER_COMPARE } from "../server/protocol";
import type { Session } from "../server/session";
import { diffTitle, inOrder, MODES, sideName } from "./stages";

export type CompareWith = "save" | "targets" | "mode";

export class Comparisons {
  constructor(
    private readonly session: Session,
    private readonly notes: Notes,
  ) {}

  async compare(file: string, name: string, way: CompareWith): Promise<void> {
    const mode = way === "mode" ? await pickMode() : null;
    if (mode === undefined) {
      return;
    }
    const options = { location: vscode.ProgressLocation.Notification, title: `Fuselens: comparing ${name}`, cancellable: true };
    const told = await vscode.window.withProgress(options, (_progress, token) =>
      this.session.execute<Comparison>(SERVER_COMPARE, [file, name, way, mode], token),
    );
    const sentence = `${name}, ${told.before} → ${told.after}: ${told.sentence}.`;
    const stage = told.stages.some(({ differs }) => differs) ? await pickStage(name, told) : undefined;
    if (stage !== undefined) {
      await this.show(name, told, stage);
    }
    void vscode.window.showInformationMessage(`Fuselens: ${sentence}`);
  }

  private async show(name: string, told: Comparison, stage: ComparedStage): Promise<void> {
    const left = this.notes.put(sideName(name, told.before, stage), stage.before);
    const right = this.notes.put(sideName(name, told.after, stage), stage.after);
    await vscode.commands.executeCommand("vscode.diff", left, right, diffTitle(name, told, stage), { preview: true });
  }
}

async function pickMode(): Promise<string | undefined> {
  return vscode.window.showQuickPick(MODES, { title: "Compare the default mode with …", placeHolder: "The other mode of fuselens.compile" });
}

async function pickStage(name: string, told: Comparison): Promise<ComparedStage | undefined> {
  type Item = vscode.QuickPickItem & { stage: ComparedStage };
  const items = inOrder(told.stages).map((stage): Item => ({
    label: stage.title,
    description: stage.differs ? "differs" : "the same",
    stage,
  }));
  const title = `${name}, ${told.before} → ${told.after}: ${told.sentence}`;
  return (await vscode.window.showQuickPick(items, { title, placeHolder: "Which stage to compare?", matchOnDescription: true }))?.stage;
}
