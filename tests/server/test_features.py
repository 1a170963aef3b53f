"""Each feature is a pure function of a view: hand-written reports in, LSP values out."""

from __future__ import annotations

import dataclasses
import json
import re
from urllib.parse import unquote

import pytest
from lsprotocol import types as lsp

from fuselens.live import Event
from fuselens.record import diagnostics as codes
from fuselens.record.report import (
    Decision,
    Diagnostic,
    Drift,
    Edit,
    FileReport,
    Frame,
    Graph,
    Guard,
    Kernel,
    KernelRun,
    Line,
    MemoryStep,
    Proof,
    Report,
    RunResult,
    Shape,
    Span,
    Stage,
    Symbol,
    Tensor,
    Timing,
    Tried,
    TriedChange,
    WhatIf,
)
from fuselens.source.discovery import SourceModule
from fuselens_server.client.messages import CLIENT_ACTIONS
from fuselens_server.client.settings import LENSES
from fuselens_server.documents import stages as documents
from fuselens_server.features import code_lens, diagnostics, hover, inlay_hints, summary
from fuselens_server.features.markdown import plain
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.document_uri import CodeDocument, ReportDocument, parse
from fuselens_server.texts.observed import Observed
from fuselens_server.texts.view import KeptRun


def text_in(view, where: lsp.Range) -> str:
    text = view.parsed.current
    return text.text[text.offset(where.start) : text.offset(where.end)]


def at(toy, needle: str, nth: int = 0, view=None) -> lsp.Position:
    """The client's position of the ``nth`` occurrence of ``needle`` in the text as it is."""
    text = view.compiled.current if view else SourceText(toy.text)
    offset = -1
    for _ in range(nth + 1):
        offset = text.text.index(needle, offset + 1)
    return text.position(offset)


EVERYTHING = lsp.Range(lsp.Position(0, 0), lsp.Position(1000, 0))


# --- diagnostics -----------------------------------------------------------------------------------------------------


def test_a_break_is_at_its_expression_with_everything_said(view):
    (found,) = diagnostics.diagnostics(view)
    assert text_in(view, found.range) == "b.sum() < 0"
    assert found.code == "FL101"
    assert found.source == "fuselens"
    assert found.severity == lsp.DiagnosticSeverity.Warning
    assert found.message.split("\n") == [
        "graph break: `b.sum() < 0` branches on a tensor's value",
        "The condition is only known when the program runs, so the graph ends here and a new one starts on each side.",
        "Cost: splits the function into 2 graphs.",
    ]
    assert found.code_description is not None
    assert found.code_description.href == "fuselens://codes/FL101.md"
    assert found.related_information is None  # its only frame is where it is shown
    assert found.data == {"function": "toy", "stale": False}


def test_a_client_without_code_actions_reads_what_helps_in_the_message(view):
    (found,) = diagnostics.diagnostics(view, hints=True)
    assert found.message.split("\n")[3] == "Hint: Compute both sides and choose with torch.where(condition, a, b)."


@pytest.mark.parametrize("code", sorted(codes.TABLE))
def test_messages_are_short(toy, code):
    report = toy.report()
    report.breaks = [codes.make(code, toy.span(toy.text, "b * -1"), what="it", why="so", limit="8")]
    (found,) = diagnostics.diagnostics(toy.view(report=FileReport(toy.path, [report])))
    said = found.message.split("\n")
    assert said[0] == report.breaks[0].message
    assert len(said) == 2 and len(said[1]) <= 300


def test_what_follows_from_a_finding_is_part_of_it(toy):
    report = toy.report()
    root = codes.make("FL102", toy.span(toy.text, "a.abs()"), what="x.item()")
    loop = codes.make("FL105", toy.span(toy.text, "b * -1"), what="the loop", why="it breaks", cause=root)
    inner = codes.make("FL105", toy.span(toy.text, "x * b"), what="the rest", why="the loop breaks", cause=loop)
    other = codes.make(
        "FL105", toy.span(toy.text, "helper(x, b)"), what="else", why="w", cause=codes.make("FL103", what="gone")
    )
    report.breaks = [inner, loop, root, other]
    view = toy.view(report=FileReport(toy.path, [report]))
    shown, alone = diagnostics.diagnostics(view)
    assert (shown.code, text_in(view, shown.range)) == ("FL102", "a.abs()")
    related = {(text_in(view, r.location.range), r.message) for r in shown.related_information or ()}
    assert related == {("b * -1", loop.message), ("x * b", inner.message)}
    assert "Follows from FL103: graph break: `gone` prints" in alone.message


def test_a_break_of_a_helper_is_one_finding_with_all_its_calls(toy):
    inner = toy.span(toy.text, "x * b")
    calls = [toy.span(toy.text, "helper(x, b)"), toy.span(toy.text, "a.abs()")]
    report = toy.report()
    report.breaks = [
        codes.make("FL103", inner, what="x", stack=(Frame("toy", c), Frame("helper", inner))) for c in calls
    ]
    view = toy.view(report=FileReport(toy.path, [report]))
    (found,) = diagnostics.diagnostics(view)
    assert [text_in(view, r.location.range) for r in found.related_information or ()] == ["helper(x, b)", "a.abs()"]


