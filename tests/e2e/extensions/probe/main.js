// Evaluates the body of each POST as an async function of (vscode, argument) and answers with its result as JSON. The port is
// written to $FUSELENS_PROBE, so that the newest extension host is the one that is asked.

const { writeFileSync, renameSync } = require("node:fs");
const { createServer } = require("node:http");
const vscode = require("vscode");

const AsyncFunction = (async () => {}).constructor;

async function evaluate(text) {
  const { source, argument } = JSON.parse(text);
  return { result: (await new AsyncFunction("vscode", "argument", source)(vscode, argument)) ?? null };
}

exports.activate = (context) => {
  const server = createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", async () => {
      const answer = await evaluate(Buffer.concat(chunks).toString()).catch((error) => ({ error: String(error.stack ?? error) }));
      response.end(JSON.stringify(answer));
    });
  });
  server.listen(0, "127.0.0.1", () => {
    const file = process.env.FUSELENS_PROBE;
    writeFileSync(`${file}.new`, String(server.address().port));
    renameSync(`${file}.new`, file);
  });
  context.subscriptions.push({ dispose: () => server.close() });
};
