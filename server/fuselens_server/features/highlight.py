"""Document highlights: the cursor on a line lights every line of the same kernels, in the source and in documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens_server.documents import stages as documents
from fuselens_server.features.locations import find_stage, on_name, stage_text
from fuselens_server.texts.correspondence import innermost, outermost
from fuselens_server.texts.document_uri import ReportDocument
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
    def text_document_document_highlight(
        ls: FuselensServer, params: lsp.DocumentHighlightParams
    ) -> list[lsp.DocumentHighlight]:
        if (view := ls.view(params.text_document.uri)) is not None:
            return highlights(view, params.position, names=ls.settings.on_names)
        if (shown := ls.documents.shown(params.text_document.uri)) is not None:
            return document_highlights(*shown, params.position)
        return []


def highlights(view: View, position: lsp.Position, *, names: bool = False) -> list[lsp.DocumentHighlight]:
    """The expressions in this file that share a kernel with the one at ``position``. Nothing on names, whose
    occurrences the Python language server lights, unless ``names`` are wanted too."""
    if view.report is None or (not names and on_name(view.compiled.current, position)):
        return []
    place = view.compiled.place(position)
    if place is None:
        return []
    kernels = [
        (kernel, [span for span in kernel.spans if view.here(span) and span.line <= place[0] <= span.end_line])
        for report in view.reports()
        for kernel in report.kernels
    ]
    meant = innermost((span for _, spans in kernels for span in spans), *place)
    lit = [kernel for kernel, spans in kernels if spans and (meant is None or meant in spans)]
    spans = outermost(span for kernel in lit for span in kernel.spans if view.here(span))
    return [lsp.DocumentHighlight(place) for place in map(view.compiled.range, spans) if place is not None]


def document_highlights(view: View, document: ReportDocument, position: lsp.Position) -> list[lsp.DocumentHighlight]:
    """The lines of a stage's text that came from the same user code as the one at ``position``."""
    found = find_stage(view, document)
    if found is None or on_name(text := stage_text(view, found[2]), position, documents.comment(document.suffix)):
        return []
    entries = found[2].lines
    wanted = {span for entry in entries if entry.line == position.line + 1 for span in entry.spans}
    lines = [entry.line for entry in entries if wanted.intersection(entry.spans)]
    return [lsp.DocumentHighlight(text.range(*_content(text.line(n), text.line_start(n)))) for n in lines]


def _content(line: str, start: int) -> tuple[int, int]:
    return start + len(line) - len(line.lstrip()), start + len(line.rstrip())
