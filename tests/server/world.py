"""A client with chosen capabilities, and a workspace whose names and texts are as awkward as they may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pytest_lsp import client_capabilities

from fuselens_server.client import messages
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.document_uri import parse

from .auditing import Auditor

FOLDER = "wörk (1) #2 %41 [😀]"
TEXT = """\
import fuselens
import torch


def example():
\treturn torch.ones(8), -torch.ones(8)


@fuselens.compile(example_inputs=example)
def toy(a, b):
\ts = 'é😀```'; x = a / (a.abs() + 1 + len(s))  # FL101 is below
\tif b.sum() < len('😀'):
\t\tb = b * -1
\treturn x * b
"""
BROKEN = "b.sum() < len('😀')"


def everything() -> lsp.ClientCapabilities:
    """What VS Code declares, and what came after that."""
    known = client_capabilities("visual-studio-code")
    assert known.workspace
    assert known.text_document
    known.workspace.text_document_content = lsp.TextDocumentContentClientCapabilities(dynamic_registration=True)
    known.workspace.diagnostics = lsp.DiagnosticWorkspaceClientCapabilities(refresh_support=True)
    known.workspace.inlay_hint = lsp.InlayHintWorkspaceClientCapabilities(refresh_support=True)
    known.text_document.diagnostic = lsp.DiagnosticClientCapabilities()
    known.text_document.inlay_hint = lsp.InlayHintClientCapabilities()
    resolve = lsp.ClientCodeLensResolveOptions(["command"])
    known.text_document.code_lens = lsp.CodeLensClientCapabilities(resolve_support=resolve)
    known.notebook_document = lsp.NotebookDocumentClientCapabilities(lsp.NotebookDocumentSyncClientCapabilities())
    return known


class World:
    """An editor, the auditor of what it is told, and a compiled file."""

    def __init__(self, editor: Any, auditor: Auditor, root: Path) -> None:
        self.editor, self.client, self.auditor, self.root = editor, editor.client, auditor, root
        self.file: Any = None

    @staticmethod
    async def begin(editor: Any, root: Path, declared: lsp.ClientCapabilities, options: Any = None) -> World:
        auditor = Auditor(editor, declared)
        auditor.notifications = (options or {}).get("notifications", True)

        def declare(capabilities: lsp.ClientCapabilities) -> None:
            for name in ("workspace", "text_document", "window", "general", "notebook_document", "experimental"):
                setattr(capabilities, name, getattr(declared, name))

        root.mkdir(exist_ok=True)
        await editor.start(root, options, more=declare, folders=(root,))
        return World(editor, auditor, root)

    @property
    def refreshes(self) -> int:
        return self.editor.requests.count(lsp.WORKSPACE_DIAGNOSTIC_REFRESH)

    async def show(self, name: str, text: str | None = None, *, wait: bool = True) -> Any:
        """Opens a file and waits until there is something to say about it."""
        path, before = self.root / name, self.refreshes
        if text is not None:
            path.write_bytes(text.encode())
        file = self.editor.show(path)
        self.auditor.files.append(file)
        if wait:
            await self.editor.until(lambda: self.refreshes > before or file.uri in self.editor.diagnostics, 90)
            await self.until(file, lambda found: not any(d.message.startswith("likely") for d in found))
        return file

    async def pull(self, file: Any, previous: str | None = None) -> Any:
        params = lsp.DocumentDiagnosticParams(file.identifier, "fuselens", previous)
        return await self.client.text_document_diagnostic_async(params)

    def at(self, needle: str, shift: int = 0, file: Any = None) -> lsp.Position:
        text = self._source(file)
        return text.position(text.text.index(needle) + shift)

    def text(self, place: lsp.Range, file: Any = None) -> str:
        text = self._source(file)
        return text.text[text.offset(place.start) : text.offset(place.end)]

    def _source(self, file: Any) -> SourceText:
        encoding = self.editor.initialized.capabilities.position_encoding
        return SourceText((file or self.file).text, getattr(encoding, "value", encoding) or "utf-16")

    async def document(self, name: str, uri: str | None = None) -> tuple[lsp.TextDocumentIdentifier, str]:
        """A stage of the compiled function, and its text."""
        listed = await self.editor.execute(messages.DOCUMENTS, self.file.uri, "toy")
        found = [item["uri"] if isinstance(item, dict) else item.uri for item in listed]
        uri = uri or next(uri for uri in found if name == parse(uri).name)  # type: ignore[union-attr]
        params = lsp.TextDocumentContentParams(uri)
        return lsp.TextDocumentIdentifier(uri), (await self.client.workspace_text_document_content_async(params)).text

    async def until_code(self, file: Any, code: str) -> None:
        await self.until_found(file, lambda d: d.code == code)

    async def until_found(self, file: Any, wanted: Callable[[lsp.Diagnostic], bool]) -> lsp.Diagnostic:
        found = await self.until(file, lambda items: any(map(wanted, items)))
        return next(filter(wanted, found))

    async def until(self, file: Any, wanted: Callable[[list[lsp.Diagnostic]], bool]) -> list[lsp.Diagnostic]:
        """What is said about a file, once that is as ``wanted``."""
        for _ in range(900):
            found = list((await self.pull(file)).items)
            if wanted(found):
                return found
            await asyncio.sleep(0.1)
        raise AssertionError("it was not found")


def applied(text: str, edits: Any) -> str:
    source = SourceText(text)
    for edit in sorted(edits, key=lambda e: (e.range.start.line, e.range.start.character), reverse=True):
        text = text[: source.offset(edit.range.start)] + edit.new_text + text[source.offset(edit.range.end) :]
    return text