@pytest.mark.parametrize(
    ("severity", "expected"),
    [
        ("error", lsp.DiagnosticSeverity.Error),
        ("warning", lsp.DiagnosticSeverity.Warning),
        ("information", lsp.DiagnosticSeverity.Information),
        ("hint", lsp.DiagnosticSeverity.Hint),
    ],
)
def test_severities(toy, severity, expected):
    report = toy.report()
    report.breaks = []
    report.diagnostics = [Diagnostic("FL401", "m", toy.span(toy.text, "helper(x, b)"), severity)]
    (found,) = diagnostics.diagnostics(toy.view(report=FileReport(toy.path, [report])))
    assert found.severity == expected


@pytest.mark.parametrize("code", sorted(codes.TABLE))
def test_every_code_has_a_page_and_is_linked(toy, code):
    report = toy.report()
    report.breaks = [codes.make(code, toy.span(toy.text, "b * -1"))]
    (found,) = diagnostics.diagnostics(toy.view(report=FileReport(toy.path, [report])))
    assert found.code_description is not None
    address = parse(found.code_description.href)
    assert address == CodeDocument(code)
    content = documents.code_content(address)
    assert content is not None
    assert codes.TABLE[code].title in content.text
    assert "{" not in content.text
    assert content.language == "markdown"


def test_inner_frames_are_related_information(toy):
    call, inner = toy.span(toy.text, "helper(x, b)"), toy.span(toy.text, "x * b")
    report = toy.report()
    report.breaks = [codes.make("FL102", inner, what="x", stack=(Frame("toy", call), Frame("helper", inner)))]
    view = toy.view(report=FileReport(toy.path, [report]))
    (found,) = diagnostics.diagnostics(view)
    assert text_in(view, found.range) == "x * b"
    assert found.related_information is not None
    ((related),) = found.related_information
    assert related.message == "in toy: called here"
    assert related.location.uri == toy.uri
    assert text_in(view, related.location.range) == "helper(x, b)"


def test_a_break_in_another_file_is_shown_at_the_call_here(toy):
    call = toy.span(toy.text, "helper(x, b)")
    elsewhere = Span("/project/é/other.py", 1, 5, 1, 6)
    report = toy.report()
    report.breaks = [codes.make("FL103", elsewhere, stack=(Frame("toy", call), Frame("far", elsewhere)))]
    texts = {"/project/é/other.py": SourceText("é😀x\n")}
    view = toy.view(report=FileReport(toy.path, [report]), other_text=texts.get)
    (found,) = diagnostics.diagnostics(view)
    assert text_in(view, found.range) == "helper(x, b)"
    assert found.related_information is not None
    (related,) = found.related_information
    assert related.message == "in far: here"
    assert unquote(related.location.uri) == "file:///project/é/other.py"
    assert related.location.range.start.character in (1, 3)  # byte 5 is inside the emoji: its start


def test_a_break_in_generated_code_is_shown_at_the_function_name(toy):
    report = toy.report()
    report.breaks = [codes.make("FL103", Span("<string>", 1, 0, 1, 5))]
    view = toy.view(report=FileReport(toy.path, [report]))
    (found,) = diagnostics.diagnostics(view)
    assert text_in(view, found.range) == "toy"
    assert not found.related_information


def test_a_finding_without_span_is_at_the_function_name(toy):
    report = toy.report()
    report.breaks, report.diagnostics = [], [codes.make("FL901", what="toy")]
    view = toy.view(report=FileReport(toy.path, [report]))
    (found,) = diagnostics.diagnostics(view)
    assert text_in(view, found.range) == "toy"
    assert found.severity == lsp.DiagnosticSeverity.Hint


@pytest.mark.parametrize(
    ("line", "shown"),
    [(3, "toy"), (4, "toy"), (5, "x = a / (a.abs() + 1)"), (11, "return x * b"), (2, "")],
)
def test_an_empty_span_is_made_visible(toy, line, shown):
    """A code object's first line is all that is known about a graph as a whole."""
    report = Report("toy", toy.path, diagnostics=[codes.make("FL404", Span(toy.path, line, 0, line, 0))])
    view = toy.view(report=FileReport(toy.path, [report]))
    (found,) = diagnostics.diagnostics(view)
    assert text_in(view, found.range) == shown


def test_the_same_finding_of_two_functions_is_shown_once(toy):
    view = toy.view(report=FileReport(toy.path, [toy.report(), toy.report()]))
    assert len(diagnostics.diagnostics(view)) == 1


@pytest.mark.parametrize(
    ("code", "line"),
    [("FL907", "import fuselens"), ("FL911", "import fuselens"), ("FL914", "import fuselens"),
     ("FL905", "toy"), ("FL906", "toy"), ("FL910", "toy")],
)  # fmt: skip
def test_failures_without_a_span_are_at_the_best_line(toy, code, line):
    view = toy.view(report=toy.file(), failures=(codes.make(code),))
    (found,) = diagnostics.diagnostics(view)  # and not the earlier break
    assert text_in(view, found.range) == line
    assert found.severity == lsp.DiagnosticSeverity.Error


def test_a_failure_of_a_file_without_functions_is_on_its_first_line(toy):
    view = toy.view(text="x = 1\ny = 2\n", failures=(codes.make("FL906"),))
    (found,) = diagnostics.diagnostics(view)
    assert text_in(view, found.range) == "x = 1"


