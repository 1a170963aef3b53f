"""From nothing to a first compiled function, and out of trouble: through what the editor shows alone."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import editor
import pytest
from workbench import Workbench, until

PANE = "#workbench\\.view\\.extension\\.fuselens"
WELCOME = f"{PANE} .welcome-view-content"
DIALOG = ".monaco-dialog-box"
REPORT = "return vscode.window.visibleTextEditors.map((e) => e.document).find((d) => d.uri.path.endsWith('doctor.txt'))?.getText()"


@pytest.fixture(autouse=True)
def the_view(workbench: Workbench) -> None:
    workbench.probe.command("workbench.action.closeAllEditors")
    workbench.close_notifications()
    workbench.probe.command("fuselens.overview.focus")


@pytest.fixture
def bare(workbench: Workbench, tmp_path: Path) -> Iterator[Path]:
    """An interpreter with nothing installed, selected."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    workbench.probe.setting("fuselens.interpreter", str(python))
    yield python
    workbench.probe.setting("fuselens.interpreter", None)


def press_in_dialog(workbench: Workbench, button: str) -> None:
    workbench.click(f"{DIALOG} .monaco-button", button)


def test_an_empty_view_offers_the_example(workbench: Workbench) -> None:
    workbench.visible(WELCOME, "No open file compiles a function")
    workbench.screenshot("60-welcome")
    workbench.click(f"{WELCOME} .monaco-button", "Open Example")
    path = Path(until("example", lambda: workbench.probe("return vscode.window.activeTextEditor?.document.uri.fsPath")))
    assert path.name == "toy.py"
    until("compiled example", lambda: workbench.probe.compiles(path))
    assert [d.code for d in workbench.probe.diagnostics(path)] == ["FL101"]
    workbench.visible(f"{PANE} .monaco-list-row", "3 graphs · 1 break")
    workbench.screenshot("61-example")
    text = path.read_text()
    workbench.probe.rewrite(path, text.replace("    if b.sum() < 0:\n        b = b * -1\n", ""))
    workbench.visible(f"{PANE} .monaco-list-row", "1 graph · 0 breaks")
    workbench.probe.command("workbench.action.closeAllEditors")
    workbench.run("Fuselens: Open Example")
    until("the example as it was left", lambda: "1 graph" in " ".join(workbench.probe.lens_titles(path)))
    workbench.probe.rewrite(path, text)


