// Colours of lines and marks beside line numbers. A type of decoration is made when it is first needed.

import * as vscode from "vscode";
import type { Correspondence } from "../server/protocol";
import { byColour, type Links, type Run, runs } from "./links";
import { keyOf, marksOf, picture, type Mark } from "./marks";
import { palettes } from "./palette";

type Ranges = Map<string, vscode.Range[]>;

export class Decorations implements vscode.Disposable {
  private readonly types = new Map<string, vscode.TextEditorDecorationType>();
  private readonly palettes;

  constructor(extension: vscode.Extension<unknown>) {
    const manifest = extension.packageJSON as { contributes: { colors: Parameters<typeof palettes>[0] } };
    this.palettes = palettes(manifest.contributes.colors);
  }

  /** Colours of the lines that a document beside `editor` has something of, and marks of all. */
  source(editor: vscode.TextEditor, data: Correspondence, links: Links | undefined): void {
    const ranges: Ranges = new Map();
    if (links !== undefined) {
      this.background(ranges, byColour(data.source.map(([line]) => line), (line) => links.colourOfSource(line)));
    }
    for (const [line, mark] of marksOf(data)) {
      this.put(ranges, this.mark(mark), new vscode.Range(line, 0, line, 0));
    }
    this.set(editor, ranges, (key) => !key.startsWith("current"));
  }

  shown(editor: vscode.TextEditor, links: Links): void {
    const ranges: Ranges = new Map();
    this.background(ranges, byColour(links.data.shown.map(([line]) => line), (line) => links.colourOfShown(line)));
    this.set(editor, ranges, (key) => !key.startsWith("current"));
  }

  /** Lights the lines that belong to the line at the cursor. */
  current(editor: vscode.TextEditor, lines: readonly number[], colourOf: (line: number) => number | undefined): void {
    const ranges: Ranges = new Map();
    for (const [colour, found] of byColour(lines, (line) => colourOf(line) ?? -1)) {
      const name = colour < 0 ? "fuselens.linkedCurrentBackground" : `fuselens.kernel${colour + 1}CurrentBackground`;
      const key = this.type(`current ${colour}`, () => ({
        isWholeLine: true,
        backgroundColor: new vscode.ThemeColor(name),
      }));
      found.forEach((run) => this.put(ranges, key, rangeOf(run)));
    }
    this.set(editor, ranges, (key) => key.startsWith("current"));
  }

  clear(editor: vscode.TextEditor): void {
    this.types.forEach((type) => editor.setDecorations(type, []));
  }

  /** Takes all decoration away, everywhere. */
  dispose(): void {
    this.types.forEach((type) => type.dispose());
    this.types.clear();
  }

  private background(ranges: Ranges, found: Map<number, Run[]>): void {
    for (const [colour, lines] of found) {
      const key = this.type(`kernel ${colour}`, () => ({
        isWholeLine: true,
        backgroundColor: new vscode.ThemeColor(`fuselens.kernel${colour + 1}Background`),
        overviewRulerColor: new vscode.ThemeColor(`fuselens.kernel${colour + 1}`),
        overviewRulerLane: vscode.OverviewRulerLane.Center,
      }));
      lines.forEach((run) => this.put(ranges, key, rangeOf(run)));
    }
  }

  private mark(mark: Mark): string {
    return this.type(`mark ${keyOf(mark)}`, () => ({
      gutterIconSize: "contain",
      light: { gutterIconPath: vscode.Uri.parse(picture(mark, this.palettes.light)) },
      dark: { gutterIconPath: vscode.Uri.parse(picture(mark, this.palettes.dark)) },
    }));
  }

  private type(key: string, options: () => vscode.DecorationRenderOptions): string {
    if (!this.types.has(key)) {
      this.types.set(key, vscode.window.createTextEditorDecorationType(options()));
    }
    return key;
  }

  private put(ranges: Ranges, key: string, range: vscode.Range): void {
    const found = ranges.get(key);
    if (found === undefined) {
      ranges.set(key, [range]);
    } else {
      found.push(range);
    }
  }

  private set(editor: vscode.TextEditor, ranges: Ranges, concerned: (key: string) => boolean): void {
    for (const [key, type] of this.types) {
      if (concerned(key)) {
        editor.setDecorations(type, ranges.get(key) ?? []);
      }
    }
  }
}

function rangeOf({ first, last }: Run): vscode.Range {
  return new vscode.Range(first, 0, last, 0);
}

/** The lines to bring on the screen of what belongs together: the first that are next to each other. */
export function firstRun(lines: readonly number[]): vscode.Range | undefined {
  const [run] = runs(lines);
  return run && rangeOf(run);
}
