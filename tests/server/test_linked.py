"""Lines of a file ↔ lines of a stage, by kernel: pure functions of a view."""

from __future__ import annotations

import dataclasses

import pytest

from fuselens.live import Event, KernelTime
from fuselens.record import diagnostics as codes
from fuselens.record.report import FileReport, Graph, Kernel, Line, Report, Span, Stage
from fuselens_server.documents.linked import enclosing, linked
from fuselens_server.texts.document_uri import ReportDocument
from fuselens_server.texts.observed import Observed

TEXT = """\
import fuselens

@fuselens.compile
def f(a, b):
    x = a.sin() + b
    y = x.sum()
    return x * y
"""
PATH = "/project/toy.py"
URI = "file:///project/toy.py"
SIN, ADD = Span(PATH, 5, 8, 5, 15), Span(PATH, 5, 8, 5, 19)
SUM, MUL = Span(PATH, 6, 8, 6, 15), Span(PATH, 7, 11, 7, 16)
CPP = """\
// Kernels of graph g.
typedef int i32x16;

// sin_add_0: aten.sin, aten.add  // toy.py:5
// also sin_add_1
extern "C" void sin_add_0(const float* a) {
  for (;;) {
    load(a);
  }
}

// sum_0: aten.sum
extern "C" void sum_0(const float* a) {
}

union Value { long integer; };

// Host program of g.
int call() {
  sin_add_0(a);
}
"""
CPP_LINES = (
    Line(4, (SIN, ADD)),
    Line(6, (SIN, ADD)),
    Line(8, (SIN,)),
    Line(12, (SUM,)),
    Line(13, (SUM,)),
    Line(20, (SIN, ADD)),
)
FIRST = Kernel("sin_add_0", "cpp", "forward", "pointwise", ("sin",), (SIN, ADD))
AGAIN = dataclasses.replace(FIRST, name="sin_add_1")
TOTAL = Kernel("sum_0", "cpp", "forward", "reduction", ("sum",), (SUM,))
BACK = Kernel("mul_0", "cpp", "backward", "pointwise", ("mul",), (SUM, ADD))
AFTER = Kernel("mul_0", "cpp", "forward", "pointwise", ("mul",), (MUL, ADD))


def report() -> Report:
    joint = Stage(
        "joint", "py", "def joint0(\n    sin = a  # line 5\n    back = b\n", (Line(2, (SIN,)), Line(3, (SUM,)))
    )
    first = Graph(0, "f", None, 3, kernels=[FIRST, AGAIN, TOTAL, BACK], stages=[
        joint, Stage("order", "loop", "graph g\n  kernel sin_add_0 [i]\n    t = a\n  return t\n", (Line(3, (SIN,)),)),
        Stage("cpp", "cpp", CPP, CPP_LINES), Stage("cpp.backward", "cpp", "// mul_0: aten.mul\n", (Line(1, (SUM,)),)),
        Stage("ptx", "ptx", "", later=True),
    ])  # fmt: skip
    second = Graph(
        1, "f resumed", None, 1, kernels=[AFTER], stages=[Stage("cpp", "cpp", "// mul_0: x\n", (Line(1, (MUL,)),))]
    )
    return Report("f", PATH, graphs=[first, second], breaks=[codes.make("FL101", SUM, what="y")])


@pytest.fixture
def view(toy):
    return toy.view(TEXT, FileReport(PATH, [report()]))


def shown(view, name="cpp", suffix="cpp", graph=0):
    return linked(view, view, ReportDocument(URI, "f", name, suffix, graph))


