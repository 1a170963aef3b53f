"""Machines and workspaces that are not as they should be: each is told once, what can be shown is, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from workbench import Workbench, until

PANE = "#workbench\\.view\\.extension\\.fuselens"


@pytest.fixture(autouse=True)
def nothing_open(workbench: Workbench) -> Iterator[None]:
    workbench.probe.command("workbench.action.closeAllEditors")
    workbench.close_notifications()
    yield
    workbench.close_notifications()


@pytest.fixture
def environment(workbench: Workbench, workspace: Path) -> Iterator[dict[str, str]]:
    """Variables of the server's, which is started anew with them by ``Restart``, and without them at the end."""
    given: dict[str, str] = {}
    yield given
    workbench.probe("for (const name of argument) delete process.env[name]", list(given))
    workbench.probe.command("fuselens.restart")
    workbench.probe.open(workspace / "toy.py")
    until("compiled toy.py", lambda: workbench.probe.compiles(workspace / "toy.py"))


def restart(workbench: Workbench, environment: dict[str, str]) -> None:
    workbench.probe("Object.assign(process.env, argument)", environment)
    workbench.probe.command("fuselens.restart")


def test_without_a_cpp_compiler(
    workbench: Workbench, workspace: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """One finding says what to install. Capture, shapes and kernels are shown as ever; *Run* says that nothing was built."""
    path = workspace / "bias_relu_mul.py"
    environment |= {"CXX": str(tmp_path / "no-such-compiler"), "FUSELENS_CACHE_DIR": str(tmp_path / "cache")}
    workbench.probe.open(path)
    restart(workbench, environment)
    found = until("finding", lambda: [d for d in workbench.probe.diagnostics(path) if d.code == "FL403"])
    assert len(found) == 1
    assert "no working C++ compiler" in found[0].message
    assert workbench.probe.compiles(path)
    assert workbench.probe.hints(path)
    workbench.visible(".codelens-decoration a", "▶ Run")
    workbench.screenshot("110-no-compiler")
    assert len(workbench.notifications()) <= 1
    workbench.run("Fuselens: Doctor")
    report = "return vscode.window.visibleTextEditors.map((e) => e.document).find((d) => d.uri.path.endsWith('doctor.txt'))?.getText()"
    until("what the report says", lambda: "no-such-compiler" in (workbench.probe(report) or ""))


def test_a_cache_that_cannot_be_written(workbench: Workbench, workspace: Path, environment: dict[str, str]) -> None:
    path = workspace / "toy.py"
    environment |= {"FUSELENS_CACHE_DIR": "/proc/fuselens"}  # where root may not write, either
    workbench.probe.open(path)
    restart(workbench, environment)
    until("compiled toy.py", lambda: workbench.probe.compiles(path))
    workbench.probe.command("fuselens.overview.focus")
    workbench.visible(f"{PANE} .monaco-list-row", "3 graphs · 1 break")
    assert {d.code for d in workbench.probe.diagnostics(path)} == {"FL916", "FL101"}
    workbench.probe.open(path)  # the focus is in the view, and an editor without it may ask for no lenses
    workbench.visible(".codelens-decoration a", "▶ Run")
    assert len(workbench.notifications()) <= 1
    workbench.screenshot("111-no-cache")


def test_nothing_is_written_beside_a_file(workbench: Workbench, tmp_path: Path, workspace: Path) -> None:
    """So that a folder in which nothing may be written is like any other."""
    folder = tmp_path / "read only"
    folder.mkdir()
    path = Path(shutil.copy(workspace / "toy.py", folder))
    path.chmod(0o444)
    folder.chmod(0o555)
    workbench.probe.open(path)
    until("compiled toy.py", lambda: workbench.probe.compiles(path))
    workbench.press_lens("▶ Run", lambda: any("eager" in title for title in workbench.probe.lens_titles(path)))
    until("no run that goes on", lambda: not any("running" in text for text in workbench.notifications()))
    assert [p.name for p in folder.iterdir()] == ["toy.py"]
    folder.chmod(0o755)


def test_a_text_that_is_no_file_of_this_machine(workbench: Workbench, workspace: Path) -> None:
    """A file of a virtual file system, and one that was never saved: the item says why there is nothing, and nothing fails."""
    text = (workspace / "toy.py").read_text()
    workbench.probe(
        """
        const never = new vscode.EventEmitter().event;
        const bytes = new TextEncoder().encode(argument);
        const stat = { type: vscode.FileType.File, ctime: 0, mtime: 0, size: bytes.length };
        const no = () => { throw vscode.FileSystemError.NoPermissions(); };
        globalThis.virtualFiles ??= vscode.workspace.registerFileSystemProvider("virtual", {
            onDidChangeFile: never, watch: () => ({ dispose() {} }), stat: () => stat, readFile: () => bytes,
            readDirectory: () => [], createDirectory: no, writeFile: no, delete: no, rename: no,
        }, { isReadonly: true });
        await vscode.window.showTextDocument(vscode.Uri.parse("virtual:/folder/toy.py"));
        """,
        text,
    )
    workbench.visible(".statusbar-item", "not on disk")
    workbench.screenshot("112-virtual")
    workbench.probe(
        """
        const unsaved = await vscode.workspace.openTextDocument({ language: "python", content: argument });
        await vscode.window.showTextDocument(unsaved);
        """,
        text,
    )
    try:
        workbench.visible(".statusbar-item", "not on disk")
        assert workbench.notifications() == []
    finally:  # a text that was never saved is asked about by whoever closes it
        workbench.probe.command("workbench.action.revertAndCloseActiveEditor")
    workbench.probe.open(workspace / "toy.py")
    workbench.visible(".statusbar-item", "1 break")


def test_a_zoomed_window_of_high_contrast(workbench: Workbench, workspace: Path) -> None:
    """Half the room, as at 200 %: the lenses, the finding and the view are there, and a hover fits the window."""
    path = workspace / "toy.py"
    workbench.probe.setting("workbench.colorTheme", "Default High Contrast")
    workbench.page("resize", 720, 450)
    try:
        workbench.go_to(path, "def toy(")  # in so small a window it may be scrolled away
        workbench.visible(".codelens-decoration a", "1 break")
        workbench.visible(".squiggly-error, .squiggly-warning")
        workbench.go_to(path, "b.sum()")
        workbench.hover_at_cursor("FL101")
        box = workbench.page("box", ".monaco-hover:not(.hidden)")
        assert box["x"] >= 0 and box["y"] >= 0 and box["x"] + box["width"] <= 720 and box["y"] + box["height"] <= 450, (
            box
        )
        workbench.screenshot("113-zoomed-hover")
        workbench.page("press", "Escape")
        workbench.probe.command("fuselens.overview.focus")
        workbench.visible(f"{PANE} .monaco-list-row", "toy")
        workbench.screenshot("114-zoomed-view")
    finally:
        workbench.page("resize", 1440, 900)
        workbench.probe.setting("workbench.colorTheme", None)
