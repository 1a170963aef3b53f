"""Notebooks: the code cells of one, in their order, are one module. What the client says and is told is about cells."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import attrs
from lsprotocol import types as lsp

from ..client.lsp_values import rewritten
from . import executed_cells
from .convert import Encoding, SourceText
from .observed import Observed
from .session import Document, Ran, Session, same_text
from .tracked_text import TrackedText, changed, whole_change

if TYPE_CHECKING:
    from ..server import FuselensServer

SYNC = lsp.NotebookDocumentSyncOptions(
    notebook_selector=[
        lsp.NotebookDocumentFilterWithNotebook(
            notebook=lsp.NotebookDocumentFilterNotebookType(notebook_type="jupyter-notebook"),
            cells=[lsp.NotebookCellLanguage(language="python")],
        )
    ],
    save=True,
)
TRANSLATED = re.compile(  # requests whose handlers know modules only
    r"textDocument/(?!did|publish)|workspace/symbol$|fuselens/overview$"
)
_FOREIGN = re.compile(r"\s*%%(?!time\b|timeit\b|capture\b|prun\b)")  # cells that are another language's, or a file's
_MAGIC = re.compile(
    r"^(?P<indent>[ \t]*)(?P<target>[\w, \t.\[\]]+=[ \t]*)?(?P<magic>[%!?][^\r\n]*|[\w.]+\?+)", re.MULTILINE
)


@functools.lru_cache(maxsize=1024)
def python_text(cell: str) -> str:
    """A cell's text with magics and shell commands replaced by values of the same length, so that all else stays where
    it is. A cell that is Python as it is stays as it is."""
    try:
        ast.parse(cell)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    else:
        return cell
    if _FOREIGN.match(cell):
        return re.sub(r"[^\r\n]", " ", cell)
    return _MAGIC.sub(lambda m: (m["indent"] + (m["target"] or "") + "0").ljust(len(m.group())), cell)


@dataclass(slots=True)
class Cell:
    """A code cell. Its lines begin at line ``start`` (from 0) of the module."""

    uri: str
    version: int | None
    text: SourceText
    start: int = 0

    @property
    def end(self) -> int:
        return self.start + self.text.line_count


class Notebook(Document):
    """An open notebook. The text is the module's; the cells have their own."""

    def __init__(self, uri: str, path: str, version: int | None, cells: list[Cell], encoding: Encoding) -> None:
        self.cells = cells
        super().__init__(uri, path, version, SourceText(self._joined(), encoding))

    @property
    def uris(self) -> list[str]:
        return [cell.uri for cell in self.cells]

    def cell(self, uri: str) -> Cell | None:
        return next((cell for cell in self.cells if unquote(cell.uri) == unquote(uri)), None)

    def cell_at(self, line: int) -> Cell:
        """The cell of a line of the module, or the last one."""
        return next((cell for cell in self.cells if line < cell.end), self.cells[-1])

    def change_cells(self, changes: lsp.NotebookDocumentCellChanges, version: int | None) -> None:
        """Applies the client's changes: of which cells there are, and of their texts."""
        if (structure := changes.structure) is not None:
            opened = {item.uri: item for item in structure.did_open or ()}
            known = {cell.uri: cell for cell in self.cells}
            made = (opened_cell(opened[c.document], self.text.encoding) if c.document in opened else known.get(c.document)
                    for c in structure.array.cells or ())  # fmt: skip
            first = structure.array.start
            self.cells[first : first + structure.array.delete_count] = [cell for cell in made if cell is not None]
        for content in changes.text_content or ():
            cell = self.cell(content.document.uri)
            if cell is not None:
                cell.version = content.document.version
                for change in content.changes:
                    cell.text, _ = changed(cell.text, change)
        self.version = version
        text = self._joined()
        if text != self.text.text:
            self._apply(whole_change(self.text.text, text), SourceText(text, self.text.encoding))

    def observe(self, observed: Observed) -> None:
        self.ran = Ran(observed, TrackedText.unedited(self.text))

    def last_run(self) -> Ran | None:
        if self.ran is None:
            return None
        return Ran(executed_cells.placed(self.ran.observed, self), TrackedText.unedited(self.text))

    @property
    def source(self) -> str:
        return self.text.text

    def matches(self, on_disk: str) -> bool:
        """Whether the notebook file has the cells that are shown."""
        try:
            stored = [c for c in json.loads(on_disk)["cells"] if c["cell_type"] == "code"]
            texts = ["".join(c["source"]) for c in stored]
        except (ValueError, TypeError, KeyError):
            return False
        return len(texts) == len(self.cells) and all(
            same_text(text, cell.text.text) for text, cell in zip(texts, self.cells, strict=True)
        )

    def parcels(self, session: Session, found: list[lsp.Diagnostic]) -> list[lsp.PublishDiagnosticsParams]:
        """Each cell's diagnostics."""
        return [
            lsp.PublishDiagnosticsParams(cell.uri, _Answer(session, cell).value(found), cell.version)
            for cell in self.cells
        ]

    def _joined(self) -> str:
        lines, texts = 0, []
        for cell in self.cells:
            cell.start = lines
            lines = cell.end
            texts.append(python_text(cell.text.text) + "\n")
        return "".join(texts)


