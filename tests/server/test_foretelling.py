"""Compilations foreseen in the editor: the finding at the call, its fix, and what guards and hovers say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp

from fuselens_server.texts.document_uri import ReportDocument

FILE = """import torch

import fuselens


@fuselens.compile
def step(x, w):
    return (x @ w).relu()


w = torch.randn(8, 4)
for n in (16, 32, 64):
    x = torch.randn(n, 8)
    step(x, w)
"""


def literals(capabilities: lsp.ClientCapabilities) -> None:
    """Actions that are edits."""
    kinds = lsp.ClientCodeActionKindOptions([lsp.CodeActionKind.QuickFix])
    literal = lsp.ClientCodeActionLiteralOptions(kinds)
    capabilities.text_document.code_action = lsp.CodeActionClientCapabilities(code_action_literal_support=literal)


@pytest.mark.asyncio
async def test_lengths_that_vary(new_editor: Any, tmp_path: Path) -> None:
    editor = await new_editor().start(tmp_path, {"foretellRecompiles": True}, more=literals)
    file, _ = await editor.open(tmp_path / "lengths.py", FILE)
    await editor.until(lambda: any(d.code == "FL207" for d in editor.diagnostics[file.uri].diagnostics))
    (found,) = (d for d in editor.diagnostics[file.uri].diagnostics if d.code == "FL207")
    assert file.at(found.range) == "step(x, w)"
    assert "3 sizes of x (16, 32, 64 in dimension 0): 2 compilations" in found.message

    address = str(ReportDocument(file.uri, "step", "guards", "txt"))
    text = (await editor.client.workspace_text_document_content_async(lsp.TextDocumentContentParams(address))).text
    assert "fails: x: expected f32[16, 8], found f32[32, 8]; at line 14 (call 2)" in text
    assert "always true at the call site (line 14)" in text
    assert "2 compilations (counted at 1 call site)" in text and "ns of a call, measured here" in text

    document = lsp.TextDocumentIdentifier(file.uri)
    hover = await editor.client.text_document_hover_async(lsp.HoverParams(document, lsp.Position(6, 5)))
    assert "Foreseen: 2 compilations" in hover.contents.value

    context = lsp.CodeActionContext([found], only=[lsp.CodeActionKind.QuickFix])
    actions = await editor.client.text_document_code_action_async(lsp.CodeActionParams(document, found.range, context))
    assert "Mark sizes that vary dynamic: fuselens.mark_dynamic(x, 0)" in [action.title for action in actions]

    await file.save(FILE.replace("(16, 32, 64)", "(16, 16)"))
    await editor.until(lambda: not any(d.code == "FL207" for d in editor.diagnostics[file.uri].diagnostics))
