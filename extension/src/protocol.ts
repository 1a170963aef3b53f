// What passes between the extension and the language server beside the Language Server Protocol.

/** Sent by the server whenever what it is doing changes. */
export interface ServerStatus {
  state: "starting" | "ready" | "compiling" | "error";
  message?: string;
  torch?: string;
  interpreter?: string;
}
export const STATUS = "fuselens/status";

/** Asks for the text of a virtual document. */
export interface DocumentContentParams {
  uri: string;
}
export interface DocumentContent {
  text: string;
}
export const DOCUMENT_CONTENT = "fuselens/documentContent";

/** Sent by the server when virtual documents have new text. */
export interface DocumentsChanged {
  uris: string[];
}
export const DOCUMENTS_CHANGED = "fuselens/documentsChanged";

/** Tells the server which file is looked at, so that it compiles that one before others. */
export const FOCUS = "fuselens/focus";

/** One entry of the list that the command `fuselens.server.documents` returns. */
export interface StageDocument {
  uri: string;
  title: string;
  kind: string;
  language?: string;
}

/** A diagnostic of the compiler, as it appears inside other messages. Fields at their default are left out. */
export interface CompilerDiagnostic {
  code: string;
  message: string;
  explanation?: string;
  hints?: string[];
}

/** What the command `fuselens.server.run` returns. Times are medians in seconds; fields at their default are left out. */
export interface RunResult {
  function: string;
  agrees: boolean;
  detail: string;
  max_error?: number | null;
  gradients_agree?: boolean | null;
  eager_seconds?: number | null;
  compiled_seconds?: number | null;
  compile_seconds?: number | null;
  eager_bytes?: number | null;
  compiled_bytes?: number | null;
  error?: CompilerDiagnostic | null;
  instead?: string;
}

/** Commands that the server executes. */
export const SERVER_RUN = "fuselens.server.run";
export const SERVER_DOCUMENTS = "fuselens.server.documents";
export const SERVER_EXPLAIN = "fuselens.server.explain";
export const SERVER_PREVIEW = "fuselens.server.preview";

/** What the server is told when it starts; it asks for the rest ({@link ServerSettings}) and is told when that changes. */
export interface InitializationOptions {
  interpreter: string;
  /** VS Code asks whether to trust a workspace, and the extension is not there in others: files may be run. */
  workspaceTrust: true;
  /** Hovers may link to commands. */
  commandLinks: true;
  /** The server's messages beyond LSP are heard ({@link STATUS}, {@link DOCUMENTS_CHANGED}). */
  notifications: true;
}

/** The answer to `workspace/configuration` for the section `fuselens`. */
export interface ServerSettings {
  /** The interpreter that a workspace folder sets for itself; "" when it sets none. */
  interpreter: string;
  /** seconds */
  timeout: number;
  /** MiB, an integer */
  memoryLimit: number;
  /** "" is the compiler's choice. */
  target: string;
  /** "slice", "import" or "never" */
  execution: string;
  codeLens: boolean;
  live: boolean;
  warmFiles: boolean;
  tryFixes: boolean;
}
