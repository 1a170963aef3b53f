"""What the client says about the texts that it shows: opened, changed, saved, closed."""

from __future__ import annotations

from lsprotocol import types as lsp
from pygls import uris

from . import messages
from .server import FuselensServer


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def did_open(ls: FuselensServer, params: lsp.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        if ls.files.address(item.uri) is not None:
            return  # a stage's text is nothing to import
        if item.language_id != "python" and not item.uri.endswith(".py"):
            return
        ls.take_encoding()
        document = ls.session.open(item.uri, item.version, item.text)
        if document is not None:
            ls.focus(item.uri)
            ls.observe(document)
            if not ls.checks.opened(document):
                ls.republish_soon(document)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(ls: FuselensServer, params: lsp.DidChangeTextDocumentParams) -> None:
        document = ls.session.get(params.text_document.uri)
        if document is not None:
            ls.focus(document.uri)
            document.change(list(params.content_changes), params.text_document.version)
            ls.republish_soon(document)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE, lsp.SaveOptions(include_text=False))
    def did_save(ls: FuselensServer, params: lsp.DidSaveTextDocumentParams) -> None:
        document = ls.session.get(params.text_document.uri)
        if document is not None:
            ls.focus(document.uri)
            ls.cancel_republish(document)
            document.saved()
            ls.checks.saved(document)
        path = uris.to_fs_path(params.text_document.uri)
        if path:
            ls.checks.changed_on_disk(path)

    @server.feature(lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def did_change_watched_files(ls: FuselensServer, params: lsp.DidChangeWatchedFilesParams) -> None:
        for change in params.changes:
            path = uris.to_fs_path(change.uri)
            if path and ls.session.get(change.uri) is None:  # of an open one, its own save tells
                ls.checks.changed_on_disk(path)

    @server.feature(messages.FOCUS)
    def focus(ls: FuselensServer, params: messages.FocusParams) -> None:
        ls.focus(params.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(ls: FuselensServer, params: lsp.DidCloseTextDocumentParams) -> None:
        document = ls.session.close(params.text_document.uri)
        if document is not None:
            ls.checks.cancel(document)
            ls.warming.cancel(document)
            ls.trials.cancel(document)
            ls.cancel_republish(document)
            ls.unpublish(document)
            ls.publish_borrowers()
