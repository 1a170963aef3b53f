"""Places in the user's files and in virtual documents, as LSP says them."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import TYPE_CHECKING

from lsprotocol import types as lsp
from pygls import uris

from fuselens.config import ASSEMBLY
from fuselens.record.report import Graph, Report, Span, Stage
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.document_uri import ReportDocument
from fuselens_server.texts.tracked_text import TrackedText
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

_WORD = re.compile(r"\w+")
_LARGEST = 2**31 - 1
_COMMENTS = {"#": re.compile(r"#.*$"), "//": re.compile(r"//.*$"), ";": re.compile(r";.*$")}


def user_location(view: View, text: TrackedText, span: Span, *, nearest: bool = False) -> lsp.Location | None:
    """Where ``span`` is now; None where its text was edited (unless the ``nearest`` place will do), and for code that
    is in no file."""
    if view.here(span):
        place = text.anchor(span) if nearest else text.range(span)
        return lsp.Location(view.uri, place) if place else None
    uri = uris.from_fs_path(span.file)
    if uri is None or (not span.file.startswith(("/", "\\")) and span.file[1:2] != ":"):
        return None  # generated code: "<string>", "<eval_with_key>.1"
    other = view.other_text(span.file)
    if other is None:
        return lsp.Location(uri, lsp.Range(_plain(span.line, span.column), _plain(span.end_line, span.end_column)))
    return lsp.Location(uri, other.range(*other.offsets(span)))


def _plain(line: int, column: int) -> lsp.Position:
    """A position in a text that is not known: bytes are counted as units, within what LSP can say."""
    return lsp.Position(min(max(line - 1, 0), _LARGEST), min(max(column, 0), _LARGEST))


def stage_location(view: View, report: Report, graph: Graph, stage: Stage, first: int, last: int) -> lsp.Location:
    """The lines ``first`` to ``last`` of a stage's text, without the indentation of the first."""
    text = stage_text(view, stage)
    content = text.line(first)
    start = text.line_start(first) + len(content) - len(content.lstrip())
    place = text.range(start, text.line_start(last) + len(text.line(last)))
    return lsp.Location(
        str(ReportDocument(view.owner(report), report.function, stage.name, stage.suffix, graph.id)), place
    )


def stage_text(view: View, stage: Stage) -> SourceText:
    return view.correspondence.text(stage, view.parsed.current.encoding)


def find_stage(view: View, document: ReportDocument) -> tuple[Report, Graph, Stage] | None:
    """What a virtual document shows, as far as the last good report has it."""
    report = view.function(document.qualname)
    for graph in report.graphs if report else ():
        for stage in graph.stages:
            if (graph.id, stage.name, stage.suffix) == (document.graph, document.name, document.suffix):
                return report, graph, stage  # type: ignore[return-value]  # graphs of a report
    return None


def compiled_lines(view: View, document: ReportDocument, line: int) -> list[tuple[Stage, list[int]]]:
    """Of the Triton module and of what was compiled from it the lines that belong to the line of one of them."""
    found = find_stage(view, document)
    form, _, phase = document.name.partition(".")
    lines_of = view.correspondence.triton_lines
    if found is None or form not in ASSEMBLY | {"triton"}:
        return []
    _, graph, stage = found
    module = line if form == "triton" else lines_of(stage).get(line)
    if module is None:
        return []
    out = []
    for other in graph.stages:
        name, _, of = other.name.partition(".")
        if of == phase and name == "triton":
            out.append((other, [module]))
        elif of == phase and name in ASSEMBLY:
            out.append((other, [n for n, at in lines_of(other).items() if at == module]))
    return out


def on_name(text: SourceText, position: lsp.Position, comment: str = "#") -> bool:
    """Whether the position touches an identifier outside of comments: those are the language's own server's."""
    content = text.line(position.line + 1)
    column = text.offset(position) - text.line_start(position.line + 1)
    said = _COMMENTS[comment].search(content)
    if said and column >= said.start():
        return False
    touched = (m.group() for m in _WORD.finditer(content) if m.start() <= column <= m.end())
    return any(word.isidentifier() and not keyword.iskeyword(word) for word in touched)


async def show(ls: FuselensServer, path: Path, line: int) -> None:
    """Shows a file at a line (from 1), or says where it is to a client that shows none."""
    start = lsp.Position(max(0, line - 1), 0)
    if ls.client("window.show_document.support"):
        params = lsp.ShowDocumentParams(path.as_uri(), take_focus=True, selection=lsp.Range(start, start))
        await ls.window_show_document_async(params)
    else:
        ls.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Info, f"{path}, line {line}"))