def test_a_failure_with_a_span_is_there(toy):
    view = toy.view(failures=(codes.make("FL903", toy.span(toy.text, "helper(x, b)"), why="ValueError: no"),))
    (found,) = diagnostics.diagnostics(view)
    assert text_in(view, found.range) == "helper(x, b)"
    assert found.message.startswith("importing this file raised ValueError: no")


def test_diagnostics_move_with_edits_and_vanish_when_touched(toy):
    moved = toy.view(report=toy.file(), edits=((0, 0, "# 😀\n"),))
    (found,) = diagnostics.diagnostics(moved)
    assert text_in(moved, found.range) == "b.sum() < 0"
    assert found.data == {"function": "toy", "stale": True}
    inside = toy.text.index("sum")
    assert diagnostics.diagnostics(toy.view(report=toy.file(), edits=((inside, inside + 3, "mean"),))) == []


@pytest.mark.parametrize(("old", "new"), [("\n", "\r\n"), ("    ", "\t"), ("toy", "玩具"), ("x", "é")])
def test_ranges_in_awkward_texts(toy, old, new):
    """The report's spans are made of the same text, so the range must enclose the same characters."""
    text = toy.text.replace(old, new)
    needle = "b.sum() < 0"
    report = Report("toy", toy.path, breaks=[codes.make("FL101", toy.span(text, needle), what=needle)])
    view = toy.view(text=text, report=FileReport(toy.path, [report]))
    (found,) = diagnostics.diagnostics(view)
    assert text_in(view, found.range) == needle


def test_nothing_before_any_check(toy):
    assert diagnostics.diagnostics(toy.view()) == []


def test_result_ids_tell_findings_and_places_apart(view, toy):
    found = diagnostics.diagnostics(view)
    moved = diagnostics.diagnostics(toy.view(report=toy.file(), edits=((0, 0, "\n"),)))
    assert diagnostics.result_id(found) == diagnostics.result_id(diagnostics.diagnostics(view))
    assert len({diagnostics.result_id(f) for f in (found, moved, [])}) == 3


# --- code lenses -----------------------------------------------------------------------------------------------------


def titles(view) -> list[str]:
    return [lens.command.title for lens in code_lens.code_lenses(view) if lens.command]


def test_lenses_of_a_compiled_function(toy, view):
    assert titles(view) == ["▶ Run", "2 graphs · ⚠ 1 break", "2 kernels", "C++", "IR"]
    lenses = code_lens.code_lenses(view)
    assert [lens.command.command for lens in lenses] == [  # type: ignore[union-attr]
        "fuselens.server.runFunction", "fuselens.server.showPlace", "fuselens.server.openKernel",
        "fuselens.server.openDocument", "fuselens.server.openDocument",
    ]  # fmt: skip
    cpp = str(ReportDocument(toy.uri, "toy", "cpp", "cpp", 0))
    assert [lens.command.arguments for lens in lenses] == [  # type: ignore[union-attr]
        [toy.uri, "toy"], [toy.uri, 5, 7], [toy.uri, "toy"], [toy.uri, "toy", cpp, 1], [toy.uri, "toy"],
    ]  # fmt: skip
    ours = code_lens.code_lenses(view, CLIENT_ACTIONS)
    assert ours[0].command.command == "fuselens.runFunction"  # type: ignore[union-attr]
    assert ours[-1].command == lsp.Command(
        "debug", "fuselens.debugFunction", ours[-1].command.tooltip, [toy.uri, "toy"]
    )  # type: ignore[union-attr]
    assert len({str(lens.data) for lens in ours}) == len(ours) == 6  # what each is resolved by
    assert all(text_in(view, lens.range) == "toy" for lens in lenses)


def test_the_lens_of_breaks_leads_to_where_the_break_is_now(toy):
    edited = toy.view(report=toy.file(), edits=((0, 0, "# one\n# two\n"),))
    (shown,) = [
        lens.command for lens in code_lens.code_lenses(edited) if lens.command and "break" in lens.command.title
    ]
    assert shown.arguments == [toy.uri, 7, 7]


@pytest.mark.parametrize("kind", LENSES)
def test_each_kind_of_lens_can_be_left_out(toy, kind):
    seen = Observed("run", "toy.py")
    seen.take(1, Event("times", toy.path, "toy", 4, graph=0, calls=2, seconds=1e-3, fastest=1e-6))
    file = toy.file()
    file.functions[0].proof = Proof("toy", (Tried("the example inputs", True, error=1e-7),))
    gains = TriedChange("clone", "leave it out", edits=(Edit(toy.span(toy.text, "x * b"), "b * x"),), time=0.5)
    file.functions[0].what_if = WhatIf("toy", (gains,))
    timed = KernelRun("k", 0, "forward", read=8, written=8, seconds=1e-3, limits={"traffic": 5e-4})
    runs = {"toy": KeptRun(RunResult("toy", True, "", kernels=(timed,)))}
    view = toy.view(report=file, observed=seen, runs=runs, definitions=SourceModule(toy.text, toy.path).all_functions)
    every = code_lens.code_lenses(view, CLIENT_ACTIONS)
    others = code_lens.code_lenses(view, CLIENT_ACTIONS, [other for other in LENSES if other != kind])
    (gone,) = [lens for lens in every if lens not in others]
    assert gone.data is not None and str(gone.data["lens"]).partition(":")[0] == kind
    assert code_lens.code_lenses(view, CLIENT_ACTIONS, [kind]) == [gone]


