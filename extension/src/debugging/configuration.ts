// What a Python debugger is told: our launcher calls the function, uncompiled, on its example inputs.

export interface DebugConfiguration {
  type: string;
  name: string;
  request: "launch";
  module: string;
  args: string[];
  python: string;
  cwd: string;
  console: "integratedTerminal";
  justMyCode: true;
}

/** The debugger to use, of the types that the installed extensions offer; undefined when none is for Python. */
export function debuggerType(offered: readonly string[]): string | undefined {
  return ["debugpy", "python"].find((type) => offered.includes(type));
}

export function debugConfiguration(type: string, python: string, file: string, name: string, cwd: string): DebugConfiguration {
  return {
    type,
    name: `Fuselens: ${name}, uncompiled`,
    request: "launch",
    module: "fuselens.stepping",
    args: [file, name],
    python,
    cwd,
    console: "integratedTerminal",
    justMyCode: true,
  };
}
