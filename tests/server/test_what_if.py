"""What if in the editor: changes are tried when there is nothing else to do, listed, and made as edits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp

from fuselens_server.client import messages
from fuselens_server.texts.document_uri import ReportDocument

from .conftest import PATIENCE
from .world import applied

FILE = """import fuselens
import torch


@fuselens.compile(example_inputs=lambda: (torch.randn(64, 1024), torch.randn(1024, 1024)))
def project(x, weight):
    y = torch.mm(x, weight.t().contiguous())
    return y.relu()
"""
SECONDS = 40


def literals(capabilities: lsp.ClientCapabilities) -> None:
    assert capabilities.text_document is not None
    kinds = lsp.ClientCodeActionKindOptions([lsp.CodeActionKind.RefactorRewrite])
    literal = lsp.ClientCodeActionLiteralOptions(kinds)
    capabilities.text_document.code_action = lsp.CodeActionClientCapabilities(code_action_literal_support=literal)


async def lens(file: Any) -> lsp.CodeLens:
    async with asyncio.timeout(PATIENCE):
        while True:
            for found in await file.lenses():
                if found.command and " gain" in found.command.title:
                    return found
            await asyncio.sleep(0.2)


async def actions(file: Any, line: int) -> list[lsp.CodeAction]:
    where = lsp.Range(lsp.Position(line, 5), lsp.Position(line, 5))
    context = lsp.CodeActionContext([], [lsp.CodeActionKind.RefactorRewrite], lsp.CodeActionTriggerKind.Invoked)
    document = lsp.TextDocumentIdentifier(file.uri)
    found = await file.editor.client.text_document_code_action_async(lsp.CodeActionParams(document, where, context))
    return [action for action in found or () if action.title.startswith("What if: ")]


@pytest.mark.asyncio
async def test_changes_are_offered_after_a_check(new_editor: Any, tmp_path: Path) -> None:
    editor = await new_editor().start(tmp_path, {"whatIfSeconds": SECONDS}, more=literals)
    file, _ = await editor.open(tmp_path / "model.py", FILE)
    found = await lens(file)
    assert found.command and found.command.command == messages.OPEN_DOCUMENT and found.command.arguments
    text = await document(editor, str(found.command.arguments[2]))
    assert "processor time used" in text and "+    y = torch.mm(x, weight.t())" in text and "fuselens what-if" in text
    (action,) = await actions(file, 6)
    assert action.title.startswith("What if: Leave out .contiguous(): −") and action.edit is not None
    every = await actions(file, 5)
    assert every and await actions(file, 7) == []
    for offered in every:
        (change,) = offered.edit.document_changes or [lsp.TextDocumentEdit(None, offered.edit.changes[file.uri])]
        compile(applied(FILE, change.edits), "model.py", "exec")

    told = await editor.execute(messages.WHAT_IF, file.uri, "project")
    (number,) = (k for k, change in enumerate(told["offered"]) if change["title"] == "Leave out .contiguous()")
    assert "time" in told["offered"][number]["gain"] and told["offered"][number]["detail"] == "line 7"
    # a comment above moves the edits; a text that was not measured has none
    await file.save(FILE.replace("import torch\n", "import torch  # once more\n"))
    searches = [s.message for s in editor.notifications[messages.STATUS] if "trying changes" in s.message]
    async with asyncio.timeout(PATIENCE):
        while len(await actions(file, 6)) != 1:
            await asyncio.sleep(0.1)
    again = [s.message for s in editor.notifications[messages.STATUS] if "trying changes" in s.message]
    assert again == searches, "what is known of a function that did not change is not searched for again"
    await editor.execute(messages.APPLY_CHANGE, file.uri, "project", number)
    (made,) = editor.edits
    (edit,) = made.document_changes[0].edits if made.document_changes else made.changes[file.uri]
    assert (edit.range.start.line, edit.new_text) == (6, "weight.t()")
    await editor.stop()


async def document(editor: Any, address: str) -> str:
    asked = lsp.TextDocumentContentParams(address)
    return (await editor.client.workspace_text_document_content_async(asked)).text


@pytest.mark.asyncio
async def test_a_search_that_a_person_asks_for(new_editor: Any, tmp_path: Path) -> None:
    editor = await new_editor().start(tmp_path, {"whatIfSeconds": 0})
    file, _ = await editor.open(tmp_path / "model.py", FILE)
    address = str(ReportDocument(file.uri, "project", "what-if", "txt"))
    assert "Nothing was tried" in await document(editor, address)
    told = await editor.execute(messages.WHAT_IF, file.uri, "project")
    assert told["document"] == address and "gain" in told["headline"]
    assert "of 60 s of processor time used" in await document(editor, address)
    await editor.stop()
