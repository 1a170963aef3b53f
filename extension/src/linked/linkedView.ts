// The linked view: the code and, in one place beside it, what it became. Either side follows the cursor in the other.
//
// The server is asked when a text, a report or what is shown changes, and never because a cursor moved.

import * as vscode from "vscode";
import { toEditor, toServer } from "../documents/stageDocuments";
import { addressKey, parseAddress, SCHEME } from "../documents/uris";
import { CORRESPONDENCE, type Correspondence, type CorrespondenceParams } from "../server/protocol";
import type { Session } from "../server/session";
import { Decorations, firstRun } from "./decorations";
import { Links } from "./links";

/** What the pane can show, as package.json offers it in the pane's title: `fuselens.show.cpp`. */
export const FORMS = ["loops", "cpp", "triton", "ttir", "llvm", "ptx", "sass", "joint", "guards", "backward", "forward"] as const;

const SETTING = "fuselens.decorations.enabled";
/** Milliseconds without another keystroke after which the server is asked about the new text. */
const PAUSE_MS = 200;
/** Milliseconds within which the editor folds what it has opened. */
const FOLDING_MS = 3000;

/** A line of a file that is looked at. */
interface Place {
  uri: string;
  line: number;
}

export class LinkedView implements vscode.Disposable {
  private readonly decorations: Decorations;
  private readonly registrations: vscode.Disposable[];
  /** What the server said of each visible file, by its URI, when `pane` was beside it. */
  private readonly known = new Map<string, { pane: string; links: Links }>();
  /** Where the person is in the code: what the pane shows is about that line. */
  private place: Place | undefined;
  /** What was brought on the screen just now. */
  private kept: { editor: vscode.TextEditor; lines: readonly number[]; until: number } | undefined;
  private timer: NodeJS.Timeout | undefined;
  /** The cursor moved to a line about which the server has not said anything yet. */
  private moved = false;
  /** Only the newest answers count: who waits for older ones waits for those. */
  private asked = 0;
  private newest: Promise<void> = Promise.resolve();
  private switching = 0;

  constructor(
    private readonly session: Session,
    extension: vscode.Extension<unknown>,
  ) {
    this.decorations = new Decorations(extension);
    this.registrations = [
      vscode.window.onDidChangeVisibleTextEditors(() => this.schedule(0)),
      vscode.window.onDidChangeActiveTextEditor(() => this.schedule(0)),
      vscode.workspace.onDidChangeTextDocument(({ document, contentChanges }) => {
        if (contentChanges.length > 0 && (isCode(document) || document.uri.scheme === SCHEME)) {
          this.known.delete(document.uri.toString());
          this.schedule(document.uri.scheme === SCHEME ? 0 : PAUSE_MS);
        }
      }),
      vscode.window.onDidChangeTextEditorSelection(({ textEditor }) => this.follow(textEditor, true)),
      vscode.window.onDidChangeTextEditorVisibleRanges(({ textEditor }) => this.keep(textEditor)),
      session.onDocuments(() => this.schedule(0)),
      vscode.workspace.onDidChangeConfiguration((event) => {
        if (event.affectsConfiguration(SETTING)) {
          this.enabled ? this.schedule(0) : this.decorations.dispose();
        }
      }),
      ...FORMS.map((form) => vscode.commands.registerCommand(`fuselens.show.${form}`, () => this.showForm(form))),
    ];
    this.schedule(0);
  }

  /**
   * Shows the kernel of a function, or of the line at the cursor when that is in it, and leaves the focus in the code.
   * Returns whether there is one.
   */
  async open(file: string, name: string | undefined): Promise<boolean> {
    const data = await this.ask(file, undefined);
    const links = data && new Links(data);
    const editor = vscode.window.visibleTextEditors.find(({ document }) => document.uri.toString() === vscode.Uri.parse(file).toString());
    const line = editor?.selection.active.line;
    const ofFunction = (uri: string): boolean => name === undefined || parseAddress(uri)?.function === name;
    const here = line === undefined ? undefined : links?.documentsOf(line).find(ofFunction);
    const chosen = here ?? data?.documents.find(ofFunction);
    if (chosen === undefined) {
      return false;
    }
    this.place = here !== undefined && editor !== undefined && line !== undefined ? { uri: editor.document.uri.toString(), line } : undefined;
    await this.show(chosen, true);
    return true;
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.registrations.forEach((item) => item.dispose());
    this.decorations.dispose();
  }

  private get enabled(): boolean {
    return vscode.workspace.getConfiguration().get(SETTING, true);
  }

