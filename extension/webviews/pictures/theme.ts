// The editor's colours, as a canvas needs them: read from the page, again when the theme changes.

import type { Theme } from "./paint";

export function readTheme(): Theme {
  const style = getComputedStyle(document.body);
  const value = (name: string): string => style.getPropertyValue(name).trim();
  const kind = document.body.dataset["vscodeThemeKind"] ?? "";
  return {
    background: value("--background"),
    text: value("--text"),
    faint: value("--faint"),
    line: value("--line"),
    panel: value("--panel"),
    focus: value("--focus"),
    found: value("--found"),
    contrast: kind.includes("high-contrast"),
    kernels: Array.from({ length: 8 }, (_, k) => value(`--kernel-${k}`)),
    fonts: { plain: value("--vscode-font-family") || "sans-serif", mono: value("--vscode-editor-font-family") || "monospace" },
  };
}

/** Calls `changed` when the editor's theme is another. */
export function onTheme(changed: () => void): void {
  const watch = new MutationObserver(changed);
  watch.observe(document.body, { attributes: true, attributeFilter: ["class", "data-vscode-theme-kind", "data-vscode-theme-id"] });
  watch.observe(document.documentElement, { attributes: true, attributeFilter: ["style"] });
}
