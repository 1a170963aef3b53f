"""Whole sessions with what real clients declare, down to nothing at all: each is told only what it takes."""

from __future__ import annotations

from typing import Any

import pytest
from lsprotocol import types as lsp
from pygls import uris
from pygls.exceptions import JsonRpcException
from pytest_lsp import client_capabilities

from fuselens_server.client import messages

from .world import BROKEN, FOLDER, TEXT, World, everything

pytestmark = pytest.mark.asyncio(loop_scope="function")


def counting(encoding: str) -> lsp.ClientCapabilities:
    """All there is, but for pulled diagnostics, with columns in other units than most."""
    declared = everything()
    declared.general = lsp.GeneralClientCapabilities(position_encodings=[encoding, "utf-16"])
    assert declared.workspace
    declared.workspace.diagnostics = None
    return declared


def wants_plain_text() -> lsp.ClientCapabilities:
    hover = lsp.HoverClientCapabilities(content_format=[lsp.MarkupKind.PlainText])
    return lsp.ClientCapabilities(text_document=lsp.TextDocumentClientCapabilities(hover=hover))


CLIENTS = {
    "nothing": (lsp.ClientCapabilities, {"notifications": False}),
    "plain text": (wants_plain_text, {"notifications": False, "virtualDocuments": "files"}),
    "utf-8": (lambda: counting("utf-8"), {}),
    "utf-32": (lambda: counting("utf-32"), {}),
    "neovim 0.6": (lambda: client_capabilities("neovim@v0.6.1"), {"notifications": False, "onNames": True}),
    "neovim": (lambda: client_capabilities("neovim"), {"notifications": False}),
    "emacs": (lambda: client_capabilities("emacs"), {"notifications": False}),
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_session(new_editor, tmp_path, name):
    declare, options = CLIENTS[name]
    world = await World.begin(new_editor(), tmp_path / FOLDER, declare(), options)
    editor, client, auditor = world.editor, world.client, world.auditor
    try:
        assert editor.initialized.capabilities.diagnostic_provider is None
        world.file = file = await world.show("toy.py", TEXT)
        (broken,) = [d for d in editor.diagnostics[file.uri].diagnostics if d.code == "FL101"]
        assert world.text(broken.range) == BROKEN
        assert (broken.data is None) is not auditor.declares("textDocument.publishDiagnostics.dataSupport")
        await read(world, file, broken)
        await command(world, file)
        version = auditor.declares("textDocument.publishDiagnostics.versionSupport")
        await editor.published(file.uri, lambda: file.insert(0, "# 😀\n"))
        (moved,) = [d for d in editor.diagnostics[file.uri].diagnostics if d.code == "FL101"]
        assert (moved.range.start.line, world.text(moved.range)) == (broken.range.start.line + 1, BROKEN)
        assert editor.diagnostics[file.uri].version == (2 if version else None)
        at = world.at("x = a")  # behind what is counted in different ways
        file.text = file.text.replace("x = a", "'😀'; x = a")
        file.change(lsp.TextDocumentContentChangePartial(lsp.Range(at, at), "'😀'; "))
        assert world.at("x = a", 1) in [hint.position for hint in await file.hints()]
        await auditor.finish()
        file.path.unlink()  # deleted while it is open
        client.text_document_did_save(lsp.DidSaveTextDocumentParams(file.identifier))
        file.close()
        await editor.until(lambda: not editor.diagnostics[file.uri].diagnostics)
    finally:
        await editor.stop()
    assert editor.exit_code == 0
    assert not auditor.wrong


async def read(world: World, file: Any, broken: lsp.Diagnostic) -> None:
    """Every request about the file, and about each document that it leads to."""
    client, at = world.client, world.at("/ (a")
    context = lsp.ReferenceContext(include_declaration=True)
    found = await client.text_document_references_async(lsp.ReferenceParams(context, file.identifier, at))
    documents = {location.uri for location in found} - {file.uri}
    assert len(documents) >= 4
    for uri in documents:
        await read_document(world, uri)
    hover = await client.text_document_hover_async(lsp.HoverParams(file.identifier, world.at("x = a")))
    assert "x: f32[8]" in hover.contents.value
    name = await client.text_document_hover_async(lsp.HoverParams(file.identifier, world.at("toy(")))
    assert "1 break" in name.contents.value
    assert await client.text_document_definition_async(lsp.DefinitionParams(file.identifier, at))
    assert await client.text_document_implementation_async(lsp.ImplementationParams(file.identifier, at))
    assert await client.text_document_document_highlight_async(lsp.DocumentHighlightParams(file.identifier, at))
    assert await client.text_document_document_link_async(lsp.DocumentLinkParams(file.identifier))
    assert await client.workspace_symbol_async(lsp.WorkspaceSymbolParams(""))
    assert ": f32[8]" in [hint.label for hint in await file.hints()]
    lenses = await file.lenses()
    assert {world.text(lens.range) for lens in lenses} == {"toy"}
    if not world.auditor.declares("textDocument.codeLens.resolveSupport"):
        assert all(lens.command for lens in lenses)
    for only in (None, ["quickfix"], ["source"], ["fuselens.open"]):
        asked = lsp.CodeActionContext([broken], only)
        params = lsp.CodeActionParams(file.identifier, broken.range, asked)
        assert await client.text_document_code_action_async(params) or only == ["source"]


async def read_document(world: World, uri: str) -> None:
    client, identifier, top = world.client, lsp.TextDocumentIdentifier(uri), lsp.Position(0, 0)
    assert await client.text_document_document_symbol_async(lsp.DocumentSymbolParams(identifier))
    await client.text_document_folding_range_async(lsp.FoldingRangeParams(identifier))
    await client.text_document_document_link_async(lsp.DocumentLinkParams(identifier))
    await client.text_document_hover_async(lsp.HoverParams(identifier, top))
    await client.text_document_definition_async(lsp.DefinitionParams(identifier, top))
    await client.text_document_document_highlight_async(lsp.DocumentHighlightParams(identifier, top))


async def command(world: World, file: Any) -> None:
    """Every command: what the client is asked to do for it, it takes."""
    editor, declares = world.editor, world.auditor.declares
    shown = await editor.execute(messages.OPEN_DOCUMENT, file.uri, "toy")
    assert shown.startswith("fuselens:" if declares("workspace.textDocumentContent") else "file:")
    if declares("window.showDocument.support"):
        assert editor.documents_shown[-1].uri == shown
    else:
        assert editor.shown.pop() == (uris.to_fs_path(shown) or shown if shown.startswith("file:") else shown)
    await editor.execute(messages.OPEN_KERNEL, file.uri)
    await editor.execute(messages.RUN_FUNCTION, file.uri, "toy")
    assert editor.shown[-1].startswith("toy agrees with eager")
    assert (await editor.execute(messages.EXPLAIN, file.uri, "toy")).startswith("toy — ")
    if declares("workspace.applyEdit"):
        assert await editor.execute(messages.FIX_ALL, file.uri) is bool(editor.edits)
    else:
        with pytest.raises(JsonRpcException, match="applies no edits"):
            await editor.execute(messages.FIX_ALL, file.uri)
