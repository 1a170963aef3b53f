"""Each feature is a pure function of a view: hand-written reports in, LSP values out."""

from __future__ import annotations

import dataclasses
import json
from urllib.parse import unquote

import pytest
from lsprotocol import types as lsp

from fuselens.record import diagnostics as codes
from fuselens.record.report import (
    Decision,
    Diagnostic,
    FileReport,
    Frame,
    Graph,
    Guard,
    Line,
    MemoryStep,
    Report,
    RunResult,
    Shape,
    Span,
    Stage,
    Symbol,
    Tensor,
    Timing,
)
from fuselens_server.client.messages import CLIENT_ACTIONS
from fuselens_server.documents import stages as documents
from fuselens_server.features import code_lens, diagnostics, hover, inlay_hints, summary
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.document_uri import CodeDocument, ReportDocument, parse


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
    assert found.message.startswith("graph break: `b.sum() < 0` branches on a tensor's value\n")
    assert "Cost: splits the function into 2 graphs." in found.message
    assert "Hint: Compute both sides" in found.message
    assert found.code_description is not None
    assert found.code_description.href == "fuselens://codes/FL101.md"
    assert found.related_information is None  # its only frame is where it is shown
    assert found.data == {"function": "toy", "stale": False}


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
    assert titles(view) == ["2 graphs · 1 break · 2 kernels", "Open kernel", "Run"]
    lenses = code_lens.code_lenses(view)
    assert [lens.command.command for lens in lenses] == [  # type: ignore[union-attr]
        "fuselens.server.openDocument", "fuselens.server.openKernel", "fuselens.server.runFunction",
    ]  # fmt: skip
    ours = code_lens.code_lenses(view, CLIENT_ACTIONS)
    assert ours[0].command.command == "fuselens.openDocument"  # type: ignore[union-attr]
    assert len({str(lens.data) for lens in ours}) == 3  # what each is resolved by
    assert all(lens.command.arguments == [toy.uri, "toy"] for lens in lenses)  # type: ignore[union-attr]
    assert all(text_in(view, lens.range) == "toy" for lens in lenses)


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
    assert titles(edited)[0] == "2 graphs · 1 break · 2 kernels · stale"
    assert text_in(edited, code_lens.code_lenses(edited)[0].range) == "toy"
    failed = toy.view(report=toy.file(), failures=(codes.make("FL902"),))
    assert titles(failed)[0].endswith(" · stale")


def test_a_function_without_example_inputs_says_so(toy):
    report = Report("toy", toy.path, diagnostics=[codes.make("FL901", what="toy")])
    assert titles(toy.view(report=FileReport(toy.path, [report]))) == ["not compiled: no example inputs"]


def test_no_kernel_no_lens_for_it(toy):
    report = toy.report()
    report.graphs = report.graphs[1:]
    assert titles(toy.view(report=FileReport(toy.path, [report]))) == ["1 graph · 1 break · 1 kernel", "Run"]


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
    assert "| build | 50.0 ms |" in text
    assert "| **total** | **53.0 ms** |" in text  # build.cpp is part of build
    assert "[cpp](fuselens://report/toy/graph0/cpp.cpp?file=file%3A%2F%2F%2Fproject%2Ftoy.py)" in text


def test_a_measured_total_is_used(toy):
    report = toy.report()
    report.timings.append(Timing("total", 0.5))
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "toy("))
    assert text is not None
    assert "| **total** | **500.0 ms** |" in text
    assert "| total |" not in text


def test_hover_excerpt_is_plain_and_cut(toy):
    line = toy.span(toy.text, "a / (a.abs() + 1)")
    loops = "".join(f"    t{i} = x  # toy.py:5:9\n" for i in range(20))
    graph = Graph(
        0, "toy", None, 1, stages=[Stage("fuse", "loop", loops, tuple(Line(i, (line,)) for i in range(1, 21)))]
    )
    report = Report("toy", toy.path, graphs=[graph])
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "x = a"))
    assert text is not None
    assert "```text\nt0 = x\nt1 = x\n" in text
    assert "… 8 more lines\n```" in text


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
    assert "a is float32 on cpu  # line 5" in text
    assert "scale" not in text


def test_hover_on_a_scalar_parameter(toy, view):
    text = hovered(view, at(toy, "scale=2.0"))
    assert text is not None
    assert "scale == 2.0" in text


def test_hover_on_a_parameter_without_guards(toy, view):
    text = hovered(view, at(toy, "b, scale"))
    assert text is not None
    assert "No guard depends on it" in text


def test_hover_on_a_body_line(toy, view):
    text = hovered(view, at(toy, "x = a"))
    assert text is not None
    assert "`x: f32[n]`" in text
    assert "**graph 0** → `fused_0 (cpp, forward pointwise: abs, add, div; reads 4.0 KiB, writes 2.0 KiB)`" in text
    assert "t0[i] = a[i] / (abs(a[i]) + 1)" in text  # the fused loop IR of this line …
    assert "s += b[j]" not in text  # … and not of others
    assert "✓ taken: `loop0 + loop1`: saves 4096 bytes" in text
    assert "graph1" not in text
    assert "fuse.loop?file=file%3A%2F%2F%2Fproject%2Ftoy.py#L4)" in text  # links lead to the line there


def test_hover_escapes_user_text(toy, view):
    text = hovered(view, at(toy, "if b.sum"))
    assert text is not None
    assert "different sizes \\<n\\>" in text
    assert "no kernel of its own" in text


def test_hover_on_an_inlined_helper_line(toy, view):
    text = hovered(view, at(toy, "x * b"))
    assert text is not None
    assert "**graph 1** → `fused_1" in text


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
    argument = text.split("(command:fuselens.openDocument?")[2].split(")")[0]
    assert json.loads(unquote(argument)) == [toy.uri, "toy", str(ReportDocument(toy.uri, "toy", "fuse", "loop", 0)), 4]


def test_a_line_of_many_functions_is_attributed(toy):
    other = dataclasses.replace(toy.report(), function="other")
    text = hovered(toy.view(report=FileReport(toy.path, [toy.report(), other])), at(toy, "x * b"))
    assert text is not None
    assert "**in `toy`**" in text
    assert "**in `other`**" in text


def test_long_guard_lists_are_cut(toy):
    report = toy.report()
    report.guards = [Guard("EQUALS", f"a[{i}]", f"a[{i}] == {i}", "a") for i in range(40)]
    text = hovered(toy.view(report=FileReport(toy.path, [report])), at(toy, "a: "))
    assert text is not None
    assert "# and 28 more" in text


# --- documents -------------------------------------------------------------------------------------------------------


def test_every_listed_document_has_content(view):
    found = documents.listings(view)
    assert [(item.title, item.kind, item.language) for item in found] == [
        ("summary", "summary", "plaintext"),
        ("guards", "guards", "plaintext"),
        ("graph 0 · capture", "graph", "python"),
        ("graph 0 · fuse", "loop", "fuselens-loop"),
        ("graph 0 · cpp", "kernel", "cpp"),
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
