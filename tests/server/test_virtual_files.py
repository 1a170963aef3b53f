"""Virtual documents as files, and a whole session with a client that opens nothing else."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio
from lsprotocol import types as lsp
from pygls import uris

from fuselens_server.documents.virtual_files import VirtualFiles
from fuselens_server.texts.document_uri import CodeDocument, ReportDocument

FUSE = ReportDocument("file:///p/a.py", "f.<locals>.g", "fuse", "loop", 0)
SUMMARY = ReportDocument("file:///p/a.py", "f.<locals>.g", "summary", "txt")


@pytest.fixture
def texts() -> dict[str, str]:
    return {str(FUSE): "graph 😀\n", str(SUMMARY): "summary\n", str(CodeDocument("FL101")): "# FL101\n"}


@pytest.fixture
def files(texts) -> VirtualFiles:
    return VirtualFiles(lambda address: texts.get(str(address)))


def path_of(uri: str | None) -> Path:
    assert uri is not None
    return Path(uris.to_fs_path(uri) or "")


def test_a_file_for_a_document(files):
    path = path_of(files.uri(FUSE))
    assert path.read_text(encoding="utf-8") == "graph 😀\n"
    assert path.suffix == ".loop"
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert stat.S_IMODE(path.parents[2].stat().st_mode) == 0o700
    assert files.address(uris.from_fs_path(str(path)) or "") == FUSE
    assert path_of(files.uri(FUSE)) == path
    assert path_of(files.uri(CodeDocument("FL101"))).name == "FL101.md"


@pytest.mark.parametrize(
    "address", [ReportDocument("f", "../../etc", "../x", "py", 1), ReportDocument("f", "f" * 300, "s", "txt"), CodeDocument("../x")]
)  # fmt: skip
def test_names_cannot_lead_elsewhere(address):
    files = VirtualFiles(lambda _: "x")
    path = path_of(files.uri(address))
    assert files._root in path.resolve().parents


def test_functions_that_are_written_alike_have_files_of_their_own(texts, files):
    other = ReportDocument("file:///q/a.py", "f.<locals>.g", "fuse", "loop", 0)
    texts[str(other)] = "other\n"
    assert files.uri(FUSE) != files.uri(other)


def test_only_what_was_written_is_written_again(texts, files):
    path = path_of(files.uri(FUSE))
    texts[str(FUSE)] = "new\n"
    files.refresh([str(FUSE), str(SUMMARY), "no address"])
    assert path.read_text() == "new\n"
    assert not path_of(files.uri(SUMMARY)).with_name("guards.txt").exists()
    del texts[str(FUSE)]
    files.refresh([str(FUSE)])
    assert path.read_text().startswith("This document is gone")
    assert files.uri(ReportDocument("f", "none", "summary", "txt")) is None


def test_a_full_disk_leaves_the_old_text(texts, files, monkeypatch):
    assert files.uri(FUSE)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    texts[str(FUSE)] = "new\n"
    assert path_of(files.uri(FUSE)).read_text(encoding="utf-8") == "graph 😀\n"
    assert files.uri(SUMMARY) is None


def test_folders_of_killed_servers_are_removed(texts, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f"fuselens-documents-{dead.pid}-x", "fuselens-documents-x", f"fuselens-documents-{os.getpid()}-x"):
        (tmp_path / name).mkdir()
    files = VirtualFiles(lambda address: texts.get(str(address)))
    assert files.uri(FUSE)
    assert not (tmp_path / f"fuselens-documents-{dead.pid}-x").exists()
    assert len(list(tmp_path.iterdir())) == 3
    files.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_addresses_in_lsp_values(files):
    where = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 1))
    here = lsp.Location("file:///p/a.py", where)
    there = lsp.Location(str(FUSE), where)
    diagnostic = lsp.Diagnostic(where, "x", code_description=lsp.CodeDescription(str(CodeDocument("FL101"))))
    links = [lsp.DocumentLink(where, f"{FUSE}#L3"), lsp.DocumentLink(where, "fuselens://report/gone/s.txt?file=f")]
    found = files.encode([here, there, diagnostic, *links])
    assert found[0] is here
    assert found[1].uri == files.uri(FUSE)
    assert found[2].code_description.href == files.uri(CodeDocument("FL101"))
    assert found[3].target == f"{files.uri(FUSE)}#L3"
    assert found[4] is links[1]


def test_other_files_show_nothing_of_ours(files):
    assert files.address("file:///p/a.py") is None
    files.uri(FUSE)
    assert files.address("file:///p/a.py") is None
    assert files.address("untitled:x") is None


# --- a session ---------------------------------------------------------------------------------------------------------


def plain(capabilities: lsp.ClientCapabilities) -> None:
    capabilities.workspace.text_document_content = None
    capabilities.window.show_document = lsp.ShowDocumentClientCapabilities(support=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain_editor(new_editor, tmp_path_factory):
    editor = await new_editor().start(tmp_path_factory.mktemp("workspace"), more=plain)
    yield editor
    await editor.stop()


@pytest.mark.asyncio(loop_scope="module")
async def test_an_editor_that_opens_only_files(plain_editor, tmp_path, good):
    editor = plain_editor
    file, found = await editor.open(tmp_path / "plain.py", good)
    (page,) = {path_of(d.code_description.href) for d in found if d.code == "FL101"}
    assert "data-dependent branch" in page.read_text()
    params = lsp.DefinitionParams(file.identifier, lsp.Position(10, 10))
    (target, *_) = await editor.client.text_document_definition_async(params)
    kernel = path_of(target.uri)
    assert kernel.suffix == ".cpp"
    assert "abs_add_div_0" in kernel.read_text()
    # the file leads back like the document does
    back = lsp.DefinitionParams(lsp.TextDocumentIdentifier(target.uri), target.range.start)
    assert {location.uri for location in await editor.client.text_document_definition_async(back)} == {file.uri}
    symbols = lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(target.uri))
    assert "abs_add_div_0" in {s.name for s in await editor.client.text_document_document_symbol_async(symbols)}
    # commands have the client show files
    shown = path_of(await editor.execute("fuselens.server.openDocument", file.uri, "toy"))
    assert shown.name == "summary.txt"
    assert path_of(editor.documents_shown[-1].uri) == shown
    await editor.execute("fuselens.server.openKernel", file.uri, "toy")
    assert editor.documents_shown[-1].selection.start.line > 0
    hover = await file.hover("x = a")
    assert hover is not None
    assert "fuselens:" not in hover
    # a stage's text is Python that must not be imported
    graph = next(kernel.parent.glob("*.py"), None) or path_of(
        next(s for s in await editor.client.workspace_symbol_async(lsp.WorkspaceSymbolParams("graph 0"))).location.uri
    )
    opened = editor.show(graph)
    assert await opened.lenses() == []
    # what is shown follows the next check
    await file.save(good.replace("b.sum() < 0", "b.sum() < 1"))
    await editor.until(lambda: "b.sum() < 1" in shown.read_text())
    assert os.access(kernel, os.R_OK)
    file.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_files_go_with_the_server(new_editor, tmp_path, good):
    editor = await new_editor().start(tmp_path, more=plain)
    file, found = await editor.open(tmp_path / "gone.py", good)
    page = path_of(next(d.code_description.href for d in found if d.code == "FL101"))
    assert page.exists()
    await editor.stop()
    assert not page.parents[1].exists()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_setting_decides(new_editor, tmp_path, good):
    editor = await new_editor().start(tmp_path, options={"virtualDocuments": "addresses"}, more=plain)
    file, found = await editor.open(tmp_path / "addresses.py", good)
    assert {d.code_description.href for d in found if d.code == "FL101"} == {"fuselens://codes/FL101.md"}
    assert await editor.execute("fuselens.server.openKernel", file.uri, "toy") == editor.documents_shown[-1].uri
    assert editor.documents_shown[-1].uri.startswith("fuselens://report/toy/")
    await editor.stop()
