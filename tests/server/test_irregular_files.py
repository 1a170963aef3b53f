"""A client may name anything: what is no regular file is not read, by the server or the worker, and said so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

from fuselens_server.client import messages
from fuselens_server.texts.document_uri import ReportDocument

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def named(tmp_path: Path) -> dict[str, str]:
    """URIs of what is no file, and what to say of each."""
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "folder.py").mkdir()
    return {
        "file:///dev/zero": "/dev/zero is a character device; only regular files are read",
        f"file://{tmp_path}/zero.py": "is a character device",
        f"file://{tmp_path}/pipe.py": "is a named pipe",
        f"file://{tmp_path}/folder.py": "is a directory",
    }


def member(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, dict) else getattr(value, name)


async def test_run(editor, named):
    for uri, why in named.items():
        ran = await editor.execute(messages.RUN, uri, "f")
        assert not member(ran, "agrees")
        assert why in member(ran, "detail"), uri


async def test_open(editor, named, good):
    """The text that is shown is compiled; what its name leads to is not looked at."""
    for uri in named:
        item = lsp.TextDocumentItem(uri, "python", 1, good)
        opened = lsp.DidOpenTextDocumentParams(item)
        found = await editor.published(uri, lambda opened=opened: editor.client.text_document_did_open(opened))
        assert "FL101" in [d.code for d in found]
        address = str(ReportDocument("file:///dev/zero", "g", "fuse", "loop", 0))
        with pytest.raises(JsonRpcException, match="no such document"):
            await editor.client.workspace_text_document_content_async(lsp.TextDocumentContentParams(address))
        closed = lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(uri))
        editor.client.text_document_did_close(closed)


async def test_a_notebook(editor, named, good):
    for number, uri in enumerate(named):
        cell = f"vscode-notebook-cell:/n#{number}"
        book = lsp.NotebookDocument(uri, "jupyter-notebook", 1, [lsp.NotebookCell(lsp.NotebookCellKind.Code, cell)])
        opened = lsp.DidOpenNotebookDocumentParams(book, [lsp.TextDocumentItem(cell, "python", 1, good)])
        found = await editor.published(cell, lambda opened=opened: editor.client.notebook_document_did_open(opened))
        assert "FL101" in [d.code for d in found]
        identifier = lsp.NotebookDocumentIdentifier(uri)
        closed = lsp.DidCloseNotebookDocumentParams(identifier, [lsp.TextDocumentIdentifier(cell)])
        editor.client.notebook_document_did_close(closed)
