"""How a hover links: to documents as their URIs, or as commands for clients that open no foreign schemes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from lsprotocol import types as lsp

from fuselens_server.client.messages import CLIENT_ACTIONS, MARK_DYNAMIC
from fuselens_server.features import markdown
from fuselens_server.texts.document_uri import ReportDocument
from fuselens_server.texts.view import View


@dataclass(frozen=True, slots=True)
class Links:
    view: View
    commands: bool = False  # the client has our extension's commands
    address: Callable[[ReportDocument], str] = str

    def __call__(self, text: str, document: ReportDocument, line: int | None = None) -> str:
        if self.commands:
            return self._command(
                text, CLIENT_ACTIONS.open_document, document.file, document.qualname, str(document), line
            )
        return markdown.link(text, f"{self.address(document)}#L{line}" if line else self.address(document))

    def peek(self, text: str, position: lsp.Position) -> str:
        """What the code at ``position`` became, in the editor's own peek view; "" where no command is known to show it."""
        if not self.commands or not self.view.uri.endswith(".py"):  # cells of notebooks count their own lines
            return ""
        return self._command(text, CLIENT_ACTIONS.peek_stages, self.view.uri, position.line, position.character)

    def mark_dynamic(self, text: str, qualname: str) -> str:
        """Has the function compiled for any size; "" for clients that run no commands in hovers."""
        return self._command(text, MARK_DYNAMIC, self.view.uri, qualname) if self.commands else ""

    def _command(self, text: str, name: str, *arguments: object) -> str:
        return markdown.link(text, f"command:{name}?{quote(json.dumps(arguments), safe='')}")
