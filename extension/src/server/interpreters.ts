// Which Python interpreter to use, without touching the editor: the rules, so that they can be tested.

import * as path from "node:path";
import which from "which";

export interface Interpreter {
  path: string;
  /** Where the choice comes from, as shown to the person. */
  origin: string;
}

/** One place to look. It may fail; the next one is then asked. */
export interface Source {
  origin: string;
  find(): Promise<string | undefined>;
}

/** Hears of a source that failed. */
export type Failed = (origin: string, error: unknown) => void;

/** The first of `candidates` without an obstacle, and the obstacle of the first where all have one. */
export async function firstAble(
  candidates: readonly string[],
  obstacleOf: (path: string) => Promise<string | undefined>,
): Promise<{ path: string; problem?: string }> {
  let problem: string | undefined;
  for (const path of candidates) {
    const found = await obstacleOf(path);
    if (found === undefined) {
      return { path };
    }
    problem ??= found;
  }
  return { path: candidates[0] ?? "", problem: problem ?? "no interpreter was found." };
}

/** The first source that names an interpreter wins. A source that fails is reported and passed over. */
export async function chooseInterpreter(
  sources: readonly Source[],
  failed: Failed,
): Promise<Interpreter | undefined> {
  for (const { origin, find } of sources) {
    try {
      const found = await find();
      if (found !== undefined && found !== "") {
        return { path: found, origin };
      }
    } catch (error) {
      failed(origin, error);
    }
  }
  return undefined;
}

export interface Variables {
  home: string;
  workspaceFolder?: string | undefined;
  environment: Readonly<Record<string, string | undefined>>;
}

/** Expands `~`, `${workspaceFolder}`, `${userHome}` and `${env:NAME}` in a path from the settings. */
export function expandPath(text: string, variables: Variables): string {
  const trimmed = text.trim().replace(/^~(?=$|[\\/])/, () => variables.home);
  return trimmed.replace(/\$\{([^}]*)\}/g, (whole: string, name: string) => {
    if (name === "workspaceFolder") {
      return variables.workspaceFolder ?? whole;
    }
    if (name === "userHome") {
      return variables.home;
    }
    return name.startsWith("env:") ? (variables.environment[name.slice(4)] ?? "") : whole;
  });
}

/** Where a virtual environment made in `folder` keeps its interpreter. */
export function environmentsIn(folder: string, windows: boolean): string[] {
  return [".venv", "venv"].map((name) =>
    windows ? path.win32.join(folder, name, "Scripts", "python.exe") : path.posix.join(folder, name, "bin", "python"),
  );
}

/** Every program that `python3` or `python` may mean on a search path, in order. */
export async function onSearchPath(searchPath = process.env.PATH ?? ""): Promise<string[]> {
  const found = await Promise.all(["python3", "python"].map((name) => which(name, { all: true, nothrow: true, path: searchPath })));
  return [...new Set(found.flatMap((paths) => paths ?? []))];
}

/** The first of some paths that can be executed. */
export async function firstExecutable(paths: readonly string[]): Promise<string | undefined> {
  for (const one of paths) {
    const found = await which(one, { nothrow: true });
    if (found !== null) {
      return found;
    }
  }
  return undefined;
}

/** Variables for the server: everything but what would make Python's standard streams unbuffered, which breaks framing. */
export function serverEnvironment(environment: Readonly<Record<string, string | undefined>>): Record<string, string> {
  const kept = Object.entries(environment).filter(
    (entry): entry is [string, string] => entry[1] !== undefined && entry[0] !== "PYTHONUNBUFFERED",
  );
  return { ...Object.fromEntries(kept), PYTHONUTF8: "1" };
}
