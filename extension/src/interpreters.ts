// Which Python interpreter to use, without touching the editor: the rules, so that they can be tested.

import * as path from "node:path";

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

/** The first source that names an interpreter wins. A source that fails is reported and passed over. */
export async function chooseInterpreter(
  sources: readonly Source[],
  failed: (origin: string, error: unknown) => void,
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

/** Every file that `python3` or `python` may mean on a search path, in order. */
export function onSearchPath(searchPath: string, windows: boolean): string[] {
  const flavour = windows ? path.win32 : path.posix;
  const names = windows ? ["python.exe"] : ["python3", "python"];
  const folders = searchPath.split(flavour.delimiter).filter((folder) => folder !== "");
  return names.flatMap((name) => folders.map((folder) => flavour.join(folder, name)));
}

/** Variables for the server: everything but what would make Python's standard streams unbuffered, which breaks framing. */
export function serverEnvironment(environment: Readonly<Record<string, string | undefined>>): Record<string, string> {
  const kept = Object.entries(environment).filter(
    (entry): entry is [string, string] => entry[1] !== undefined && entry[0] !== "PYTHONUNBUFFERED",
  );
  return { ...Object.fromEntries(kept), PYTHONUTF8: "1" };
}
