// The interpreters that the editor knows of, in order of precedence: our own setting, the Python Environments extension,
// the Python extension, a virtual environment in the workspace, the search path. Both extensions are optional.

import { access, constants } from "node:fs/promises";
import { homedir } from "node:os";
import * as vscode from "vscode";
import { environmentsIn, expandPath, onSearchPath, type Source } from "./interpreters";

const ENVIRONMENTS = "ms-python.vscode-python-envs";
const PYTHON = "ms-python.python";
const WINDOWS = process.platform === "win32";

/** What is used of the Python Environments extension. */
interface EnvironmentsApi {
  getEnvironment(scope: vscode.Uri | undefined): Promise<{ execInfo?: { run?: { executable?: string } } } | undefined>;
  onDidChangeEnvironment: vscode.Event<unknown>;
}

/** What is used of the Python extension. */
interface PythonApi {
  environments: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { path: string };
    resolveEnvironment(environment: { path: string }): Promise<{ executable: { uri?: vscode.Uri } } | undefined>;
    onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

/** An interpreter from the settings, expanded; "" when none is set. */
export function configuredPath(setting: "interpreter" | "serverInterpreter"): string {
  const folder = workspaceFolder();
  const text = vscode.workspace.getConfiguration("fuselens", folder).get<string>(setting, "");
  return expandPath(text, { home: homedir(), workspaceFolder: folder?.uri.fsPath, environment: process.env });
}

/** The interpreter that the workspace folder of `scope` sets for itself, expanded; "" when it sets none. */
export function folderInterpreter(scope: vscode.Uri | undefined): string {
  const folder = scope && vscode.workspace.getWorkspaceFolder(scope);
  const text = vscode.workspace.getConfiguration("fuselens", folder).inspect<string>("interpreter")?.workspaceFolderValue;
  return expandPath(text ?? "", { home: homedir(), workspaceFolder: folder?.uri.fsPath, environment: process.env });
}

export function sources(): Source[] {
  return [
    { origin: "the setting fuselens.interpreter", find: async () => configuredPath("interpreter") },
    { origin: "the Python Environments extension", find: fromEnvironments },
    { origin: "the Python extension", find: fromPython },
    { origin: "the workspace", find: () => firstExecutable(workspaceCandidates()) },
    { origin: "the search path", find: () => firstExecutable(onSearchPath(process.env.PATH ?? "", WINDOWS)) },
  ];
}

/** Calls `changed` whenever another answer of {@link sources} is possible. */
export function watchSources(changed: () => void): vscode.Disposable {
  const watching: vscode.Disposable[] = [];
  const watched = new Set<string>();
  const watchExtensions = async (): Promise<void> => {
    for (const [id, eventOf] of [
      [ENVIRONMENTS, (api: unknown) => (api as Partial<EnvironmentsApi>).onDidChangeEnvironment],
      [PYTHON, (api: unknown) => (api as Partial<PythonApi>).environments?.onDidChangeActiveEnvironmentPath],
    ] as const) {
      if (!watched.has(id)) {
        const event = eventOf((await activated(id).catch(() => undefined)) ?? {});
        if (event !== undefined && !watched.has(id)) {
          watched.add(id);
          watching.push(event(changed));
        }
      }
    }
  };
  void watchExtensions();
  watching.push(
    vscode.extensions.onDidChange(() => {
      void watchExtensions().then(changed);
    }),
    vscode.workspace.onDidChangeWorkspaceFolders(changed),
  );
  return new vscode.Disposable(() => watching.forEach((item) => item.dispose()));
}

async function activated(id: string): Promise<unknown> {
  const extension = vscode.extensions.getExtension<unknown>(id);
  return extension?.activate();
}

async function fromEnvironments(): Promise<string | undefined> {
  const api = (await activated(ENVIRONMENTS)) as EnvironmentsApi | undefined;
  const environment = await api?.getEnvironment(workspaceFolder()?.uri);
  return environment?.execInfo?.run?.executable;
}

async function fromPython(): Promise<string | undefined> {
  const api = (await activated(PYTHON)) as PythonApi | undefined;
  if (api?.environments === undefined) {
    return undefined;
  }
  const active = api.environments.getActiveEnvironmentPath(workspaceFolder()?.uri);
  const resolved = await api.environments.resolveEnvironment(active);
  // An environment without an interpreter (a bare conda one) resolves without a URI.
  return resolved?.executable.uri?.fsPath;
}

export function workspaceCandidates(): string[] {
  return (vscode.workspace.workspaceFolders ?? []).flatMap((folder) => environmentsIn(folder.uri.fsPath, WINDOWS));
}

export async function firstExecutable(candidates: readonly string[]): Promise<string | undefined> {
  for (const candidate of candidates) {
    if (await isExecutable(candidate)) {
      return candidate;
    }
  }
  return undefined;
}

export function isExecutable(path: string): Promise<boolean> {
  return access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}

/** The folder of the active editor, else the first one. */
function workspaceFolder(): vscode.WorkspaceFolder | undefined {
  const active = vscode.window.activeTextEditor?.document.uri;
  return (active && vscode.workspace.getWorkspaceFolder(active)) ?? vscode.workspace.workspaceFolders?.[0];
}
