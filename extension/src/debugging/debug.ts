// Steps through a compiled function as it is written.

import { dirname } from "node:path";
import * as vscode from "vscode";
import { SERVER_FIRST_LINE } from "../server/protocol";
import type { Session } from "../server/session";
import { debugConfiguration, debuggerType } from "./configuration";

const PYTHON_DEBUGGER = "ms-python.debugpy";

/** Breakpoints are honoured; where the file has none, the debugger stops at the function's first line. */
export async function debugFunction(session: Session, file: string, name: string): Promise<void> {
  const uri = vscode.Uri.parse(file);
  const python = session.currentInterpreter?.path;
  const type = debuggerType(vscode.extensions.all.flatMap(debuggersOf));
  if (type === undefined || python === undefined) {
    const what = python === undefined ? "select a Python interpreter first" : "debugging needs the extension Python Debugger (ms-python.debugpy)";
    const action = python === undefined ? "Select Interpreter" : "Find the Extension";
    if ((await vscode.window.showWarningMessage(`Fuselens: ${what}.`, action)) === action) {
      await (python === undefined
        ? vscode.commands.executeCommand("fuselens.selectInterpreter")
        : vscode.commands.executeCommand("workbench.extensions.search", PYTHON_DEBUGGER));
    }
    return;
  }
  const document = await vscode.workspace.openTextDocument(uri);
  if (document.isDirty && !(await document.save())) {
    return;
  }
  const stop = await stopAtFirstLine(session, uri, name);
  const folder = vscode.workspace.getWorkspaceFolder(uri);
  const configuration = debugConfiguration(type, python, uri.fsPath, name, folder?.uri.fsPath ?? dirname(uri.fsPath));
  const ended = vscode.debug.onDidTerminateDebugSession((debugged) => {
    if (debugged.name === configuration.name) {
      ended.dispose();
      remove(stop);
    }
  });
  if (!(await vscode.debug.startDebugging(folder, { ...configuration }))) {
    ended.dispose();
    remove(stop);
  }
}

function debuggersOf(extension: vscode.Extension<unknown>): string[] {
  const { contributes } = extension.packageJSON as { contributes?: { debuggers?: { type?: string }[] } };
  return (contributes?.debuggers ?? []).flatMap(({ type }) => type ?? []);
}

async function stopAtFirstLine(session: Session, uri: vscode.Uri, name: string): Promise<vscode.Breakpoint | undefined> {
  const inFile = vscode.debug.breakpoints.some(
    (point) => point.enabled && point instanceof vscode.SourceBreakpoint && point.location.uri.toString() === uri.toString(),
  );
  const line = inFile ? null : await session.execute<number | null>(SERVER_FIRST_LINE, [uri.toString(), name]);
  if (line === null) {
    return undefined;
  }
  const stop = new vscode.SourceBreakpoint(new vscode.Location(uri, new vscode.Position(line - 1, 0)));
  vscode.debug.addBreakpoints([stop]);
  return stop;
}

function remove(stop: vscode.Breakpoint | undefined): void {
  if (stop !== undefined) {
    vscode.debug.removeBreakpoints([stop]);
  }
}
