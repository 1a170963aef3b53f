"""The editor under test, from both sides: what a person sees and does (:class:`Workbench`, through Chromium) and what
the editor's own interface says (:class:`Probe`, through an extension in its extension host)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any, TypeVar

T = TypeVar("T")
HERE = Path(__file__).resolve().parent
# seconds, for whatever is waited for: only what never comes takes them, however busy the machine is
PATIENCE = float(os.environ.get("FUSELENS_PATIENCE", "300"))
# the palette is shown and holds this command
OPEN_PALETTE = """(command) => [...document.querySelectorAll(".quick-input-widget")].some((widget) =>
    widget.style.display !== "none" && widget.querySelector("input.input")?.value.endsWith(command))"""
LENS = ".codelens-decoration a"
NOTIFICATION = ".notification-list-item-message"


def until(what: str, attempt: Callable[[], T], seconds: float = PATIENCE) -> T:
    """The first truthy value of ``attempt``. Raises AssertionError with the last one when there is none in time."""
    deadline = time.monotonic() + seconds
    pause = 0.05  # longer and longer: who looks takes time from who is waited for
    while True:
        value = attempt()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:.0f} s still no {what}; last seen: {value!r}")
        time.sleep(pause)
        pause = min(1.3 * pause, 0.5)


def again(what: str, press: Callable[[], object], effect: Callable[[], T], seconds: float) -> T:
    """Presses until that has an effect within so many seconds, and returns it: what is drawn anew between button down and
    up takes no click, and what is busy takes no key. What is to be pressed may be gone: that is the effect."""

    def pressed() -> T | None:
        with contextlib.suppress(AssertionError):
            press()
        with contextlib.suppress(AssertionError):
            return until("effect", effect, seconds)
        return None

    found = until(what, pressed)
    assert found is not None
    return found


class Chromium:
    """A page in a browser, driven through ``driver.mjs``. A refused request raises AssertionError."""

    def __init__(self, executable: str) -> None:
        self.process = subprocess.Popen(
            ["node", "driver.mjs", executable],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "NODE_OPTIONS"},
        )
        self._answers: Queue[dict[str, Any] | None] = Queue()
        self._next = 1
        threading.Thread(target=self._read, daemon=True).start()
        self.version = self._answer(0)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def _answer(self, number: int) -> Any:
        while True:
            try:
                answer = self._answers.get(timeout=PATIENCE + 60)
            except Empty:
                raise AssertionError("the browser does not answer") from None
            if answer is None:
                raise AssertionError("the browser's driver ended")
            if answer["id"] == number:
                if "error" in answer:
                    raise AssertionError(answer["error"])
                return answer["result"]

    def __call__(self, method: str, *arguments: Any) -> Any:
        number, self._next = self._next, self._next + 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": number, "method": method, "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        return self._answer(number)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Probe:
    """JavaScript in the extension host. ``argument`` is passed as JSON; the value comes back the same way."""

    def __init__(self, port_file: Path) -> None:
        self.port_file = port_file

    def __call__(self, source: str, argument: Any = None) -> Any:
        port = int(self.port_file.read_text())
        body = json.dumps({"source": source, "argument": argument}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", body, timeout=PATIENCE) as response:
            answer = json.loads(response.read())
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["result"]

    def ready(self) -> bool:
        try:
            return self("return 1") == 1
        except (OSError, ValueError):
            return False

    # --- what the language server told the editor --------------------------------------------------------------------

    def diagnostics(self, path: Path) -> list[Diagnostic]:
        found = self(
            """
            return vscode.languages.getDiagnostics(vscode.Uri.file(argument))
                .filter((d) => d.source === "fuselens")
                .map((d) => ({
                    code: String(d.code?.value ?? d.code), message: d.message, severity: d.severity,
                    line: d.range.start.line, column: d.range.start.character,
                    endLine: d.range.end.line, endColumn: d.range.end.character,
                    related: (d.relatedInformation ?? []).map((r) => r.message),
                }));
            """,
            str(path),
        )
        return [Diagnostic(text=_cut(path.read_text(), d), **d) for d in found]

    def lenses(self, path: Path) -> list[dict[str, Any]]:
        """Code lenses in order: {title, command, line}."""
        return self(
            """
            const {uri} = await vscode.workspace.openTextDocument(argument);  // no tab may show it
            const lenses = await vscode.commands.executeCommand("vscode.executeCodeLensProvider", uri, 1000);
            return lenses.map((l) => ({title: l.command?.title, command: l.command?.command, line: l.range.start.line}))
                .sort((a, b) => a.line - b.line);
            """,
            str(path),
        )

    def lens_titles(self, path: Path) -> list[str]:
        return [lens["title"] for lens in self.lenses(path) if "title" in lens]  # one that is not resolved has none

    def compiles(self, path: Path) -> bool:
        """Whether a function of the file has its report: its lenses count graphs."""
        return any("graph" in title for title in self.lens_titles(path))

    def hints(self, path: Path) -> list[tuple[int, str]]:
        """Inlay hints as (line counted from 0, text)."""
        found = self(
            """
            const {uri} = await vscode.workspace.openTextDocument(argument);
            const range = new vscode.Range(0, 0, 100000, 0);
            const hints = await vscode.commands.executeCommand("vscode.executeInlayHintProvider", uri, range);
            const text = (l) => (typeof l === "string" ? l : l.map((p) => p.value).join(""));
            return hints.map((h) => [h.position.line, text(h.label)]);
            """,
            str(path),
        )
        return [(line, text) for line, text in found]

    def hover(self, path: Path, line: int, column: int) -> str:
        """The Markdown of all hovers at a position (counted from 0)."""
        return self(
            """
            const [file, line, column] = argument;
            const position = new vscode.Position(line, column);
            const {uri} = await vscode.workspace.openTextDocument(file);
            const hovers = await vscode.commands.executeCommand("vscode.executeHoverProvider", uri, position);
            return hovers.flatMap((h) => h.contents).map((c) => c.value ?? c).join("\\n---\\n");
            """,
            [str(path), line, column],
        )

    def documents(self, path: Path, function: str | None = None) -> list[dict[str, Any]]:
        return self(
            """
            const [file, name] = argument;
            if (!(await vscode.commands.getCommands(true)).includes("fuselens.server.documents")) return []; // it starts
            return vscode.commands.executeCommand("fuselens.server.documents", vscode.Uri.file(file).toString(), name);
            """,
            [str(path), function],
        )

    def text(self, uri: str) -> str:
        return self("return (await vscode.workspace.openTextDocument(vscode.Uri.parse(argument))).getText()", uri)

    # --- what a person would do, where how they do it is not the point -----------------------------------------------

    def open(self, path: Path) -> None:
        """Opens a file in the first group, and closes every other tab."""
        self(
            """
            await vscode.commands.executeCommand("workbench.action.closeAllEditors");
            await vscode.window.showTextDocument(vscode.Uri.file(argument), { viewColumn: 1, preview: false });
            """,
            str(path),
        )

    def rewrite(self, path: Path, text: str) -> None:
        """Replaces an open file's whole text and saves it."""
        self(
            """
            const [file, text] = argument;
            const document = await vscode.workspace.openTextDocument(vscode.Uri.file(file));
            const edit = new vscode.WorkspaceEdit();
            edit.replace(document.uri, new vscode.Range(0, 0, document.lineCount, 0), text);
            await vscode.workspace.applyEdit(edit);
            await document.save();
            """,
            [str(path), text],
        )

    def setting(self, name: str, value: Any) -> None:
        """Sets (or with None clears) a user setting."""
        self(
            "await vscode.workspace.getConfiguration().update(argument[0], argument[1] ?? undefined, true)",
            [name, value],
        )

    def value(self, name: str) -> Any:
        """What a setting says."""
        return self("return vscode.workspace.getConfiguration().get(argument)", name)

    def command(self, name: str, *arguments: Any) -> Any:
        return self("return vscode.commands.executeCommand(argument[0], ...argument[1])", [name, arguments])


