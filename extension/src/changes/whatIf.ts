// What if: the changes of a function that gain, as a list. The one that a person chooses is made as an edit, which can be undone.

import * as vscode from "vscode";
import { show, toEditor } from "../documents/stageDocuments";
import { type OfferedChanges, SERVER_APPLY_CHANGE, SERVER_WHAT_IF } from "../server/protocol";
import type { Session } from "../server/session";
import { changeItems } from "./items";

export async function whatIf(session: Session, file: string, name: string): Promise<void> {
  const told = await session.execute<OfferedChanges>(SERVER_WHAT_IF, [file, name]); // the server shows how far it is
  const chosen = await vscode.window.showQuickPick(changeItems(told), {
    title: `${name}: ${told.headline}`,
    placeHolder: told.offered.length > 0 ? "Which change to make?" : "Nothing to make",
    matchOnDescription: true,
    matchOnDetail: true,
  });
  if (chosen === undefined) {
    return;
  }
  if (chosen.change === undefined) {
    await show(toEditor(told.document));
  } else if (!(await session.execute<boolean>(SERVER_APPLY_CHANGE, [file, name, chosen.change]))) {
    void vscode.window.showWarningMessage("Fuselens: the change was not made.");
  }
}
