// The picker for the interpreter. A choice is stored in `fuselens.interpreter`, for the workspace if there is one.

import * as vscode from "vscode";
import { firstExecutable, isExecutable, sources, workspaceCandidates } from "./environments";
import { onSearchPath } from "./interpreters";
import type { Session } from "./session";

interface Choice extends vscode.QuickPickItem {
  act(): Promise<string | undefined>;
}

const SETTING = "the setting fuselens.interpreter";

export async function selectInterpreter(session: Session): Promise<void> {
  const picked = await vscode.window.showQuickPick(choices(session), {
    title: "Fuselens: Python interpreter that compiles your files",
    placeHolder: session.currentInterpreter
      ? `now ${session.currentInterpreter.path}, from ${session.currentInterpreter.origin}`
      : "none is in use",
    matchOnDescription: true,
  });
  const path = await picked?.act();
  if (path !== undefined) {
    const target = vscode.workspace.workspaceFolders ? vscode.ConfigurationTarget.Workspace : vscode.ConfigurationTarget.Global;
    await vscode.workspace.getConfiguration("fuselens").update("interpreter", path || undefined, target);
  }
}

async function choices(session: Session): Promise<Choice[]> {
  const found = new Map<string, string>();
  for (const { origin, find } of sources()) {
    const path = origin === SETTING ? undefined : await find().catch(() => undefined);
    if (path && !found.has(path)) {
      found.set(path, origin);
    }
  }
  for (const path of [...workspaceCandidates(), ...onSearchPath(process.env.PATH ?? "", process.platform === "win32")]) {
    if (!found.has(path) && (await isExecutable(path))) {
      found.set(path, "found");
    }
  }
  const current = session.currentInterpreter?.path;
  return [
    ...[...found].map(([path, origin]) => ({
      label: `${path === current ? "$(check) " : ""}${path}`,
      description: origin,
      act: async () => path,
    })),
    { label: "", kind: vscode.QuickPickItemKind.Separator, act: async () => undefined },
    { label: "$(folder-opened) Browse…", act: browse },
    { label: "$(discard) Choose automatically", description: "clears the setting", act: async () => "" },
  ];
}

async function browse(): Promise<string | undefined> {
  const [picked] =
    (await vscode.window.showOpenDialog({ canSelectMany: false, openLabel: "Use This Interpreter", title: "Python interpreter" })) ?? [];
  if (picked === undefined) {
    return undefined;
  }
  const path = await firstExecutable([picked.fsPath]);
  if (path === undefined) {
    void vscode.window.showErrorMessage(`${picked.fsPath} is not executable.`);
  }
  return path;
}
