// Installs the compiler where the person's torch is, after the person has seen how.

import * as vscode from "vscode";
import which from "which";
import type { Session } from "../server/session";
import { installation, REQUIREMENT, shown, type EnvironmentFacts, type Installation } from "./installing";
import { output } from "./running";

const FACTS = `
import importlib.util, json, os, sys, sysconfig
config = os.path.join(sys.prefix, "pyvenv.cfg")
made = open(config, encoding="utf-8").read() if os.path.isfile(config) else ""
print(json.dumps({
    "prefix": sys.prefix,
    "virtual": sys.prefix != sys.base_prefix,
    "pip": importlib.util.find_spec("pip") is not None,
    "madeByUv": any(line.split("=")[0].strip() == "uv" for line in made.splitlines()),
    "conda": os.path.isdir(os.path.join(sys.prefix, "conda-meta")),
    "managed": os.path.isfile(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")),
}))
`;
const TASK = "Install fuselens[server]";

export async function install(session: Session): Promise<void> {
  const interpreter = session.currentInterpreter?.path;
  if (interpreter === undefined) {
    await vscode.commands.executeCommand("fuselens.selectInterpreter");
    return;
  }
  const lines = (await output(interpreter, ["-c", FACTS], 20)).trim().split("\n");
  const facts = { ...(JSON.parse(lines.at(-1) ?? "{}") as EnvironmentFacts), interpreter };
  const [uv, conda] = await Promise.all(["uv", "conda"].map((name) => which(name, { nothrow: true })));
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  const way = installation(facts, { uv: uv ?? undefined, conda: conda ?? undefined }, folder, process.platform === "win32");
  if (way === undefined) {
    throw new Error("the system keeps this Python for itself. Open a folder, where an environment can be made, or select another Python.");
  }
  const lead = [way.why, "This runs in a terminal:"].filter((text) => text !== "").join(" ");
  const detail = `${lead}\n\n${way.commands.map(shown).join("\n")}\n\nIt downloads from the package index that is configured there, torch too where there is none.`;
  const go = "Install";
  if ((await vscode.window.showInformationMessage(`Install ${REQUIREMENT}?`, { modal: true, detail }, go)) !== go) {
    return;
  }
  if (!(await ran(way))) {
    void vscode.window.showErrorMessage(`Fuselens: ${REQUIREMENT} could not be installed. The terminal says why.`);
    return;
  }
  if (way.interpreter !== interpreter) {
    await vscode.workspace.getConfiguration("fuselens").update("interpreter", way.interpreter, vscode.ConfigurationTarget.Workspace);
  }
  await session.restart("the compiler was installed");
}

/** Runs the commands one after the other in a terminal. Returns whether all of them succeeded. */
async function ran({ commands }: Installation): Promise<boolean> {
  for (const [program = "", ...words] of commands) {
    const quoted = words.map((value) => ({ value, quoting: vscode.ShellQuoting.Strong }));
    const shell = new vscode.ShellExecution({ value: program, quoting: vscode.ShellQuoting.Strong }, quoted);
    const task = new vscode.Task({ type: "fuselens.install" }, vscode.TaskScope.Workspace, TASK, "fuselens", shell, []);
    task.presentationOptions = { reveal: vscode.TaskRevealKind.Always, panel: vscode.TaskPanelKind.Dedicated };
    if ((await exitCode(task)) !== 0) {
      return false;
    }
  }
  return true;
}

async function exitCode(task: vscode.Task): Promise<number | undefined> {
  const ended = new Promise<number | undefined>((resolve) => {
    const listening = vscode.tasks.onDidEndTaskProcess(({ execution, exitCode: code }) => {
      if (execution.task.name === TASK) {
        listening.dispose();
        resolve(code);
      }
    });
  });
  await vscode.tasks.executeTask(task);
  return ended;
}
