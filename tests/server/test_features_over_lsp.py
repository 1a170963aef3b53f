"""The wiring of the features that need a compiled file, over stdio against the real worker."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.document_uri import ReportDocument, parse

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def compiled(editor, tmp_path_factory, good):
    """One compiled file for the tests that only ask."""
    file, _ = await editor.open(tmp_path_factory.mktemp("compiled") / "compiled.py", good)
    return file


def where(file, needle: str, shift: int = 0) -> lsp.Position:
    return SourceText(file.text).position(file.text.index(needle) + shift)


async def document(editor, file, name: str) -> tuple[str, str]:
    """The address and the text of a stage of the first graph that has it."""
    listed = await editor.execute("fuselens.server.documents", file.uri, "toy")
    uris = [item["uri"] if isinstance(item, dict) else item.uri for item in listed]
    uri = next(uri for uri in uris if parse(uri).name == name)
    return uri, (await editor.client.protocol.send_request_async("fuselens/documentContent", {"uri": uri})).text


async def test_every_capability_is_announced(editor):
    has = editor.initialized.capabilities
    assert all((has.definition_provider, has.implementation_provider, has.references_provider, has.hover_provider))
    assert all((has.document_highlight_provider, has.document_symbol_provider, has.folding_range_provider))
    assert all((has.document_link_provider, has.workspace_symbol_provider, has.inlay_hint_provider))
    assert has.code_lens_provider.resolve_provider
    assert set(has.code_action_provider.code_action_kinds) == {
        "quickfix",
        "refactor.rewrite",
        "source.fixAll.fuselens",
        "fuselens.open",
    }
    assert has.workspace.text_document_content.schemes == ("fuselens",)


async def test_hover_in_a_document(editor, compiled):
    uri, text = await document(editor, compiled, "fuse")
    line = next(n for n, content in enumerate(text.split("\n")) if "load a" in content)
    params = lsp.HoverParams(lsp.TextDocumentIdentifier(uri), lsp.Position(line, 6))
    found = await editor.client.text_document_hover_async(params)
    assert "x = a / (a.abs() + 1)" in found.contents.value


async def test_from_a_line_to_its_kernel_and_back(editor, compiled):
    at = where(compiled, "/ (a")
    (target, *_) = await editor.client.text_document_definition_async(lsp.DefinitionParams(compiled.identifier, at))
    address = parse(target.uri)
    assert isinstance(address, ReportDocument)
    assert (address.qualname, address.name, address.graph) == ("toy", "cpp", 0)
    identifier = lsp.TextDocumentIdentifier(target.uri)
    back = await editor.client.text_document_definition_async(lsp.DefinitionParams(identifier, target.range.start))
    assert {location.uri for location in back} == {compiled.uri}
    assert "a / (a.abs() + 1)" in [compiled.at(location.range) for location in back]
    params = lsp.ImplementationParams(compiled.identifier, where(compiled, "abs"))
    assert await editor.client.text_document_implementation_async(params)
    on_name = lsp.DefinitionParams(compiled.identifier, where(compiled, "abs"))
    assert not await editor.client.text_document_definition_async(on_name)


async def test_references_both_ways(editor, compiled):
    context = lsp.ReferenceContext(include_declaration=True)
    params = lsp.ReferenceParams(context, compiled.identifier, where(compiled, "/ (a"))
    found = await editor.client.text_document_references_async(params)
    assert found[0].uri == compiled.uri
    names = {address.name for address in map(parse, (f.uri for f in found)) if isinstance(address, ReportDocument)}
    assert {"capture", "joint", "fuse", "cpp"} <= names
    at = next(f for f in found if "fuse.loop" in f.uri)
    params = lsp.ReferenceParams(context, lsp.TextDocumentIdentifier(at.uri), at.range.start)
    assert {compiled.uri, at.uri} <= {f.uri for f in await editor.client.text_document_references_async(params)}


async def test_highlights(editor, compiled):
    params = lsp.DocumentHighlightParams(compiled.identifier, where(compiled, "/ (a"))
    lit = await editor.client.text_document_document_highlight_async(params)
    assert "a / (a.abs() + 1)" in [compiled.at(h.range) for h in lit]
    uri, text = await document(editor, compiled, "fuse")
    line = next(n for n, content in enumerate(text.split("\n")) if "load a" in content)
    params = lsp.DocumentHighlightParams(lsp.TextDocumentIdentifier(uri), lsp.Position(line, 0))
    assert line in [h.range.start.line for h in await editor.client.text_document_document_highlight_async(params)]


async def test_a_client_that_colours_lines_itself_gets_no_highlights(new_editor, tmp_path):
    editor = new_editor()
    await editor.start(tmp_path, {"highlights": False})
    assert editor.initialized.capabilities.document_highlight_provider is None
    await editor.stop()


async def test_outline_of_documents(editor, compiled):
    uri, text = await document(editor, compiled, "fuse")
    identifier = lsp.TextDocumentIdentifier(uri)
    symbols = await editor.client.text_document_document_symbol_async(lsp.DocumentSymbolParams(identifier))
    assert {"graph0", "abs_add_div_0"} <= {symbol.name for symbol in symbols}
    assert isinstance(symbols[0], lsp.SymbolInformation)  # this client says nothing about hierarchies
    foldings = await editor.client.text_document_folding_range_async(lsp.FoldingRangeParams(identifier))
    assert any(f.end_line >= text.count("\n") - 2 for f in foldings)
    own = lsp.DocumentSymbolParams(compiled.identifier)
    assert not await editor.client.text_document_document_symbol_async(own)  # that is the Python server's


async def links(editor, uri: str) -> list[lsp.DocumentLink]:
    parameters = lsp.DocumentLinkParams(lsp.TextDocumentIdentifier(uri))
    return list(await editor.client.text_document_document_link_async(parameters) or [])


async def test_links(editor, compiled):
    uri, _ = await document(editor, compiled, "fuse")
    line = compiled.text[: compiled.text.index("x = a")].count("\n") + 1
    assert f"{compiled.uri}#L{line},9" in {link.target for link in await links(editor, uri)}
    summary, _ = await document(editor, compiled, "summary")
    targets = {link.target for link in await links(editor, summary)}
    assert uri in targets
    assert "fuselens://codes/FL101.md" in targets
    assert await links(editor, "fuselens://codes/FL101.md") == []


async def test_workspace_symbols(editor, compiled):
    found = await editor.client.workspace_symbol_async(lsp.WorkspaceSymbolParams("toyg0abs"))
    kernel = next(s for s in found if s.name.startswith("toy graph 0 abs_add_div_0"))
    assert parse(kernel.location.uri).name == "cpp"
    everything = await editor.client.workspace_symbol_async(lsp.WorkspaceSymbolParams(""))
    (function,) = [s for s in everything if s.name == "toy"]
    assert compiled.at(function.location.range) == "toy"


async def test_code_actions(editor, compiled):
    at = where(compiled, "b.sum()")
    context = lsp.CodeActionContext(diagnostics=[])
    params = lsp.CodeActionParams(compiled.identifier, lsp.Range(at, at), context)
    found = await editor.client.text_document_code_action_async(params)
    commands = {c.title: c for c in found}  # this client knows no literals
    assert {"Explain FL101", "Explain the compilation of toy"} <= set(commands)
    explain = commands["Explain FL101"]
    assert await editor.execute(explain.command, *explain.arguments) == "fuselens://codes/FL101.md"
    assert editor.shown.pop() == "fuselens://codes/FL101.md"  # nor to show documents


async def test_lenses_are_resolved_as_they_are_now(editor, compiled):
    lenses = await compiled.lenses()
    assert all(lens.command for lens in lenses)  # this client does not say that it resolves
    bare = lsp.CodeLens(lenses[0].range, data=lenses[0].data)
    resolved = await editor.client.code_lens_resolve_async(bare)
    assert resolved.command == lenses[0].command
    gone = await editor.client.code_lens_resolve_async(lsp.CodeLens(lenses[0].range, data={"uri": "file:///x.py"}))
    assert gone.command.title == "not compiled yet"


async def test_actions_as_commands(editor, compiled):
    await editor.execute("fuselens.server.runFunction", compiled.uri, "toy")
    assert editor.shown.pop().startswith("toy agrees with eager")
    assert "cpp" in await editor.execute("fuselens.server.openKernel", compiled.uri)
    editor.shown.pop()
    asked = []
    check = editor.execute("fuselens.server.check", compiled.uri)
    checked = await editor.published(compiled.uri, lambda: asked.append(asyncio.ensure_future(check)))
    await asked[0]
    assert "FL101" in [d.code for d in checked]
    assert await editor.execute("fuselens.server.fixAll", compiled.uri) is bool(editor.edits)
    for arguments in ((compiled.uri, "none"), ("file:///none.py",), (None, None, "fuselens://report/x/y.txt?file=f")):
        with pytest.raises(JsonRpcException):
            await editor.execute("fuselens.server.openDocument", *arguments)


@pytest.mark.parametrize(
    "uri", ["file:///nowhere.py", "fuselens://codes/FL101.md", "untitled:x", "fuselens://report/x/a.b?file=f"]
)
async def test_unknown_documents_have_nothing(editor, uri):
    identifier, at = lsp.TextDocumentIdentifier(uri), lsp.Position(0, 0)
    client = editor.client
    assert not await client.text_document_definition_async(lsp.DefinitionParams(identifier, at))
    assert not await client.text_document_implementation_async(lsp.ImplementationParams(identifier, at))
    context = lsp.ReferenceContext(include_declaration=True)
    assert not await client.text_document_references_async(lsp.ReferenceParams(context, identifier, at))
    assert not await client.text_document_document_highlight_async(lsp.DocumentHighlightParams(identifier, at))
    assert not await client.text_document_document_symbol_async(lsp.DocumentSymbolParams(identifier)) or "codes" in uri
    assert not await client.text_document_folding_range_async(lsp.FoldingRangeParams(identifier))
    assert await links(editor, uri) == []
