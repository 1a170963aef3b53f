"""Notebooks: cells are one module, and everything is said about cells."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp

from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.notebooks import Cell, Notebook, in_cells, python_text
from fuselens_server.texts.session import Session

CELLS = (
    "%matplotlib inline\nimport fuselens\nimport torch",
    "def example():\n    return (torch.ones(8),)",
    "@fuselens.compile(example_inputs=example)\ndef f(x):\n    y = helper(x) * 2\n    if y.sum() > 0:\n        y = y + 1\n    return y",
    "!ls\ndef helper(x):\n    print('here')\n    return x.sin()",
)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("x = 1\n", "x = 1\n"),
        ("%time x = 1\nx = 2", "0          \nx = 2"),
        ("if x:\n    !ls {x}\n", "if x:\n    0      \n"),
        ("%%time\nx = 1\r\n", "0     \nx = 1\r\n"),
        ("%%bash\nls\n", "      \n  \n"),
        ("files = !ls\nx = %who_ls\n", "files = 0  \nx = 0      \n"),
        ("torch.add?\n?torch\ny = '😀'", "0         \n0     \ny = '😀'"),
        ("x = ('%d'\n% 3)\n", "x = ('%d'\n% 3)\n"),  # Python as it is
        ("", ""),
        ("\0", "\0"),
    ],
)
def test_magics_are_blanked_in_place(cell, expected):
    assert python_text(cell) == expected
    assert len(python_text(cell)) == len(cell)


def notebook(*texts: str) -> Notebook:
    cells = [Cell(f"cell:/n.ipynb#{i}", 1, SourceText(text)) for i, text in enumerate(texts)]
    return Notebook("file:///n.ipynb", "/n.ipynb", 1, cells, "utf-16")


def structure(start: int, deleted: int, *added: tuple[str, str]) -> lsp.NotebookDocumentCellChanges:
    array = lsp.NotebookCellArrayChange(
        start, deleted, [lsp.NotebookCell(lsp.NotebookCellKind.Code, uri) for uri, _ in added]
    )
    opened = [lsp.TextDocumentItem(uri, "python", 1, text) for uri, text in added if text]
    return lsp.NotebookDocumentCellChanges(lsp.NotebookDocumentCellChangeStructure(array, opened))


def test_cells_are_one_module_in_order():
    book = notebook(*CELLS)
    ast.parse(book.text.text)
    assert [a.qualname for a in book.annotated()] == ["f"]
    assert [(cell.start, cell.end) for cell in book.cells] == [(0, 3), (3, 5), (5, 11), (11, 15)]
    assert book.cell_at(4) is book.cells[1]
    assert book.cell_at(99) is book.cells[3]
    assert notebook().text.text == ""
    assert notebook("", "x\r\ny\r\n", "z").text.text == "\nx\r\ny\r\n\nz\n"


def test_cells_come_go_and_move():
    book = notebook("a = 1", "b = 2", "c = 3")
    book.change_cells(structure(1, 1), 2)
    assert book.text.text == "a = 1\nc = 3\n"
    book.change_cells(structure(0, 0, ("cell:/n.ipynb#new", "n = 0\n")), 3)
    assert book.text.text == "n = 0\n\na = 1\nc = 3\n"
    swapped = structure(1, 2, ("cell:/n.ipynb#2", ""), ("cell:/n.ipynb#0", ""))
    book.change_cells(swapped, 4)
    assert book.text.text == "n = 0\n\nc = 3\na = 1\n"
    content = lsp.NotebookDocumentCellContentChanges(
        lsp.VersionedTextDocumentIdentifier(7, "cell:/n.ipynb#0"),
        [lsp.TextDocumentContentChangePartial(lsp.Range(lsp.Position(0, 0), lsp.Position(0, 1)), "aa")],
    )
    book.change_cells(lsp.NotebookDocumentCellChanges(text_content=[content]), 5)
    assert book.text.text == "n = 0\n\nc = 3\naa = 1\n"
    assert [cell.version for cell in book.cells] == [1, 1, 7]
    assert book.version == 5


def test_the_file_is_compared_by_cells():
    book = notebook("a = 1", "b = 2\n")

    def stored(*sources: Any, kind: str = "code") -> str:
        return json.dumps({"cells": [{"cell_type": kind, "source": s} for s in sources]})

    assert book.matches(stored(["a = ", "1"], "b = 2\n"))
    assert not book.matches(stored("a = 1"))
    assert not book.matches(stored("a = 1", "b = 2\n", kind="markdown"))
    assert not book.matches("not json")
    assert not book.matches("[]")


def test_the_session_finds_notebooks_by_their_cells():
    session, book = Session(), notebook("a = 1", "b = 2")
    session.add(book, book.uris)
    assert session.get("cell:/n.ipynb#1") is book
    book.change_cells(structure(1, 1), 2)
    session.add(book, book.uris)
    assert session.get("cell:/n.ipynb#1") is None
    assert session.close(book.uri) is book
    assert session.get("cell:/n.ipynb#0") is None


class Host:
    """What handlers of requests need of a server."""

    def __init__(self, *books: Notebook) -> None:
        self.session = Session()
        for book in books:
            self.session.add(book, book.uris)

    def encode(self, value: Any) -> Any:
        return value


def at(line: int, column: int = 0, end_line: int | None = None, end: int = 1) -> lsp.Range:
    return lsp.Range(lsp.Position(line, column), lsp.Position(line if end_line is None else end_line, end))


def asked(uri: str, answer: Any, seen: list[Any] | None = None) -> Any:
    """What a handler that answers ``answer`` about the module says about a cell, and what it was asked."""

    def handler(ls: Any, params: Any) -> Any:
        if seen is not None:
            seen.append(params)
        return answer

    host: Any = Host(notebook("a = 1\n", "b = 2\nc = 3"))
    parameters = lsp.HoverParams(lsp.TextDocumentIdentifier(uri), lsp.Position(1, 2))
    return in_cells(host, handler)(host, parameters)


def test_requests_about_a_cell_are_about_the_module():
    seen: list[Any] = []
    asked("cell:/n.ipynb#1", None, seen)
    assert (seen[0].text_document.uri, seen[0].position) == ("file:///n.ipynb", lsp.Position(3, 2))
    asked("cell:/n.ipynb#0", None, seen)
    assert seen[1].position == lsp.Position(1, 2)
    asked("file:///other.py", None, seen)
    assert (seen[2].text_document.uri, seen[2].position) == ("file:///other.py", lsp.Position(1, 2))


def test_answers_about_the_module_are_about_cells():
    first, second, module = "cell:/n.ipynb#0", "cell:/n.ipynb#1", "file:///n.ipynb"
    lenses = [lsp.CodeLens(at(0)), lsp.CodeLens(at(3)), lsp.CodeLens(at(1))]
    assert asked(second, lenses) == [lsp.CodeLens(at(1))]
    assert asked(first, lenses) == [lsp.CodeLens(at(0)), lsp.CodeLens(at(1))]
    assert asked(second, lsp.Hover("text", at(0))) is None
    assert asked(second, lsp.Hover("text")) == lsp.Hover("text")
    locations = [lsp.Location(module, at(0)), lsp.Location(module, at(2, 0, 9)), lsp.Location("file:///o.py", at(7))]
    moved = [lsp.Location(first, at(0)), lsp.Location(second, at(0, 0, 1, 5)), lsp.Location("file:///o.py", at(7))]
    assert asked(first, locations) == moved
    assert asked("fuselens://kernel", locations) == moved  # from elsewhere into cells
    link = lsp.LocationLink(module, at(2), at(2))
    assert asked("fuselens://kernel", [link]) == [lsp.LocationLink(second, at(0), at(0))]


def test_edits_of_the_module_are_edits_of_cells():
    first, second, module = "cell:/n.ipynb#0", "cell:/n.ipynb#1", "file:///n.ipynb"
    edits = [lsp.TextEdit(at(3), "x"), lsp.TextEdit(at(0), "y")]
    action = lsp.CodeAction("fix", edit=lsp.WorkspaceEdit(changes={module: edits}))
    (answered,) = asked(second, [action])
    assert answered.edit.changes == {second: [lsp.TextEdit(at(1), "x")], first: [lsp.TextEdit(at(0), "y")]}
    versioned = lsp.TextDocumentEdit(lsp.OptionalVersionedTextDocumentIdentifier(module, 5), edits[:1])
    action = lsp.CodeAction("fix", edit=lsp.WorkspaceEdit(document_changes=[versioned]))
    (answered,) = asked(second, [action])
    (edit,) = answered.edit.document_changes
    assert (edit.text_document.uri, edit.text_document.version, edit.edits) == (second, 1, [lsp.TextEdit(at(1), "x")])


class Book:
    """An open notebook, as an editor holds it."""

    def __init__(self, editor: Any, path: Path, cells: tuple[str, ...]) -> None:
        self.editor, self.client, self.path = editor, editor.client, path
        self.texts = {f"vscode-notebook-cell:{path}#W{i}": text for i, text in enumerate(cells)}
        self.uris = list(self.texts)
        self.version = 1

    async def open(self) -> None:
        document = lsp.NotebookDocument(
            self.path.as_uri(), "jupyter-notebook", 1,
            [lsp.NotebookCell(lsp.NotebookCellKind.Markup, "vscode-notebook-cell:title")]
            + [lsp.NotebookCell(lsp.NotebookCellKind.Code, uri) for uri in self.uris],
        )  # fmt: skip
        texts = [lsp.TextDocumentItem(uri, "python", 1, self.texts[uri]) for uri in self.uris]
        await self.said(
            lambda: self.client.notebook_document_did_open(lsp.DidOpenNotebookDocumentParams(document, texts))
        )

    async def said(self, action: Any) -> None:
        """Until the last cell's diagnostics came: cells are told in order."""
        await self.editor.decided(self.uris[-1], action)

    def write(self) -> None:
        cells = [{"cell_type": "markdown", "source": ["# title"]}]
        cells += [{"cell_type": "code", "source": self.texts[uri].splitlines(keepends=True)} for uri in self.uris]
        self.path.write_text(json.dumps({"cells": cells, "nbformat": 4}))

    async def save(self) -> None:
        self.write()
        identifier = lsp.NotebookDocumentIdentifier(self.path.as_uri())
        await self.said(lambda: self.client.notebook_document_did_save(lsp.DidSaveNotebookDocumentParams(identifier)))

    async def change(self, changes: lsp.NotebookDocumentCellChanges) -> None:
        self.version += 1
        identifier = lsp.VersionedNotebookDocumentIdentifier(self.version, self.path.as_uri())
        event = lsp.NotebookDocumentChangeEvent(cells=changes)
        await self.said(
            lambda: self.client.notebook_document_did_change(lsp.DidChangeNotebookDocumentParams(identifier, event))
        )

    def found(self, cell: int) -> list[tuple[object, str, bool]]:
        text = SourceText(self.texts[self.uris[cell]])
        published = self.editor.diagnostics[self.uris[cell]].diagnostics
        return [
            (d.code, text.text[text.offset(d.range.start) : text.offset(d.range.end)], "predicted" in d.data)
            for d in published
            if not str(d.code).startswith("FL4")
        ]

    def identifier(self, cell: int) -> lsp.TextDocumentIdentifier:
        return lsp.TextDocumentIdentifier(self.uris[cell])


