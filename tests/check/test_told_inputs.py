"""A report says what its function was called with, and where that comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fuselens.checking.check import check_file
from fuselens.config import Config
from fuselens.record import views, wire
from fuselens.record.report import FileReport, Report

Written = Callable[..., Path]

MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x, scale=1.0):
        return self.layer(x) * scale
"""
SOURCES = {
    "@fuselens.example(torch.ones(2))\n@fuselens.compile\ndef f(x): return x + 1": (
        "x: f32[2] (those that its author states)"
    ),
    "@fuselens.compile(example_inputs=(torch.ones(2), 3))\ndef f(x, n): return x + n": (
        "x: f32[2], n: 3 (those that its author states)"
    ),
    '@fuselens.compile\ndef f(x: Float32[Tensor, "2 3"]): return x + 1': "x: f32[2, 3] (made from its annotations)",
    f"{MODEL}\nmodel = torch.compile(Model())": "x: f32[2, 8] (the smallest that its layers take)",
    f"{MODEL}\nmodel = torch.compile(Model())\nmodel(torch.ones(5, 8), scale=2.0)": (
        "x: f32[5, 8], scale: 2.0 (those of its call at line 14)"
    ),
    f"{MODEL}\nmodel = torch.compile(Model())\ndata = open('nowhere').read()\nmodel(data)": (
        "x: f32[2, 8] (those of its call at line 15; what is unknown there is the smallest that it takes)"
    ),
    "@fuselens.compile\ndef f(*xs): return xs[0] + xs[1]\nf(torch.ones(2), torch.ones(2))": (
        "f32[2], f32[2] (those of its call at line 6)"
    ),
    "class A:\n    @fuselens.compile\n    def f(self, x): return x + 1\nA().f(torch.ones(2))": (
        "x: f32[2] (those of its call at line 7)"
    ),
}


@pytest.mark.parametrize("text", SOURCES)
def test_where_inputs_come_from(text: str, written: Written) -> None:
    (report,) = check_file(written(text)).functions
    assert views.inputs_text(report) == f"inputs {SOURCES[text]}"
    assumed = [d for d in report.diagnostics if d.code == "FL921"]
    assert len(assumed) == (report.inputs is not None and report.inputs.assumed)
    assert all(report.inputs and report.inputs.source in d.message for d in assumed)


def test_it_is_in_texts_and_goes_over_the_pipe(written: Written) -> None:
    text = f"{MODEL}\nmodel = torch.compile(Model())\nmodel(torch.ones(5, 8))"
    file = check_file(written(text))
    line = "inputs x: f32[5, 8] (those of its call at line 14)"
    assert f"  {line}" in views.summary_lines(file.functions[0])
    assert line in views.explain(file.functions[0]).splitlines()
    assert '"origin": "call"' in views.json_text([file])
    event = wire.Event(1, "result", file=FileReport(file.file, file.functions))
    assert wire.decode(wire.encode(event)[wire.LENGTH_SIZE :], wire.Event) == event


def test_what_was_not_called_has_none(written: Written) -> None:
    (report,) = check_file(written("@fuselens.compile\ndef f(x): return x.undefined()")).functions
    assert report.inputs is None
    assert views.inputs_text(Report("f", "f.py")) == ""


def test_a_report_that_holds_says_where_they_come_from_now(written: Written) -> None:
    text = f"{MODEL}\nmodel = torch.compile(Model())\nmodel(torch.ones(5, 8))"
    (first,) = check_file(written(text)).functions
    known = {"model": first.fingerprint}
    (second,) = check_file(written("\n" + text), known=known).functions
    assert second.unchanged
    assert second.inputs is not None
    assert second.inputs.line == 15
    assert ["at line 15" in d.message for d in second.diagnostics] == [True]


def test_a_call_in_another_file(written: Written) -> None:
    path = written(f"{MODEL}\nmodel = torch.compile(Model())\ndef step(x): return model(x)")
    written("from module_under_check import step\nstep(torch.ones(7, 8))", name="train.py")
    (report,) = check_file(path).functions
    assert views.inputs_text(report) == "inputs x: f32[7, 8] (those of its call at line 5 of train.py)"
    (elsewhere,) = check_file(path, config=Config(execution="import", explore=True)).functions
    assert views.inputs_text(elsewhere) == "inputs x: f32[2, 8] (the smallest that its layers take)"