@dataclass(frozen=True)
class Diagnostic:
    """A diagnostic of Fuselens; positions count from 0, ``text`` is what it underlines."""

    code: str
    message: str
    severity: int
    line: int
    column: int
    endLine: int
    endColumn: int
    related: list[str]
    text: str


def _cut(text: str, place: dict[str, Any]) -> str:
    """The text of a range; columns are taken as characters, which is right outside the astral planes."""
    lines = text.split("\n")[place["line"] : place["endLine"] + 1]
    if not lines:
        return ""
    lines[-1] = lines[-1][: place["endColumn"]]
    lines[0] = lines[0][place["column"] :]
    return "\n".join(lines)


class Workbench:
    """What is on the screen."""

    def __init__(self, page: Chromium, probe: Probe, pictures: Path) -> None:
        self.page, self.probe, self.pictures = page, probe, pictures

    def screenshot(self, name: str) -> None:
        self.pictures.mkdir(parents=True, exist_ok=True)
        self.page("screenshot", str(self.pictures / f"{name}.png"))

    def visible(self, selector: str, text: str | None = None, seconds: float = PATIENCE) -> None:
        self.page("wait", selector, text, seconds * 1000, "visible")

    def texts(self, selector: str) -> list[str]:
        return [_plain(text) for text in self.page("texts", selector)]

    def lines(self, editor: str = ".editor-instance") -> list[str]:
        """The lines that the first matching editor shows, top to bottom, inlay hints included."""
        source = """
        (selector) => [...document.querySelector(selector).querySelectorAll(".view-lines > .view-line")]
            .map((line) => [parseFloat(line.style.top), line.innerText])
            .sort((a, b) => a[0] - b[0]).map(([, text]) => text)
        """
        return [_plain(text) for text in self.page("evaluate", source, editor)]

    def shown_lenses(self) -> list[str]:
        return [text for text in self.texts(".codelens-decoration a") if text]

    def click(self, selector: str, text: str | None = None) -> None:
        self.page("click", selector, text, PATIENCE * 1000)

    def hover(self, selector: str, text: str | None = None) -> None:
        self.page("hover", selector, text, PATIENCE * 1000)

    def press_lens(self, lens: str, effect: Callable[[], T]) -> T:
        """Clicks a lens until that has an effect, and returns it: a lens that is drawn anew meanwhile takes no click."""
        return again(f"effect of the lens {lens!r}", lambda: self.page("click", LENS, lens, 20_000), effect, 20)

    def press_kernels_lens(self, effect: Callable[[], T]) -> T:
        """Clicks the lens that opens a function's kernels; another one says how far these are from what the machine allows."""
        titles = lambda: [title for title in self.shown_lenses() if re.match(r"\d+ kernel", title)]  # noqa: E731
        return self.press_lens(until("the lens of the kernels", titles)[0], effect)

    def enter(self, what: str, effect: Callable[[], T]) -> T:
        """Presses Enter until that has an effect, and returns it: a dialog that still reads a folder takes no key, nor does
        a palette while its list is filtered."""
        return again(what, lambda: self.page("press", "Enter"), effect, 5)

    def field(self) -> str:
        """What stands in the field that has the focus."""
        return self.page("evaluate", "() => document.activeElement?.value ?? ''")

    def fill(self, text: str) -> None:
        """Writes into the field that has the focus, until it has this text: a dialog that still reads a folder completes
        what is typed, or puts back what was there."""

        def written() -> None:
            self.page("press", "Control+a")
            self.page("type", text)

        again(f"{text!r} in the field", written, lambda: self.field() == text, 5)

    def notifications(self) -> list[str]:
        """Those on the screen, and in the list of those that went by if it is shown."""
        return self.texts(f".notification-toast {NOTIFICATION}, .notifications-center {NOTIFICATION}")

    def notification(self, containing: str) -> str:
        """The text of a notification, once there is one with these words: on the screen, or in the list of those that
        went by while a busy machine looked elsewhere."""
        patience = time.monotonic() + 20

        def shown() -> list[str]:
            found = [t for t in self.notifications() if containing in t]
            if not found and time.monotonic() > patience:
                self.probe.command("notifications.showList")
            return found

        return until(f"notification with {containing!r}", shown)[0]

    def press_in_notification(self, button: str) -> None:
        """Presses a button of the only notification, in the list of those that went by if it is not on the screen."""

        def pressed() -> bool:
            selector = ".notification-toast .monaco-button, .notifications-center .monaco-button"
            try:
                self.page("click", selector, button, 2_000)
            except AssertionError:
                self.probe.command("notifications.showList")
                return False
            return True

        until(f"button {button!r}", pressed)

    def webview(self, title: str) -> Webview:
        """The webview whose page has this title, once it is there."""
        return Webview(self.page, title)

    def close_notifications(self) -> None:
        self.probe.command("notifications.clearAll")

    def run(self, command: str) -> None:
        """Runs a command by its title, from the palette, which lists what could be run when it was opened."""
        title = command.split(": ")[-1]

        def listed() -> bool:
            self.page("press", "F1")
            self.visible(".quick-input-box input")
            self.page("paste", command)  # for each key that is typed the whole list is searched
            with contextlib.suppress(AssertionError):
                self.page("wait", ".quick-input-list .monaco-list-row.focused", title, 5_000, "visible")
                return True
            self.page("press", "Escape")
            return False

        until(f"{command} in the palette", listed)
        self.enter(f"{command} taken", lambda: not self.page("evaluate", OPEN_PALETTE, command))

    def save(self) -> None:
        """Saves the file in front, and returns once it is written: until then what lies on the disk may be cut short."""
        self.page("press", "Control+s")
        until("saved file", lambda: not self.probe("return vscode.window.activeTextEditor.document.isDirty"))

    # --- the Settings editor -----------------------------------------------------------------------------------------

    def setting_item(self, name: str) -> str:
        """The selector of a setting's entry."""
        return f'.settings-editor .setting-item-contents[data-key="{name}"]'

    def open_setting(self, name: str, *, machine: bool = False) -> None:
        """Shows a setting in the Settings editor. One of a machine stands under the tab of the remote there."""
        command = "openRemoteSettings" if machine else "openSettings"
        self.probe.command(f"workbench.action.{command}", {"query": f"@id:{name}"})
        self.visible(self.setting_item(name))

    def choose(self, name: str, value: Any) -> None:
        """Gives the setting that is shown another value, as a person does: again where the list was drawn anew meanwhile."""
        again(name, lambda: self._choose(name, value), lambda: self.probe.value(name) == value, 20)

    def _choose(self, name: str, value: Any) -> None:
        item = self.setting_item(name)
        if isinstance(value, bool):
            self.click(f"{item} .setting-value-checkbox")
        elif isinstance(value, list):  # one fewer than there are
            self.hover(f"{item} .setting-list-row:last-of-type")
            last = f"{item} .setting-list-row:last-of-type"
            self.click(
                f"{last} .setting-listAction-remove, {last} .codicon-settings-remove"
            )  # older and newer releases
        elif self.page("evaluate", "(s) => document.querySelector(s) !== null", f"{item} select"):
            self.page("select", f"{item} select", str(value))
        else:
            self.click(f"{item} .setting-item-control input")
            self.page("press", "Control+a")
            self.page("type", str(value))
            self.page("press", "Enter")

    def go_to(self, path: Path, text: str, occurrence: int = 0) -> tuple[int, int]:
        """Puts the cursor on the first character of ``text`` in an open file; returns its position, counted from 0."""
        offset = -1
        source = path.read_text()
        for _ in range(occurrence + 1):
            offset = source.index(text, offset + 1)
        line = source.count("\n", 0, offset)
        column = offset - (source.rfind("\n", 0, offset) + 1)
        self.probe(
            """
            const [file, line, column] = argument;
            const options = { viewColumn: 1, preview: false };
            const editor = await vscode.window.showTextDocument(vscode.Uri.file(file), options);
            editor.selection = new vscode.Selection(line, column, line, column);
            editor.revealRange(editor.selection, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
            """,
            [str(path), line, column],
        )
        place = f"Ln {line + 1}, Col {column + 1}"
        until(f"cursor at {place}", lambda: place in self.texts("#status\\.editor\\.selection"))
        return line, column

    def hover_at_cursor(self, containing: str) -> str:
        """Shows the hover at the cursor, and returns its text once these words are in it."""
        rows = ".monaco-hover:not(.hidden) .hover-row"
        self.page("press", "Escape")
        until("no hover", lambda: not self.texts(rows))
        self.probe.command("editor.action.showHover")

        def shown() -> str:
            text = "\n".join(self.texts(rows))
            return text if containing in text else ""

        return until(f"hover with {containing!r}", shown)


class Webview:
    """One of our pages on the screen, by the title of its document."""

    def __init__(self, page: Chromium, title: str) -> None:
        self.page, self.title = page, title
        until(f"webview {title!r}", self._there)

    def __call__(self, method: str, *arguments: Any) -> Any:
        return self.page("inWebview", self.title, method, *arguments)

    def _there(self) -> bool:
        try:
            return bool(self("evaluate", "() => document.readyState === 'complete'"))
        except AssertionError:
            return False

    def visible(self, selector: str, text: str | None = None) -> None:
        self("wait", selector, text, PATIENCE * 1000, "visible")

    def click(self, selector: str, text: str | None = None) -> None:
        self("click", selector, text, PATIENCE * 1000)

    def texts(self, selector: str) -> list[str]:
        return [_plain(text) for text in self("texts", selector)]

    def evaluate(self, source: str, argument: Any = None) -> Any:
        """What a JavaScript function of ``argument`` gives in the page."""
        return self("evaluate", source, argument)

    def violations(self) -> list[str]:
        """What axe-core finds against the page: people who see or hear it in another way could not use it."""
        return self("violations")


def _plain(text: str) -> str:
    return re.sub(r"[\u00a0\u2007\u202f]", " ", text)
