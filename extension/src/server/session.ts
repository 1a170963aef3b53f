// The language server that is running now: at most one, replaced as a whole when the interpreter or a setting changes.

import * as vscode from "vscode";
import {
  CloseAction,
  ErrorAction,
  LanguageClient,
  RevealOutputChannelOn,
  State,
  type DynamicFeature,
  type ErrorHandler,
  type StaticFeature,
} from "vscode-languageclient/node";
import { configuredPath, interpreterOf, interpretersOfFolders, sources } from "./environments";
import { chooseInterpreter, firstAble, serverEnvironment, type Failed, type Interpreter } from "./interpreters";
import { WholeLenses } from "./lenses";
import { levelOf } from "./log";
import { obstacle, probe } from "./probe";
import {
  DOCUMENTS_CHANGED,
  FOCUS,
  PICTURES_CHANGED,
  STATUS,
  type DocumentsChanged,
  type InitializationOptions,
  type PicturesChanged,
  type ServerStatus,
} from "./protocol";
import { SETTINGS, type ServerSettings } from "./settings";
import { toEditor, toServer } from "../documents/stageDocuments";
import { parseAddress, SCHEME } from "../documents/uris";

/** Commands that the server may link to from a hover. */
const LINKED_COMMANDS = [
  "fuselens.openDocument", "fuselens.openKernel", "fuselens.runFunction", "fuselens.explainFunction", "fuselens.peekStages",
  "fuselens.server.markDynamic",
];
const SERVER_PACKAGES = ["fuselens_server", "pygls", "lsprotocol"];
const CONFIGURATION_CHANGED = "workspace/didChangeConfiguration";
const TEXT_DOCUMENT_CONTENT = "workspace/textDocumentContent";

/** A server that dies more often than this within {@link CRASH_WINDOW_MS} stays down until it is restarted by hand. */
const CRASHES = 4;
const CRASH_WINDOW_MS = 180_000;

/**
 * Virtual documents outlive a server here, so the client's own provider for them, which does not, is left out. Errors go to the
 * log only: the session tells the person, once and in its own words.
 */
class Client extends LanguageClient {
  override error(message: string, data?: unknown): void {
    super.error(message, data, false);
  }

  override registerFeature(feature: StaticFeature | DynamicFeature<unknown>): void {
    if (!("registrationType" in feature && feature.registrationType.method === TEXT_DOCUMENT_CONTENT)) {
      super.registerFeature(feature);
    }
  }
}

export class Session implements vscode.Disposable {
  private client: LanguageClient | undefined;
  private interpreter: Interpreter | undefined;
  private lastLogLine = "";
  private obstacle: string | undefined;
  /** Starts and stops run one after the other. */
  private queue: Promise<void> = Promise.resolve();
  private readonly statusEmitter = new vscode.EventEmitter<{ status: ServerStatus; problem?: string }>();
  private readonly documentsEmitter = new vscode.EventEmitter<string[] | "all">();
  private readonly picturesEmitter = new vscode.EventEmitter<string[]>();

  /** What the server does, or why there is none. */
  readonly onStatus = this.statusEmitter.event;
  /** URIs of virtual documents with new text. */
  readonly onDocuments = this.documentsEmitter.event;
  /** URIs of files of which a run said something new. */
  readonly onPictures = this.picturesEmitter.event;

  private readonly failed: Failed = (origin, error) => this.output.warn(`${origin} failed: ${String(error)}`);
  private readonly focusing = vscode.window.onDidChangeActiveTextEditor(() => this.tellFocus());

  constructor(private readonly output: vscode.LogOutputChannel) {}

  /** (Re)starts the server. Resolves when it answers or cannot be started; never rejects. */
  restart(why: string): Promise<void> {
    return this.enqueue(async () => {
      this.output.info(`starting the language server (${why})`);
      await this.stopClient();
      await this.startClient();
      this.documentsEmitter.fire("all");
    });
  }

  /** Restarts only if another interpreter is to be used now. */
  reconsider(why: string): Promise<void> {
    return this.enqueue(async () => {
      const chosen = await this.choose();
      if (chosen?.path !== this.interpreter?.path || this.client === undefined) {
        this.output.info(`the interpreter is now ${chosen?.path ?? "unknown"} (${why})`);
        await this.stopClient();
        await this.startClient();
        this.documentsEmitter.fire("all");
      } else {
        await this.client.sendNotification(CONFIGURATION_CHANGED, { settings: null }); // it may be another folder's
      }
    });
  }