def test_above_a_helper_stands_what_it_was_compiled_in(toy):
    report = toy.report()
    graph = report.graphs[0]
    product = toy.span(toy.text, "x * b")
    graph.stages[0] = dataclasses.replace(graph.stages[0], lines=(*graph.stages[0].lines, Line(2, (product,))))
    functions = SourceModule(toy.text, toy.path).all_functions
    view = toy.view(report=FileReport(toy.path, [report]), definitions=functions)
    found = code_lens.code_lenses(view)[-1]
    assert text_in(view, found.range) == "helper"
    assert found.command is not None
    assert (found.command.title, found.command.arguments) == ("compiled in toy, line 4", [toy.uri, 3, 4])
    both = [report, dataclasses.replace(report, function="other")]
    assert titles(toy.view(report=FileReport(toy.path, both), definitions=functions))[-1] == (
        "compiled in toy, line 4 and 1 more"
    )


@pytest.mark.parametrize(
    ("changes", "mark"),
    [
        ({"eager_seconds": 3.3, "compiled_seconds": 1.0}, "3.3× eager ✓"),
        ({"eager_seconds": 30, "compiled_seconds": 1.0, "gradients_agree": True}, "30× eager ✓"),
        ({"eager_seconds": 0.5, "compiled_seconds": 1.0}, "0.5× eager ✓"),
        ({"eager_seconds": 1.0, "compiled_seconds": 1.0, "agrees": False}, "✗ differs"),
        ({"eager_seconds": 1.0, "compiled_seconds": 1.0, "gradients_agree": False}, "✗ gradients differ"),
        ({"eager_seconds": 2.0, "compiled_seconds": 1.0, "agrees": False, "repeatable": False},
         "2.0× eager (random, not compared)"),
        ({"compiled": False}, "not compiled"),
        ({"error": codes.make("FL909"), "agrees": False}, "✗ not run"),
        ({"agrees": False, "detail": "cancelled"}, ""),
    ],
)  # fmt: skip
def test_the_lens_keeps_the_last_run(toy, changes, mark):
    result = RunResult(**{"function": "toy", "agrees": True, "detail": "", **changes})
    file = toy.file()
    file.functions[0].fingerprint = "now"
    shown = titles(toy.view(report=file, runs={"toy": KeptRun(result, fingerprint="now")}))[0]
    assert shown == (f"▶ Run · {mark}" if mark else "▶ Run")
    for kept, edits in (
        (KeptRun(result, fingerprint="before"), ()),
        (KeptRun(result, fingerprint="now"), ((0, 0, "\n"),)),
    ):
        shown = titles(toy.view(report=file, runs={"toy": kept}, edits=edits))[0]
        assert shown == (f"▶ Run · {mark} · stale" if mark else "▶ Run")


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({}, "not compiled yet"),
        ({"compiling": True}, "compiling…"),
        ({"failures": (codes.make("FL903"),)}, "not compiled"),
    ],
)
def test_lenses_before_a_report(toy, changes, title):
    assert titles(toy.view(**changes)) == [title]


def test_lenses_stay_and_say_stale(toy):
    edited = toy.view(report=toy.file(), edits=((0, 0, "\n"),))
    assert titles(edited)[1] == "2 graphs · ⚠ 1 break · stale"
    assert text_in(edited, code_lens.code_lenses(edited)[0].range) == "toy"
    failed = toy.view(report=toy.file(), failures=(codes.make("FL902"),))
    assert titles(failed)[1].endswith(" · stale")


def test_a_function_without_example_inputs_says_so(toy):
    report = Report("toy", toy.path, diagnostics=[codes.make("FL901", what="toy")])
    assert titles(toy.view(report=FileReport(toy.path, [report]))) == ["not compiled: no example inputs"]


def test_no_kernel_no_lens_for_it(toy):
    report = toy.report()
    report.graphs = report.graphs[1:]
    report.graphs[0].kernels = []
    assert titles(toy.view(report=FileReport(toy.path, [report]))) == ["▶ Run", "1 graph · ⚠ 1 break", "IR"]


def test_one_group_of_lenses_per_function(toy):
    text = toy.text + "\n@fuselens.compile\ndef other(x):\n    return x\n"
    assert titles(toy.view(text=text, report=toy.file()))[-1] == "not compiled yet"


# --- inlay hints -----------------------------------------------------------------------------------------------------


def labels(view, visible: lsp.Range = EVERYTHING) -> list[tuple[int, int, object]]:
    return [(h.position.line, h.position.character, h.label) for h in inlay_hints.inlay_hints(view, visible)]


def test_hints_follow_assigned_names(toy, view):
    # line 4 is the signature: `a` has an annotation already
    assert labels(view) == [(4, 5, ": f32[n]"), (6, 9, ": f32[n]")]


def test_hints_only_in_the_visible_range(view):
    assert labels(view, lsp.Range(lsp.Position(5, 0), lsp.Position(8, 0))) == [(6, 9, ": f32[n]")]


