// The editor's side of a webview, as the page sees it.

interface Host {
  postMessage(message: unknown): void;
  getState(): unknown;
  setState(state: unknown): void;
}

declare function acquireVsCodeApi(): Host;

/** There is one in each page. */
export const host = acquireVsCodeApi();
