// The selected environment is an interpreter's path; the command `test.selectEnvironment` selects another one.

const vscode = require("vscode");

exports.activate = (context) => {
  let selected = process.env.FUSELENS_STUB_PYTHON ?? "python3";
  const changed = new vscode.EventEmitter();
  context.subscriptions.push(
    changed,
    vscode.commands.registerCommand("test.selectEnvironment", (path) => {
      selected = path;
      changed.fire({ id: path, path, resource: undefined });
    }),
  );
  return {
    environments: {
      getActiveEnvironmentPath: () => ({ id: selected, path: selected }),
      resolveEnvironment: async ({ path }) => ({ id: path, path, executable: { uri: vscode.Uri.file(path) } }),
      onDidChangeActiveEnvironmentPath: changed.event,
    },
  };
};
