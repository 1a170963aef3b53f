// What every webview shares: one script and one style sheet of ours, a policy that allows nothing else, and messages as plain data.

import { randomBytes } from "node:crypto";
import * as vscode from "vscode";

/** Where the bundles of `webviews/` lie. */
const FOLDER = ["dist", "webviews"] as const;

/** What a webview may load: files of ours. */
export function webviewOptions(extension: vscode.Uri): vscode.WebviewOptions {
  return { enableScripts: true, localResourceRoots: [vscode.Uri.joinPath(extension, ...FOLDER)] };
}

/**
 * The page of the webview `webviews/<name>.ts`, which draws all there is to see. `title` is what screen readers say.
 * Styles that a script sets on an element are not covered by the policy; style sheets and `style` attributes are.
 * `more` are directives that a page needs beyond that.
 */
export function page(webview: vscode.Webview, extension: vscode.Uri, name: string, title: string, more = ""): string {
  const nonce = randomBytes(16).toString("base64url");
  const file = (suffix: string): string => webview.asWebviewUri(vscode.Uri.joinPath(extension, ...FOLDER, `${name}.${suffix}`)).toString();
  const policy = `default-src 'none'; script-src 'nonce-${nonce}'; style-src ${webview.cspSource}; img-src ${webview.cspSource} data:; ${more}`;
  return `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<title>${escaped(title)}</title>
<link rel="stylesheet" href="${file("css")}">
</head>
<body>
<main id="root"></main>
<script nonce="${nonce}" src="${file("js")}"></script>
</body>
</html>
`;
}

function escaped(text: string): string {
  return text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
}