  stop(): Promise<void> {
    return this.enqueue(() => this.stopClient());
  }

  get currentInterpreter(): Interpreter | undefined {
    return this.interpreter;
  }

  /** Why there is no server; undefined while there is one, or may be soon. */
  get problem(): string | undefined {
    return this.obstacle;
  }

  /** Sends a custom request, to a server that is being started once it answers. Rejects when there is none. */
  async request<Result>(method: string, params: unknown, token?: vscode.CancellationToken): Promise<Result> {
    await this.queue;
    const client = this.running();
    return token ? client.sendRequest<Result>(method, params, token) : client.sendRequest<Result>(method, params);
  }

  /** Executes one of the server's commands. Rejects when there is no server. */
  execute<Result>(command: string, commandArguments: unknown[], token?: vscode.CancellationToken): Promise<Result> {
    return this.request<Result>("workspace/executeCommand", { command, arguments: commandArguments }, token);
  }

  dispose(): void {
    void this.stop();
    this.focusing.dispose();
    this.statusEmitter.dispose();
    this.documentsEmitter.dispose();
  }

  private enqueue(step: () => Promise<void>): Promise<void> {
    this.queue = this.queue.then(step).catch((error: unknown) => this.fail(String(error)));
    return this.queue;
  }

  private running(): LanguageClient {
    if (this.client?.state !== State.Running) {
      throw new Error("The Fuselens language server is not running.");
    }
    return this.client;
  }

  private choose(): Promise<Interpreter | undefined> {
    return chooseInterpreter(sources(), this.failed);
  }

  private async startClient(): Promise<void> {
    const interpreter = await this.choose();
    this.interpreter = interpreter;
    if (interpreter === undefined) {
      this.fail("No Python interpreter was found. Select one, or set fuselens.interpreter.");
      return;
    }
    const wanted = configuredPath("serverInterpreter");
    this.output.info(`interpreter: ${interpreter.path} (from ${interpreter.origin})`);
    this.say({ state: "starting", interpreter: interpreter.path });

    const environment = serverEnvironment(process.env);
    // A folder whose environment lacks the server does not silence the others: the server runs in any that has it.
    const candidates = wanted !== "" ? [wanted] : [interpreter.path, ...(await interpretersOfFolders(this.failed))];
    const { path: serverPath, problem } = await firstAble([...new Set(candidates)], (path) =>
      probe(path, SERVER_PACKAGES, environment).then(
        (abilities) => obstacle(path, abilities),
        (error: unknown) => (error instanceof Error ? error.message : String(error)),
      ),
    );
    if (problem !== undefined) {
      this.fail(problem);
      return;
    }
    if (serverPath !== interpreter.path) {
      this.output.info(`server interpreter: ${serverPath}`);
    }
    this.lastLogLine = "";
    const client = this.makeClient(serverPath, interpreter.path, environment);
    this.client = client;
    try {
      await client.start();
    } catch (error) {
      const reason = this.lastLogLine || (error instanceof Error ? error.message : String(error));
      this.fail(`The language server did not start: ${reason}`);
      return;
    }
    await vscode.commands.executeCommand("setContext", "fuselens.active", true);
  }

  private makeClient(serverPath: string, interpreter: string, environment: Record<string, string>): LanguageClient {
    // The client adds its own environment to what it is given; undefined takes a variable away again.
    const env = { ...environment, PYTHONUNBUFFERED: undefined };
    const lenses = new WholeLenses(() => client);
    const client: LanguageClient = new Client(
      "fuselens",
      "Fuselens",
      { command: serverPath, args: ["-m", "fuselens_server"], options: { env } },
      {
        documentSelector: [
          { scheme: "file", language: "python" },
          { scheme: "vscode-notebook-cell", language: "python" },
          { scheme: SCHEME },
          { scheme: "file", pattern: "**/.fuselens/{drafts,kernels}/**/*.{cpp,py}" },
        ],
        outputChannel: this.output,
        revealOutputChannelOn: RevealOutputChannelOn.Never,
        initializationOptions: {
          interpreter,
          workspaceTrust: true,
          commandLinks: true,
          notifications: true,
          highlights: false,
        } satisfies InitializationOptions,
        uriConverters: {
          code2Protocol: (uri) => (uri.scheme === SCHEME ? toServer(uri) : uri.toString()),
          protocol2Code: toEditor,
        },
        markdown: { isTrusted: { enabledCommands: LINKED_COMMANDS }, supportHtml: false },
        errorHandler: this.errorHandler(),
        middleware: {
          provideCodeLenses: lenses.asked,
          workspace: {
            configuration: ({ items }) =>
              Promise.all(
                items.map(async ({ section, scopeUri }) => {
                  const scope = scopeUri === undefined ? undefined : vscode.Uri.parse(scopeUri);
                  return section === "fuselens" ? serverSettings(scope, this.failed) : null;
                }),
              ),
          },
        },
        initializationFailedHandler: () => false,
        stdioOptions: {
          stdout: () => undefined,
          stderr: (stream, channel) => forwardLog(stream, channel, (line) => (this.lastLogLine = line)),
        },
      },
    );
    client.registerFeature(lenses);
    client.onNotification(STATUS, (status: ServerStatus) => this.say({ interpreter, ...status }));
    client.onNotification(DOCUMENTS_CHANGED, ({ uris }: DocumentsChanged) => this.documentsEmitter.fire(uris));
    client.onNotification(PICTURES_CHANGED, ({ uris }: PicturesChanged) => this.picturesEmitter.fire(uris));
    client.onDidChangeState(({ newState }) => {
      if (this.client === client && newState === State.Running) {
        this.say({ state: "ready", interpreter }); // the server itself speaks up when it has work
        this.tellFocus();
        this.documentsEmitter.fire("all");
      }
    });
    return client;
  }