def opened_cell(item: lsp.TextDocumentItem, encoding: Encoding) -> Cell:
    return Cell(item.uri, item.version, SourceText(item.text, encoding))


# --- between cells and the module ------------------------------------------------------------------------------------


class _ElsewhereError(Exception):
    """A place that is not in the cell that was asked about."""


def in_cells(server: FuselensServer, handler: Callable[..., Any]) -> Callable[..., Any]:
    """A handler of requests about documents that also serves those about cells: it is asked about the module, and its
    answer is about cells. The answer is as the client takes it."""

    def asked(params: Any) -> tuple[Any, Cell | None]:
        identifier = getattr(params, "text_document", None)
        document = server.session.get(identifier.uri) if identifier is not None else None
        cell = document.cell(identifier.uri) if identifier is not None and isinstance(document, Notebook) else None
        if cell is None or not isinstance(document, Notebook):
            return params, None
        moved = rewritten(params, lambda part: _clamped(part, cell) if isinstance(part, lsp.Position) else part)
        return attrs.evolve(moved, text_document=attrs.evolve(identifier, uri=document.uri)), cell

    def answered(result: Any, cell: Cell | None) -> Any:
        result = server.encode(result)
        if not any(isinstance(d, Notebook) for d in server.session.documents):
            return result
        try:
            return _Answer(server.session, cell).value(result)
        except _ElsewhereError:
            return None

    if inspect.iscoroutinefunction(handler):

        @functools.wraps(handler)
        async def translated(ls: FuselensServer, params: Any) -> Any:
            params, cell = asked(params)
            return answered(await handler(ls, params), cell)

        return translated

    @functools.wraps(handler)
    def at_once(ls: FuselensServer, params: Any) -> Any:
        params, cell = asked(params)
        return answered(handler(ls, params), cell)

    return at_once


def _clamped(position: lsp.Position, cell: Cell) -> lsp.Position:
    """A position of ``cell`` as one of the module; beyond the cell's end, at its end."""
    line = cell.start + position.line
    if line < cell.end:
        return lsp.Position(line, position.character)
    return _end(cell)


def _end(cell: Cell) -> lsp.Position:
    last = cell.text.position(len(cell.text))
    return lsp.Position(cell.start + last.line, last.character)


def _in_cell(position: lsp.Position, cell: Cell) -> lsp.Position:
    if not cell.start <= position.line < cell.end:
        raise _ElsewhereError
    return lsp.Position(position.line - cell.start, position.character)


