// Each compiled function is a test in the Test Explorer: it agrees with eager.

import * as vscode from "vscode";
import { headline, succeeded } from "../functions/runResult";
import { type CompiledFunction, SERVER_FUNCTIONS } from "../server/protocol";
import type { Session } from "../server/session";
import { difference, type Run } from "./history";
import { positionOf } from "./places";
import type { Runs } from "./runs";

/** Differing values that one failure tells. */
const MOST_MESSAGES = 10;
const DELAY = 300;

export class Agreement implements vscode.Disposable {
  private readonly controller = vscode.tests.createTestController("fuselens", "Fuselens");
  private readonly disposables: vscode.Disposable[];
  private timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly session: Session,
    private readonly runs: Runs,
  ) {
    const run = (request: vscode.TestRunRequest, token: vscode.CancellationToken): Promise<void> => this.run(request, token);
    this.controller.refreshHandler = () => this.refresh();
    this.disposables = [
      this.controller,
      this.controller.createRunProfile("Compare with Eager", vscode.TestRunProfileKind.Run, run, true),
      session.onDocuments(() => this.later()),
      vscode.workspace.onDidOpenTextDocument(() => this.later()),
      vscode.workspace.onDidSaveTextDocument(() => this.later()),
      vscode.workspace.onDidDeleteFiles(({ files }) => files.forEach((file) => this.controller.items.delete(file.toString()))),
    ];
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.disposables.forEach((item) => item.dispose());
  }

  private later(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.refresh(), DELAY);
  }

  /** The functions of the open files; those of files that were closed stay as they were. */
  private async refresh(): Promise<void> {
    const open = vscode.workspace.textDocuments.filter(({ languageId, uri }) => languageId === "python" && uri.scheme === "file");
    await Promise.all(open.map((document) => this.refreshFile(document.uri)));
  }

  private async refreshFile(uri: vscode.Uri): Promise<void> {
    const functions = await this.session.execute<CompiledFunction[]>(SERVER_FUNCTIONS, [uri.toString()]).catch(() => undefined);
    if (functions === undefined) {
      return; // no server now: what is known stays
    }
    if (functions.length === 0) {
      this.controller.items.delete(uri.toString());
      return;
    }
    const id = uri.toString();
    const file = this.controller.items.get(id) ?? this.controller.createTestItem(id, vscode.workspace.asRelativePath(uri), uri);
    this.controller.items.add(file);
    file.children.replace(
      functions.map(({ name, line, start, end }) => {
        const test = file.children.get(`${id}#${name}`) ?? this.controller.createTestItem(`${id}#${name}`, name, uri);
        test.description = "agrees with eager";
        test.range = new vscode.Range(line, start, line, end);
        return test;
      }),
    );
  }

  private async run(request: vscode.TestRunRequest, token: vscode.CancellationToken): Promise<void> {
    const chosen = request.include ?? [...this.controller.items].map(([, item]) => item);
    const left = new Set(request.exclude ?? []);
    const tests = [...new Set(chosen.flatMap(leaves))].filter((test) => !left.has(test) && !(test.parent && left.has(test.parent)));
    const run = this.controller.createTestRun(request);
    try {
      tests.forEach((test) => run.enqueued(test));
      for (const test of tests) {
        if (token.isCancellationRequested) {
          run.skipped(test);
        } else {
          run.started(test);
          await this.runOne(run, test, token);
        }
      }
    } finally {
      run.end();
    }
  }

  private async runOne(run: vscode.TestRun, test: vscode.TestItem, token: vscode.CancellationToken): Promise<void> {
    const begun = Date.now();
    const took = (): number => Date.now() - begun;
    try {
      const outcome = test.uri && (await this.runs.run(test.uri, test.label, token));
      if (outcome === undefined || token.isCancellationRequested) {
        run.skipped(test);
        return;
      }
      const { result } = outcome;
      run.appendOutput(`${headline(result)}\r\n`, undefined, test);
      if (result.error) {
        run.errored(test, await messages(outcome), took());
      } else if (result.repeatable === false || result.compiled === false) {
        run.skipped(test); // there was nothing to compare; the output says so
      } else if (succeeded(result)) {
        run.passed(test, took());
      } else {
        run.failed(test, await messages(outcome), took());
      }
    } catch (error) {
      run.errored(test, new vscode.TestMessage(error instanceof Error ? error.message : String(error)), took());
    }
  }
}

function leaves(item: vscode.TestItem): vscode.TestItem[] {
  return item.children.size === 0 ? [item] : [...item.children].flatMap(([, child]) => leaves(child));
}

/** One for each value that differs, at the line that it comes from. */
async function messages({ file, result }: Run): Promise<vscode.TestMessage[]> {
  const span = result.error ? result.error.span : result.span;
  const document = await vscode.workspace.openTextDocument(span ? vscode.Uri.file(span.file) : vscode.Uri.parse(file));
  const place = span && new vscode.Location(document.uri, positionOf(document, span));
  const made = (result.values ?? [])
    .filter(({ agrees }) => !agrees)
    .slice(0, MOST_MESSAGES)
    .map((value) => {
      const message = new vscode.TestMessage(`${value.name}: ${difference(value)}`);
      if (value.eager || value.compiled) {
        message.expectedOutput = value.eager ?? "";
        message.actualOutput = value.compiled ?? "";
      }
      return message;
    });
  const all = made.length > 0 && !result.error ? made : [new vscode.TestMessage(result.error?.message ?? result.detail)];
  for (const message of all) {
    if (place) {
      message.location = place;
    }
  }
  return all;
}
