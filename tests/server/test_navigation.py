"""Between user lines and the lines of stages: definitions, references, highlights as pure functions of a view."""

from __future__ import annotations

import pytest
from lsprotocol import types as lsp

from fuselens.record.report import FileReport, Graph, Kernel, Line, Report, Span, Stage
from fuselens_server.documents import stages as documents
from fuselens_server.documents.hover import document_hover
from fuselens_server.features import highlight, navigation
from fuselens_server.features.locations import on_name
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.correspondence import innermost, outermost, runs
from fuselens_server.texts.document_uri import ReportDocument, parse

FUSE = ReportDocument("file:///project/toy.py", "toy", "fuse", "loop", 0)


def position(view, needle: str, shift: int = 0) -> lsp.Position:
    text = view.compiled.current
    return text.position(text.text.index(needle) + shift)


def described(view, locations) -> list[tuple[str, str]]:
    """Each location as (stage or file, the text there)."""
    out = []
    for location in locations:
        address = parse(location.uri)
        if isinstance(address, ReportDocument):
            text, name = SourceText(documents.report_content(view, address).text), f"{address.name}{address.graph}"
        else:
            text, name = view.compiled.current, location.uri.rpartition("/")[2]
        out.append((name, text.text[text.offset(location.range.start) : text.offset(location.range.end)]))
    return out


# --- from the user's file ----------------------------------------------------------------------------------------------


def test_a_line_leads_to_its_kernel(view):
    targets = navigation.kernel_lines(view, position(view, "/ (a"))
    assert described(view, targets.locations) == [("cpp0", "void fused_0() {}")]
    assert targets.origin == view.compiled.range(Span("/project/toy.py", 5, 8, 5, 25))


def test_without_a_kernel_a_line_leads_to_the_last_stage(view):
    assert described(view, navigation.kernel_lines(view, position(view, "if b")).locations) == [("fuse0", "s += b[j]")]


def test_a_helper_leads_to_the_graph_that_inlined_it(view):
    assert described(view, navigation.kernel_lines(view, position(view, "* -1")).locations) == []
    assert described(view, navigation.kernel_lines(view, position(view, "x * b", 2)).locations) == [("fuse1", "x * b")]


@pytest.mark.parametrize("needle", ["a / (a", "abs()", "b.sum", "helper(x", "toy("])
def test_names_are_left_to_others(view, needle):
    assert navigation.kernel_lines(view, position(view, needle)).locations == []
    assert navigation.references(view, position(view, needle)) == []


def test_implementations_are_on_names_too(view):
    found = navigation.kernel_lines(view, position(view, "abs()"), names=True).locations
    assert described(view, found) == [("cpp0", "void fused_0() {}")]


def test_names_are_ours_where_there_is_no_other_server(view):
    at = position(view, "abs()")
    assert len(navigation.references(view, at, names=True)) == 4
    assert [h.range.start.line for h in highlight.highlights(view, at, names=True)] == [4]


def test_references_are_all_that_became_of_an_expression(view):
    assert described(view, navigation.references(view, position(view, "/ (a"))) == [
        ("toy.py", "a / (a.abs() + 1)"),
        ("capture0", "return a / (a.abs() + 1), b.sum() < 0"),
        ("fuse0", "t0[i] = a[i] / (abs(a[i]) + 1)"),
        ("cpp0", "void fused_0() {}"),
    ]
    assert len(navigation.references(view, position(view, "/ (a"), include_declaration=False)) == 3


def test_lines_are_followed_through_edits_and_not_into_new_ones(toy):
    edited = toy.view(report=toy.file(), edits=((0, 0, "# 😀 new\n"),))
    assert described(edited, navigation.kernel_lines(edited, position(edited, "/ (a")).locations) == [
        ("cpp0", "void fused_0() {}")
    ]
    assert navigation.kernel_lines(edited, lsp.Position(0, 0)).locations == []
    assert navigation.kernel_lines(toy.view(), position(toy.view(), "/ (a")).locations == []


