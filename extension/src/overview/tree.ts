// The view of the activity bar: the open files' functions, and what became of them.

import { posix } from "node:path";
import * as vscode from "vscode";
import { toEditor } from "../documents/stageDocuments";
import { SERVER_EXPLAIN } from "../server/protocol";
import type { Session } from "../server/session";
import { breaksOf, copied, count, fileName, fileNode, functionAt, tellApart, type Node, type Runs } from "./nodes";
import type { Overviews } from "./overviews";

export const VIEW = "fuselens.overview";
const BREAKS_ONLY = "fuselens.breaksOnly";
const QUIET = 300; // milliseconds without a row asked for: all are drawn

export class OverviewTree implements vscode.TreeDataProvider<Node>, vscode.Disposable {
  private roots: Node[] = [];
  /** What the rows were made of: the same again is not drawn anew, which would disturb what is being unfolded. */
  private drawn = "";
  /** The file that was looked at last: while editors change there is none. */
  private active: string | undefined;
  private breaksOnly = false;
  /** Runs while rows are drawn anew. */
  private drawing: NodeJS.Timeout | undefined;
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChangeTreeData = this.changed.event;
  private readonly view: vscode.TreeView<Node>;
  private readonly parts: vscode.Disposable[];

  constructor(
    private readonly session: Session,
    private readonly overviews: Overviews,
    private readonly runs: Runs,
  ) {
    this.view = vscode.window.createTreeView(VIEW, { treeDataProvider: this, showCollapseAll: true });
    this.parts = [
      this.changed,
      this.view,
      overviews.onDidChange(() => this.rebuild()),
      vscode.window.onDidChangeActiveTextEditor(() => this.rebuild()),
      vscode.window.onDidChangeTextEditorSelection(() => this.follow()),
      this.view.onDidChangeVisibility(() => this.follow()),
      ...this.commands(),
    ];
  }

  /** A function was run: what that said is shown. */
  rebuild(): void {
    const active = this.overviews.active?.uri ?? this.active;
    this.active = active;
    const shown = [...this.overviews.all.values()].sort((one, other) => Number(other.uri === active) - Number(one.uri === active));
    const roots = shown.flatMap((overview) => fileNode(overview, this.runs, overview.uri === active, this.breaksOnly) ?? []);
    tellApart(roots);
    const drawn = JSON.stringify(roots, (key, value: unknown) => (key === "parent" ? undefined : value));
    const same = drawn === this.drawn;
    this.drawn = drawn;
    this.roots = same ? this.roots : roots;
    const breaks = shown.reduce((sum, overview) => sum + breaksOf(overview), 0);
    this.view.badge = breaks > 0 ? { value: breaks, tooltip: count(breaks, "graph break") } : undefined;
    const filtered = this.breaksOnly && this.roots.length === 0 && shown.some(({ functions }) => functions.length > 0);
    this.view.message = filtered ? "There is no graph break in the open files." : "";
    if (!same) {
      this.changed.fire();
      this.followDrawn();
    }
    this.follow();
  }

  getTreeItem(node: Node): vscode.TreeItem {
    if (this.drawing) {
      this.followDrawn();
    }
    const folded =
      node.unfolded === undefined
        ? vscode.TreeItemCollapsibleState.None
        : node.unfolded
          ? vscode.TreeItemCollapsibleState.Expanded
          : vscode.TreeItemCollapsibleState.Collapsed;
    const item = new vscode.TreeItem(node.label, folded);
    item.id = node.id;
    item.description = node.description;
    item.contextValue = `${node.kind}${node.document ? ".document" : ""}${node.place ? ".place" : ""}`;
    item.iconPath = new vscode.ThemeIcon(node.icon, node.colour === undefined ? undefined : new vscode.ThemeColor(node.colour));
    item.accessibilityInformation = { label: [node.label, node.description].join(", ") };
    if (node.tooltip !== "") {
      item.tooltip = node.tooltip;
    }
    if (node.kind === "file") {
      item.resourceUri = vscode.Uri.parse(node.file);
      item.iconPath = vscode.ThemeIcon.File;
    }
    if (node.kind !== "guards" && (node.place || node.document || node.kind === "file")) {  // a click on guards unfolds them
      // No arguments: an editor of 2024 forgets those of rows drawn anew, and does nothing. The selection is this row.
      item.command = { command: "fuselens.tree.activate", title: "Open" };
    }
    return item;
  }

  getChildren(node?: Node): Node[] {
    return node === undefined ? this.roots : node.children;
  }

