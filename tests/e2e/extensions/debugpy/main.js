// A debug adapter with two abilities: it takes breakpoints, and runs the program until its end. The command `test.debugged`
// says what it was asked: the last configuration, the breakpoints, and what the program printed.

const { spawn } = require("node:child_process");
const vscode = require("vscode");

let debugged = null;

class Adapter {
  constructor(configuration) {
    this.sent = new vscode.EventEmitter();
    this.onDidSendMessage = this.sent.event;
    this.configuration = configuration;
    debugged = { configuration, breakpoints: [], printed: "", ended: false };
  }

  handleMessage({ seq, type, command, arguments: given }) {
    if (type !== "request") {
      return;
    }
    const answer = (body) => this.sent.fire({ type: "response", seq: 0, request_seq: seq, command, success: true, body });
    const tell = (event, body) => this.sent.fire({ type: "event", seq: 0, event, body });
    if (command === "initialize") {
      answer({ supportsConfigurationDoneRequest: true });
      tell("initialized");
    } else if (command === "setBreakpoints") {
      const lines = (given.breakpoints ?? []).map(({ line }) => line);
      debugged.breakpoints.push(...lines.map((line) => [given.source.path, line]));
      answer({ breakpoints: lines.map((line) => ({ verified: true, line })) });
    } else if (command === "configurationDone") {
      answer({});
      const { python, module, args, cwd } = this.configuration;
      const run = spawn(python, ["-m", module, ...args], { cwd });
      const print = (data) => {
        debugged.printed += data.toString();
      };
      run.stdout.on("data", print);
      run.stderr.on("data", print);
      run.on("close", () => {
        debugged.ended = true;
        tell("terminated");
      });
    } else {
      answer(command === "threads" ? { threads: [] } : {});
    }
  }

  dispose() {}
}

exports.activate = (context) => {
  context.subscriptions.push(
    vscode.commands.registerCommand("test.debugged", () => debugged),
    vscode.debug.registerDebugAdapterDescriptorFactory("debugpy", {
      createDebugAdapterDescriptor: (session) => new vscode.DebugAdapterInlineImplementation(new Adapter(session.configuration)),
    }),
  );
};
