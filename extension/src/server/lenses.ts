/** Code lenses: how they are asked for, and shown anew. */

import * as vscode from "vscode";
import {
  CodeLensRefreshRequest,
  CodeLensRequest,
  type BaseLanguageClient,
  type CodeLensMiddleware,
  type FeatureState,
  type StaticFeature,
} from "vscode-languageclient/node";
import type { ClientCapabilities } from "vscode-languageserver-protocol";

const FIRST_LOOK_MS = 1000;
const LOOKS = 5; // each after twice the time: an editor that shows no lenses asks for none

/**
 * Lenses come with their commands. The editor may give up asking for the commands of lenses that it has drawn, and then a click
 * runs a command that it has already thrown away: nothing happens.
 *
 * It also forgets that lenses have changed when it loses the focus before it has asked for them, which it does a moment later.
 * So it is told again until it asks.
 */
export class WholeLenses implements StaticFeature {
  /** Documents on the screen whose lenses have changed, and were not asked for since. */
  private readonly unasked = new Set<string>();
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly client: () => BaseLanguageClient) {}

  readonly asked: NonNullable<CodeLensMiddleware["provideCodeLenses"]> = (document, token, next) => {
    this.unasked.delete(document.uri.toString());
    return next(document, token);
  };

  fillClientCapabilities({ textDocument }: ClientCapabilities): void {
    delete textDocument?.codeLens?.resolveSupport;
  }

  initialize(): void {
    this.client().onRequest(CodeLensRefreshRequest.type, () => this.changed()); // in place of the client's own
  }

  getState(): FeatureState {
    return { kind: "static" };
  }

  clear(): void {
    clearTimeout(this.timer);
    this.unasked.clear();
  }

  private changed(): void {
    this.tell(vscode.workspace.textDocuments);
    this.unasked.clear();
    vscode.window.visibleTextEditors.forEach(({ document }) => this.unasked.add(document.uri.toString()));
    this.lookAfter(FIRST_LOOK_MS, LOOKS);
  }

  private lookAfter(wait: number, looks: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const documents = vscode.window.visibleTextEditors.map(({ document }) => document);
      const waiting = documents.filter(({ uri }) => this.unasked.has(uri.toString()));
      this.tell(waiting);
      if (waiting.length > 0 && looks > 1) {
        this.lookAfter(2 * wait, looks - 1);
      }
    }, wait);
  }

  private tell(documents: readonly vscode.TextDocument[]): void {
    const feature = this.client().getFeature(CodeLensRequest.method);
    const providers = new Set(documents.map((document) => feature.getProvider(document)));
    providers.forEach((provider) => provider?.onDidChangeCodeLensEmitter.fire());
  }
}