def test_hint_tooltip_has_everything(view):
    assert inlay_hints.inlay_hints(view, EVERYTHING)[1].tooltip == "f32[n], stride (1), cpu, requires grad"


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (Tensor("float32", ("n", "64")), "f32[n, 64]"),
        (Tensor("torch.bfloat16", ("2",)), "bf16[2]"),
        (Tensor("int64", ()), "i64[]"),
        (Tensor("bool", ("s0*2",)), "bool[s0*2]"),
        (Tensor("float8_e4m3fn", ("8",)), "float8_e4m3fn[8]"),
        (Tensor("complex64", ("n",)), "c64[n]"),
        (Tensor("uint8", ("3", "h", "w")), "u8[3, h, w]"),
    ],
)
def test_tensor_texts(tensor, text):
    assert inlay_hints.tensor_text(tensor) == text


def test_a_name_with_several_shapes(toy):
    where = Span(toy.path, 5, 4, 5, 5)
    report = Report("toy", toy.path, shapes=[Shape("x", where, Tensor("float32", (str(n),))) for n in (1, 2, 2, 3)])
    view = toy.view(report=FileReport(toy.path, [report]))
    assert labels(view) == [(4, 5, ": f32[1] | f32[2] | …")]


def test_a_walrus_is_no_annotation(toy):
    text = "import fuselens\n@fuselens.compile\ndef f(a):\n    if (y := a):\n        pass\n"
    report = Report("f", toy.path, shapes=[Shape("y", Span(toy.path, 4, 8, 4, 9), Tensor("float32", ("n",)))])
    assert labels(toy.view(text=text, report=FileReport(toy.path, [report]))) == [(3, 9, ": f32[n]")]


def test_hints_vanish_where_the_name_was_edited(toy):
    start = toy.text.index("x = a")
    edited = toy.view(report=toy.file(), edits=((start, start + 1, "xx"),))
    assert labels(edited) == [(6, 9, ": f32[n]")]


# --- hover -----------------------------------------------------------------------------------------------------------


def hovered(view, position: lsp.Position, **options) -> str | None:
    found = hover.hover(view, position, hover.Links(view, **options))
    if found is None:
        return None
    assert isinstance(found.contents, lsp.MarkupContent)
    assert found.contents.kind == lsp.MarkupKind.Markdown
    return found.contents.value


def test_hover_on_the_name_is_a_summary(toy, view):
    text = hovered(view, at(toy, "toy("))
    assert text is not None
    assert "**toy** — 2 graphs · 1 break · 2 kernels" in text
    assert "line 6: graph break" in text
    assert "Compiled in 53.0 ms: build 50.0 ms, capture 2.0 ms, load 1.0 ms" in text  # build.cpp is part of build
    assert "Guards: 1 on `a` · 1 on `scale` · 1 on globals and torch's state" in text
    assert "[cpp](fuselens://report/toy/graph0/cpp.cpp?file=file%3A%2F%2F%2Fproject%2Ftoy.py)" in text


def test_a_measured_total_is_used(toy):
    report = toy.report()
    report.timings.append(Timing("total", 0.5))
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "toy("))
    assert text is not None
    assert "Compiled in 500.0 ms: build" in text
    assert "total" not in text


def test_hover_excerpt_is_plain_and_cut(toy):
    line = toy.span(toy.text, "a / (a.abs() + 1)")
    loops = "".join(f"    t{i} = x  # toy.py:5:9\n" for i in range(20))
    graph = Graph(
        0, "toy", None, 1, stages=[Stage("fuse", "loop", loops, tuple(Line(i, (line,)) for i in range(1, 21)))]
    )
    report = Report("toy", toy.path, graphs=[graph])
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "x = a"))
    assert text is not None
    assert "```fuselens-loop\nt0 = x\nt1 = x\n" in text
    assert "t6 = x\n… 13 more lines\n```" in text  # eight rows


def test_hover_tells_the_drift_of_a_line(toy):
    line, before = toy.span(toy.text, "a / (a.abs() + 1)"), toy.span(toy.text, "toy(")
    drift = Drift(line, "bfloat16", 3.1e-3, 1.9e-3, 2e-2, 1e-2, 4.2, before)
    report = Report("toy", toy.path, proof=Proof("toy", drift=(drift,)))
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "x = a"))
    wanted = (
        f"drift from float64: 3.1e-03 eager, 1.9e-03 compiled, 4.2 × that of line {before.line}: **it grows most here**"
    )
    assert text is not None and wanted in plain(text.replace("**", "@")).replace("@", "**")
    assert "it grows most here" in summary.proof(report)
    assert hovered(toy.view(report=FileReport(toy.path, [Report("toy", toy.path)])), at(toy, "x = a")) != text


def test_hover_tells_what_a_line_saves_and_where_memory_peaks(toy):
    line = toy.span(toy.text, "a / (a.abs() + 1)")
    saved = Decision("FL310", "saved", "div", "*reasons* of its own", line, {"bytes": 2 << 20})
    graph = Graph(0, "toy", None, 1, decisions=[saved], memory=[MemoryStep("kernel0", "forward", 3 << 20, (line,))])
    text = hovered(toy.view(report=FileReport(toy.path, [Report("toy", toy.path, graphs=[graph])])), at(toy, "x = a"))
    assert text is not None
    assert "- saved for backward: 2 MiB (`div`), because \\*reasons\\* of its own" in text
    assert "- peak memory of the forward here: 3 MiB" in text


def test_hover_on_a_parameter_shows_its_guards(toy, view):
    text = hovered(view, at(toy, "a: "))
    assert text is not None
    assert "`f32[n]`" in text
    assert "`n` = `a.size(0)` (2 … ∞, example 128)" in text
    assert "- `a is no float32[*] on cpu, or requires a gradient` — guard `a: float32[*] on cpu`, line 5" in text
    assert "scale" not in text