  /** The document beside the code: the one in focus, of several. */
  private get pane(): vscode.TextEditor | undefined {
    const active = vscode.window.activeTextEditor;
    return active && isShown(active) ? active : vscode.window.visibleTextEditors.find(isShown);
  }

  private get code(): vscode.TextEditor[] {
    return vscode.window.visibleTextEditors.filter(({ document }) => isCode(document));
  }

  // --- asking ---

  private schedule(pause: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.refresh(), pause);
  }

  /** Asks about all that is visible, and draws it. */
  private refresh(): Promise<void> {
    this.newest = this.askAll(++this.asked);
    return this.newest;
  }

  private async askAll(turn: number): Promise<void> {
    const pane = this.pane;
    const files = new Map(this.code.map(({ document }) => [document.uri.toString(), document] as const));
    const owner = pane && parseAddress(pane.document.uri.toString())?.file;
    if (owner !== undefined && ![...files.keys()].some((uri) => sameFile(uri, owner))) {
      const document = vscode.workspace.textDocuments.find(({ uri }) => sameFile(uri.toString(), owner));
      document && files.set(document.uri.toString(), document);
    }
    const answers = await Promise.all(
      [...files].map(async ([uri, { version }]) => ({ uri, version, data: await this.ask(uri, pane) })),
    );
    if (turn !== this.asked) {
      await this.newest;
      return;
    }
    this.known.clear();
    for (const { uri, version, data } of answers) {
      if (data && files.get(uri)?.version === version) {
        this.known.set(uri, { pane: keyOf(pane), links: new Links(data) });
      }
    }
    this.offer(pane);
    this.draw(pane);
    const active = vscode.window.activeTextEditor;
    if (active !== undefined) {
      this.follow(active, this.moved);
    }
  }

  private async ask(uri: string, pane: vscode.TextEditor | undefined): Promise<Correspondence | null> {
    const params: CorrespondenceParams = { uri, document: pane ? toServer(pane.document.uri) : null };
    try {
      return await this.session.request<Correspondence | null>(CORRESPONDENCE, params);
    } catch {
      return null; // there is no server now: it tells when there is one
    }
  }

  /** Offers, in the title of the pane, what it could show. */
  private offer(pane: vscode.TextEditor | undefined): void {
    const forms = this.about(pane)?.links.data.forms ?? {};
    const shown = keyOf(pane);
    for (const form of FORMS) {
      const uri = forms[form];
      void vscode.commands.executeCommand("setContext", `fuselens.offers.${form}`, uri !== undefined && addressKey(uri) !== shown);
    }
  }

  /** What is known of the file that the pane is about: of those that are visible, the one that it shows most of. */
  private about(pane: vscode.TextEditor | undefined): { uri: string; links: Links } | undefined {
    const owner = pane && parseAddress(pane.document.uri.toString())?.file;
    const all = [...this.known].flatMap(([uri, known]) => (known.pane === keyOf(pane) ? [{ uri, links: known.links }] : []));
    const looked = all.find(({ uri, links }) => uri === this.place?.uri && links.data.shown.some(([, , lines]) => lines.length > 0));
    return looked ?? all.find(({ uri }) => owner !== undefined && sameFile(uri, owner)) ?? all.find(({ links }) => links.data.shown.length > 0);
  }

  // --- drawing ---

  private draw(pane: vscode.TextEditor | undefined): void {
    if (!this.enabled) {
      return;
    }
    for (const editor of this.code) {
      const known = this.known.get(editor.document.uri.toString());
      if (known !== undefined) {
        this.decorations.source(editor, known.links.data, pane && known.links);
      } else {
        this.decorations.clear(editor);
      }
      if (pane === undefined) {
        this.decorations.current(editor, [], () => undefined);
      }
    }
    for (const editor of vscode.window.visibleTextEditors.filter(isShown)) {
      const links = editor === pane ? this.about(pane)?.links : undefined;
      links ? this.decorations.shown(editor, links) : this.decorations.clear(editor);
    }
  }

  /**
   * Lights what belongs to the line at the cursor of `editor`. If the cursor has `moved`, brings it on the screen opposite: a new
   * answer alone must not take away what a person has scrolled to.
   */
  private follow(editor: vscode.TextEditor, moved: boolean): void {
    const pane = this.pane;
    if (pane === undefined || editor !== vscode.window.activeTextEditor) {
      return;
    }
    this.moved = false;
    const line = editor.selection.active.line;
    if (editor === pane) {
      const about = this.about(pane);
      const lines = about?.links.fromShown(line) ?? [];
      const opposite = this.code.find(({ document }) => document.uri.toString() === about?.uri);
      if (about !== undefined && lines[0] !== undefined) {
        this.place = { uri: about.uri, line: lines[0] };
      }
      const alike = lines.flatMap((user) => about?.links.fromSource(user) ?? []);
      this.light(pane, about?.links, [line, ...alike], opposite, lines);
      moved && opposite && reveal(opposite, lines);
    } else if (isCode(editor.document)) {
      const uri = editor.document.uri.toString();
      const known = this.known.get(uri);
      const links = known?.links;
      if (links === undefined || known?.pane !== keyOf(pane)) {
        this.moved = moved;
        return;
      }
      this.place = { uri, line };
      const lines = links.fromSource(line);
      const documents = links.documentsOf(line);
      this.moved = moved && documents.length === 0; // it may belong to something once it is compiled
      if (moved && lines.length === 0 && documents[0] !== undefined && !documents.some((other) => addressKey(other) === keyOf(pane))) {
        void this.switchTo(documents[0]);
        return;
      }
      this.light(pane, links, lines, editor, [line]);
      moved && reveal(pane, lines);
    }
  }

  private light(
    pane: vscode.TextEditor,
    links: Links | undefined,
    shown: number[],
    code: vscode.TextEditor | undefined,
    lines: number[],
  ): void {
    if (!this.enabled || links === undefined) {
      return;
    }
    const linked = shown.length > 0 && lines.length > 0;
    this.decorations.current(pane, linked ? shown : [], (line) => links.colourOfShown(line));
    if (code !== undefined) {
      this.decorations.current(code, linked ? lines : [], (line) => links.colourOfSource(line));
    }
  }

  // --- showing something else ---

  /** The line at the cursor is in another graph: shows that, once the cursor rests there. */
  private async switchTo(uri: string): Promise<void> {
    const turn = ++this.switching;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS / 2));
    if (turn === this.switching) {
      await this.show(uri, true);
    }
  }

  private async showForm(form: string): Promise<void> {
    const pane = this.pane;
    const uri = this.about(pane)?.links.data.forms[form];
    if (pane !== undefined && uri !== undefined) {
      await this.show(uri, vscode.window.activeTextEditor !== pane);
    }
  }

  /** Shows a document in the pane, at what became of the line that is looked at. */
  private async show(uri: string, preserveFocus: boolean): Promise<void> {
    const options = { location: vscode.ProgressLocation.Window, title: "Fuselens: opening what became of the code" };
    const document = await vscode.window.withProgress(options, () => vscode.workspace.openTextDocument(toEditor(uri)));
    const before = this.pane;
    const viewColumn = before?.viewColumn ?? vscode.ViewColumn.Beside;
    const pane = await vscode.window.showTextDocument(document, { viewColumn, preview: true, preserveFocus });
    const place = this.place;
    await this.refresh();
    const links = place ? this.known.get(place.uri)?.links : this.about(pane)?.links;
    const lines = (place && links?.fromSource(place.line)) ?? [];
    const line = lines[0] ?? links?.firstKernel;
    if (line !== undefined) {
      const range = new vscode.Range(line, 0, line, 0);
      if (!preserveFocus) {
        pane.selection = new vscode.Selection(range.start, range.start);
      }
      pane.revealRange(range, lines.length > 0 ? vscode.TextEditorRevealType.InCenterIfOutsideViewport : vscode.TextEditorRevealType.AtTop);
      this.kept = { editor: pane, lines: [line], until: Date.now() + FOLDING_MS };
    }
  }

  /** Folding what is above takes away what was just brought on the screen: brings it back, once. */
  private keep(editor: vscode.TextEditor): void {
    const kept = this.kept;
    const range = kept && firstRun(kept.lines);
    if (kept?.editor !== editor || range === undefined) {
      return;
    }
    if (Date.now() > kept.until) {
      this.kept = undefined;
    } else if (!editor.visibleRanges.some((visible) => visible.contains(range.start))) {
      this.kept = undefined;
      editor.revealRange(range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    }
  }
}

function reveal(editor: vscode.TextEditor, lines: readonly number[]): void {
  const range = firstRun(lines);
  if (range !== undefined) {
    editor.revealRange(range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
  }
}

function isCode(document: vscode.TextDocument): boolean {
  return document.languageId === "python" && document.uri.scheme === "file";
}

function isShown({ document }: vscode.TextEditor): boolean {
  return document.uri.scheme === SCHEME && parseAddress(document.uri.toString()) !== undefined;
}

/** What the pane shows. */
function keyOf(pane: vscode.TextEditor | undefined): string {
  return pane ? addressKey(pane.document.uri.toString()) : "";
}

/** Addresses of files are spelled in several ways. */
function sameFile(uri: string, other: string): boolean {
  return vscode.Uri.parse(uri).toString() === vscode.Uri.parse(other).toString();
}
