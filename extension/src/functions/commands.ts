// The commands on a compiled function. Code lenses pass the file and the qualified name, links in hovers also the document and
// the line to open; from the palette, the function at the cursor is meant.

import { dirname, posix } from "node:path";
import * as vscode from "vscode";
import { whatIf } from "../changes/whatIf";
import { Comparisons } from "../comparing/compare";
import { compareSince, stopComparing } from "../comparing/since";
import { debugFunction } from "../debugging/debug";
import { type Notes, show, toEditor } from "../documents/stageDocuments";
import { SERVER_DOCUMENTS, SERVER_EXPLAIN, SERVER_PREVIEW, SERVER_VALUES, type StageDocument } from "../server/protocol";
import type { Runs } from "../runs/runs";
import type { Session } from "../server/session";
import { peekStages } from "./peek";
import { byGraph, kernelLine } from "../documents/stages";
import { parseAddress, SCHEME } from "../documents/uris";
import type { LinkedView } from "../linked/linkedView";

export interface Target {
  file: string;
  /** undefined: every function of the file. */
  function: string | undefined;
  /** One document of it, and a line in it, counted from 1. */
  document?: string | undefined;
  line?: number | undefined;
  /** Where the cursor was when no lens was clicked: "toy.py:12". */
  place?: string | undefined;
}

const FUNCTION_COMMANDS = ["fuselens.openDocument", "fuselens.openKernel", "fuselens.runFunction"];

export class FunctionCommands {
  private readonly comparisons: Comparisons;

  constructor(
    private readonly session: Session,
    private readonly notes: Notes,
    private readonly output: vscode.LogOutputChannel,
    private readonly linked: LinkedView,
    private readonly runs: Runs,
  ) {
    this.comparisons = new Comparisons(session, notes);
  }

  register(): vscode.Disposable {
    const command = (id: string, body: (target: Target) => Promise<void>): vscode.Disposable =>
      vscode.commands.registerCommand(id, (file?: string, name?: string, document?: string, line?: number) =>
        this.attempt(id, async () => {
          const target = await resolveTarget(file, name);
          if (target !== undefined) {
            await body({ ...target, document: document ?? undefined, line: line ?? undefined });
          }
        }),
      );
    return vscode.Disposable.from(
      command("fuselens.openDocument", (target) => this.open(target)),
      command("fuselens.openKernel", (target) => this.openKernel(target)),
      command("fuselens.runFunction", (target) => this.run(target)),
      command("fuselens.explainFunction", (target) => this.explain(target)),
      command("fuselens.compareWithLastSave", (target) => this.named(target, (name) => this.comparisons.compare(target.file, name, "save"))),
      command("fuselens.compareTargets", (target) => this.named(target, (name) => this.comparisons.compare(target.file, name, "targets"))),
      command("fuselens.compareModes", (target) => this.named(target, (name) => this.comparisons.compare(target.file, name, "mode"))),
      command("fuselens.showValues", (target) => this.named(target, (name) => this.showValues(target.file, name))),
      command("fuselens.whatIf", (target) => this.named(target, (name) => whatIf(this.session, target.file, name))),
      command("fuselens.debugFunction", (target) => this.named(target, (name) => debugFunction(this.session, target.file, name))),
      command("fuselens.compareWithRevision", (target) => compareSince(this.session, target.file)),
      command("fuselens.stopComparing", (target) => stopComparing(this.session, target.file)),
      vscode.commands.registerCommand("fuselens.preview", (file?: string, wanted?: boolean) =>
        this.attempt("fuselens.preview", () => this.preview(file, wanted ?? true)),
      ),
      vscode.commands.registerCommand("fuselens.recordRun", (file?: string) =>
        this.attempt("fuselens.recordRun", () => this.recordRun(file)),
      ),
      vscode.commands.registerCommand("fuselens.peekStages", (file: string, line: number, column: number) =>
        this.attempt("fuselens.peekStages", () => peekStages(file, line, column)),
      ),
    );
  }

  private async attempt(id: string, body: () => Promise<void>): Promise<void> {
    try {
      await body();
    } catch (error) {
      if (!(error instanceof vscode.CancellationError)) {
        const message = error instanceof Error ? error.message : String(error);
        this.output.error(`${id}: ${message}`);
        void vscode.window.showErrorMessage(`Fuselens: ${message}`);
      }
    }
  }

