// What passes between the panel and its page.

import type { Pictures, Place } from "../server/protocol";

/** To the page. */
export type ToPage =
  | { kind: "pictures"; file: string; pictures: Pictures }
  /** Why there are none. */
  | { kind: "problem"; text: string }
  /** Where the cursor is in the editor; lines count from 0. */
  | { kind: "cursor"; uri: string; line: number };

/** From the page. */
export type FromPage =
  | { kind: "ready" }
  | { kind: "open"; place: Place }
  | { kind: "function"; name: string }
  /** Runs the function on its example inputs. */
  | { kind: "run" }
  /** Runs the file in a terminal. */
  | { kind: "follow" }
  /** `base64` for pictures of points, else text. */
  | { kind: "save"; name: string; suffix: "svg" | "png"; content: string; base64: boolean };
