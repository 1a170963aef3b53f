// Doctor: gathers what a report on this installation says, and shows it.

import { arch, platform, release } from "node:os";
import * as vscode from "vscode";
import { type Notes, show } from "../documents/stageDocuments";
import type { Session } from "../server/session";
import { report, type Facts, type PythonFacts, type Told } from "./report";
import { output } from "./running";

const SECONDS = 60; // torch is imported, to see whether it finds a GPU
const NAME = "Fuselens doctor.txt";

export async function doctor(context: vscode.ExtensionContext, session: Session, notes: Notes): Promise<void> {
  const options = { location: vscode.ProgressLocation.Window, title: "Fuselens: looking at this installation" };
  const text = report(await vscode.window.withProgress(options, () => facts(context, session)));
  await show(notes.put(NAME, text));
  const copy = "Copy";
  void vscode.window.showInformationMessage("Fuselens: this report can go into an issue as it is.", copy).then(async (chosen) => {
    if (chosen === copy) {
      await vscode.env.clipboard.writeText(text);
    }
  });
}

async function facts(context: vscode.ExtensionContext, session: Session): Promise<Facts> {
  const { version } = context.extension.packageJSON as { version: string };
  return {
    editor: `${vscode.env.appName} ${vscode.version}`,
    extension: version,
    system: `${platform()} ${release()} ${arch()}`,
    interpreter: session.currentInterpreter,
    problem: session.problem,
    python: await ofPython(context, session.currentInterpreter?.path),
    settings: changedSettings(context),
  };
}

async function ofPython(context: vscode.ExtensionContext, interpreter: string | undefined): Promise<Told<PythonFacts>> {
  try {
    const script = vscode.Uri.joinPath(context.extensionUri, "python", "doctor.py").fsPath;
    const printed = interpreter === undefined ? "" : await output(interpreter, [script], SECONDS);
    return { value: JSON.parse(printed.trim().split("\n").at(-1) ?? "") as PythonFacts };
  } catch (error) {
    return { reason: error instanceof Error ? error.message : String(error) };
  }
}

function changedSettings(context: vscode.ExtensionContext): Record<string, unknown> {
  const { contributes } = context.extension.packageJSON as {
    contributes: { configuration: { properties: Record<string, { default: unknown }> } };
  };
  const settings = vscode.workspace.getConfiguration();
  const values = Object.entries(contributes.configuration.properties).map(([name, about]) => [name, settings.get(name), about.default] as const);
  return Object.fromEntries(values.filter(([, value, byDefault]) => JSON.stringify(value) !== JSON.stringify(byDefault)).map(([name, value]) => [name, value]));
}