  /** Looks at a file as if it compiled its modules, or no more: the one that a lens names, or the one that is shown. */
  private async preview(file: string | undefined, wanted: boolean): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    const uri = file ?? (editor?.document.languageId === "python" ? editor.document.uri.toString() : undefined);
    if (uri === undefined) {
      void vscode.window.showInformationMessage("Fuselens: open a Python file first.");
    } else if (!(await this.session.execute<boolean>(SERVER_PREVIEW, [uri, wanted]))) {
      const why = "it compiles something already, or makes and defines no torch.nn.Module";
      void vscode.window.showInformationMessage(`Fuselens: this file has nothing to preview: ${why}.`);
    }
  }

  /** Runs a program where its owner sees it, so that what its calls pass is used from then on. */
  private async recordRun(file: string | undefined): Promise<void> {
    const uri = file === undefined ? vscode.window.activeTextEditor?.document.uri : vscode.Uri.parse(file);
    const python = this.session.currentInterpreter?.path;
    if (uri?.scheme !== "file" || !uri.fsPath.endsWith(".py") || python === undefined) {
      void vscode.window.showInformationMessage("Fuselens: open a Python file first.");
      return;
    }
    const open = vscode.workspace.textDocuments.find((document) => document.uri.toString() === uri.toString());
    if (open?.isDirty && !(await open.save())) {
      return;
    }
    const terminal = vscode.window.createTerminal({
      name: "Fuselens: record",
      cwd: dirname(uri.fsPath),
    });
    terminal.show();
    terminal.sendText(`${quoted(python)} -m fuselens.cli record ${quoted(uri.fsPath)}`);
  }

  private async openKernel(target: Target): Promise<void> {
    if (target.document !== undefined) {
      await this.open(target);
    } else if (!(await this.linked.open(target.file, target.function))) {
      await this.tellNothing(target, "kernels");
    }
  }

  private async open(target: Target): Promise<void> {
    if (target.document !== undefined) {
      await show(toEditor(target.document), undefined, () => target.line);
      return;
    }
    const documents = await this.documents(target);
    if (documents.length === 0) {
      await this.tellNothing(target, "stages");
      return;
    }
    const chosen = await pick(documents, target);
    if (chosen !== undefined) {
      await show(toEditor(chosen.uri), undefined, (text) => kernelLine(text, target.place));
    }
  }

  private async documents(target: Target): Promise<StageDocument[]> {
    return (await this.session.execute<StageDocument[] | null>(SERVER_DOCUMENTS, [target.file, target.function ?? null])) ?? [];
  }

  private async tellNothing(target: Target, what: string): Promise<void> {
    const compiled = (await this.documents(target)).length > 0;
    const reason = compiled ? "nothing was generated for it" : "it has not been compiled";
    void vscode.window.showInformationMessage(`Fuselens: ${target.function ?? "this file"} has no ${what}: ${reason}.`);
  }

  private async run(target: Target): Promise<void> {
    const name = target.function ?? (await this.pickFunction(target));
    if (name === undefined) {
      return;
    }
    const options = { location: vscode.ProgressLocation.Notification, title: `Fuselens: running ${name}`, cancellable: true };
    const run = await vscode.window.withProgress(options, (_progress, token) => this.runs.run(vscode.Uri.parse(target.file), name, token));
    if (run) {
      this.runs.tell(run);
    }
  }

  private async explain(target: Target): Promise<void> {
    const name = target.function ?? (await this.pickFunction(target));
    if (name !== undefined) {
      const text = await this.session.execute<string | null>(SERVER_EXPLAIN, [target.file, name]);
      await show(this.notes.put(`${name} explained.txt`, text || `${name} has not been compiled.\n`));
    }
  }

  /** The captured graphs, run as they were captured, with what each node computes. */
  private async showValues(file: string, name: string): Promise<void> {
    const options = { location: vscode.ProgressLocation.Notification, title: `Fuselens: running the graphs of ${name}`, cancellable: true };
    const text = await vscode.window.withProgress(options, (_progress, token) => this.session.execute<string>(SERVER_VALUES, [file, name], token));
    await show(this.notes.put(`${name} values.py`, text));
  }

  private async named(target: Target, body: (name: string) => Promise<void>): Promise<void> {
    const name = target.function ?? (await this.pickFunction(target));
    if (name !== undefined) {
      await body(name);
    }
  }

  private async pickFunction(target: Target): Promise<string | undefined> {
    const documents = await this.session.execute<StageDocument[] | null>(SERVER_DOCUMENTS, [target.file, null]);
    const names = new Set((documents ?? []).flatMap(({ uri }) => parseAddress(uri)?.function ?? []));
    if (names.size <= 1) {
      const [only] = names;
      if (only === undefined) {
        void vscode.window.showInformationMessage("Fuselens: this file has no compiled function.");
      }
      return only;
    }
    return vscode.window.showQuickPick([...names], { placeHolder: "Which function?" });
  }
}

/** A word of a shell's command line. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `"${word.replace(/(["$`\\])/g, "\\$1")}"`;
}

/** The function that a lens named, or that a virtual document is about, or the one at the cursor; undefined when there is none. */
export async function resolveTarget(file: string | undefined, name: string | undefined): Promise<Target | undefined> {
  if (typeof file === "string") {
    return { file, function: name ?? undefined };
  }
  const editor = vscode.window.activeTextEditor;
  const address = editor?.document.uri.scheme === SCHEME ? parseAddress(editor.document.uri.toString()) : undefined;
  if (address !== undefined) {
    return { file: address.file, function: address.function };
  }
  if (editor?.document.languageId !== "python") {
    void vscode.window.showInformationMessage("Fuselens: open a Python file first.");
    return undefined;
  }
  const { document, selection } = editor;
  const lenses = await vscode.commands.executeCommand<vscode.CodeLens[]>("vscode.executeCodeLensProvider", document.uri, 1000);
  const ours = (lenses ?? []).filter((lens) => FUNCTION_COMMANDS.includes(lens.command?.command ?? ""));
  const above = ours.filter((lens) => lens.range.start.line <= selection.active.line);
  const nearest = above.sort((a, b) => b.range.start.line - a.range.start.line)[0];
  const argument: unknown = nearest?.command?.arguments?.[1];
  return {
    file: document.uri.toString(),
    function: typeof argument === "string" ? argument : undefined,
    place: `${posix.basename(document.uri.path)}:${selection.active.line + 1}`,
  };
}

async function pick(documents: readonly StageDocument[], target: Target): Promise<StageDocument | undefined> {
  type Item = vscode.QuickPickItem & { document?: StageDocument };
  const items: Item[] = byGraph(documents).flatMap(({ title, documents: members }): Item[] => [
    { label: title, kind: vscode.QuickPickItemKind.Separator },
    ...members.map((document) => ({
      label: document.title,
      description: parseAddress(document.uri)?.name ?? "",
      document,
    })),
  ]);
  const chosen = await vscode.window.showQuickPick(items, {
    title: target.function ?? "Fuselens",
    placeHolder: "What the compiler made, stage by stage",
    matchOnDescription: true,
  });
  return chosen?.document;
}
