// What the server says of each open file, asked for again when that may have changed.

import * as vscode from "vscode";
import { parseAddress, SCHEME } from "../documents/uris";
import { OVERVIEW, type Overview, type OverviewParams } from "../server/protocol";
import type { Session } from "../server/session";

/** Events come in bursts: a check ends with several. */
const SOON_MS = 100;
const TYPING_MS = 500;

export class Overviews implements vscode.Disposable {
  private known: ReadonlyMap<string, Overview> = new Map();
  private wanted: Set<string> | "all" = new Set();
  private timer: NodeJS.Timeout | undefined;
  private asking = false;
  private readonly changed = new vscode.EventEmitter<void>();
  private readonly listeners: vscode.Disposable[];
  readonly onDidChange = this.changed.event;

  constructor(private readonly session: Session) {
    this.listeners = [
      this.changed,
      session.onDocuments((uris) => this.ask(uris === "all" ? uris : uris.map((uri) => parseAddress(uri)?.file ?? ""))),
      session.onStatus(({ status, problem }) => {
        if (problem !== undefined || status.state === "starting") {
          this.keep(new Map());
        } else {
          this.ask([...this.unfinished(), ...askable(vscode.window.activeTextEditor?.document)]);
        }
      }),
      vscode.workspace.onDidOpenTextDocument((document) => this.ask(askable(document))),
      vscode.window.tabGroups.onDidChangeTabs(() => this.ask([])),
      vscode.workspace.onDidChangeTextDocument(({ document }) => this.ask(askable(document), TYPING_MS)),
      vscode.window.onDidChangeActiveTextEditor((editor) => this.ask(askable(editor?.document))),
    ];
    this.ask("all");
  }

  /** Those of open files, by URI. */
  get all(): ReadonlyMap<string, Overview> {
    return this.known;
  }

  /** That of the file which is looked at: a generated document is about one. */
  get active(): Overview | undefined {
    const uri = vscode.window.activeTextEditor?.document.uri;
    return uri && this.of(uri);
  }

  of(uri: vscode.Uri): Overview | undefined {
    const file = uri.scheme === SCHEME ? parseAddress(uri.toString())?.file : notebookOf(uri)?.uri.toString();
    return this.find(file ?? uri.toString());
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.listeners.forEach((item) => item.dispose());
  }

  /** The server spells URIs as it was told them, which is not always how the editor spells them now. */
  private find(uri: string): Overview | undefined {
    return this.known.get(uri) ?? [...this.known.values()].find((overview) => sameUri(overview.uri, uri));
  }

  private unfinished(): string[] {
    const busy = ({ compiling, functions }: Overview): boolean => compiling || functions.some(({ state }) => state === "waiting");
    return [...this.known.values()].filter(busy).map(({ uri }) => uri);
  }

  private ask(uris: readonly string[] | "all", delay = SOON_MS): void {
    this.wanted = uris === "all" || this.wanted === "all" ? "all" : new Set([...this.wanted, ...uris]);
    if (!this.asking) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => void this.update(), delay);
    }
  }

  private async update(): Promise<void> {
    const wanted = this.wanted;
    this.wanted = new Set();
    this.asking = true;
    const tabs = inTabs();
    const open = vscode.workspace.textDocuments.flatMap(askable).filter((uri) => tabs.has(uri));
    const known = this.known;
    const next = new Map([...known].filter(([one]) => open.some((uri) => sameUri(uri, one))));
    for (const uri of new Set(open)) {
      if (wanted === "all" || [...wanted].some((one) => sameUri(one, uri)) || ![...next.keys()].some((one) => sameUri(one, uri))) {
        const overview = await this.request(uri);
        if (overview !== null) {
          next.set(overview.uri, overview);
        }
      }
    }
    this.asking = false;
    if (this.known === known) { // else that server ended meanwhile, and what it said is forgotten
      this.keep(next);
    }
    this.askAgain();
  }

  /** null where there is no server, or it does not know the file. */
  private async request(uri: string): Promise<Overview | null> {
    try {
      return await this.session.request<Overview | null>(OVERVIEW, { uri } satisfies OverviewParams);
    } catch {
      return null;
    }
  }

  /** For what came while the server was asked. */
  private askAgain(): void {
    if (this.wanted === "all" || this.wanted.size > 0) {
      this.ask([]);
    }
  }

  private keep(next: ReadonlyMap<string, Overview>): void {
    this.known = next;
    this.changed.fire();
  }
}

/** By what the server is asked about a document: a notebook by its own name. */
function askable(document: vscode.TextDocument | undefined): string[] {
  if (document?.languageId !== "python") {
    return [];
  }
  if (document.uri.scheme === "file") {
    return [document.uri.toString()];
  }
  const notebook = notebookOf(document.uri);
  return notebook === undefined ? [] : [notebook.uri.toString()];
}

/** The files that a person has open: documents live on for a while when their tabs are closed. */
function inTabs(): Set<string> {
  const inputs = vscode.window.tabGroups.all.flatMap(({ tabs }) => tabs.map(({ input }) => input));
  const uris = inputs.map((input) =>
    input instanceof vscode.TabInputText || input instanceof vscode.TabInputNotebook
      ? input.uri
      : input instanceof vscode.TabInputTextDiff ? input.modified : undefined,
  );
  return new Set(uris.flatMap((uri) => uri?.toString() ?? []));
}

function notebookOf(cell: vscode.Uri): vscode.NotebookDocument | undefined {
  return cell.scheme === "vscode-notebook-cell"
    ? vscode.workspace.notebookDocuments.find((notebook) => notebook.getCells().some(({ document }) => document.uri.toString() === cell.toString()))
    : undefined;
}

function sameUri(one: string, other: string): boolean {
  return one === other || vscode.Uri.parse(one).toString() === vscode.Uri.parse(other).toString();
}
