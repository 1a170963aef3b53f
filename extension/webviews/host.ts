// The editor's side of a webview, as the page sees it.

interface Host {
  postMessage(message: unknown): void;
  getState(): unknown;
  setState(state: unknown): void;
}

declare function acquireVsCodeApi(): Host;

/** There is one in each page. */
export const host = acquireVsCodeApi();

let held = false;
let waiting: (() => void) | undefined;

function release(): void {
  held = false;
  waiting?.();
  waiting = undefined;
}

window.addEventListener("pointerdown", () => (held = true));
for (const end of ["pointerup", "pointercancel", "blur"]) {
  window.addEventListener(end, () => setTimeout(release)); // after the click
}

/**
 * Draws now, or once the mouse is released: a button that is replaced while it is pressed takes no click. Of those that wait only
 * the last one draws.
 */
export function whenReleased(draw: () => void): void {
  if (held) {
    waiting = draw;
  } else {
    draw();
  }
}