@pytest.mark.asyncio(loop_scope="module")
async def test_a_notebook_in_an_editor(editor, tmp_path):
    book = Book(editor, tmp_path / "book.ipynb", CELLS)
    book.write()
    await book.open()
    assert book.found(2) == [("FL101", "y.sum() > 0", False)]
    assert book.found(3) == [("FL103", "print('here')", False)]
    assert book.found(0) == book.found(1) == []
    (printed,) = (d for d in editor.diagnostics[book.uris[3]].diagnostics if d.code == "FL103")
    (called,) = printed.related_information
    assert (called.location.uri, called.location.range.start) == (book.uris[2], lsp.Position(2, 8))

    lenses = [await book.client.text_document_code_lens_async(lsp.CodeLensParams(book.identifier(k))) for k in range(4)]
    assert [bool(found) for found in lenses] == [False, False, True, True]
    (helper,) = lenses[3]
    assert helper.command.title.startswith("compiled in ") and "line" not in helper.command.title
    assert await editor.execute(helper.command.command, *helper.command.arguments) == book.uris[2]
    assert {lens.range.start.line for lens in lenses[2]} == {1}
    hover = await book.client.text_document_hover_async(lsp.HoverParams(book.identifier(2), lsp.Position(2, 5)))
    assert hover is not None
    assert "f32" in hover.contents.value or "float32" in hover.contents.value
    everything = lsp.Range(lsp.Position(0, 0), lsp.Position(10_000, 0))
    hints = await book.client.text_document_inlay_hint_async(lsp.InlayHintParams(book.identifier(2), everything))
    assert hints
    assert all(h.position.line < 6 for h in hints)
    assert not await book.client.text_document_inlay_hint_async(lsp.InlayHintParams(book.identifier(0), everything))
    symbols = await book.client.workspace_symbol_async(lsp.WorkspaceSymbolParams("f"))
    assert book.uris[2] in {s.location.uri for s in symbols}
    result = await editor.execute("fuselens.server.run", book.path.as_uri(), "f")
    result = result if isinstance(result, dict) else result._asdict()
    assert result["agrees"], result

    content = lsp.NotebookDocumentCellContentChanges(
        lsp.VersionedTextDocumentIdentifier(2, book.uris[2]),
        [
            lsp.TextDocumentContentChangePartial(
                lsp.Range(lsp.Position(2, 0), lsp.Position(2, 0)), "    n = x.sum().item()\n"
            )
        ],
    )
    text = SourceText(book.texts[book.uris[2]])
    at = text.offset(lsp.Position(2, 0))
    book.texts[book.uris[2]] = text.text[:at] + "    n = x.sum().item()\n" + text.text[at:]
    await book.change(lsp.NotebookDocumentCellChanges(text_content=[content]))
    assert book.found(2) == [("FL101", "y.sum() > 0", False), ("FL102", "x.sum().item()", True)]
    assert editor.diagnostics[book.uris[2]].version == 2
    await book.save()
    assert sorted(book.found(2)) == [("FL101", "y.sum() > 0", False), ("FL102", "x.sum().item()", False)]

    gone = book.uris[3]
    added = f"vscode-notebook-cell:{book.path}#W9"
    book.texts[added] = "def helper(x):\n    return x.cos()"
    book.uris = [*book.uris[:3], added]
    await book.change(structure(3, 1, (added, book.texts[added])))
    await editor.until(lambda: not editor.diagnostics[gone].diagnostics)
    assert book.found(3) == []
    await book.save()
    assert sorted(str(code) for code, _, _ in book.found(2)) == ["FL101", "FL102"]
    identifier = lsp.NotebookDocumentIdentifier(book.path.as_uri())
    book.client.notebook_document_did_close(lsp.DidCloseNotebookDocumentParams(identifier, []))
    await editor.until(lambda: not editor.diagnostics[book.uris[2]].diagnostics)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_server_asks_for_notebooks_of_clients_that_have_them(new_editor, tmp_path):
    def more(capabilities: lsp.ClientCapabilities) -> None:
        capabilities.notebook_document = lsp.NotebookDocumentClientCapabilities(
            lsp.NotebookDocumentSyncClientCapabilities()
        )

    editor = await new_editor().start(tmp_path, more=more)
    assert editor.initialized.capabilities.notebook_document_sync is not None
    await editor.stop()