def test_hover_on_a_scalar_parameter(toy, view):
    text = hovered(view, at(toy, "scale=2.0"))
    assert text is not None
    assert "- `scale ≠ 2.0` — guard `scale == 2.0`" in text


def test_hover_on_a_parameter_without_guards(toy, view):
    text = hovered(view, at(toy, "b, scale"))
    assert text is not None
    assert "No guard depends on it" in text


def test_hover_on_a_body_line(toy, view):
    text = hovered(view, at(toy, "x = a"))
    assert text is not None
    assert "`x: f32[n]` (stride (1), cpu) → `fused_0` (C++, 4 KiB in, 2 KiB out) in graph 0" in text
    assert "t0[i] = a[i] / (abs(a[i]) + 1)" in text  # the fused loop IR of this line …
    assert "s += b[j]" not in text  # … and not of others
    assert "not fused with line 6: different sizes \\<n\\>" in text
    assert "graph1" not in text
    assert (
        "[Loops](fuselens://report/toy/graph0/fuse.loop?file=file%3A%2F%2F%2Fproject%2Ftoy.py#L4)" in text
    )  # at the line there
    assert "[Kernel](fuselens://report/toy/graph0/cpp.cpp?file=file%3A%2F%2F%2Fproject%2Ftoy.py#L1)" in text
    (line,) = re.findall(r"\[Why not fused\]\(fuselens://report/toy/summary.txt\S*#L(\d+)\)", text)
    assert "refused: loop1 + loop2" in summary.explain(toy.report()).splitlines()[int(line) - 1]
    assert "Peek" not in text  # this client has no command for it


def test_hover_escapes_user_text(toy, view):
    text = hovered(view, at(toy, "if b.sum"))
    assert text is not None
    assert "not fused with line 5: different sizes \\<n\\>" in text
    assert "no kernel of its own" in text


def test_hover_on_an_inlined_helper_line(toy, view):
    text = hovered(view, at(toy, "x * b"))
    assert text is not None
    assert "`fused_1` (C++) in graph 1" in text


def test_hover_on_a_used_name_shows_where_it_was_bound_last(toy, view):
    text = hovered(view, at(toy, "x, b)"))
    assert text is not None
    assert "`x: f32[n]`" in text


@pytest.mark.parametrize("needle", ["import fuselens", "@fuselens", "def helper"])
def test_hover_says_nothing_elsewhere(toy, view, needle):
    assert hovered(view, at(toy, needle)) is None


def test_hover_before_any_report(toy):
    assert hovered(toy.view(), at(toy, "x = a")) is None
    assert hovered(toy.view(), at(toy, "toy(")) is None


def test_hover_after_edits_follows_the_line_and_says_stale(toy):
    edited = toy.view(report=toy.file(), edits=((0, 0, "# new\n"),))
    text = hovered(edited, at(toy, "x = a", view=edited))
    assert text is not None
    assert "fused_0" in text
    assert "the file has changed since" in text
    assert hovered(edited, lsp.Position(0, 0)) is None


def test_hover_links_as_commands(toy, view):
    text = hovered(view, at(toy, "x = a"), commands=True)
    assert text is not None
    loops = text.split("[Loops](command:fuselens.openDocument?")[1].split(")")[0]
    assert json.loads(unquote(loops)) == [toy.uri, "toy", str(ReportDocument(toy.uri, "toy", "fuse", "loop", 0)), 4]
    peek = text.split("[Peek stages](command:fuselens.peekStages?")[1].split(")")[0]
    assert json.loads(unquote(peek)) == [toy.uri, 4, 4]


def test_a_line_of_many_functions_is_attributed(toy):
    other = dataclasses.replace(toy.report(), function="other")
    text = hovered(toy.view(report=FileReport(toy.path, [toy.report(), other])), at(toy, "x * b"))
    assert text is not None
    assert "**in `toy`**" in text
    assert "**in `other`**" in text


def test_long_guard_lists_are_cut(toy):
    report = toy.report()
    report.guards = [Guard("SHAPE", "a", f"a.shape[0] % {i} == 0", ("a",)) for i in range(40)]
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "a: "))
    assert text is not None
    assert "- and 32 more" in text


def test_guards_on_what_a_parameter_holds_are_one_line(toy):
    report = toy.report()
    tensors = [Guard("TENSOR", f"a.layers[{i}].weight", f"a.layers[{i}].weight: float32[2]", ("a",)) for i in range(12)]
    hooks = [Guard("HOOKS", f"a.layers[{i}]._hooks", f"no hooks in a.layers[{i}]._hooks", ("a",)) for i in range(30)]
    report.guards = [Guard("TYPE", "a", "type(a) is Model", ("a",)), *tensors, *hooks, *report.guards[2:]]
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "a: "))
    assert text is not None
    rows = text.split("Compiled again when\n")[1].split("\n")
    assert rows == [
        "- `type(a) is not Model` — guard `type(a) is Model`",
        "- one of 12 tensors in it gets another dtype, device or size, or one of 30 attributes, types and hooks in it changes",
    ]
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "toy("))
    assert text is not None
    held = "12 on tensors and 30 on attributes of modules and other objects"
    assert f"Guards: 1 on `a` · {held} · 1 on globals and torch's state" in text


