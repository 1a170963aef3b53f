"""Only what lies in allowed folders runs; elsewhere findings are static, and one says how to allow the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from lsprotocol import types as lsp

from fuselens_server.client import messages, settings
from fuselens_server.client.folders import lies_in
from fuselens_server.client.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="function")


def codes(found: Any) -> list[str]:
    return sorted(str(d.code) for d in found if not str(d.code).startswith("FL4"))


@pytest.fixture
def traced(tmp_path: Path, good: str) -> Any:
    """A program that leaves a mark where it ran."""
    mark = tmp_path / "mark"
    return mark, f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n" + good


RAN = ["FL101", "FL922"]  # a check refuses to leave the mark, and says so; a file that did not run has no such finding


@pytest_asyncio.fixture
async def start(new_editor, tmp_path):
    running = []

    async def begin(**options: Any) -> Any:
        given = {"allowedFolders": None, **options}
        running.append(await new_editor().start(tmp_path, given, folders=(tmp_path,)))
        return running[-1]

    yield begin
    for editor in running:
        await editor.stop()


async def test_without_the_option_nothing_runs(start, tmp_path, traced):
    mark, text = traced
    editor = await start()
    file, found = await editor.open(tmp_path / "a.py", text)
    assert codes(found) == ["FL101", "FL920"]
    (predicted,) = [d for d in found if d.code == "FL101"]
    assert predicted.data["predicted"]
    (finding,) = [d for d in found if d.code == "FL920"]
    assert finding.severity == lsp.DiagnosticSeverity.Information
    assert file.at(finding.range) == "toy"
    assert str(tmp_path / "a.py") in finding.message
    assert f"Add `{tmp_path}`" in finding.message
    assert "allowedFolders" in finding.message
    assert codes(await file.save()) == ["FL101", "FL920"]
    ran = await editor.execute(messages.RUN, file.uri, "toy")
    error = ran["error"] if isinstance(ran, dict) else ran.error
    assert (error["code"] if isinstance(error, dict) else error.code) == "FL920"
    await editor.execute(messages.CHECK, file.uri)
    await editor.execute(messages.RESTART_WORKER)
    assert (await file.titles())[0].startswith("not compiled")
    assert editor.worker_pids() == []
    assert not mark.exists()


async def test_a_client_that_asks_for_trust(start, tmp_path, traced):
    mark, text = traced
    editor = await start(workspaceTrust=True)
    _, found = await editor.open(tmp_path / "a.py", text)
    assert codes(found) == RAN


async def test_what_is_outside_in_every_disguise(start, tmp_path, traced):
    mark, text = traced
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    for folder in (allowed, outside, tmp_path / "allowed more"):
        folder.mkdir()
    (outside / "evil.py").write_text(text)
    (allowed / "link.py").symlink_to(outside / "evil.py")
    (allowed / "linked").symlink_to(outside)
    editor = await start(allowedFolders=[str(allowed)])
    disguises = [
        outside / "evil.py", allowed / "link.py", allowed / "linked" / "evil.py", tmp_path / "allowed more" / "x.py",
        Path(f"{allowed}/../outside/evil.py"), Path(f"{allowed}/linked/../outside/evil.py"), tmp_path / "ALLOWED" / "x.py",
    ]  # fmt: skip
    for path in disguises:
        uri = "file://" + str(path).replace(" ", "%20")
        item = lsp.TextDocumentItem(uri, "python", 1, text)
        opened = lsp.DidOpenTextDocumentParams(item)
        found = await editor.published(uri, lambda opened=opened: editor.client.text_document_did_open(opened))
        if "FL920" not in codes(found):  # it was shown as unsaved at first
            saved = lsp.DidSaveTextDocumentParams(lsp.TextDocumentIdentifier(uri))
            found = await editor.published(uri, lambda saved=saved: editor.client.text_document_did_save(saved))
        assert "FL920" in codes(found), path
    notebook = outside / "book.ipynb"
    notebook.write_text(json.dumps({"cells": [{"cell_type": "code", "source": text}]}))
    cell = f"vscode-notebook-cell:{notebook.as_uri().removeprefix('file:')}#0"
    book = lsp.NotebookDocument(
        notebook.as_uri(), "jupyter-notebook", 1, [lsp.NotebookCell(lsp.NotebookCellKind.Code, cell)]
    )
    opened = lsp.DidOpenNotebookDocumentParams(book, [lsp.TextDocumentItem(cell, "python", 1, text)])
    assert "FL920" in codes(await editor.published(cell, lambda: editor.client.notebook_document_did_open(opened)))
    assert not mark.exists()
    (allowed / "helper.py").symlink_to(outside / "evil.py")
    _, found = await editor.open(allowed / "fine.py", "import helper\n" + text.partition("\n")[2].partition("\n")[2])
    assert codes(found) == ["FL101", "FL915"]  # what an allowed file imports is its own business


async def test_the_option_changes_at_run_time(start, tmp_path, traced):
    mark, text = traced
    editor = await start()
    file, found = await editor.open(tmp_path / "a.py", text)
    assert codes(found) == ["FL101", "FL920"]

    def tell(value: Any) -> Any:
        editor.configuration = {"allowedFolders": value}
        editor.client.workspace_did_change_configuration(lsp.DidChangeConfigurationParams(None))

    def said() -> Any:
        return codes(editor.diagnostics[file.uri].diagnostics)

    tell([str(tmp_path)])
    await editor.until(lambda: said() == RAN, 90)
    tell([str(tmp_path / "elsewhere")])
    await editor.until(lambda: said() == ["FL101", "FL920"], 90)
    assert codes(await file.save()) == ["FL101", "FL920"]
    assert not mark.exists()


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("/", 'is "/", but takes a list. Used instead: no folder.'),
        ([3], "3 is no absolute path"),
        (["src"], '"src" is no absolute path'),
        (["~nobody-here/x"], "is no absolute path"),
    ],
)
async def test_what_is_no_list_of_folders_allows_nothing(tmp_path, value, wrong):
    found, (problem,) = settings.read({"allowedFolders": value}, Settings(workspace_trust=True))
    assert wrong in problem
    assert not found.allows(str(tmp_path / "a.py"))


async def test_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    found, problems = settings.read({"allowedFolders": ["~/src", "/nowhere"]})
    assert (found.allowed_folders, problems) == ((str(tmp_path / "src"), "/nowhere"), [])
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "to").symlink_to(tmp_path / "src")
    assert found.allows(str(tmp_path / "src" / "deep" / "not there yet.py"))
    assert found.allows(str(tmp_path / "to" / "a.py"))
    assert lies_in(str(tmp_path / "src" / "a.py"), [str(tmp_path / "to")])
    assert not found.allows(str(tmp_path / "src"))
    assert not found.allows("/nowhere/a.py")
    assert not found.allows("a\0.py")
    assert not Settings().allows("/a.py")
    assert not Settings(allowed_folders=(), workspace_trust=True).allows("/a.py")
