// What the editor's language models may ask: the tools that the manifest declares, and the MCP server for what speaks MCP.

import * as vscode from "vscode";
import { SERVER_TOOL, type ToolAnswer } from "../server/protocol";
import { probe } from "../server/probe";
import { serverEnvironment } from "../server/interpreters";
import type { Session } from "../server/session";
import { asks, parts, question, serverArguments, serverName, working } from "./answers";

type Given = Record<string, unknown>;

/** The parts of the editor that came after the oldest release that we support. */
interface Newer {
  lm?: {
    /** Since 1.95. */
    registerTool?(name: string, tool: Tool): vscode.Disposable;
    /** Since 1.101. */
    registerMcpServerDefinitionProvider?(id: string, provider: ServerProvider): vscode.Disposable;
  };
  LanguageModelToolResult?: new (content: unknown[]) => unknown;
  LanguageModelTextPart?: new (text: string) => unknown;
  McpStdioServerDefinition?: new (label: string, command: string, args: string[], env: Record<string, string>, version: string) => unknown;
}

interface Tool {
  prepareInvocation(options: { input: Given }, token: vscode.CancellationToken): Promise<Prepared>;
  invoke(options: { input: Given }, token: vscode.CancellationToken): Promise<unknown>;
}

interface Prepared {
  invocationMessage: string;
  confirmationMessages?: { title: string; message: vscode.MarkdownString };
}

interface ServerProvider {
  onDidChangeMcpServerDefinitions: vscode.Event<void>;
  provideMcpServerDefinitions(): Promise<unknown[]>;
}

export class LanguageModels implements vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<void>();
  private readonly disposables: vscode.Disposable[];
  private interpreter: string | undefined;

  constructor(
    extension: vscode.Extension<unknown>,
    private readonly session: Session,
  ) {
    const manifest = extension.packageJSON as { version: string; contributes: { languageModelTools?: { name: string }[] } };
    const newer = vscode as unknown as Newer;
    this.disposables = [this.changed];
    for (const { name } of manifest.contributes.languageModelTools ?? []) {
      const registered = newer.lm?.registerTool?.(name, this.tool(serverName(name), newer));
      if (registered !== undefined) {
        this.disposables.push(registered);
      }
    }
    const served = newer.lm?.registerMcpServerDefinitionProvider?.("fuselens.mcp", {
      onDidChangeMcpServerDefinitions: this.changed.event,
      provideMcpServerDefinitions: () => this.servers(newer, manifest.version),
    });
    if (served !== undefined) {
      this.disposables.push(served, session.onStatus(() => this.reconsider()), vscode.workspace.onDidChangeWorkspaceFolders(() => this.changed.fire()));
    }
  }

  dispose(): void {
    this.disposables.forEach((item) => item.dispose());
  }

  private tool(name: string, { LanguageModelToolResult, LanguageModelTextPart }: Newer): Tool {
    return {
      prepareInvocation: async ({ input }, token) => {
        const invocationMessage = working(name, input);
        if (!asks(name, input)) {
          return { invocationMessage };
        }
        const shown = await this.session.execute<ToolAnswer>(SERVER_TOOL, [name, { ...input, write: false }], token).catch(() => undefined);
        const { title, message } = question(input, shown);
        return { invocationMessage, confirmationMessages: { title, message: new vscode.MarkdownString(message) } };
      },
      invoke: async ({ input }, token) => {
        const answer = await this.session.execute<ToolAnswer>(SERVER_TOOL, [name, input], token);
        if (token.isCancellationRequested) {
          throw new vscode.CancellationError();
        }
        if (answer.failed || LanguageModelToolResult === undefined || LanguageModelTextPart === undefined) {
          throw new Error(answer.text);
        }
        return new LanguageModelToolResult(parts(answer).map((text) => new LanguageModelTextPart(text)));
      },
    };
  }

  /** The server of the interpreter that is used now, where that has what the server needs. */
  private async servers({ McpStdioServerDefinition }: Newer, version: string): Promise<unknown[]> {
    const path = this.session.currentInterpreter?.path;
    const folders = (vscode.workspace.workspaceFolders ?? []).filter(({ uri }) => uri.scheme === "file").map(({ uri }) => uri.fsPath);
    if (path === undefined || folders.length === 0 || McpStdioServerDefinition === undefined) {
      return [];
    }
    const able = await probe(path, ["mcp", "fuselens_server"], serverEnvironment(process.env)).catch(() => undefined);
    return able?.missing.length === 0 ? [new McpStdioServerDefinition("Fuselens", path, serverArguments(folders), {}, version)] : [];
  }

  private reconsider(): void {
    const now = this.session.currentInterpreter?.path;
    if (now !== this.interpreter) {
      this.interpreter = now;
      this.changed.fire();
    }
  }
}