def test_a_kernels_head_gives_way_to_the_lines_of_the_expression(toy):
    one, two = toy.span(toy.text, "a / (a.abs() + 1)"), toy.span(toy.text, "b * -1")
    text = "void k() {\n  t0 = a;\n  t1 = t0 / 2;\n  t2 = b * -1;\n}\nvoid call() { k(); }\n"
    lines = (Line(1, (one, two)), Line(2, (one,)), Line(3, (one,)), Line(4, (two,)), Line(6, (one, two)))
    kernels = [Kernel("k", "cpp", phase, "pointwise", (), (one, two)) for phase in ("forward", "backward")]
    stages = [
        Stage("cpp", "cpp", text, lines),
        Stage("triton", "py", text, lines),
        Stage("cpp.backward", "cpp", text, lines),
    ]
    report = FileReport(
        toy.path, [Report("toy", toy.path, graphs=[Graph(0, "toy", None, 2, stages=stages, kernels=kernels)])]
    )
    view = toy.view(report=report)
    assert described(view, navigation.kernel_lines(view, position(view, "/ (a")).locations) == [
        ("cpp0", "t0 = a;\n  t1 = t0 / 2;"),
        ("cpp.backward0", "t0 = a;\n  t1 = t0 / 2;"),
    ]


# --- from a document ---------------------------------------------------------------------------------------------------


def test_all_expressions_of_a_line_lead_to_one_stage(toy):
    """The second one is part of a C++ line that names the first alone: it leads to that line, not to the loops."""
    whole, part = toy.span(toy.text, "a / (a.abs() + 1)"), toy.span(toy.text, "a.abs()")
    stages = [
        Stage("fuse", "loop", "loop\nabs\ndiv\n", (Line(2, (part,)), Line(3, (whole,)))),
        Stage("cpp", "cpp", "void k()\nout = v;\n", (Line(2, (whole,)),)),
    ]
    kernels = [Kernel("k", "cpp", "forward", "pointwise", (), (whole,))]
    graph = Graph(0, "toy", None, 2, stages=stages, kernels=kernels)
    view = toy.view(report=FileReport(toy.path, [Report("toy", toy.path, graphs=[graph])]))
    for needle in ("/ (a", ".abs()"):
        found = navigation.kernel_lines(view, position(view, needle), names=True).locations
        assert described(view, found) == [("cpp0", "out = v;")]


def test_a_line_of_a_document_leads_to_the_source(view):
    targets = navigation.user_lines(view, FUSE, 4)
    assert described(view, targets.locations) == [("toy.py", "a / (a.abs() + 1)")]
    assert targets.origin == lsp.Range(lsp.Position(3, 0), lsp.Position(3, 34))


def test_a_document_leads_to_where_the_source_is_now(toy):
    edited = toy.view(
        report=toy.file(), edits=((0, 0, "\n"), (toy.text.index("a.abs") + 1, toy.text.index("a.abs") + 2, "A"))
    )
    (found,) = navigation.user_lines(edited, FUSE, 4).locations
    assert found.range.start.line == 5  # although the expression itself was edited


@pytest.mark.parametrize(
    ("document", "line"), [(FUSE, 1), (FUSE, 99), (ReportDocument("f", "toy", "guards", "txt"), 1)]
)
def test_lines_of_no_origin_lead_nowhere(view, document, line):
    assert navigation.user_lines(view, document, line).locations == []
    assert navigation.references_of_line(view, document, line) == []


def test_references_of_a_documents_line(view):
    assert [name for name, _ in described(view, navigation.references_of_line(view, FUSE, 4))] == [
        "toy.py", "capture0", "fuse0", "cpp0",
    ]  # fmt: skip


def test_links_for_clients_that_know_them(view):
    targets = navigation.kernel_lines(view, position(view, "/ (a"))
    (link,) = targets.encode(links=True)
    assert isinstance(link, lsp.LocationLink)
    assert link.origin_selection_range == targets.origin
    assert targets.encode(links=False) == targets.locations


@pytest.mark.parametrize(("document", "line"), [(FUSE, 0), (FUSE, 99), (ReportDocument("f", "toy", "x", "txt"), 3)])
def test_no_hover_without_an_origin(view, document, line):
    assert document_hover(view, document, lsp.Position(line, 0)) is None


