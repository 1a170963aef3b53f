// Written by scripts/settings.py from what the server declares: change it there.

/** The answer to `workspace/configuration` for the section `fuselens`. */
export interface ServerSettings {
  /** The interpreter that a workspace folder sets for itself; "" when it sets none. */
  interpreter: string;
  timeout: number;
  memoryLimit: number;
  target: string;
  execution: string;
  mesh: string;
  card: string;
  stepLimit: string;
  stepSizes: string;
  codeLens: boolean;
  codeLensShow: string[];
  inlayHints: boolean;
  live: boolean;
  warmFiles: boolean;
  pins: boolean;
  patches: boolean;
  tryFixes: boolean;
  foretellRecompiles: boolean;
  proveSeconds: number;
  whatIfSeconds: number;
  compareWith: string;
}

/** The server's name of each setting, ours after `fuselens.`, and what holds where nothing is set. */
export const SETTINGS = [
  { name: "timeout", key: "timeout", fallback: 60 },
  { name: "memoryLimit", key: "memoryLimit", fallback: 8192 },
  { name: "target", key: "target", fallback: "auto" },
  { name: "execution", key: "execution", fallback: "slice" },
  { name: "mesh", key: "mesh", fallback: "" },
  { name: "card", key: "card", fallback: "" },
  { name: "stepLimit", key: "stepLimit", fallback: "" },
  { name: "stepSizes", key: "stepSizes", fallback: "" },
  { name: "codeLens", key: "codeLens.enabled", fallback: true },
  { name: "codeLensShow", key: "codeLens.show", fallback: ["run", "graphs", "kernels", "code", "ir", "debug", "inlined", "proof", "limits", "whatIf", "lastRun"] },
  { name: "inlayHints", key: "inlayHints.enabled", fallback: true },
  { name: "live", key: "live", fallback: false },
  { name: "warmFiles", key: "warmFiles", fallback: true },
  { name: "pins", key: "pins", fallback: true },
  { name: "patches", key: "patches", fallback: true },
  { name: "tryFixes", key: "tryFixes", fallback: true },
  { name: "foretellRecompiles", key: "foretellRecompiles", fallback: true },
  { name: "proveSeconds", key: "proveSeconds", fallback: 60 },
  { name: "whatIfSeconds", key: "whatIfSeconds", fallback: 60 },
  { name: "compareWith", key: "compareWith", fallback: "" },
] as const;