def test_kernels_of_the_layers_of_a_model_are_one_row(toy):
    line = toy.span(toy.text, "a / (a.abs() + 1)")
    other = toy.span(toy.text, "b * -1")
    kernels = [
        Kernel(f"{name}_{i}", "cpp", phase, "pointwise", ("gelu",), spans, 1024 * (i + 1), 1024)
        for name, phase, spans in (
            ("add_norm", "forward", (line, other)),
            ("gelu", "forward", (line,)),
            ("gelu_backward", "backward", (line,)),
            ("sum_backward", "backward", (line, other)),
        )
        for i in range(12)
    ]
    calls = [
        Decision("FL401", "extern", "aten.mm.default", "the library is better", line, {"operator": "aten.mm.default"})
    ] * 24
    report = Report("toy", toy.path, graphs=[Graph(0, "toy", None, 1, kernels=kernels, decisions=calls)])
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "x = a"))
    assert text is not None
    assert text.split("\n\n")[0].split("\n") == [
        "- 12 × `gelu` (C++, ≤ 12 KiB in, 1 KiB out)",  # it is of this line alone
        "- 12 × `add_norm` (C++, ≤ 12 KiB in, 1 KiB out)",
        "- in the backward: 12 × `gelu_backward`, 12 × `sum_backward`",
        "- by a library: 24 × `aten.mm`",
    ]
    assert "fused with line 7" in text


def test_a_hover_fits_on_a_screen(toy):
    """However much became of a line."""
    line, branch = toy.span(toy.text, "a / (a.abs() + 1)"), toy.span(toy.text, "b.sum() < 0")
    names = [f"{a}{b}" for a in "abcdefgh" for b in "klmnopq"]
    kernels = [
        Kernel(f"{name}_{i}", "cpp", phase, "pointwise", ("x",), (line,), 1, 1)
        for name in names for phase in ("forward", "backward") for i in range(3)
    ]  # fmt: skip
    decisions = [
        Decision(code, "refused", f"buf{i} + {name}", f"reason {name}", line, {"bytes": i}, branch)
        for code in ("FL310", "FL401", "FL411", "FL415") for name in names for i in range(2)
    ]  # fmt: skip
    loops = "kernel ak_0 [i0 < 1]\n" + "    t0 = x  # toy.py:5:9\n" * 500
    stages = [Stage("fuse", "loop", loops, tuple(Line(i, (line,)) for i in range(1, 501)))]
    shapes = [Shape(name, line, Tensor("float32", ("2",))) for name in names]
    graphs = [Graph(k, "toy", None, 1, stages=stages, kernels=kernels, decisions=decisions) for k in range(5)]
    report = Report("toy", toy.path, graphs=graphs, shapes=shapes)
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "x = a"), commands=True)
    assert text is not None
    assert len([row for row in text.split("\n") if row and not row.startswith("```")]) <= 25


# --- documents -------------------------------------------------------------------------------------------------------


def test_every_listed_document_has_content(view):
    found = documents.listings(view)
    assert [(item.title, item.kind, item.language) for item in found] == [
        ("summary", "summary", "plaintext"),
        ("guards", "guards", "plaintext"),
        ("graph 0 · capture", "graph", "python"),
        ("graph 0 · fuse", "loop", "fuselens-loop"),
        ("graph 0 · cpp", "kernel", "fuselens-cpp"),
        ("graph 1 · fuse", "loop", "fuselens-loop"),
    ]
    for item in found:
        address = parse(item.uri)
        assert isinstance(address, ReportDocument)
        content = documents.report_content(view, address)
        assert content is not None
        assert content.language == item.language
        assert content.text.endswith("\n")


@pytest.mark.parametrize(
    ("name", "suffix", "kind"),
    [("capture", "py", "graph"), ("fuse.backward", "loop", "loop"), ("cpp", "cpp", "kernel"),
     ("triton", "py", "kernel"), ("cpp.backward", "cpp", "kernel"), ("host", "cpp", "host"),
     ("host.backward", "py", "host"), ("x", "txt", "text")],
)  # fmt: skip
def test_kinds_of_stages(name, suffix, kind):
    assert documents.kind(Stage(name, suffix, "")) == kind


def test_listings_of_a_file_name_the_function(toy):
    view = toy.view(report=FileReport(toy.path, [toy.report(), dataclasses.replace(toy.report(), function="other")]))
    assert documents.listings(view)[0].title == "toy · summary"
    assert documents.listings(view, "other")[0].title == "summary"
    assert documents.listings(view, "none") == []


@pytest.mark.parametrize(
    "address",
    [
        ReportDocument("file:///p/a.py", "toy", "fuse", "loop", 3),
        ReportDocument("file:///p/a.py", "f.<locals>.g", "summary", "txt"),
        ReportDocument("file:///p/with%20space%26%23.py", "Модель.forward", "backward.cpp", "cpp", 0),
        ReportDocument("file:///c%3A/win/é.py", "a/b", "x y", "py", 12),
        CodeDocument("FL101"),
    ],
)
def test_addresses_survive_clients_that_encode_them_anew(address):
    plain = str(address)
    assert parse(plain) == address
    head, _, query = plain.partition("?")
    assert parse(head + "?" + query.replace("file=", "file%3D", 1) if query else head) == address  # VS Code


