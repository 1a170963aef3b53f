"""Virtual documents for the client: found by their addresses, which may be those of files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from pygls.exceptions import JsonRpcInvalidParams

from ..texts.convert import SourceText
from ..texts.document_uri import CodeDocument, ReportDocument, parse
from ..texts.view import View
from . import stages as documents
from .virtual_files import Address, VirtualFiles

if TYPE_CHECKING:
    from ..server import FuselensServer

T = TypeVar("T")


class VirtualDocuments:
    def __init__(self, server: FuselensServer) -> None:
        self._server = server
        self.files = VirtualFiles(self._text)
        self._served: set[str] = set()  # those that the client asked for through LSP

    def shown(self, uri: str) -> tuple[View, ReportDocument] | None:
        """What features of a virtual document are functions of; None when ``uri`` is none of an open file."""
        address = self._address(uri)
        view = self._server.view(address.file) if isinstance(address, ReportDocument) else None
        return (view, address) if view and isinstance(address, ReportDocument) else None

    def source(self, uri: str) -> tuple[SourceText, str] | None:
        """A document's text and extension; None when there is no such document."""
        address = self._address(uri)
        text = self._text(address) if address else None
        return (
            (SourceText(text, self._server.session.encoding), address.suffix) if address and text is not None else None
        )

    def content(self, uri: str) -> documents.Content:
        """A document's text. Raises JsonRpcInvalidParams for one that does not exist (any more)."""
        address = parse(uri)
        found = self._content(address) if address else None
        if found is None:
            raise JsonRpcInvalidParams(f"no such document: {uri}")
        return found

    async def complete(self, uri: str) -> None:
        """Returns when the document is all there, as some are made only for whoever opens them."""
        address = parse(uri)
        if isinstance(address, ReportDocument):
            await self._server.later_texts.make(address)

    def served(self, uri: str) -> None:
        """The client has the document by LSP's own means, and shall be told by them when it changes."""
        self._served.add(uri)

    def changed(self, uris: Iterable[str]) -> None:
        """These may have new text, or be gone."""
        self.files.refresh(uris)
        for uri in self._served.intersection(uris):
            self._server.refreshes.ask_for_content(uri)

    @property
    def as_files(self) -> bool:
        """Whether the client opens nothing but files, as far as it tells."""
        settings = self._server.settings
        if settings.virtual_documents == "auto":
            return not (settings.command_links or self._server.client("workspace.text_document_content"))
        return settings.virtual_documents == "files"

    def encode(self, value: T) -> T:
        """An LSP value as the client can open what it leads to."""
        return self.files.encode(value) if self.as_files else value

    def link(self, document: ReportDocument) -> str:
        """The document's URI as the client can open it."""
        return (self.files.uri(document) if self.as_files else None) or str(document)

    def _address(self, uri: str) -> Address | None:
        return parse(uri) or self.files.address(uri)

    def _text(self, address: Address) -> str | None:
        if isinstance(address, ReportDocument):
            self._server.later_texts.begin(address)
        content = self._content(address)
        return content.text if content else None

    def _content(self, address: Address) -> documents.Content | None:
        if isinstance(address, CodeDocument):
            return documents.code_content(address)
        view = self._server.view(address.file)
        return documents.report_content(view, address) if view else None
