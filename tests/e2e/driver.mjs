// Chromium as a process that answers requests: one JSON object a line on standard input, one answer a line on standard output.
//   {"id": 1, "method": "click", "arguments": ["a.button"]}  →  {"id": 1, "result": …} or {"id": 1, "error": "…"}

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const [executablePath] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath,
  headless: true,
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});
const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: "en-GB", reducedMotion: "reduce" });
// Nothing moves: a spinner draws sixty frames a second, which the program under test could use.
await context.addInitScript(() => {
  const still = new CSSStyleSheet();
  still.replaceSync("*, *::before, *::after { animation: none !important; transition: none !important; }");
  document.adoptedStyleSheets.push(still);
});
await context.grantPermissions(["clipboard-read", "clipboard-write"]);
const page = await context.newPage();
const messages = [];
page.on("console", (message) => message.type() === "error" && messages.push(message.text()));
page.on("pageerror", (error) => messages.push(String(error)));

/** The first element of `selector`, of those that hold `text` when it is given. */
function locate(selector, text, root = page) {
  const all = root.locator(selector);
  return (text ? all.filter({ hasText: text }) : all).first();
}

/** The frame of the webview whose page has this title. Its content lies two frames deep. */
async function webview(title) {
  for (const frame of page.frames()) {
    const found = await frame.title().catch(() => "");
    if (found === title) {
      return frame;
    }
  }
  throw new Error(`no webview with the title ${title}`);
}

const AXE = readFileSync(fileURLToPath(import.meta.resolve("axe-core/axe.min.js")), "utf8");

/** What axe-core finds against a page: "rule: help (selector)". */
async function violations(title) {
  const frame = await webview(title);
  await frame.evaluate(AXE);
  const { violations: found } = await frame.evaluate("axe.run(document, { resultTypes: ['violations'] })");
  return found.flatMap(({ id, help, nodes }) => nodes.map(({ target }) => `${id}: ${help} (${target.join(" ")})`));
}

const methods = {
  goto: (url) => page.goto(url, { waitUntil: "domcontentloaded" }).then(() => null),
  wait: (selector, text, timeout, state) => locate(selector, text).waitFor({ timeout, state }).then(() => null),
  click: (selector, text, timeout) => locate(selector, text).click({ timeout }),
  doubleClick: (selector, text, timeout) => locate(selector, text).dblclick({ timeout }),
  rightClick: (selector, text, timeout) => locate(selector, text).click({ timeout, button: "right" }),
  hover: (selector, text, timeout) => locate(selector, text).hover({ timeout }),
  texts: (selector) => page.locator(selector).filter({ visible: true }).allInnerTexts(),
  box: (selector, text) => locate(selector, text).boundingBox(),
  move: (x, y) => page.mouse.move(x, y, { steps: 4 }),
  down: () => page.mouse.down(),
  up: () => page.mouse.up(),
  select: (selector, label) => locate(selector).selectOption({ label }).then(() => null),
  resize: (width, height) => page.setViewportSize({ width, height }).then(() => null),
  press: (keys) => page.keyboard.press(keys),
  type: (text) => page.keyboard.type(text),
  paste: (text) => page.keyboard.insertText(text),
  evaluate: (source, argument) => page.evaluate(`(${source})(${JSON.stringify(argument ?? null)})`),
  screenshot: (path) => page.screenshot({ path, animations: "disabled", caret: "initial" }).then(() => null),
  inWebview: async (title, method, ...given) => {
    const frame = await webview(title);
    const own = {
      wait: (selector, text, timeout, state) => locate(selector, text, frame).waitFor({ timeout, state }).then(() => null),
      click: (selector, text, timeout) => locate(selector, text, frame).click({ timeout }),
      hover: (selector, text, timeout) => locate(selector, text, frame).hover({ timeout }),
      focus: (selector, text, timeout) => locate(selector, text, frame).focus({ timeout }),
      texts: (selector) => frame.locator(selector).evaluateAll((all) => all.map((e) => e.innerText ?? e.textContent)), // SVG has none
      evaluate: (source, argument) => frame.evaluate(`(${source})(${JSON.stringify(argument ?? null)})`),
      violations: () => violations(title),
    };
    return own[method](...given);
  },
  messages: () => messages.splice(0),
};

const answer = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
answer({ id: 0, result: await browser.version() });
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, arguments: given } = JSON.parse(line);
  try {
    answer({ id, result: (await methods[method](...given)) ?? null });
  } catch (error) {
    answer({ id, error: String(error.message ?? error) });
  }
}
await browser.close();