def test_all_of_a_kernels_text_is_the_kernels():
    inside = enclosing(Stage("cpp", "cpp", CPP, CPP_LINES), [FIRST, AGAIN, TOTAL])
    assert {n: [k.name for k in found] for n, found in inside.items()} == {
        4: ["sin_add_0"], **dict.fromkeys(range(5, 11), ["sin_add_0", "sin_add_1"]),
        **dict.fromkeys(range(12, 15), ["sum_0"]), 20: ["sin_add_0"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("suffix", "text", "lines"),
    [
        (
            "py",
            "import triton\n\n@triton.jit\ndef sum_0(a):\n    x = a\n\n@triton.jit\ndef other(a):\n    pass\n",
            [3, 4, 5],
        ),
        ("loop", "graph g\n  kernel sum_0 [i]\n    phase []\n      t = 1\n  extern y = mm\n  return y\n", [2, 3, 4]),
        ("mlir", "// kernel sum_0: aten.sum\nmodule {\n}\n// kernel x: aten\nmodule {\n}\n", [1, 2, 3]),
        ("ll", "; kernel sum_0: aten.sum\n; 24 registers\ndefine\n", [1, 2, 3]),
    ],
)
def test_where_the_texts_of_kernels_end(suffix, text, lines):
    assert list(enclosing(Stage("s", suffix, text), [TOTAL])) == lines


def test_lines_of_the_kernel_and_of_the_file(view):
    found = shown(view)
    rows = {line: (kernels, lines) for line, kernels, lines in found["shown"]}
    # layers that do the same lines have one colour; a line that came from nothing is of all that its kernel does
    assert [k["name"] for k in found["kernels"]] == ["sin_add_0", "sum_0", "mul_0", "mul_0"]
    assert rows[7] == rows[6] == rows[19] == ([0], [4])
    assert rows[11] == ([1], [5])
    assert 15 not in rows
    assert [k["colour"] for k in found["kernels"]] == [0, 1, 2, 3]


def test_kernels_of_a_line_begin_with_the_shown_ones(view):
    by_line = {line: (kernels, documents) for line, kernels, documents in shown(view)["source"]}
    assert by_line == {4: ([0, 2, 3], [0, 1]), 5: ([1, 2], [0]), 6: ([3], [1])}
    assert {line: kernels for line, kernels, _ in shown(view, graph=1)["source"]}[4] == [3, 0, 2]
    assert {line: kernels for line, kernels, _ in shown(view, "cpp.backward")["source"]}[5] == [2, 1]


def test_stages_without_kernels_of_their_own_have_those_of_their_expressions(view):
    assert shown(view, "joint", "py")["shown"] == [(1, [0], [4]), (2, [1, 2], [5])]


def test_what_the_pane_may_show(view):
    forms = shown(view)["forms"]
    assert list(forms) == ["loops", "cpp", "ptx", "joint", "guards", "backward"]
    assert forms["cpp"] == str(ReportDocument(URI, "f", "cpp", "cpp", 0))
    assert list(shown(view, "cpp.backward")["forms"]) == ["cpp", "joint", "guards", "forward"]
    assert list(linked(view, view, ReportDocument(URI, "f", "guards", "txt"))["forms"]) == list(forms)[:-1]
    assert linked(view, view, None)["forms"] == {}


def test_without_a_document_each_line_leads_to_its_kernels(view):
    found = linked(view, view, None)
    assert found["shown"] == []
    assert [doc.partition("?")[0] for doc in found["documents"]] == [
        "fuselens://report/f/graph0/cpp.cpp",
        "fuselens://report/f/graph1/cpp.cpp",
    ]
    assert found["breaks"] == [5]


def test_lines_follow_edits_and_what_was_edited_is_gone(toy):
    at = TEXT.index("sum")
    moved = toy.view(TEXT, FileReport(PATH, [report()]), edits=((0, 0, "# new\n# lines\n"), (at + 14, at + 17, "mean")))
    found = shown(moved)
    assert [line for line, _, _ in found["source"]] == [6, 8]
    assert found["breaks"] == []
    assert {tuple(lines) for line, _, lines in found["shown"] if line in (11, 12)} == {()}


def test_the_heat_of_the_last_run(toy):
    observed = Observed("run", "toy.py")
    timed = (KernelTime("sin_add_0", "forward", (SIN, ADD), 2, 0.003), KernelTime("sum_0", "forward", (SUM,), 2, 0.001))
    observed.take(1, Event("kernels", file=PATH, function="f", line=3, kernels=timed))
    for _ in range(2):
        again = codes.make("FL201", SUM, what="n", function="f", reason="a")
        observed.take(1, Event("finding", file=PATH, function="f", line=3, diagnostic=again))
    view = toy.view(TEXT, FileReport(PATH, [report()]), observed=observed)
    view = dataclasses.replace(view, ran=view.compiled)
    assert linked(view, view, None)["heat"] == [
        {"line": 4, "share": 0.75, "seconds": "3.0 ms", "recompiles": 0},
        {"line": 5, "share": 0.25, "seconds": "1.0 ms", "recompiles": 2},
    ]
