"""What the client says about the texts that it shows: opened, changed, saved, closed."""

from __future__ import annotations

from lsprotocol import types as lsp
from pygls import uris

from ..client import messages
from ..server import FuselensServer
from .notebooks import Notebook, opened_cell


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def did_open(ls: FuselensServer, params: lsp.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        if ls.documents.files.address(item.uri) is not None:
            return  # a stage's text is nothing to import
        if ls.kernels.opened(item.uri, item.text):
            return
        if item.language_id != "python" and not item.uri.endswith(".py"):
            return
        ls.take_encoding()
        _close(ls, item.uri)  # one that is open already begins anew
        document = ls.session.open(item.uri, item.version, item.text)
        if document is not None:
            ls.focus(item.uri)
            ls.publisher.observe(document)
            if not ls.checks.opened(document):
                ls.publisher.republish_soon(document)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(ls: FuselensServer, params: lsp.DidChangeTextDocumentParams) -> None:
        if ls.kernels.get(params.text_document.uri) is not None:
            ls.kernels.changed(
                params.text_document.uri, ls.workspace.get_text_document(params.text_document.uri).source
            )
            return
        document = ls.session.get(params.text_document.uri)
        if document is not None:
            ls.focus(document.uri)
            ls.pool.typed()
            document.change(list(params.content_changes), params.text_document.version)
            ls.publisher.republish_soon(document)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE, lsp.SaveOptions(include_text=False))
    def did_save(ls: FuselensServer, params: lsp.DidSaveTextDocumentParams) -> None:
        if ls.kernels.saved(params.text_document.uri):
            return
        _saved(ls, params.text_document.uri)
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
        ls.kernels.closed(params.text_document.uri)
        _close(ls, params.text_document.uri)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_OPEN)
    def notebook_did_open(ls: FuselensServer, params: lsp.DidOpenNotebookDocumentParams) -> None:
        ls.take_encoding()
        item, path = params.notebook_document, uris.to_fs_path(params.notebook_document.uri)
        if not item.uri.startswith("file:") or not path:
            return
        _close(ls, item.uri)
        texts = {text.uri: text for text in params.cell_text_documents if text.language_id == "python"}
        code = [c.document for c in item.cells if c.kind == lsp.NotebookCellKind.Code and c.document in texts]
        cells = [opened_cell(texts[uri], ls.session.encoding) for uri in code]
        notebook = Notebook(item.uri, path, item.version, cells, ls.session.encoding)
        ls.session.add(notebook, notebook.uris)
        ls.focus(item.uri)
        if not ls.checks.opened(notebook):
            ls.publisher.republish_soon(notebook)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def notebook_did_change(ls: FuselensServer, params: lsp.DidChangeNotebookDocumentParams) -> None:
        notebook, changes = ls.session.get(params.notebook_document.uri), params.change.cells
        if isinstance(notebook, Notebook) and changes is not None:
            ls.pool.typed()
            before = set(notebook.uris)
            notebook.change_cells(changes, params.notebook_document.version)
            ls.session.add(notebook, notebook.uris)
            ls.publisher.forget(before.difference(notebook.uris))
            ls.focus(notebook.uri)
            ls.publisher.republish_soon(notebook)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_SAVE)
    def notebook_did_save(ls: FuselensServer, params: lsp.DidSaveNotebookDocumentParams) -> None:
        _saved(ls, params.notebook_document.uri)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def notebook_did_close(ls: FuselensServer, params: lsp.DidCloseNotebookDocumentParams) -> None:
        _close(ls, params.notebook_document.uri)


def _saved(ls: FuselensServer, uri: str) -> None:
    document = ls.session.get(uri)
    if document is not None:
        ls.focus(document.uri)
        ls.publisher.cancel_republish(document)
        document.saved()
        ls.checks.saved(document)


def _close(ls: FuselensServer, uri: str) -> None:
    document = ls.session.close(uri)
    if document is not None:
        ls.checks.cancel(document)
        ls.warming.cancel(document)
        ls.trials.cancel(document)
        ls.proofs.cancel(document)
        ls.changes.cancel(document)
        ls.since.cancel(document)
        ls.foretelling.cancel(document)
        ls.publisher.cancel_republish(document)
        ls.publisher.unpublish(document)
        ls.publisher.publish_borrowers()
