// The report of Doctor: each line says that all is well, or what to do.

import { bytes } from "../functions/runResult";

/** What can be found out, or why not. */
export type Told<T> = { value: T } | { reason: string };

/** What `python/doctor.py` prints. */
export interface PythonFacts {
  python: string;
  packages: Record<"torch" | "fuselens" | "triton" | "pygls" | "lsprotocol", string | null>;
  compiler: Told<string>;
  gpu: Told<string | null>;
  cache: Told<{ folder: string; files: number; bytes: number; problem: string }>;
}

export interface Facts {
  editor: string;
  extension: string;
  system: string;
  /** undefined where none was found. */
  interpreter: { path: string; origin: string } | undefined;
  /** Why there is no server, if there is none. */
  problem: string | undefined;
  python: Told<PythonFacts>;
  /** Settings that differ from what they are by default. */
  settings: Record<string, unknown>;
}

export interface Line {
  state: "ok" | "todo" | "note";
  what: string;
  value: string;
  /** What to do. */
  advice?: string;
}

const INSTALL = "run Fuselens: Install fuselens[server]";

export function lines(facts: Facts): Line[] {
  const ok = (what: string, value: string): Line => ({ state: "ok", what, value });
  const todo = (what: string, value: string, advice: string): Line => ({ state: "todo", what, value, advice });
  const note = (what: string, value: string): Line => ({ state: "note", what, value });
  const { interpreter, problem } = facts;
  return [
    ok("editor", facts.editor),
    ok("extension", facts.extension),
    ok("system", facts.system),
    interpreter === undefined
      ? todo("interpreter", "none was found", "run Fuselens: Select Python Interpreter")
      : ok("interpreter", `${interpreter.path} (from ${interpreter.origin})`),
    problem === undefined ? ok("server", "runs") : todo("server", problem, "mend what is marked below, then run Fuselens: Restart the Language Server"),
    ...("value" in facts.python ? ofPython(facts.python.value) : interpreter === undefined ? [] : [todo("python", facts.python.reason, "select another interpreter")]),
    ...Object.entries(facts.settings).map(([name, value]) => note(name, JSON.stringify(value))),
    ...(Object.keys(facts.settings).length === 0 ? [note("settings", "all as they are by default")] : []),
  ];

  function ofPython({ python, packages, compiler, gpu, cache }: PythonFacts): Line[] {
    const [major = 0, minor = 0] = python.split(".").map(Number);
    const supported = major === 3 && minor >= 11 && minor <= 14;
    const { torch, fuselens, triton, pygls, lsprotocol } = packages;
    const [torchMajor = 0, torchMinor = 0] = (torch ?? "").split(".").map(Number);
    const recent = torchMajor > 2 || (torchMajor === 2 && torchMinor >= 11);
    return [
      supported ? ok("python", python) : todo("python", python, "select an interpreter of Python 3.11 to 3.14"),
      torch === null
        ? todo("torch", "not installed", `${INSTALL}, which brings it`)
        : recent ? ok("torch", torch) : todo("torch", torch, "update it: 2.11 is the oldest that is supported"),
      fuselens === null ? todo("fuselens", "not installed", INSTALL) : ok("fuselens", fuselens),
      pygls === null || lsprotocol === null
        ? todo("server packages", "not installed", INSTALL)
        : ok("server packages", `pygls ${pygls}, lsprotocol ${lsprotocol}`),
      triton === null ? note("triton", "not installed: needed for a GPU, and to see its kernels without one") : ok("triton", triton),
      ...(fuselens === null ? [] : [ofCompiler(compiler), ofCache(cache)]),
      ...(torch === null ? [] : [ofGpu(gpu)]),
    ];
  }

  function ofCompiler(told: Told<string>): Line {
    return "value" in told
      ? ok("C++ compiler", told.value)
      : todo("C++ compiler", told.reason, "install g++ or clang++, or the package fuselens[compiler]; or set CXX");
  }

  function ofCache(told: PythonFacts["cache"]): Line {
    if ("reason" in told) {
      return todo("cache", told.reason, "make the folder yours, or name another one with FUSELENS_CACHE_DIR");
    }
    const { folder, files, bytes: size, problem: objection } = told.value;
    const value = `${folder}: ${files} files, ${bytes(size)}`;
    return objection === "" ? ok("cache", value) : todo("cache", `${folder}: ${objection}`, "make the folder yours, or name another one with FUSELENS_CACHE_DIR");
  }

  function ofGpu(told: PythonFacts["gpu"]): Line {
    if ("reason" in told) {
      return todo("GPU", told.reason, "see whether torch can be imported there");
    }
    return told.value === null ? note("GPU", "none that torch can use: kernels are made for the CPU") : ok("GPU", told.value);
  }
}

const MARKS: Record<Line["state"], string> = { ok: "✓", todo: "✗", note: "·" };

/** As text that is read in an issue as it is here. */
export function report(facts: Facts): string {
  const found = lines(facts);
  const width = Math.max(...found.map(({ what }) => what.length));
  const open = found.filter(({ state }) => state === "todo").length;
  const head = open === 0 ? "All is well." : `${open === 1 ? "One thing is" : `${open} things are`} to be done (✗).`;
  const body = found.flatMap(({ state, what, value, advice }) => [
    `${MARKS[state]} ${what.padEnd(width)}  ${value}`,
    ...(advice === undefined ? [] : [`${" ".repeat(width + 4)}→ ${advice}`]),
  ]);
  return ["Fuselens: report on this installation", "", head, "", ...body, ""].join("\n");
}
