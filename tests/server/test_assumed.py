"""What is shown of inputs that a check assumed: hints that lead to the call."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lsprotocol import types as lsp

from fuselens.record import diagnostics as codes
from fuselens.record.report import FileReport, Input, Inputs, Report, Span
from fuselens_server.client.messages import CLIENT_ACTIONS
from fuselens_server.features import code_actions, inlay_hints, summary
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.notebooks import Cell, Notebook, _Answer
from fuselens_server.texts.session import Document, Session
from fuselens_server.work import fix_trials

from .conftest import PATH, make_view

EVERYTHING = lsp.Range(lsp.Position(0, 0), lsp.Position(1000, 0))
TEXT = """\
import torch

model = torch.compile(Model())  # (#1)

@torch.compile
def step(x: "a # b"):
    return x

loss = step(
    model(images),
)
"""
INPUTS = Inputs("call", (Input("x", "f32[64, 1, 28, 28]"), Input("n", "2.0"), Input("", "i64[64]")), 10)


def reports(inputs: Inputs) -> FileReport:
    return FileReport(
        PATH, [Report("model", PATH, inputs=inputs), Report("step", PATH, inputs=replace(inputs, line=9))]
    )


def shown(inputs: Inputs = INPUTS, **changes: object) -> list[tuple[int, int, str]]:
    hints = inlay_hints.assumed(make_view(TEXT, reports(inputs), **changes), EVERYTHING)
    return [(h.position.line, h.position.character, "".join(part.value for part in h.label)) for h in hints]


def test_hints_stand_behind_what_compiles():
    types = "f32[64, 1, 28, 28], n=2.0"
    assert shown() == [(2, 30, f"as in line 10: {types}, …"), (5, 21, f"as in line 9: {types}, …")]


def test_the_place_of_the_call_moves_and_leads_there():
    view = make_view(TEXT, reports(INPUTS), edits=((0, 0, "# new\n\n"),))
    hint = next(inlay_hints.assumed(view, EVERYTHING))
    origin, types = hint.label
    assert origin.value == "as in line 12"
    assert origin.location == lsp.Location(view.uri, lsp.Range(lsp.Position(11, 0), lsp.Position(11, 0)))
    assert types.location is None
    assert hint.position.line == 4
    assert "those of its call at line 10:\n  x: f32[64, 1, 28, 28]\n  n: 2.0\n  i64[64]\n" in hint.tooltip


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (Inputs("layers", (Input("x", "f32[2, 8]"),)), "as its layers take: f32[2, 8]"),
        (Inputs("body", (Input("x", "f32[2]"),)), "as its body takes: f32[2]"),
        (Inputs("call", (), 0), "as it is called: no inputs"),
        (Inputs("call", (Input("x", "f32[100, 10]"), Input("y", "i64[100]")), 9), "as in line 9: f32[100, 10], i64[100]"),
        (Inputs("call", (Input("x", "f32[10, 100]"),) * 6, 9), "as in line 9: f32[10, 100], f32[10, 100], …"),
        (Inputs("call", (Input("x", f"f32[{'10000, ' * 5}10000]"),) * 2, 9),
         "as in line 9: f32[10000, 10000, 10000, 10000, 10000, 10000], …"),
    ],
)  # fmt: skip
def test_other_origins_and_many_inputs(inputs: Inputs, text: str):
    assert shown(inputs)[0][2] == text


@pytest.mark.parametrize("origin", ["annotations", "example_inputs", "recorded"])
def test_what_somebody_states_is_not_assumed(origin):
    assert shown(replace(INPUTS, origin=origin)) == []


def test_a_call_in_another_file():
    inputs = replace(INPUTS, file="/project/train.py")
    hint = next(inlay_hints.assumed(make_view(TEXT, reports(inputs)), EVERYTHING))
    origin, _ = hint.label
    assert origin.value == "as in train.py:10"
    assert (origin.location.uri, origin.location.range.start.line) == ("file:///project/train.py", 9)
    assert "those of its call at line 10 of train.py:" in hint.tooltip


def test_hints_only_in_the_visible_range():
    view = make_view(TEXT, reports(INPUTS))
    seen = inlay_hints.assumed(view, lsp.Range(lsp.Position(3, 0), lsp.Position(9, 0)))
    assert [h.position.line for h in seen] == [5]


def test_lines_of_notebooks_are_those_of_the_cell():
    cells = [Cell("cell:1", 1, SourceText("import torch\n")), Cell("cell:2", 1, SourceText("x = 1\nmodel(x)\n"))]
    notebook = Notebook("file:///n.ipynb", "/n.ipynb", 1, cells, "utf-16")
    session = Session()
    session.add(notebook, [cell.uri for cell in cells])
    line = cells[1].start + 1
    there = lsp.Location(notebook.uri, lsp.Range(lsp.Position(line, 0), lsp.Position(line, 0)))
    part = _Answer(session, cells[0]).value(lsp.InlayHintLabelPart(f"as in line {line + 1}", location=there))
    assert (part.value, part.location.uri, part.location.range.start.line) == ("as in line 2", "cell:2", 1)


def test_the_summary_says_where_inputs_come_from():
    said = summary.explain(reports(INPUTS).functions[0])
    assert "inputs x: f32[64, 1, 28, 28], n: 2.0, i64[64] (those of its call at line 10)" in said


def test_a_report_that_holds_takes_the_new_origin():
    document = Document("file:///f.py", "/f.py", 1, SourceText("model(x)"))
    document.begin()
    document.finish(FileReport("/f.py", [Report("model", "/f.py", fingerprint="f", inputs=INPUTS, mode="kept")]))
    document.begin()
    moved = replace(INPUTS, line=12)
    document.finish(FileReport("/f.py", [Report("model", "/f.py", fingerprint="f", inputs=moved, unchanged=True)]))
    assert document.checked is not None
    (report,) = document.checked.report.functions
    assert (report.mode, report.inputs, report.unchanged) == ("kept", moved, False)


def test_assumed_inputs_can_be_written_down():
    text = "import torch\n\n\n@torch.compile\ndef step(x):\n    return x\n\n\nstep(images)\n"
    inputs = Inputs("call", (Input("x", "f32[64, 10]"),), 9)
    name = Span(PATH, 5, 4, 5, 8)
    finding = codes.make("FL921", name, what="step", origin=inputs.source, inputs=inputs.types)
    report = Report("step", PATH, name, diagnostics=[finding], inputs=inputs)
    view = make_view(text, FileReport(PATH, [report]), edits=((0, 0, "# new\n"),))
    context = lsp.CodeActionContext([], [lsp.CodeActionKind.QuickFix])
    place = lsp.Range(lsp.Position(5, 5), lsp.Position(5, 5))
    written, explained = code_actions.code_actions(view, place, context, versioned=False)
    assert (written.title, written.is_preferred) == ("Write the assumed inputs: @fuselens.example", True)
    assert explained.title == "Explain FL921"
    edits = {(e.range.start.line, e.new_text) for e in written.edit.changes[view.uri]}
    assert edits == {(1, "import fuselens\n"), (5, "@fuselens.example(lambda: (torch.randn(64, 10),))\n")}
    assert not fix_trials.has_untried(report)
    *_, recorded = code_actions.code_actions(view, place, context, CLIENT_ACTIONS, versioned=False)
    assert recorded.command == lsp.Command(recorded.title, "fuselens.recordRun", arguments=[view.uri])