def test_hover_in_a_document_shows_the_code(toy):
    view = toy.view(
        report=toy.file(), edits=((0, 0, "\n"), (toy.text.index("x = a"), toy.text.index("x = a") + 1, "y"))
    )
    found = document_hover(view, FUSE, lsp.Position(3, 6))
    assert found.contents.value == f"[toy.py:5]({toy.uri}#L6)\n```python\nx = a / (a.abs() + 1)\n```"
    assert found.range == lsp.Range(lsp.Position(3, 0), lsp.Position(3, 34))


def test_hover_on_the_head_of_a_large_kernel_is_cut(toy):
    spans = tuple(Span("/other.py", n, 0, n, 1) for n in range(1, 21))
    graph = Graph(0, "toy", None, 1, stages=[Stage("fuse", "loop", "kernel\n", (Line(1, spans),))])
    view = toy.view(report=FileReport(toy.path, [Report("toy", toy.path, graphs=[graph])]))
    text = document_hover(view, FUSE, lsp.Position(0, 0)).contents.value
    assert text.startswith("[other.py:1](file:///other.py#L1)")
    assert text.endswith("… and 12 more lines")


# --- highlights --------------------------------------------------------------------------------------------------------


def lit(view, where: lsp.Position) -> list[str]:
    text = view.compiled.current
    found = [h.range for h in highlight.highlights(view, where)]
    return [text.text[text.offset(r.start) : text.offset(r.end)] for r in found]


def shared(toy):
    """Line 5 and the helper share a kernel."""
    file = toy.file()
    one, two = toy.span(toy.text, "a / (a.abs() + 1)"), toy.span(toy.text, "x * b")
    inner = toy.span(toy.text, "a.abs()")
    file.functions[0].graphs[0].kernels = [
        Kernel("k0", "cpp", "forward", "pointwise", (), (one, inner, two)),
        Kernel("k1", "cpp", "forward", "pointwise", (), (toy.span(toy.text, "b * -1"),)),
    ]
    return toy.view(report=file)


def test_a_kernels_lines_are_lit_together(toy):
    view = shared(toy)
    assert lit(view, position(view, "/ (a")) == ["a / (a.abs() + 1)", "x * b"]
    assert lit(view, position(view, "x = a", 2)) == ["a / (a.abs() + 1)", "x * b"]  # beside the expression: its line
    assert lit(view, position(view, "* -1")) == ["b * -1"]
    assert lit(view, position(view, "a / (")) == []
    assert lit(view, position(view, "import fuselens", 6)) == []


def test_lines_of_one_origin_are_lit_in_documents(view):
    (found,) = highlight.document_highlights(view, FUSE, lsp.Position(3, 0))
    assert found.range == lsp.Range(lsp.Position(3, 4), lsp.Position(3, 34))
    assert highlight.document_highlights(view, FUSE, lsp.Position(3, 5)) == []  # on a name
    assert highlight.document_highlights(view, FUSE, lsp.Position(0, 5)) == []


# --- spans -------------------------------------------------------------------------------------------------------------


def test_runs():
    assert runs([3, 1, 2, 2, 7]) == [(1, 3), (7, 7)]
    assert runs([]) == []


def test_spans_that_contain_each_other():
    wide, narrow, after = Span("f", 1, 0, 1, 9), Span("f", 1, 2, 1, 4), Span("f", 1, 9, 2, 1)
    assert innermost([wide, narrow, after], 1, 3) == narrow
    assert innermost([wide, narrow, after], 1, 7) == wide
    assert innermost([wide], 2, 0) is None
    assert outermost([narrow, after, wide, wide]) == [wide, after]


@pytest.mark.parametrize(
    ("line", "column", "name"),
    [("x = y", 0, True), ("x = y", 1, True), ("x = y", 2, False), ("if x", 1, False), ("é = 1", 1, True),
     ("a + 12", 5, False), ("x  # of y", 7, False), ("a // b", 5, True), ("😀 = y", 5, True), ("", 0, False)],
)  # fmt: skip
def test_names(line, column, name):
    assert on_name(SourceText(line), lsp.Position(0, column)) is name


def test_names_in_comments_of_generated_code():
    assert not on_name(SourceText("y = x;  // toy.py:5"), lsp.Position(0, 12), "//")
    assert on_name(SourceText("y = x;  // toy.py:5"), lsp.Position(0, 4), "//")