  getParent(node: Node): Node | undefined {
    return node.parent;
  }

  dispose(): void {
    clearTimeout(this.drawing);
    this.parts.forEach((part) => part.dispose());
  }

  /** Follows the cursor once the rows are drawn: an editor of 2024 that is asked for a row meanwhile loses all others. */
  private followDrawn(): void {
    clearTimeout(this.drawing);
    this.drawing = setTimeout(() => {
      this.drawing = undefined;
      this.follow();
    }, QUIET);
  }

  /** Marks the function at the cursor, unless something in it is marked already. */
  private follow(): void {
    const editor = vscode.window.activeTextEditor;
    const overview = editor && this.overviews.of(editor.document.uri);
    const file = this.roots.find((root) => root.file === overview?.uri);
    if (this.drawing || !this.view.visible || editor?.document.languageId !== "python" || file === undefined) {
      return;
    }
    const found = functionAt(file, editor.selection.active.line);
    const [marked] = this.view.selection;
    if (found !== undefined && !(marked?.file === found.file && marked.function === found.function)) {
      void Promise.resolve(this.view.reveal(found, { select: true, focus: false })).catch(() => undefined); // it may be gone by now
    }
  }

  private commands(): vscode.Disposable[] {
    const command = (id: string, body: (node: Node) => unknown): vscode.Disposable =>
      vscode.commands.registerCommand(`fuselens.tree.${id}`, (given?: Node) => {
        const node = given ?? this.view.selection[0];
        return node && body(node);
      });
    const execute = vscode.commands.executeCommand;
    return [
      command("activate", (node) => (node.document && ["kernel", "stage"].includes(node.kind) ? openDocument(node) : goToCode(node))),
      command("open", openDocument),
      command("goToCode", goToCode),
      command("run", (node) => execute("fuselens.runFunction", node.file, node.function)),
      command("openKernel", (node) => execute("fuselens.openKernel", node.file, node.function)),
      command("explain", (node) => execute("fuselens.explainFunction", node.file, node.function)),
      command("copyLabel", (node) => vscode.env.clipboard.writeText(copied(node))),
      command("copySummary", (node) => this.copySummary(node)),
      command("saveAs", saveAs),
      vscode.commands.registerCommand("fuselens.tree.breaksOnly", () => this.show(true)),
      vscode.commands.registerCommand("fuselens.tree.everything", () => this.show(false)),
      vscode.commands.registerCommand("fuselens.tree.find", async () => {
        await execute(`${VIEW}.focus`);
        await execute("list.find");
      }),
    ];
  }

  private async show(breaksOnly: boolean): Promise<void> {
    this.breaksOnly = breaksOnly;
    await vscode.commands.executeCommand("setContext", BREAKS_ONLY, breaksOnly);
    this.rebuild();
  }

  private async copySummary(node: Node): Promise<void> {
    try {
      await vscode.env.clipboard.writeText(await this.session.execute<string>(SERVER_EXPLAIN, [node.file, node.function]));
      vscode.window.setStatusBarMessage(`Fuselens: the summary of ${node.function ?? ""} is in the clipboard`, 5000);
    } catch (error) {
      void vscode.window.showInformationMessage(`Fuselens: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
}

function openDocument(node: Node): Thenable<unknown> | undefined {
  const { document } = node;
  return document && vscode.commands.executeCommand("fuselens.openDocument", node.file, node.function, document.uri, document.line);
}

async function goToCode({ place, file }: Node): Promise<void> {
  const uri = vscode.Uri.parse(place?.uri ?? file);
  const { start, end } = place?.range ?? {};
  const selection = start && end && new vscode.Range(start.line, start.character, end.line, end.character);
  const shown = vscode.window.visibleTextEditors.find(({ document }) => document.uri.toString() === uri.toString());
  await vscode.window.showTextDocument(uri, { viewColumn: shown?.viewColumn ?? vscode.ViewColumn.One, ...(selection && { selection }) });
}

async function saveAs({ document, file }: Node): Promise<void> {
  if (document === undefined) {
    return;
  }
  const text = (await vscode.workspace.openTextDocument(toEditor(document.uri))).getText();
  const folder = vscode.Uri.parse(file).with({ path: posix.dirname(vscode.Uri.parse(file).path) });
  const target = await vscode.window.showSaveDialog({ defaultUri: vscode.Uri.joinPath(folder, fileName(document.uri)) });
  if (target !== undefined) {
    await vscode.workspace.fs.writeFile(target, new TextEncoder().encode(text));
    await vscode.window.showTextDocument(target, { preview: true });
  }
}
