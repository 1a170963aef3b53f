"""Several files, folders and interpreters at once: who is checked, where, and who first."""

from __future__ import annotations

import asyncio
import stat
import sys

import pytest
from lsprotocol import types as lsp

from tests.server.processes import alive, descendants

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAIN = """\
import fuselens
import torch
import beside


@fuselens.compile(example_inputs=lambda: (torch.ones(8),))
def f(x):
    return beside.helper(x) + 1
"""


def codes(found: list[lsp.Diagnostic]) -> list[object]:
    return [d.code for d in found if not str(d.code).startswith("FL4")]


async def test_importers_follow_a_saved_file(editor, tmp_path):
    """A break that an imported file got is shown in those that import it."""
    helper = tmp_path / "beside.py"
    helper.write_text("def helper(x):\n    return x.sin()\n")
    main, found = await editor.open(tmp_path / "main.py", MAIN)
    assert codes(found) == []
    beside = editor.show(helper)
    beside.replace("def helper(x):\n    print(x)\n    return x.sin()\n")
    helper.write_text(beside.text)
    saved = lsp.DidSaveTextDocumentParams(beside.identifier)
    found = await editor.published(main.uri, lambda: editor.client.text_document_did_save(saved))
    assert len(codes(found)) == 1
    main.close()
    beside.close()


async def test_importers_follow_a_file_that_changed_on_disk(editor, tmp_path):
    helper = tmp_path / "beside.py"
    helper.write_text("def helper(x):\n    return x.sin()\n")
    main, found = await editor.open(tmp_path / "main.py", MAIN)
    assert codes(found) == []
    helper.write_text("def helper(x):\n    print(x)\n    return x.sin()\n")
    change = lsp.FileEvent(helper.as_uri(), lsp.FileChangeType.Changed)
    told = lsp.DidChangeWatchedFilesParams([change])
    found = await editor.published(main.uri, lambda: editor.client.workspace_did_change_watched_files(told))
    assert len(codes(found)) == 1
    main.close()


async def test_the_focused_file_goes_first(new_editor, tmp_path):
    """With one place, a slow file that nobody looks at gives way, and is checked afterwards all the same."""
    editor = await new_editor().start(tmp_path, {"concurrentChecks": 1})
    try:
        quick = "import fuselens, torch\n@fuselens.compile(example_inputs=lambda: (torch.ones(8),))\ndef f(x):\n    return x + 1\n"
        slow = tmp_path / "slow.py"
        gate = tmp_path / "gate"
        waits = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists():\n    time.sleep(0.05)\n"
        slow.write_text(waits + quick)
        file = editor.show(slow)
        await editor.until(
            lambda: any(s.state == "compiling" and s.torch for s in editor.notifications["fuselens/status"]), 60
        )
        (tmp_path / "quick.py").write_text(quick)
        other = editor.show(tmp_path / "quick.py")
        await editor.until(lambda: other.uri in editor.diagnostics, 60)
        assert codes(editor.diagnostics[other.uri].diagnostics) == []
        assert file.uri not in editor.diagnostics
        gate.touch()
        await editor.until(lambda: file.uri in editor.diagnostics, 60)
        other.close()
    finally:
        await editor.stop()


async def test_folders_have_their_own_interpreters(new_editor, tmp_path):
    """Each of two folders names its interpreter; a file outside of both has the client's."""
    folders = tmp_path / "one", tmp_path / "two"
    editor = new_editor()
    for folder in folders:
        folder.mkdir()
        interpreter = folder / "python"
        interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        interpreter.chmod(interpreter.stat().st_mode | stat.S_IXUSR)
        editor.scoped[folder.as_uri()] = {"interpreter": "${workspaceFolder}/python"}
    editor.configuration = {"interpreter": ""}
    await editor.start(tmp_path, folders=folders)
    try:
        where = "import fuselens, os\nraise RuntimeError(os.getcwd())\n@fuselens.compile\ndef f(x=1): return x\n"
        for folder in folders:
            _, found = await editor.open(folder / "here.py", where)
            assert str(folder) in found[0].message
        used = {s.interpreter for s in editor.notifications["fuselens/status"]}
        assert used == {str(folder / "python") for folder in folders}
        assert len(editor.worker_pids()) == 2
    finally:
        await editor.stop()


async def test_interpreters_of_folders_are_removed_and_come_back(new_editor, tmp_path):
    """Its files say so at the import, and are checked once it is there again; the last good report stays until then."""
    interpreter = tmp_path / "python"

    def install() -> None:
        interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        interpreter.chmod(interpreter.stat().st_mode | stat.S_IXUSR)

    install()
    editor = await new_editor().start(tmp_path, {"interpreter": str(interpreter)})
    try:
        text = "import fuselens, torch\n@fuselens.compile(example_inputs=lambda: (torch.ones(8),))\ndef f(x):\n    return x + 1\n"
        file, found = await editor.open(tmp_path / "here.py", text)
        assert codes(found) == []
        interpreter.unlink()
        await editor.execute("fuselens.server.restartWorker")
        await editor.until(lambda: codes(list(editor.diagnostics[file.uri].diagnostics)) == ["FL914"], 60)
        assert (await file.titles())[1].endswith("stale")
        install()
        assert codes(await file.save()) == []
        assert not (await file.titles())[0].endswith("stale")
    finally:
        await editor.stop()


async def test_a_killed_server_leaves_no_process(new_editor, tmp_path):
    """SIGKILL while a file is being checked: the worker and its child end by themselves."""
    editor = await new_editor().start(tmp_path)
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(60)\nimport fuselens\n@fuselens.compile\ndef f(x=1): return x\n")
    editor.show(slow)
    await editor.until(lambda: len(descendants(editor.process.pid)) >= 2, 90)
    pids = descendants(editor.process.pid)
    editor.process.kill()
    await editor.process.wait()
    for _ in range(200):
        living = [pid for pid in pids if alive(pid)]
        if not living:
            break
        await asyncio.sleep(0.05)
    assert living == []
    await editor.client.stop()
