// Which command installs the compiler into an environment: uv's where uv made it, conda's Python in conda's, else pip.

import { posix, win32 } from "node:path";

export const REQUIREMENT = "fuselens[server]";

/** What an interpreter tells of its environment. */
export interface EnvironmentFacts {
  interpreter: string;
  /** Where the environment lies. */
  prefix: string;
  /** Whether it is a virtual environment. */
  virtual: boolean;
  pip: boolean;
  /** Whether uv made it. */
  madeByUv: boolean;
  conda: boolean;
  /** Whether a distribution keeps it, and others may install nothing. */
  managed: boolean;
}

/** What is on the search path. */
export interface Tools {
  uv?: string | undefined;
  conda?: string | undefined;
}

/** Command lines to run one after the other, each as words; and which interpreter has the compiler then. */
export interface Installation {
  commands: string[][];
  interpreter: string;
  /** Why it is done in this way, where that is not plain. */
  why: string;
}

/** `folder` is where a new environment may be made; undefined where there is no such place. */
export function installation(facts: EnvironmentFacts, tools: Tools, folder: string | undefined, windows = false): Installation | undefined {
  const { interpreter } = facts;
  const byPip = [interpreter, "-m", "pip", "install", REQUIREMENT];
  if (facts.managed && !facts.virtual && !facts.conda) {
    return folder === undefined ? undefined : inNewEnvironment(interpreter, tools, folder, windows);
  }
  if (tools.uv !== undefined && (facts.madeByUv || !facts.pip)) {
    const why = facts.madeByUv ? "uv made this environment." : "This environment has no pip, and uv needs none.";
    return { commands: [[tools.uv, "pip", "install", "--python", interpreter, REQUIREMENT]], interpreter, why };
  }
  if (facts.pip) {
    return { commands: [byPip], interpreter, why: facts.conda ? "It goes into the conda environment, beside its torch." : "" };
  }
  if (facts.conda && tools.conda !== undefined) {
    const pip = [tools.conda, "install", "--yes", "--prefix", facts.prefix, "pip"];
    return { commands: [pip, byPip], interpreter, why: "This conda environment has no pip yet." };
  }
  return { commands: [[interpreter, "-m", "ensurepip"], byPip], interpreter, why: "This environment has no pip yet." };
}

function inNewEnvironment(python: string, tools: Tools, folder: string, windows: boolean): Installation {
  const paths = windows ? win32 : posix;
  const environment = paths.join(folder, ".venv");
  const interpreter = windows ? paths.join(environment, "Scripts", "python.exe") : paths.join(environment, "bin", "python");
  const why = "The system keeps this Python for itself, so an environment of its own is made in the folder.";
  return tools.uv === undefined
    ? { commands: [[python, "-m", "venv", environment], [interpreter, "-m", "pip", "install", REQUIREMENT]], interpreter, why }
    : { commands: [[tools.uv, "venv", "--python", python, environment], [tools.uv, "pip", "install", "--python", interpreter, REQUIREMENT]], interpreter, why };
}

/** A command line for a person to read. */
export function shown(words: readonly string[]): string {
  return words.map((word) => (/^[\w@%+=:,./\\-]+$/.test(word) ? word : `"${word}"`)).join(" ");
}
