"""Reports of functions that only moved."""

from __future__ import annotations

import dataclasses
import json

import pytest

from fuselens.record.plain import to_plain
from fuselens.record.report import CallSite, Diagnostic, Foreseen, Line, Report, Span, Stage
from fuselens_server.texts.rebase import rebased


def test_nothing_changed(toy):
    view = toy.view(report=toy.file())
    assert rebased(toy.report(), view.compiled, frozenset({toy.path})) == toy.report()


def spans(value: object) -> list[Span]:
    found = []

    def walk(part: object) -> None:
        if isinstance(part, Span):
            found.append(part)
        elif dataclasses.is_dataclass(part) and not isinstance(part, type):
            for f in dataclasses.fields(part):
                walk(getattr(part, f.name))
        elif isinstance(part, (list, tuple)):
            for item in part:
                walk(item)

    walk(value)
    return found


@pytest.mark.parametrize("lines", [1, 3])
def test_lines_above_shift_everything(toy, lines):
    view = toy.view(report=toy.file(), edits=((0, 0, "# ü\n" * lines),))
    moved = rebased(toy.report(), view.compiled, frozenset({toy.path}))
    assert moved is not None
    assert spans(moved) == [
        dataclasses.replace(s, line=s.line + lines, end_line=s.end_line + lines) for s in spans(toy.report())
    ]


def test_only_what_is_below_shifts(toy):
    at = toy.text.index("    if b.sum()")
    view = toy.view(report=toy.file(), edits=((at, at, "    # why\n"),))
    moved = rebased(toy.report(), view.compiled, frozenset({toy.path}))
    assert moved is not None
    assert {(a.line, b.line - a.line) for a, b in zip(spans(toy.report()), spans(moved), strict=True)} == {
        (4, 0), (5, 0), (6, 1), (7, 1), (11, 1),
    }  # fmt: skip


def test_a_call_that_is_edited_ends_what_was_foreseen_of_it(toy):
    lines = toy.text.split("\n")
    call = Span(toy.path, len(lines), 0, len(lines), 5)
    found = Diagnostic("FL207", "sizes vary", call)
    report = dataclasses.replace(toy.report(), foreseen=Foreseen((CallSite(call, calls=1),)), diagnostics=[found])
    at = len(toy.text)
    view = toy.view(report=toy.file(), edits=((at, at, "12345"),))
    assert rebased(report.without_foreseen, view.compiled, frozenset({toy.path})) is not None
    assert report.without_foreseen.foreseen is None and report.without_foreseen.diagnostics == []


def test_an_edit_inside_a_place_ends_it(toy):
    at = toy.text.index("b.sum()")
    view = toy.view(report=toy.file(), edits=((at + 1, at + 1, " "),))
    assert rebased(toy.report(), view.compiled, frozenset({toy.path})) is None


def test_places_in_other_files_stay(toy):
    report = toy.report()
    report.breaks.append(Diagnostic("FL101", "m", Span("/elsewhere.py", 3, 0, 3, 1)))
    view = toy.view(report=toy.file(), edits=((0, 0, "\n"),))
    moved = rebased(report, view.compiled, frozenset({toy.path}))
    assert moved is not None
    assert moved.breaks[-1] == report.breaks[-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = a  # line 5", "x = a  # line 7"),
        ("loop  # toy.py:5:9", "loop  # toy.py:7:9"),
        ("// k: div  // toy.py:5", "// k: div  // toy.py:7"),
        ("// k: div  // toy.py:5,6", "// k: div  // toy.py:7,8"),
        ("// k: div  // other.py:5", "// k: div  // other.py:5"),
        ("x = a  # line 99", "x = a  # line 99"),
        ("x = 5  # of line 5 and more", "x = 5  # of line 5 and more"),
    ],
)
def test_places_printed_in_texts_move_along(toy, text, expected):
    divide, branch = toy.span(toy.text, "a / (a.abs() + 1)"), toy.span(toy.text, "b.sum() < 0")
    stage = Stage("fuse", "loop", f"# line 5\n{text}\n", (Line(2, (divide, branch)),))
    report = dataclasses.replace(toy.report(), graphs=[])
    report.graphs = [dataclasses.replace(toy.report().graphs[0], stages=[stage])]
    view = toy.view(report=toy.file(), edits=((0, 0, "#\n#\n"),))
    moved = rebased(report, view.compiled, frozenset({toy.path}))
    assert moved is not None
    assert moved.graphs[0].stages[0].text == f"# line 5\n{expected}\n"


def test_a_cause_names_its_new_place(toy):
    report = toy.report()
    (broken,) = report.breaks
    report.diagnostics.append(Diagnostic("FL112", "m", broken.span, cause=f"FL101 at {broken.span}: b"))
    view = toy.view(report=toy.file(), edits=((0, 0, "\n"),))
    moved = rebased(report, view.compiled, frozenset({toy.path}))
    assert moved is not None
    assert moved.diagnostics[-1].cause == f"FL101 at {moved.breaks[0].span}: b"


def test_a_rebased_report_is_the_report_of_the_new_text(toy):
    """Rebasing twice, there and back, gives the same."""
    there = toy.view(report=toy.file(), edits=((0, 0, "# x\n"),))
    moved = rebased(toy.report(), there.compiled, frozenset({toy.path}))
    back = toy.view(text="# x\n" + toy.text, report=toy.file(), edits=((0, 4, ""),))
    again = rebased(moved, back.compiled, frozenset({toy.path}))
    assert json.dumps(to_plain(again)) == json.dumps(to_plain(toy.report()))
    assert isinstance(again, Report)