  private errorHandler(): ErrorHandler {
    let crashes: number[] = [];
    return {
      error: () => ({ action: ErrorAction.Continue }),
      closed: () => {
        const now = Date.now();
        crashes = [...crashes.filter((time) => now - time < CRASH_WINDOW_MS), now];
        if (this.client?.state === State.Starting) {
          return { action: CloseAction.DoNotRestart, handled: true }; // start() rejects, and that is told
        }
        if (crashes.length >= CRASHES) {
          this.fail("The language server stopped. See the output, then restart it.");
          return { action: CloseAction.DoNotRestart, handled: true };
        }
        this.output.warn("the language server stopped; starting it again");
        this.say({ state: "starting", message: "restarting after a crash", interpreter: this.interpreter?.path ?? "" });
        return { action: CloseAction.Restart, handled: true };
      },
    };
  }

  private async stopClient(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    if (client === undefined) {
      return;
    }
    await vscode.commands.executeCommand("setContext", "fuselens.active", false);
    try {
      if (client.needsStop()) {
        await client.stop(3000);
      }
      await client.dispose();
    } catch (error) {
      this.output.debug(`while stopping: ${String(error)}`);
    }
  }

  /** Looking at a virtual document is looking at the file that it is about. */
  private tellFocus(): void {
    const uri = vscode.window.activeTextEditor?.document.uri;
    if (uri !== undefined && this.client?.state === State.Running) {
      const file = uri.scheme === SCHEME ? parseAddress(uri.toString())?.file : uri.toString();
      void this.client.sendNotification(FOCUS, { uri: file ?? null });
    }
  }

  private say(status: ServerStatus): void {
    this.obstacle = undefined;
    this.statusEmitter.fire({ status });
  }

  private fail(problem: string): void {
    this.output.error(problem);
    this.obstacle = problem;
    this.statusEmitter.fire({ status: { state: "error", interpreter: this.interpreter?.path ?? "" }, problem });
  }
}

/** The section `fuselens` as the server knows it: flat, without what concerns only the editor. */
async function serverSettings(scope: vscode.Uri | undefined, failed: Failed): Promise<ServerSettings> {
  const settings = vscode.workspace.getConfiguration("fuselens", scope);
  const values = SETTINGS.map(({ name, key, fallback }) => [name, settings.get(key, fallback)] as const);
  return { interpreter: await interpreterOf(scope, failed), ...Object.fromEntries(values) } as ServerSettings;
}

/** The server logs on standard error; its lines name their level. */
function forwardLog(stream: NodeJS.ReadableStream, channel: vscode.LogOutputChannel, saw: (line: string) => void): void {
  const logged = { debug: channel.debug, info: channel.info, warning: channel.warn, error: channel.error };
  const log = (line: string): void => {
    if (line.trim() !== "") {
      saw(line.trim());
      logged[levelOf(line)].call(channel, line);
    }
  };
  let rest = "";
  stream.setEncoding("utf8");
  stream.on("data", (chunk: string) => {
    const lines = (rest + chunk).split("\n");
    rest = lines.pop() ?? "";
    lines.forEach(log);
  });
  stream.on("end", () => log(rest));
}
