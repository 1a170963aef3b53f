"""Predictions while typing: shown for what was edited, until compiling confirms or refutes them."""

from __future__ import annotations

from typing import Any

import pytest
from lsprotocol import types as lsp

from fuselens.record import diagnostics as codes
from fuselens.record.report import FileReport, Report
from fuselens_server.features.diagnostics import diagnostics
from fuselens_server.texts.session import Document, Session

SOURCE = """\
import fuselens
from torch import Tensor

@fuselens.compile
def f(x: Tensor):
    if x.shape[0] == 3:
        print("three")
    return x * 2
"""


class Typed:
    """A document whose text is edited and checked, without a server."""

    def __init__(self, text: str) -> None:
        self.session = Session()
        document = self.session.open("file:///tmp/typed.py", 1, text)
        assert document is not None
        self.document: Document = document

    def replace(self, old: str, new: str) -> None:
        text = self.document.text.text
        assert text.count(old) == 1
        start = text.index(old)
        source = self.document.text
        where = lsp.Range(source.position(start), source.position(start + len(old)))
        self.document.change([lsp.TextDocumentContentChangePartial(where, new)], None)

    def check(self, *breaks: Any, report: FileReport | None = None) -> None:
        """A check that finds ``breaks`` (code and text) in ``f``."""
        self.document.begin()
        found = []
        for code, text in breaks:
            offset = self.document.text.text.index(text)
            (line, column) = self.document.text.bytes_at_offset(offset)
            found.append(codes.make(code, codes.Span(self.document.path, line, column, line, column + len(text))))
        path = self.document.path
        self.document.finish(report or FileReport(path, [Report("f", path, breaks=found)]))

    def shown(self) -> list[tuple[object, str, bool]]:
        """Code, text and whether it is a prediction."""
        text = self.document.text
        found = diagnostics(self.session.view(self.document))
        return [
            (
                d.code,
                text.text[text.offset(d.range.start) : text.offset(d.range.end)],
                isinstance(d.data, dict) and "predicted" in d.data,
            )
            for d in found
        ]


def test_before_a_check_everything_is_predicted():
    typed = Typed(SOURCE)
    assert typed.shown() == [("FL103", 'print("three")', True)]
    (found,) = diagnostics(typed.session.view(typed.document))
    assert found.severity == lsp.DiagnosticSeverity.Information
    assert found.message.startswith("likely graph break: `print` prints")


def test_a_check_decides():
    typed = Typed(SOURCE)
    typed.check()
    assert typed.shown() == []  # it was not reached: compiling knows better
    typed.replace("x * 2", "x * x.sum().item()")
    assert typed.shown() == [("FL102", "x.sum().item()", True)]
    typed.replace("def f", "# a comment\ndef f")
    assert typed.shown() == [("FL102", "x.sum().item()", True)]
    typed.check(("FL102", "x.sum().item()"))
    assert typed.shown() == [("FL102", "x.sum().item()", False)]


def test_what_was_found_is_not_predicted_as_well():
    typed = Typed(SOURCE)
    typed.check(("FL103", 'print("three")'))
    typed.replace("x * 2", "x * 3")
    assert typed.shown() == [("FL103", 'print("three")', False)]
    typed.replace('"three"', '"four"')
    assert typed.shown() == [("FL103", 'print("four")', True)]  # the finding is gone with the text that it was about


def test_an_edit_elsewhere_can_make_a_line_break():
    typed = Typed(SOURCE.replace("x.shape[0] == 3", "n == 3").replace("    if", "    n = x.shape[0]\n    if"))
    typed.check(("FL103", 'print("three")'))
    typed.replace("n = x.shape[0]", "n = x.sum()")
    assert typed.shown() == [("FL103", 'print("three")', False), ("FL101", "n == 3", True)]


def test_while_the_text_does_not_parse_predictions_stay():
    typed = Typed(SOURCE)
    assert len(typed.shown()) == 1
    typed.replace("return x * 2", "return x *")
    assert typed.shown() == [("FL103", 'print("three")', True)]


@pytest.mark.parametrize("code", ["FL901", "FL908", "FL912", "FL913"])
def test_what_was_not_compiled_stays_predicted(code):
    typed = Typed(SOURCE)
    finding = codes.make(code, typed.document.annotated()[0].name_span, what="f")
    typed.check(report=FileReport(typed.document.path, [Report("f", typed.document.path, diagnostics=[finding])]))
    assert ("FL103", 'print("three")', True) in typed.shown()


def test_after_a_failed_check_predictions_are_of_the_text_as_it_is():
    typed = Typed(SOURCE)
    typed.check()
    typed.check(report=FileReport(typed.document.path, [], [codes.make("FL907", what="python", why="no")]))
    assert [code for code, _, predicted in typed.shown() if predicted] == ["FL103"]
    typed.replace("return x * 2", "return x *")
    assert not any(predicted for _, _, predicted in typed.shown())


def test_a_file_without_annotations_costs_nothing(monkeypatch):
    monkeypatch.setattr("fuselens_server.texts.session.SourceModule", None)
    assert Typed("def f(x):\n    print(x)\n").shown() == []


@pytest.mark.asyncio(loop_scope="module")
async def test_typing_shows_predictions_and_saving_replaces_them(editor, tmp_path, good):
    (tmp_path / "typed.py").write_text("# as on disk\n")
    unsaved = good.replace("x * b", "x * b.sum().item()")
    seen: list[Any] = []
    found = await editor.published(
        (tmp_path / "typed.py").as_uri(), lambda: seen.append(editor.show(tmp_path / "typed.py", unsaved))
    )
    (file,) = seen
    assert [(d.code, file.at(d.range), d.data["predicted"]) for d in found] == [
        ("FL101", "b.sum() < 0", True), ("FL102", "b.sum().item()", True),
    ]  # fmt: skip
    found = await file.save()
    assert [(d.code, d.data.get("predicted")) for d in found if d.code in ("FL101", "FL102")] == [
        ("FL101", None), ("FL102", None),
    ]  # fmt: skip
    line = file.text[: file.text.rindex("return")].count("\n")
    found = await editor.published(file.uri, lambda: file.insert(line, "    print(x)\n"))
    assert [(d.code, bool(d.data.get("predicted"))) for d in found if d.code != "FL102" and str(d.code) < "FL2"] == [
        ("FL101", False), ("FL103", True),
    ]  # fmt: skip
    file.close()