def test_installing(workbench: Workbench, bare: Path, workspace: Path) -> None:
    """Asks first, says why it failed, and goes on by itself where it did not."""
    workbench.probe.open(workspace / "toy.py")
    workbench.visible(WELCOME, "has no fuselens")
    workbench.close_notifications()
    workbench.click(f"{WELCOME} .monaco-button", "Install fuselens")
    workbench.visible(DIALOG, f'{bare} -m pip install "fuselens[server]"')
    workbench.visible(DIALOG, f"{bare} -m ensurepip")
    workbench.screenshot("62-install")
    press_in_dialog(workbench, "Cancel")
    workbench.click(f"{WELCOME} .monaco-button", "Install fuselens")
    press_in_dialog(workbench, "Install")
    workbench.notification("could not be installed. The terminal says why.")  # no index is asked in tests
    workbench.screenshot("63-install-failed")
    subprocess.run([bare, "-m", "pip", "uninstall", "--yes", "--quiet", "setuptools"], check=True)  # too old for torch
    packages = subprocess.run(
        [bare, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    Path(packages, "those_of_the_tests.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    workbench.close_notifications()
    workbench.run("Fuselens: Install fuselens[server]")
    press_in_dialog(workbench, "Install")
    until("compiled toy.py", lambda: workbench.probe.compiles(workspace / "toy.py"))
    workbench.visible(f"{PANE} .monaco-list-row", "3 graphs")
    workbench.probe.command("workbench.action.closePanel")


def test_a_view_without_a_server_finds_out_why(workbench: Workbench, workspace: Path, tmp_path: Path) -> None:
    workbench.probe.open(workspace / "toy.py")
    workbench.visible(f"{PANE} .monaco-list-row", "3 graphs")
    try:
        workbench.probe(  # another tab: the server is asked about its file while it ends
            """
            const [interpreter, file] = argument;
            await vscode.workspace.getConfiguration().update("fuselens.interpreter", interpreter, true);
            await vscode.window.showTextDocument(vscode.Uri.file(file), { preview: false });
            """,
            [str(tmp_path / "gone" / "python"), str(workspace / "reductions.py")],
        )
        workbench.visible(WELCOME, "The language server does not run.")
        workbench.click(f"{WELCOME} .monaco-button", "Find Out Why")
        text = until("report", lambda: workbench.probe(REPORT))
        assert "there is no interpreter at" in text
        assert "→ select another interpreter" in text
        workbench.screenshot("69-no-server")
    finally:
        workbench.probe.setting("fuselens.interpreter", None)
    until("compiled toy.py", lambda: workbench.probe.compiles(workspace / "toy.py"))


def test_interpreters_are_shown_with_their_versions(workbench: Workbench, workspace: Path) -> None:
    workbench.probe.open(workspace / "toy.py")
    workbench.run("Fuselens: Select Python Interpreter")
    workbench.visible(".quick-input-list .monaco-list-row", "torch 2.")
    found = ".quick-input-list .monaco-list-row"
    until("all versions", lambda: not any(text.endswith("\n…") for text in workbench.texts(found)))
    workbench.screenshot("64-interpreters")
    workbench.page("press", "Escape")


def test_the_walkthrough(workbench: Workbench) -> None:
    workbench.run("Fuselens: How It Works")
    for step in ("Choose your Python", "Install the compiler", "Open the example", "Look at what it became"):
        workbench.click(".gettingStartedContainer .step-title", step)
        workbench.visible(".gettingStartedContainer .expanded", step)
        workbench.screenshot(f"65-walkthrough-{step.split()[-1]}")
    workbench.click(".gettingStartedContainer .step-title", "Open the example")
    workbench.click(".gettingStartedContainer .expanded .monaco-button", "Open Example")
    until(
        "example",
        lambda: workbench.probe("return vscode.window.activeTextEditor?.document.fileName.endsWith('toy.py')"),
    )


def test_doctor(workbench: Workbench, workspace: Path) -> None:
    workbench.probe.open(workspace / "toy.py")
    until("compiled toy.py", lambda: workbench.probe.compiles(workspace / "toy.py"))
    workbench.run("Fuselens: Doctor")
    text = until("report", lambda: "All is well." in (found := workbench.probe(REPORT) or "") and found)
    for what in ("editor", "extension", "interpreter", "torch", "fuselens", "triton", "C++ compiler", "GPU", "cache"):
        assert any(line[2:].startswith(what) for line in text.split("\n")), what
    workbench.screenshot("66-doctor")
    workbench.press_in_notification("Copy")
    until("report in the clipboard", lambda: workbench.probe("return vscode.env.clipboard.readText()") == text)


def test_clearing_the_cache(workbench: Workbench, workspace: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path = workspace / "toy.py"
    workbench.probe("process.env.FUSELENS_CACHE_DIR = argument", str(cache))
    try:
        workbench.probe.open(path)
        workbench.run("Fuselens: Restart the Language Server")
        until("compiled into the cache", lambda: workbench.probe.compiles(path) and any(cache.glob("*/*/*")))
        workbench.run("Fuselens: Clear the Cache")
        workbench.visible(DIALOG, str(cache))
        workbench.screenshot("67-clear-cache")
        press_in_dialog(workbench, "Cancel")
        assert any(cache.glob("*/*/*"))
        workbench.run("Fuselens: Clear the Cache")
        press_in_dialog(workbench, "Clear")
        assert str(cache) in workbench.notification("deleted")
        until("compiled again", lambda: workbench.probe.compiles(path))
    finally:
        workbench.probe("delete process.env.FUSELENS_CACHE_DIR")
        workbench.probe.command("fuselens.restart")


def test_the_log_is_shown(workbench: Workbench, workspace: Path) -> None:
    workbench.probe.open(workspace / "toy.py")
    workbench.run("Fuselens: Show Log")
    workbench.visible(".panel .output-view-container, .output-view", None)
    workbench.probe.command("workbench.action.closePanel")


def test_the_editor_begins_with_the_example_and_its_findings(workbench: Workbench, workspace: Path) -> None:
    """As `make run` opens it: no welcome page."""
    port = int(workbench.page("evaluate", "() => location.port"))
    workbench.page("goto", "about:blank")
    (path,) = editor.first_files(workspace)
    workbench.page("goto", editor.address(port, workspace, path))
    workbench.visible(".tabs-container .tab.active", "toy.py")
    workbench.visible(".codelens-decoration a", "3 graphs · ⚠ 1 break")
    assert not any("Welcome" in text for text in workbench.texts(".tabs-container .tab"))
    until("extension host", lambda: workbench.probe.ready() and workbench.probe.compiles(path))
    workbench.screenshot("68-make-run")
