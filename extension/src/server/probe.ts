// What an interpreter can do, found out before a server is started in it: a missing package then has a message of its own
// instead of a server that dies.

import { execFile } from "node:child_process";

export interface Abilities {
  version: string;
  /** Packages that cannot be found among those asked for. */
  missing: string[];
  /** What is installed of torch and fuselens; "" where nothing is. */
  versions: { torch: string; fuselens: string };
}

const SCRIPT = `
import importlib.util, json, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
def found(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "missing": [n for n in sys.argv[1:] if not found(n)],
                  "versions": {n: version(n) for n in ("torch", "fuselens")}}))
`;

/** Looks for `packages` in `interpreter` without importing them. Rejects with a one-line reason when it cannot run. */
export function probe(
  interpreter: string,
  packages: readonly string[],
  environment: NodeJS.ProcessEnv,
  seconds = 20,
): Promise<Abilities> {
  return new Promise((resolve, reject) => {
    const options = { env: environment, timeout: seconds * 1000 };
    execFile(interpreter, ["-c", SCRIPT, ...packages], options, (error, stdout, stderr) => {
      const abilities = error === null ? parseAbilities(stdout) : undefined;
      if (abilities !== undefined) {
        resolve(abilities);
      } else {
        reject(new Error(whyNot(interpreter, error, stderr)));
      }
    });
  });
}

/** The last line that is the script's answer: an interpreter's start-up files may print before it. */
export function parseAbilities(stdout: string): Abilities | undefined {
  for (const line of stdout.trim().split("\n").reverse()) {
    try {
      const value = JSON.parse(line) as Partial<Abilities>;
      if (typeof value.version === "string" && Array.isArray(value.missing) && value.versions !== undefined) {
        return { version: value.version, missing: value.missing, versions: value.versions };
      }
    } catch {
      continue;
    }
  }
  return undefined;
}

/** "Python 3.12.1 · torch 2.13.0 · no fuselens" */
export function inWords({ version, versions }: Abilities): string {
  const named = Object.entries(versions).map(([name, found]) => (found === "" ? `no ${name}` : `${name} ${found}`));
  return [`Python ${version}`, ...named].join(" · ");
}

/** The reason why an interpreter cannot host the server; undefined when it can. */
export function obstacle(interpreter: string, abilities: Abilities): string | undefined {
  const [major = 0, minor = 0] = abilities.version.split(".").map(Number);
  if (major !== 3 || minor < 11 || minor > 14) {
    return `${interpreter} is Python ${abilities.version}; Fuselens supports 3.11 to 3.14.`;
  }
  if (abilities.missing.length > 0) {
    return `${interpreter} lacks ${abilities.missing.join(", ")}: ${INSTALL} there.`;
  }
  return undefined;
}

const INSTALL = 'install "fuselens[server]"';

/** Whether an {@link obstacle} goes away when packages are installed. */
export function lacksPackages(problem: string): boolean {
  return problem.includes(INSTALL);
}

function whyNot(interpreter: string, error: Error | null, stderr: string): string {
  const code = (error as NodeJS.ErrnoException | null)?.code;
  if (code === "ENOENT") {
    return `there is no interpreter at ${interpreter}.`;
  }
  if (code === "EACCES") {
    return `${interpreter} may not be executed.`;
  }
  if (error !== null && "killed" in error && error.killed) {
    return `${interpreter} gives no answer.`;
  }
  const last = stderr.trim().split("\n").pop();
  return `${interpreter} does not run${last ? `: ${last}` : "."}`;
}
