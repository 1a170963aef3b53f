// The picker for the interpreter. A choice is stored in `fuselens.interpreter`, for the workspace if there is one.

import * as vscode from "vscode";
import { sources, workspaceCandidates } from "./environments";
import { firstExecutable, onSearchPath, serverEnvironment } from "./interpreters";
import { inWords, probe } from "./probe";
import type { Session } from "./session";

interface Choice extends vscode.QuickPickItem {
  /** An interpreter, whose versions are looked up while the list is shown. */
  path?: string;
  act(): Promise<string | undefined>;
}

const SETTING = "the setting fuselens.interpreter";
const PROBE_SECONDS = 10;

export async function selectInterpreter(session: Session): Promise<void> {
  const path = await (await pick(session))?.act();
  if (path !== undefined) {
    const target = vscode.workspace.workspaceFolders ? vscode.ConfigurationTarget.Workspace : vscode.ConfigurationTarget.Global;
    await vscode.workspace.getConfiguration("fuselens").update("interpreter", path || undefined, target);
  }
}

/** Shows what there is at once, and what each interpreter has as soon as it says so. */
function pick(session: Session): Promise<Choice | undefined> {
  const list = vscode.window.createQuickPick<Choice>();
  const current = session.currentInterpreter;
  list.title = "Fuselens: Python interpreter that compiles your files";
  list.placeholder = current ? `now ${current.path}, from ${current.origin}` : "none is in use";
  list.matchOnDescription = true;
  list.matchOnDetail = true;
  list.keepScrollPosition = true;
  list.busy = true;
  let open = true;
  return new Promise((resolve) => {
    list.onDidAccept(() => {
      resolve(list.selectedItems[0]);
      list.hide();
    });
    list.onDidHide(() => {
      open = false;
      resolve(undefined);
      list.dispose();
    });
    list.show();
    void choices(session).then(async (items) => {
      const draw = (): void => {
        if (open) {
          const active = list.activeItems[0]?.path;
          list.items = items;
          list.activeItems = items.filter(({ path }) => path !== undefined && path === active);
        }
      };
      draw();
      await Promise.all(
        items.map(async (item) => {
          if (item.path !== undefined) {
            const found = probe(item.path, [], serverEnvironment(process.env), PROBE_SECONDS).then(inWords);
            item.detail = await found.catch((error: unknown) => (error instanceof Error ? error.message : String(error)));
            draw();
          }
        }),
      );
      if (open) {
        list.busy = false;
      }
    });
  });
}

async function choices(session: Session): Promise<Choice[]> {
  const found = new Map<string, string>();
  for (const { origin, find } of sources()) {
    const path = origin === SETTING ? undefined : await find().catch(() => undefined);
    if (path && !found.has(path)) {
      found.set(path, origin);
    }
  }
  const current = session.currentInterpreter;
  if (current !== undefined && !found.has(current.path)) {
    found.set(current.path, current.origin);
  }
  for (const path of [...workspaceCandidates(), ...(await onSearchPath())]) {
    if (!found.has(path) && (await firstExecutable([path])) !== undefined) {
      found.set(path, "found");
    }
  }
  return [
    ...[...found].map(([path, origin]) => ({
      label: `${path === current?.path ? "$(check) " : ""}${path}`,
      description: origin,
      detail: "…",
      path,
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