@pytest.mark.parametrize(
    "uri",
    [
        "", "file:///x.py", "fuselens:", "fuselens://report/toy", "fuselens://report/toy/graph0/fuse.loop",
        "fuselens://report/toy/graphX/fuse.loop?file=f", "fuselens://report/toy/graph0/fuse?file=f",
        "fuselens://report/a/b/c/d.txt?file=f", "fuselens://codes/FL101", "fuselens://codes/a/FL101.md",
        "fuselens://other/x.md", "fuselens://[bad", "fuselens://report/toy/graph²/x.py?file=f",
    ],
)  # fmt: skip
def test_other_addresses_are_refused(uri):
    assert parse(uri) is None


@pytest.mark.parametrize(
    "address",
    [
        ReportDocument("f", "gone", "summary", "txt"),
        ReportDocument("f", "toy", "else", "txt"),
        ReportDocument("f", "toy", "fuse", "loop", 7),
        ReportDocument("f", "toy", "fuse", "cpp", 0),
    ],
)
def test_documents_that_do_not_exist(view, address):
    assert documents.report_content(view, address) is None


def test_an_unknown_code_has_no_page():
    assert documents.code_content(CodeDocument("FL000")) is None


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (RunResult("f", True, "1 result", None, True, 2e-5, 1e-5),
         "f agrees with eager · gradients agree · eager 20.0 µs · compiled 10.0 µs"),
        (RunResult("f", False, "results[0] differs", 1.0, False, 1.0, 2.0),
         "f DIFFERS from eager: results[0] differs · gradients DIFFER · eager 1.00 s · compiled 2.00 s"),
        (RunResult("f", False, "cancelled"), "f: cancelled"),
        (RunResult("f", False, "x", error=codes.make("FL901", what="f")),
         "f was not run: " + codes.make("FL901", what="f").message),
    ],
)  # fmt: skip
def test_a_run_in_one_line(result, line):
    assert summary.run_line(result) == line


# --- summary ---------------------------------------------------------------------------------------------------------


def test_explain_has_every_part(toy):
    text = summary.explain(toy.report())
    for part in (
        "toy — 2 graphs · 1 break · 2 kernels", "torch 2.13.0", "Breaks", "FL101 /project/toy.py:6:8: graph break",
        "cost: splits the function", "Graph 0", "kernel fused_0 (cpp", "refused: loop1 + loop2", "Guards",
        "scale == 2.0", "Symbols", "2 ≤ n = a.size(0) (example 128)", "Time", "total",
    ):  # fmt: skip
        assert part in text


def test_explain_says_stale(toy):
    assert "the file has changed since" in summary.explain(toy.report(), stale=True)


def test_guards_are_grouped_by_root(toy):
    lines = summary.guards(toy.report()).splitlines()
    assert lines.index("# a") < lines.index("# scale") < lines.index("# helper") < lines.index("# symbols")


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.50 s"), (0.0123, "12.3 ms"), (4.2e-5, "42.0 µs"), (0, "0.0 µs")]
)
def test_durations(seconds, text):
    assert summary.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 B"), (2048, "2.0 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes(count, text):
    assert summary.size(count) == text


def test_an_empty_report_is_explained():
    assert summary.explain(Report("f", "/p.py")).startswith("f — 0 graphs · 0 breaks · 0 kernels")
    assert summary.guards(Report("f", "/p.py")) == "# f has no guards.\n"
    assert "n ≤ 9 = x" in summary.guards(
        Report("f", "/p.py", guards=[Guard("EQUALS", "x", "x == 1")], symbols=[Symbol("n", "x", None, None, 9)])
    )


def test_breaks_of_one_with_are_one_finding(toy) -> None:
    """The call that makes the context manager is the cause; that it is entered and left eagerly follows."""
    report = toy.report()
    made, entered = toy.span(toy.text, "(a.abs() + 1)"), toy.span(toy.text, "x = a / (a.abs() + 1)")
    report.breaks = [
        codes.make("FL118", made, what="open"),
        codes.make("FL113", entered, what="open(…)", why="it is C"),
        codes.make("FL118", entered, what="TextIOWrapper.__exit__"),
        codes.make("FL102", entered, what="x.item()"),
    ]
    shown = diagnostics.diagnostics(toy.view(report=FileReport(toy.path, [report])))
    assert [str(d.code) for d in shown] == ["FL118", "FL102"]
    related = [r.message for r in shown[0].related_information or ()]
    assert [message.split("`")[1] for message in related] == ["with open(…)", "TextIOWrapper.__exit__"]


def test_code_in_a_functions_hover_has_no_marks_of_markdown(toy) -> None:
    report = toy.report()
    report.breaks = [codes.make("FL101", toy.span(toy.text, "b.sum() < 0"), what="b.sum() < 0")]
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "toy("))
    assert text is not None and "`b.sum() < 0` branches" in text


def test_a_break_inside_another_call_is_a_finding_of_its_own(toy) -> None:
    report = toy.report()
    outer, inner = toy.span(toy.text, "a / (a.abs() + 1)"), toy.span(toy.text, "(a.abs() + 1)")
    report.breaks = [codes.make("FL118", inner, what="open"), codes.make("FL103", outer, what="print")]
    shown = diagnostics.diagnostics(toy.view(report=FileReport(toy.path, [report])))
    assert [str(d.code) for d in shown] == ["FL118", "FL103"]
