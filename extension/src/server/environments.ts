// The interpreters that the editor knows of, in order of precedence: our own setting, the Python Environments extension,
// the Python extension, a virtual environment in the workspace, the search path. Both extensions are optional.

import { homedir } from "node:os";
import { PVSC_EXTENSION_ID, PythonExtension } from "@vscode/python-extension";
import * as vscode from "vscode";
import { chooseInterpreter, environmentsIn, expandPath, firstExecutable, onSearchPath, type Failed, type Source } from "./interpreters";

const ENVIRONMENTS = "ms-python.vscode-python-envs";
const WINDOWS = process.platform === "win32";

/** What is used of the Python Environments extension. */
interface EnvironmentsApi {
  getEnvironment(scope: vscode.Uri | undefined): Promise<{ execInfo?: { run?: { executable?: string } } } | undefined>;
  onDidChangeEnvironment: vscode.Event<unknown>;
}

/** An interpreter from the settings, expanded; "" when none is set. */
export function configuredPath(setting: "interpreter" | "serverInterpreter", folder = workspaceFolder()): string {
  const text = vscode.workspace.getConfiguration("fuselens", folder).get<string>(setting, "");
  return expandPath(text, { home: homedir(), workspaceFolder: folder?.uri.fsPath, environment: process.env });
}

/**
 * The interpreter of the workspace folder of `scope`: the one that it sets for itself, else, beside other folders, the one that
 * it would have alone; "" where that of the whole workspace holds.
 */
export async function interpreterOf(scope: vscode.Uri | undefined, failed: Failed): Promise<string> {
  const folder = scope && vscode.workspace.getWorkspaceFolder(scope);
  const own = folderInterpreter(folder);
  if (own !== "" || folder === undefined || (vscode.workspace.workspaceFolders ?? []).length < 2) {
    return own;
  }
  return (await chooseInterpreter(sources(folder), failed))?.path ?? "";
}

/** The interpreters of all folders, each once: any of them may run the server. */
export async function interpretersOfFolders(failed: Failed): Promise<string[]> {
  const found = await Promise.all((vscode.workspace.workspaceFolders ?? []).map(({ uri }) => interpreterOf(uri, failed)));
  return [...new Set(found.filter((path) => path !== ""))];
}

function folderInterpreter(folder: vscode.WorkspaceFolder | undefined): string {
  const text = vscode.workspace.getConfiguration("fuselens", folder).inspect<string>("interpreter")?.workspaceFolderValue;
  return expandPath(text ?? "", { home: homedir(), workspaceFolder: folder?.uri.fsPath, environment: process.env });
}

/** Where the interpreter of `folder` may come from: of that of the active editor where none is given. */
export function sources(folder: vscode.WorkspaceFolder | undefined = workspaceFolder()): Source[] {
  return [
    { origin: "the setting fuselens.interpreter", find: async () => configuredPath("interpreter", folder) },
    { origin: "the Python Environments extension", find: () => fromEnvironments(folder) },
    { origin: "the Python extension", find: () => fromPython(folder) },
    { origin: "the workspace", find: () => firstExecutable(workspaceCandidates(folder)) },
    { origin: "the search path", find: async () => (await onSearchPath())[0] },
  ];
}

/** Calls `changed` whenever another answer of {@link sources} is possible. */
export function watchSources(changed: () => void): vscode.Disposable {
  const watching: vscode.Disposable[] = [];
  const watched = new Set<string>();
  const watchExtensions = async (): Promise<void> => {
    for (const [id, eventOf] of [
      [ENVIRONMENTS, (api: unknown) => (api as Partial<EnvironmentsApi>).onDidChangeEnvironment],
      [PVSC_EXTENSION_ID, (api: unknown) => (api as Partial<PythonExtension>).environments?.onDidChangeActiveEnvironmentPath],
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

async function fromEnvironments(folder: vscode.WorkspaceFolder | undefined): Promise<string | undefined> {
  const api = (await activated(ENVIRONMENTS)) as EnvironmentsApi | undefined;
  const environment = await api?.getEnvironment(folder?.uri);
  return environment?.execInfo?.run?.executable;
}

async function fromPython(folder: vscode.WorkspaceFolder | undefined): Promise<string | undefined> {
  if (vscode.extensions.getExtension(PVSC_EXTENSION_ID) === undefined) {
    return undefined;
  }
  const { environments } = await PythonExtension.api();
  const resolved = await environments.resolveEnvironment(environments.getActiveEnvironmentPath(folder?.uri));
  // An environment without an interpreter (a bare conda one) resolves without a URI.
  return resolved?.executable.uri?.fsPath;
}

/** Virtual environments in the workspace's folders, those of `first` before the others. */
export function workspaceCandidates(first?: vscode.WorkspaceFolder): string[] {
  const others = (vscode.workspace.workspaceFolders ?? []).filter((folder) => folder !== first);
  return [...(first ? [first] : []), ...others].flatMap((folder) => environmentsIn(folder.uri.fsPath, WINDOWS));
}

/** The folder of the active editor, else the first one. */
function workspaceFolder(): vscode.WorkspaceFolder | undefined {
  const active = vscode.window.activeTextEditor?.document.uri;
  return (active && vscode.workspace.getWorkspaceFolder(active)) ?? vscode.workspace.workspaceFolders?.[0];
}