def _range_in_cell(place: lsp.Range, cell: Cell) -> lsp.Range:
    """A range of the module that starts in ``cell``, as far as it lies in it."""
    end = place.end if place.end.line < cell.end else _end(cell)
    return lsp.Range(_in_cell(place.start, cell), _in_cell(end, cell))


def place_in_cell(session: Session, uri: str, place: lsp.Range) -> tuple[str, lsp.Range]:
    """A range of any document, as a client shows it: that of a notebook's module becomes one of a cell."""
    return _Answer(session, None).place(uri, place)


class _Answer:
    """An answer about the module as one about cells: ``cell`` is the one that was asked about."""

    def __init__(self, session: Session, cell: Cell | None) -> None:
        self.session = session
        self.cell = cell

    def value(self, value: Any) -> Any:
        match value:
            case lsp.Location():
                uri, place = self.place(value.uri, value.range)
                return lsp.Location(uri, place)
            case lsp.InlayHintLabelPart(location=lsp.Location() as old):
                new = self.value(old)
                before, after = (f"line {place.range.start.line + 1}" for place in (old, new))
                return attrs.evolve(value, value=value.value.replace(before, after), location=new)
            case lsp.LocationLink():
                uri, place = self.place(value.target_uri, value.target_range)
                _, selection = self.place(value.target_uri, value.target_selection_range)
                origin = value.origin_selection_range and self.value(value.origin_selection_range)
                return attrs.evolve(
                    value, target_uri=uri, target_range=place, target_selection_range=selection,
                    origin_selection_range=origin,
                )  # fmt: skip
            case lsp.WorkspaceEdit():
                return self.edit(value)
            case lsp.Position() if self.cell is not None:
                return _in_cell(value, self.cell)
            case lsp.Range() if self.cell is not None:
                return _range_in_cell(value, self.cell)
            case list() | tuple():
                return list(self.parts(value))
        if attrs.has(type(value)):
            changes = {f.name: self.value(getattr(value, f.name)) for f in attrs.fields(type(value))}
            return attrs.evolve(value, **changes)
        return value

    def parts(self, values: Iterable[Any]) -> Iterator[Any]:
        """Those that are in the cell, or in no cell."""
        for value in values:
            try:
                yield self.value(value)
            except _ElsewhereError:
                continue

    def place(self, uri: str, place: lsp.Range) -> tuple[str, lsp.Range]:
        """A range of any document; that of a notebook becomes one of a cell."""
        document = self.session.get(uri)
        if not isinstance(document, Notebook) or not document.cells:
            return uri, place
        cell = document.cell_at(place.start.line)
        return cell.uri, _range_in_cell(place, cell)

    def edit(self, edit: lsp.WorkspaceEdit) -> lsp.WorkspaceEdit:
        changes: dict[str, list[Any]] = {}
        for uri, edits in (edit.changes or {}).items():
            for one in edits:
                moved, place = self.place(uri, one.range)
                changes.setdefault(moved, []).append(attrs.evolve(one, range=place))
        parts: list[Any] = []
        for part in edit.document_changes or ():
            parts += self.document_edit(part) if isinstance(part, lsp.TextDocumentEdit) else [part]
        return attrs.evolve(
            edit, changes=changes if edit.changes is not None else None,
            document_changes=parts if edit.document_changes is not None else None,
        )  # fmt: skip

    def document_edit(self, edit: lsp.TextDocumentEdit) -> list[lsp.TextDocumentEdit]:
        document = self.session.get(edit.text_document.uri)
        if not isinstance(document, Notebook):
            return [edit]
        edits: dict[str, list[Any]] = {}
        for one in edit.edits:
            uri, place = self.place(document.uri, one.range)
            edits.setdefault(uri, []).append(attrs.evolve(one, range=place))
        versions = {cell.uri: cell.version for cell in document.cells}
        identifiers = {uri: lsp.OptionalVersionedTextDocumentIdentifier(uri, versions[uri]) for uri in edits}
        return [lsp.TextDocumentEdit(identifiers[uri], parts) for uri, parts in edits.items()]
