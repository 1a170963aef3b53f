// Programs of ours in an interpreter of the person's.

import { execFile } from "node:child_process";
import { serverEnvironment } from "../server/interpreters";

/** What a program prints. Rejects with the last line that it wrote on standard error, or when it takes too long. */
export function output(interpreter: string, programArguments: readonly string[], seconds: number): Promise<string> {
  return new Promise((resolve, reject) => {
    const options = { env: serverEnvironment(process.env), timeout: seconds * 1000, maxBuffer: 2 ** 24 };
    execFile(interpreter, [...programArguments], options, (error, stdout, stderr) => {
      if (error === null) {
        resolve(stdout);
      } else {
        const last = stderr.trim().split("\n").pop();
        reject(new Error(error.killed ? `${interpreter} gave no answer within ${seconds} s` : last || `${interpreter} does not run`));
      }
    });
  });
}
