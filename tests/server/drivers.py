"""What to do with each capability that the server may advertise."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp
from pygls import uris
from pygls.exceptions import JsonRpcException

from fuselens_server.client import messages
from fuselens_server.texts.document_uri import ReportDocument, parse
from tests.history.repositories import Repo
from tests.patches import libraries

from .auditing import malformed
from .test_comparisons import plainly
from .world import BROKEN, TEXT, World, applied

Driver = Callable[[World], Awaitable[None]]
DRIVERS: dict[str, Driver] = {}


def drives(*capabilities: str) -> Callable[[Driver], Driver]:
    def note(driver: Driver) -> Driver:
        DRIVERS.update(dict.fromkeys(capabilities, driver))
        return driver

    return note


# --- texts -----------------------------------------------------------------------------------------------------------


@drives("positionEncoding")
async def encoding(world: World) -> None:
    assert world.editor.initialized.capabilities.position_encoding == lsp.PositionEncodingKind.Utf16
    (found,) = [d for d in (await world.pull(world.file)).items if d.code == "FL101"]
    assert world.text(found.range) == BROKEN
    line = TEXT.split("\n")[found.range.start.line]
    assert found.range.end.character == len(line[: line.index(BROKEN)]) + len(BROKEN) + 1  # a pair is two units


@drives("textDocumentSync.openClose", "textDocumentSync.save", "textDocumentSync.change")
async def texts(world: World) -> None:
    """What is shown follows the text through unsaved changes, in pieces and as a whole, to the save."""
    file = await world.show("edited.py", TEXT)
    shown = [d.range for d in (await world.pull(file)).items if d.code == "FL101"]
    file.insert(1, "# 😀\r\n\r\n")
    moved = [d.range for d in (await world.pull(file)).items if d.code == "FL101"]
    assert [r.start.line for r in moved] == [r.start.line + 2 for r in shown]
    assert [world.text(r, file) for r in moved] == [BROKEN]
    assert (await world.client.code_lens_resolve_async((await file.lenses())[1])).command.title.endswith(" · stale")
    start = world.at("😀'):", file=file)
    pair = lsp.Range(start, lsp.Position(start.line, start.character + 2))
    file.change(lsp.TextDocumentContentChangePartial(pair, "é"))
    file.text = file.text.replace("'😀'):", "'é'):")
    assert not any(world.text(d.range, file) == BROKEN for d in (await world.pull(file)).items)
    file.replace(TEXT.replace("a.abs() + 1", "a.abs() + 2").replace("\n", "\r\n"))
    file.path.write_bytes(file.text.encode())
    said = len(world.editor.notifications[messages.DOCUMENTS_CHANGED])
    world.client.text_document_did_save(lsp.DidSaveTextDocumentParams(file.identifier))
    await world.editor.until(lambda: len(world.editor.notifications[messages.DOCUMENTS_CHANGED]) > said, 90)
    assert [world.text(d.range, file) for d in (await world.pull(file)).items if d.code == "FL101"] == [BROKEN]
    file.close()
    assert list((await world.pull(file)).items) == []
    assert await file.lenses() == []


@drives("notebookDocumentSync.notebookSelector", "notebookDocumentSync.save")
async def notebook(world: World) -> None:
    cells = ["import fuselens, torch", TEXT.replace("import fuselens\nimport torch\n", "")]
    path = world.root / "note book.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": text} for text in cells]}))
    names = [f"vscode-notebook-cell:{path.as_uri().removeprefix('file:')}#{n}" for n in range(2)]
    items = [lsp.TextDocumentItem(name, "python", 1, text) for name, text in zip(names, cells, strict=True)]
    kinds = [lsp.NotebookCell(lsp.NotebookCellKind.Code, name) for name in names]
    opened = lsp.NotebookDocument(path.as_uri(), "jupyter-notebook", 1, kinds)
    before = world.refreshes
    world.client.notebook_document_did_open(lsp.DidOpenNotebookDocumentParams(opened, items))
    await world.editor.until(lambda: world.refreshes > before, 90)
    cell = lsp.TextDocumentIdentifier(names[1])
    report = await world.client.text_document_diagnostic_async(lsp.DocumentDiagnosticParams(cell))
    (found,) = [d for d in report.items if d.code == "FL101"]
    assert cells[1].split("\n")[found.range.start.line] == f"\tif {BROKEN}:"
    said = len(world.editor.notifications[messages.DOCUMENTS_CHANGED])
    saved = lsp.NotebookDocumentIdentifier(path.as_uri())
    world.client.notebook_document_did_save(lsp.DidSaveNotebookDocumentParams(saved))
    await world.editor.until(lambda: len(world.editor.notifications[messages.DOCUMENTS_CHANGED]) > said, 90)
    world.client.notebook_document_did_close(lsp.DidCloseNotebookDocumentParams(saved, [cell]))
    report = await world.client.text_document_diagnostic_async(lsp.DocumentDiagnosticParams(cell))
    assert list(report.items) == []


@drives("progress")
async def progress(world: World) -> None:
    """Of a slow check, with its stages; a person who cancels it ends it, and the next save checks again."""
    gate = world.root / "gate"
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)\n"
    file = await world.show("slow.py", wait + TEXT, wait=False)

    def begun() -> list[Any]:
        titled = {
            token: said for token, said in world.auditor.progress.items() if said and "slow.py" in said[0]["title"]
        }
        return [token for token, said in titled.items() if said[-1]["kind"] != "end"]

    await world.editor.until(begun, 60)
    (token,) = begun()
    world.client.window_work_done_progress_cancel(lsp.WorkDoneProgressCancelParams(token))
    await world.editor.until(lambda: not begun(), 60)
    assert world.auditor.progress[token][0]["cancellable"] is True
    lenses = [await world.client.code_lens_resolve_async(lens) for lens in await file.lenses()]
    assert [lens.command.title for lens in lenses] == ["not compiled yet"]
    world.client.text_document_did_save(lsp.DidSaveTextDocumentParams(file.identifier))
    await world.editor.until(begun, 60)
    (token,) = begun()
    gate.touch()
    await world.until_code(file, "FL101")
    await world.editor.until(lambda: not begun(), 60)
    said = [value.get("message") for value in world.auditor.progress[token]]
    assert {"toy: example inputs", "toy: lower", "toy: generate"} <= set(said)
    file.close()


# --- findings --------------------------------------------------------------------------------------------------------


@drives("diagnosticProvider.identifier", "diagnosticProvider.interFileDependencies")
async def diagnostics(world: World) -> None:
    report = await world.pull(world.file)
    (found,) = [d for d in report.items if d.code == "FL101"]
    assert (found.source, found.severity) == ("fuselens", lsp.DiagnosticSeverity.Warning)
    assert found.code_description.href == "fuselens://codes/FL101.md"
    assert (await world.pull(world.file, report.result_id)).kind == "unchanged"
    (world.root / "helper.py").write_text("def helper(x):\n    return x.sin()\n")
    text = "import fuselens, torch\nfrom helper import helper\n@fuselens.compile\ndef f(x=torch.ones(3)):\n    return helper(x)\n"
    user = await world.show("user.py", "import sys; sys.path.insert(0, __file__.rpartition('/')[0])\n" + text)
    assert not [d for d in (await world.pull(user)).items if d.code == "FL103"]
    helper = await world.show("helper.py", wait=False)
    helper.replace("def helper(x):\n    print(x)\n    return x.sin()\n")
    helper.path.write_text(helper.text)
    world.client.text_document_did_save(lsp.DidSaveTextDocumentParams(helper.identifier))
    shown = await world.until_found(user, lambda d: "print" in d.message)
    assert [i.location.uri for i in shown.related_information] == [helper.uri]
    user.close()
    helper.close()


@drives("diagnosticProvider.workspaceDiagnostics")
async def workspace_diagnostics(world: World) -> None:
    found = (await world.client.workspace_diagnostic_async(lsp.WorkspaceDiagnosticParams([]))).items
    (item,) = [item for item in found if item.uri == world.file.uri]
    assert (item.kind, item.version) == ("full", world.file.version)
    assert BROKEN in [world.text(d.range) for d in item.items]
    known = [lsp.PreviousResultId(item.uri, item.result_id) for item in found]
    sent = world.client.protocol.send_request_async(
        lsp.WORKSPACE_DIAGNOSTIC, lsp.WorkspaceDiagnosticParams(known), msg_id="conformance"
    )
    waiting = asyncio.ensure_future(sent)
    await world.pull(world.file)
    assert not waiting.done()  # with news only
    world.client.cancel_request(lsp.CancelParams("conformance"))
    with pytest.raises(JsonRpcException) as cancelled:
        await asyncio.wait_for(waiting, 20)
    assert cancelled.value.code == lsp.LSPErrorCodes.RequestCancelled.value


# --- in the user's file ----------------------------------------------------------------------------------------------


@drives("hoverProvider")
async def hover(world: World) -> None:
    for needle, said, word in (("toy(a", "1 break", "toy"), ("a, b)", "parameter of", "a"), ("x = a", "f32[8]", "x")):
        params = lsp.HoverParams(world.file.identifier, world.at(needle))
        found = await world.client.text_document_hover_async(params)
        assert said in found.contents.value
        assert world.text(found.range) == word
    uri, text = await world.document("fuse")
    line = next(n for n, content in enumerate(text.split("\n")) if "load a" in content)
    found = await world.client.text_document_hover_async(lsp.HoverParams(uri, lsp.Position(line, 0)))
    assert "x = a / (a.abs() + 1 + len(s))" in found.contents.value  # with its backtick
    assert malformed(found.contents.value) == []


@drives("inlayHintProvider")
async def inlay_hints(world: World) -> None:
    hints = {(h.position.line, h.label): h.position for h in await world.file.hints()}
    place = hints[world.at("x = a").line, ": f32[8]"]
    assert place == world.at("x = a", 1)
    nothing = lsp.InlayHintParams(world.file.identifier, lsp.Range(lsp.Position(0, 0), lsp.Position(1, 0)))
    assert not await world.client.text_document_inlay_hint_async(nothing)


@drives("codeLensProvider.resolveProvider")
async def code_lenses(world: World) -> None:
    lenses = await world.file.lenses()
    assert {lens.command for lens in lenses} == {None}
    resolved = [await world.client.code_lens_resolve_async(lens) for lens in lenses]
    assert {world.text(lens.range) for lens in resolved} == {"toy"}
    commands = [lens.command.command for lens in resolved if "of what" not in lens.command.title]  # what a run adds
    assert commands == [
        messages.RUN_FUNCTION, messages.SHOW_PLACE, messages.OPEN_KERNEL, messages.OPEN_DOCUMENT, messages.OPEN_DOCUMENT,
    ]  # fmt: skip
    assert "1 break" in (await lens_of_breaks(world)).command.title


async def actions(world: World, *only: str) -> list[lsp.CodeAction]:
    place = world.at(BROKEN)
    context = lsp.CodeActionContext((await world.pull(world.file)).items, only or None)
    params = lsp.CodeActionParams(world.file.identifier, lsp.Range(place, place), context)
    return list(await world.client.text_document_code_action_async(params))


@drives("codeActionProvider.codeActionKinds: quickfix")
async def quick_fixes(world: World) -> None:
    found = await actions(world, "quickfix")
    assert {action.kind for action in found} == {"quickfix"}
    fixes = [action for action in found if action.edit]
    assert fixes
    for action in fixes:
        (change,) = action.edit.document_changes
        assert (change.text_document.uri, change.text_document.version) == (world.file.uri, world.file.version)
        compile(applied(world.file.text, change.edits), "fixed", "exec")
        assert [d.code for d in action.diagnostics] == ["FL101"]
    (explain,) = [action for action in found if action.command]
    assert (
        await world.editor.execute(explain.command.command, *explain.command.arguments) == "fuselens://codes/FL101.md"
    )


@drives(
    "codeActionProvider.codeActionKinds: source.fixAll.fuselens", f"executeCommandProvider.commands: {messages.FIX_ALL}"
)
async def fix_all(world: World) -> None:
    """Fixes that were tried out, from either way the same, and none of those that were not."""

    async def tried() -> list[lsp.CodeAction]:
        return await actions(world, "source")

    for _ in range(200):
        if found := await tried():
            break
        await asyncio.sleep(0.1)
    (action,) = found
    assert action.kind == "source.fixAll.fuselens"
    assert await world.editor.execute(messages.FIX_ALL, world.file.uri) is True
    edit = world.editor.edits.pop()
    assert edit == action.edit
    fixed = applied(world.file.text, edit.document_changes[0].edits)
    assert "torch.where" in fixed or "torch.cond" in fixed
    assert BROKEN not in fixed.replace(f"where({BROKEN}", "")


@drives("codeActionProvider.codeActionKinds: fuselens.open")
async def open_actions(world: World) -> None:
    found = await actions(world, "fuselens.open")
    assert {action.kind for action in found} == {"fuselens.open"}
    assert "Explain the compilation of toy" in {action.title for action in found}
    for action in found:
        uri = await world.editor.execute(action.command.command, *action.command.arguments)
        assert isinstance(parse(uri), ReportDocument)
        assert world.editor.documents_shown[-1].uri == uri


# --- between the file and its documents ------------------------------------------------------------------------------


@drives("definitionProvider", "implementationProvider")
async def to_the_kernel_and_back(world: World) -> None:
    ask = world.client.text_document_definition_async
    (to, *_) = await ask(lsp.DefinitionParams(world.file.identifier, world.at("/ (a")))
    assert isinstance(to, lsp.LocationLink)
    assert parse(to.target_uri).name == "cpp"  # type: ignore[union-attr]
    assert world.text(to.origin_selection_range).startswith("a / (a.abs()")
    _, text = await world.document("", to.target_uri)
    assert "load" in text or "kernel" in text
    identifier = lsp.TextDocumentIdentifier(to.target_uri)
    back = await ask(lsp.DefinitionParams(identifier, to.target_range.start))
    assert world.file.uri in {link.target_uri for link in back}
    assert any(world.text(link.target_range).startswith("a / (a.abs()") for link in back)
    assert not await ask(lsp.DefinitionParams(world.file.identifier, world.at("abs()")))  # the Python server's
    params = lsp.ImplementationParams(world.file.identifier, world.at("abs()"))
    assert await world.client.text_document_implementation_async(params)


@drives("referencesProvider")
async def references(world: World) -> None:
    context = lsp.ReferenceContext(include_declaration=True)
    ask = world.client.text_document_references_async
    found = await ask(lsp.ReferenceParams(context, world.file.identifier, world.at("/ (a")))
    assert world.text(found[0].range).startswith("a / (a.abs()")
    stages = {address.name for address in map(parse, (f.uri for f in found)) if isinstance(address, ReportDocument)}
    assert {"capture", "fuse", "cpp"} <= stages
    for place in found[1:]:
        back = await ask(lsp.ReferenceParams(context, lsp.TextDocumentIdentifier(place.uri), place.range.start))
        assert world.file.uri in {location.uri for location in back}


@drives("documentHighlightProvider")
async def highlights(world: World) -> None:
    ask = world.client.text_document_document_highlight_async
    lit = await ask(lsp.DocumentHighlightParams(world.file.identifier, world.at("/ (a")))
    assert any(world.text(h.range).startswith("a / (a.abs()") for h in lit)
    uri, text = await world.document("fuse")
    line = next(n for n, content in enumerate(text.split("\n")) if "load a" in content)
    assert line in [h.range.start.line for h in await ask(lsp.DocumentHighlightParams(uri, lsp.Position(line, 0)))]


@drives("documentLinkProvider")
async def links(world: World) -> None:
    ask = world.client.text_document_document_link_async
    (comment,) = await ask(lsp.DocumentLinkParams(world.file.identifier))
    assert (world.text(comment.range), comment.target) == ("FL101", "fuselens://codes/FL101.md")
    for name in ("summary", "fuse", "cpp"):
        uri, text = await world.document(name)
        found = await ask(lsp.DocumentLinkParams(uri))
        lines = text.split("\n")
        assert all(lines[link.range.start.line][link.range.start.character :] for link in found)
        assert any(link.target.startswith(world.file.uri) for link in found) or name == "summary"
        assert all(link.tooltip for link in found)


@drives("documentSymbolProvider", "foldingRangeProvider")
async def outlines(world: World) -> None:
    uri, text = await world.document("fuse")
    symbols = await world.client.text_document_document_symbol_async(lsp.DocumentSymbolParams(uri))
    assert symbols[0].name == "graph0"
    assert "abs_add_div_0" in {child.name for child in symbols[0].children}
    foldings = await world.client.text_document_folding_range_async(lsp.FoldingRangeParams(uri))
    lines = text.split("\n")
    assert all(f.start_line < f.end_line < len(lines) and lines[f.start_line].strip() for f in foldings)
    assert not await world.client.text_document_document_symbol_async(lsp.DocumentSymbolParams(world.file.identifier))


@drives("workspaceSymbolProvider")
async def workspace_symbols(world: World) -> None:
    found = await world.client.workspace_symbol_async(lsp.WorkspaceSymbolParams("toyg0abs"))
    assert any(s.kind == lsp.SymbolKind.Operator and parse(s.location.uri).name == "cpp" for s in found)  # type: ignore[union-attr]
    everything_ = await world.client.workspace_symbol_async(lsp.WorkspaceSymbolParams(""))
    assert "toy" in [world.text(s.location.range) for s in everything_ if s.location.uri == world.file.uri]
    assert not await world.client.workspace_symbol_async(lsp.WorkspaceSymbolParams("zzz"))


@drives("workspace.textDocumentContent.schemes: fuselens", messages.DOCUMENT_CONTENT)
async def contents(world: World) -> None:
    for item in await world.editor.execute(messages.DOCUMENTS, world.file.uri):
        _, text = await world.document("", item["uri"] if isinstance(item, dict) else item.uri)
        address = {"uri": item["uri"] if isinstance(item, dict) else item.uri}
        assert text
        assert (await world.client.protocol.send_request_async(messages.DOCUMENT_CONTENT, address)).text == text
    with pytest.raises(JsonRpcException, match="no such document"):
        await world.document("", "fuselens://report/none/guards.txt?file=none")
    world.editor.requests.clear()
    await world.editor.execute(messages.CHECK, world.file.uri)  # the client has them, and is told to fetch them again
    await world.editor.until(lambda: lsp.WORKSPACE_TEXT_DOCUMENT_CONTENT_REFRESH in world.editor.requests, 90)
    await world.editor.until(lambda: lsp.WORKSPACE_CODE_LENS_REFRESH in world.editor.requests, 90)
    await world.editor.until(lambda: lsp.WORKSPACE_INLAY_HINT_REFRESH in world.editor.requests, 90)


# --- commands --------------------------------------------------------------------------------------------------------


@drives(*(f"executeCommandProvider.commands: {name}" for name in (messages.RUN, messages.RUN_FUNCTION)))
async def runs(world: World) -> None:
    result = await world.editor.execute(messages.RUN, world.file.uri, "toy")
    assert (result if isinstance(result, dict) else result._asdict())["agrees"] is True
    world.editor.shown.clear()
    assert await world.editor.execute(messages.RUN_FUNCTION, world.file.uri, "toy") is None
    assert world.editor.shown.pop().startswith("toy agrees with eager")


@drives(f"executeCommandProvider.commands: {messages.TOOL}")
async def tools(world: World) -> None:
    """What language models ask: of files of the workspace, as they are on the disk."""
    path = uris.to_fs_path(world.file.uri)

    async def tool(name: str, **arguments: Any) -> dict[str, Any]:
        answer = await world.editor.execute(messages.TOOL, name, arguments)
        return answer if isinstance(answer, dict) else answer._asdict()

    ran = await tool("run", target=f"{path}::toy")
    assert not ran["failed"] and "toy agrees with eager" in ran["text"], ran["text"]
    assert "-m fuselens.cli run" in ran["text"]
    checked = await tool("check", target=path, try_fixes=False)
    assert "FL101" in checked["text"] and "toy: with breaks" in checked["text"]
    for name, target, why in (
        ("run", f"{path}::none", "compiles no function 'none'"),
        ("check", "/etc/passwd", "is not"),
    ):
        refused = await tool(name, target=target)
        assert refused["failed"] and why in refused["text"]
    assert (await tool("nothing"))["failed"]


@drives(*(f"executeCommandProvider.commands: {name}"
          for name in (messages.DOCUMENTS, messages.EXPLAIN, messages.OPEN_DOCUMENT, messages.OPEN_KERNEL)))  # fmt: skip
async def shows(world: World) -> None:
    assert (await world.editor.execute(messages.EXPLAIN, world.file.uri, "toy")).startswith("toy — ")
    summary = await world.editor.execute(messages.OPEN_DOCUMENT, world.file.uri, "toy")
    assert parse(summary).name == "summary"  # type: ignore[union-attr]
    kernel = await world.editor.execute(messages.OPEN_KERNEL, world.file.uri)
    shown = world.editor.documents_shown[-1]
    _, text = await world.document("", kernel)
    assert shown.uri == kernel
    assert "abs_add_div_0" in text.split("\n")[shown.selection.start.line]
    listed = [
        i["uri"] if isinstance(i, dict) else i.uri
        for i in await world.editor.execute(messages.DOCUMENTS, world.file.uri)
    ]
    assert {summary, kernel} <= set(listed)


async def lens_of_breaks(world: World) -> Any:
    resolved = [await world.client.code_lens_resolve_async(lens) for lens in await world.file.lenses()]
    return next(lens for lens in resolved if "break" in lens.command.title)


@drives(f"executeCommandProvider.commands: {messages.SHOW_PLACE}")
async def show_place(world: World) -> None:
    """From the lens that counts breaks."""
    lens = await lens_of_breaks(world)
    assert lens.command.command == messages.SHOW_PLACE
    assert await world.editor.execute(messages.SHOW_PLACE, *lens.command.arguments) == world.file.uri
    shown = world.editor.documents_shown[-1]
    assert (shown.uri, shown.selection.start) == (world.file.uri, world.at(BROKEN))


@drives(
    "codeActionProvider.codeActionKinds: refactor.rewrite", f"executeCommandProvider.commands: {messages.MARK_DYNAMIC}"
)
async def mark_dynamic(world: World) -> None:
    """On a parameter whose size is fixed: the edit is tried, and then made."""
    place = world.at("a, b)")
    context = lsp.CodeActionContext([], ["refactor"])
    params = lsp.CodeActionParams(world.file.identifier, lsp.Range(place, place), context)
    (action,) = await world.client.text_document_code_action_async(params)
    assert await world.editor.execute(action.command.command, *action.command.arguments) is True
    (change,) = world.editor.edits.pop().document_changes
    assert "dynamic=True" in applied(world.file.text, change.edits)


@drives(*(f"executeCommandProvider.commands: {name}" for name in (messages.WHAT_IF, messages.APPLY_CHANGE)))
async def changes(world: World) -> None:
    """Of a function that is too small for any change to gain for sure."""
    told = await world.editor.execute(messages.WHAT_IF, world.file.uri, "toy")
    told = told if isinstance(told, dict) else told._asdict()
    assert told["headline"] and "/what-if.txt?" in told["document"]
    with pytest.raises(JsonRpcException, match="has no such change"):
        await world.editor.execute(messages.APPLY_CHANGE, world.file.uri, "toy", len(told["offered"]))


@drives(*(f"executeCommandProvider.commands: {name}"
          for name in (messages.EDIT_KERNEL, messages.VERIFY_KERNEL, messages.PIN_KERNEL, messages.UNPIN_KERNEL,
                       messages.COMPARE_KERNEL, messages.DISCARD_KERNEL)))  # fmt: skip
async def kernels(world: World) -> None:
    """From the kernel of a function to a pinned one, and back."""
    kernel = await world.editor.execute(messages.OPEN_KERNEL, world.file.uri)
    line = world.editor.documents_shown[-1].selection.start.line + 1
    uri = await world.editor.execute(messages.EDIT_KERNEL, kernel, line)
    path = Path(uris.to_fs_path(uri) or "")
    assert path.is_relative_to(world.root / ".fuselens" / "drafts")
    draft = world.editor.show(path, language="cpp")
    world.auditor.files.append(draft)
    for line, codes in (("nothing\n", {"FL627"}), ("// mine\n", {None})):
        text = path.read_text().removesuffix("nothing\n") + line
        path.write_text(text)
        draft.replace(text)
        world.client.text_document_did_save(lsp.DidSaveTextDocumentParams(draft.identifier))
        told = await world.editor.execute(messages.VERIFY_KERNEL, uri)
        found = (await world.pull(draft)).items
        assert {d.code for d in found} == codes
    assert told.startswith("✓ equals the graph")
    ours = Path(uris.to_fs_path(await world.editor.execute(messages.COMPARE_KERNEL, uri)) or "")
    assert "// mine" not in ours.read_text()
    pin = Path(uris.to_fs_path(await world.editor.execute(messages.PIN_KERNEL, uri)) or "")
    assert "// mine" in pin.read_text()
    assert await world.editor.execute(messages.UNPIN_KERNEL, uri) is True
    assert not pin.exists()
    await world.auditor.open_addresses()
    assert await world.editor.execute(messages.DISCARD_KERNEL, uri) is True
    assert world.editor.asked[-1].startswith("A draft that is discarded is gone")
    assert not path.exists()
    draft.close()
    await world.until_code(world.file, "FL101")


@drives(*(f"executeCommandProvider.commands: {name}" for name in (messages.PATCH_LIBRARY, messages.REMOVE_PATCH)))
async def patches(world: World) -> None:
    """A break inside of a library, whose fix is kept once it was tried."""
    folder = world.root / "libräry"
    folder.mkdir()
    root = libraries.project(folder)
    (root / "model.py").write_text(
        f"import sys\nsys.path.insert(0, {str(folder / 'site-packages')!r})\n{libraries.MODEL}"
    )
    file = await world.show(str((root / "model.py").relative_to(world.root)))
    kept: list[str] = []
    for _ in range(600):
        with contextlib.suppress(JsonRpcException):  # nothing was tried yet
            kept = await world.editor.execute(messages.PATCH_LIBRARY, file.uri)
            break
        await asyncio.sleep(0.1)
    assert [Path(uris.to_fs_path(uri) or "").is_file() for uri in kept] == [True]
    await world.until_code(file, "FL640")
    await world.auditor.open_addresses()
    assert await world.editor.execute(messages.REMOVE_PATCH, kept[0]) is True
    await world.until(file, lambda found: not any(d.code == "FL640" for d in found))
    file.close()


@drives(*(f"executeCommandProvider.commands: {name}" for name in (messages.SINCE, messages.REVISIONS)))
async def since(world: World) -> None:
    repository = Repo(world.root / "hïstory")
    repository.commit("First", model=TEXT.replace("if b.sum() < len", "if 1 < len"))
    repository.commit("Branch on the sum", model=TEXT)
    file = await world.show("hïstory/model.py")
    revisions = [plainly(r) for r in await world.editor.execute(messages.REVISIONS, file.uri)]
    first = repository.git("rev-parse", "--short=8", "HEAD~1")
    assert first in {revision["name"] for revision in revisions}
    told = plainly(await world.editor.execute(messages.SINCE, file.uri, first))
    assert told["sentence"] == "1 of 1 file affected: functions 1 worse."
    assert await world.editor.execute(messages.SINCE, file.uri, "") is None
    file.close()


@drives(f"executeCommandProvider.commands: {messages.PREVIEW}")
async def preview(world: World) -> None:
    assert not await world.editor.execute(messages.PREVIEW, world.file.uri, True)  # it compiles something


@drives(*(f"executeCommandProvider.commands: {name}" for name in (messages.CHECK, messages.RESTART_WORKER)))
async def checks(world: World) -> None:
    for command in ((messages.CHECK, world.file.uri), (messages.RESTART_WORKER,)):
        workers, said = world.editor.worker_pids(), len(world.editor.notifications[messages.DOCUMENTS_CHANGED])
        await world.editor.execute(*command)
        await world.editor.until(lambda: len(world.editor.notifications[messages.DOCUMENTS_CHANGED]) > said, 90)  # noqa: B023
        assert (world.editor.worker_pids() == workers) is (command[0] == messages.CHECK)
        assert "1 break" in (await lens_of_breaks(world)).command.title


@drives(*(f"executeCommandProvider.commands: {name}"
          for name in (messages.COMPARE, messages.FUNCTIONS, messages.FIRST_LINE, messages.VALUES)))  # fmt: skip
async def comparisons(world: World) -> None:
    told = await world.editor.execute(messages.COMPARE, world.file.uri, "toy", "mode", "max-autotune")
    told = told if isinstance(told, dict) else told._asdict()
    assert told["sentence"] and told["stages"]
    (found,) = await world.editor.execute(messages.FUNCTIONS, world.file.uri)
    found = found if isinstance(found, dict) else found._asdict()
    assert found["name"] == "toy"
    first = await world.editor.execute(messages.FIRST_LINE, world.file.uri, "toy")
    assert first == found["line"] + 2
    assert "# --- graph 0 of toy" in await world.editor.execute(messages.VALUES, world.file.uri, "toy")


# --- the workspace ---------------------------------------------------------------------------------------------------


@drives("workspace.workspaceFolders.supported", "workspace.workspaceFolders.changeNotifications")
async def folders(world: World) -> None:
    """A folder that comes later is asked about by its own URI, brings its own settings, and takes them along."""
    other = world.root.parent / "another #1"
    other.mkdir()
    (other / "here.py").write_text(TEXT)
    world.editor.scoped[other.as_uri()] = {"interpreter": str(other / "none")}
    event = lsp.WorkspaceFoldersChangeEvent([lsp.WorkspaceFolder(other.as_uri(), "another")], [])
    world.client.workspace_did_change_workspace_folders(lsp.DidChangeWorkspaceFoldersParams(event))
    file = world.editor.show(other / "here.py")
    world.auditor.files.append(file)
    await world.until_code(file, "FL914")
    gone = lsp.WorkspaceFoldersChangeEvent([], [lsp.WorkspaceFolder(other.as_uri(), "another")])
    world.client.workspace_did_change_workspace_folders(lsp.DidChangeWorkspaceFoldersParams(gone))
    await world.until_code(file, "FL101")
    file.close()
    await world.until_code(world.file, "FL101")


@drives("registered workspace/didChangeConfiguration")
async def configuration(world: World) -> None:
    world.editor.configuration = {"codeLens": False}
    changed = lsp.DidChangeConfigurationParams(settings=None)
    world.client.workspace_did_change_configuration(changed)
    for _ in range(200):
        if not await world.file.lenses():
            break
        await asyncio.sleep(0.05)
    assert await world.file.lenses() == []
    world.editor.configuration = None
    world.client.workspace_did_change_configuration(changed)
    await world.until_code(world.file, "FL101")
    for _ in range(200):
        if await world.file.lenses():  # the finding is still there from before
            break
        await asyncio.sleep(0.05)
    assert len(await world.file.lenses()) >= 5  # one more after a run


@drives("registered workspace/didChangeWatchedFiles")
async def watched(world: World) -> None:
    (world.root / "beside.py").write_text("def helper(x):\n    return x.sin()\n")
    text = "import fuselens, torch\nfrom beside import helper\n@fuselens.compile\ndef f(x=torch.ones(3)):\n    return helper(x)\n"
    user = await world.show("importer.py", "import sys; sys.path.insert(0, __file__.rpartition('/')[0])\n" + text)
    (world.root / "beside.py").write_text("def helper(x):\n    print(x)\n    return x.sin()\n")
    event = lsp.FileEvent((world.root / "beside.py").as_uri(), lsp.FileChangeType.Changed)
    world.client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams([event]))
    await world.until_found(user, lambda d: "print" in d.message)
    user.close()


@drives(messages.OVERVIEW)
async def overview(world: World) -> None:
    shown = await world.client.protocol.send_request_async(messages.OVERVIEW, {"uri": world.file.uri})
    (toy,) = [function for function in shown.functions if function.name == "toy"]
    (found,) = [finding for finding in toy.findings if finding.breaks]
    start, end = found.place.range.start, found.place.range.end
    place = lsp.Range(lsp.Position(start.line, start.character), lsp.Position(end.line, end.character))
    assert world.text(place) == BROKEN
    _, text = await world.document("", toy.graphs[0].kernels[0].document)
    assert toy.graphs[0].kernels[0].name in text


@drives(messages.FOCUS)
async def focus(world: World) -> None:
    """Nothing answers a focus; what it changes is tested with several files. Here: also nonsense does no harm."""
    for uri in (world.file.uri, "nonsense:[", None):
        world.client.protocol.notify(messages.FOCUS, messages.FocusParams(uri))
    assert [d.code for d in (await world.pull(world.file)).items if d.code == "FL101"] == ["FL101"]


@drives(messages.CORRESPONDENCE)
async def correspondence(world: World) -> None:
    """The file's lines and those of its kernel, to each other and back."""
    kernel, text = await world.document("cpp")

    async def ask(uri: str, document: str | None) -> Any:
        params = messages.CorrespondenceParams(uri, document)
        return await world.client.protocol.send_request_async(messages.CORRESPONDENCE, params)

    found = await ask(world.file.uri, kernel.uri)
    divides = world.at("a / (a.abs()").line
    shown = [text.split("\n")[line] for line, kernels, lines in found.shown if kernels and lines == [divides]]
    assert any('extern "C" void abs_add_div_0(' in line for line in shown)
    (kernels,) = [kernels for line, kernels, _ in found.source if line == divides]
    assert found.kernels[kernels[0]].name == "abs_add_div_0"
    assert found.breaks == [world.at(BROKEN).line]
    assert found.documents[0] == kernel.uri == found.forms.cpp
    alone = await ask(world.file.uri, "fuselens://report/none/guards.txt?file=none")
    assert (alone.shown, alone.source) == ([], found.source)
    assert await ask("untitled:none", kernel.uri) is None


@drives(messages.PICTURES)
async def pictures(world: World) -> None:
    """The operations of a graph, each with its kernel and its place in the code."""

    async def ask(function: str | None) -> Any:
        parameters = messages.PicturesParams(world.file.uri, function)
        return await world.client.protocol.send_request_async(messages.PICTURES, parameters)

    found = await ask("toy")
    assert (found.function, found.stale) == ("toy", False)
    assert "abs_add_div_0" in [kernel.name for graph in found.graphs for kernel in graph.kernels]
    assert {place.uri for place in found.places} == {world.file.uri}
    assert (await ask("nothing")).function == "toy", "a function that is gone leaves the first one"
