// A file compared with a revision of git: which one a person chooses, and what came of it in a sentence. The marks are the server's,
// and drawn beside line numbers with all others.

import * as vscode from "vscode";
import { type Revision, SERVER_REVISIONS, SERVER_SINCE, type SinceRevision } from "../server/protocol";
import type { Session } from "../server/session";
import { revisionItems } from "./stages";

export async function compareSince(session: Session, file: string): Promise<void> {
  const revision = await pickRevision(await session.execute<Revision[]>(SERVER_REVISIONS, [file]));
  if (revision === undefined) {
    return;
  }
  const options = { location: vscode.ProgressLocation.Notification, title: `Fuselens: comparing with ${revision}`, cancellable: true };
  const told = await vscode.window.withProgress(options, (_progress, token) =>
    session.execute<SinceRevision>(SERVER_SINCE, [file, revision], token),
  );
  void vscode.window.showInformationMessage(`Fuselens: ${told.sides}: ${told.sentence}`);
}

/** Takes the marks away. */
export async function stopComparing(session: Session, file: string): Promise<void> {
  await session.execute(SERVER_SINCE, [file, ""]);
}

/** One of the list, or whatever a person types that git understands. */
function pickRevision(known: readonly Revision[]): Promise<string | undefined> {
  const pick = vscode.window.createQuickPick();
  pick.title = "Compare with a revision of git";
  pick.placeholder = "A branch, a tag, a commit, or any name that git understands, such as HEAD~3";
  pick.matchOnDescription = true;
  pick.items = revisionItems(known, "");
  pick.onDidChangeValue((typed) => (pick.items = revisionItems(known, typed)));
  return new Promise((resolve) => {
    pick.onDidAccept(() => {
      const chosen = pick.selectedItems[0] ?? pick.activeItems[0];
      resolve(chosen?.label ?? (pick.value.trim() || undefined));
      pick.hide();
    });
    pick.onDidHide(() => {
      resolve(undefined);
      pick.dispose();
    });
    pick.show();
  });
}
