"""Inside virtual documents, and on the way to them: outlines, foldings, links, workspace symbols."""

from __future__ import annotations

import dataclasses

import pytest
from lsprotocol import types as lsp

from fuselens.record.report import FileReport, Graph, Guard, Kernel, Line, Report, Span, Stage
from fuselens_server.documents import links as document_links
from fuselens_server.documents import stages as documents
from fuselens_server.features import outline, summary, workspace_symbols
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.correspondence import Correspondence
from fuselens_server.texts.document_uri import ReportDocument, parse

LOOP = """\
graph g
  input b: f32[n] strides [1]
  buffer out: f32[] strides []
  kernel kernel0 [i < n] of [a, b] from [aten.sum]  # toy.py:5:9
    phase [r < 4]
      t0 = load b[i] : f32  # toy.py:5:9
  extern out = aten.mm(b, b) from aten.mm
  return out
"""
GRAPH = """\
def graph0(
    a: f32[n],  # a
):
    add: f32[n] = a + 1  # line 5
    return (add,)
"""
CPP = """\
typedef float f32x8 __attribute__((vector_size(32)));
static inline f32x8 two(f32x8 x) {
  return x + x;
}
struct Runtime {  // what the process offers
  void* (*data)(void*);
};

// kernel0: aten.mul, aten.sum  // toy.py:5,6
extern "C" void kernel0(const float* x, float* y) {
  for (;;) {
    y[0] = x[0];
  }
}
"""
TRITON = '''\
import triton

@triton.jit
def kernel0(x, XBLOCK: tl.constexpr = 8):
    """aten.mul"""
    y = x
'''


def shape(blocks: list[outline.Block]) -> list[tuple]:
    return [
        (b.name, b.detail, b.kind.name, b.first, b.last, *([shape(b.children)] if b.children else [])) for b in blocks
    ]


@pytest.mark.parametrize(
    ("suffix", "text", "blocks"),
    [
        ("loop", LOOP, [("g", "", "Module", 1, 8, [
            ("b", "f32[n] strides [1]", "Variable", 2, 2),
            ("out", "f32[] strides []", "Variable", 3, 3),
            ("kernel0", "[i < n] of [a, b] from [aten.sum]", "Function", 4, 6,
             [("phase [r < 4]", "", "Namespace", 5, 6)]),
            ("out", "aten.mm(b, b) from aten.mm", "Operator", 7, 7),
        ])]),
        ("py", GRAPH, [("graph0", "", "Function", 1, 5,
                        [("a", "f32[n]", "Variable", 2, 2), ("add", "f32[n]", "Variable", 4, 4)])]),
        ("cpp", CPP, [("two", "(f32x8 x)", "Function", 2, 4), ("Runtime", "", "Struct", 5, 7),
                      ("kernel0", "aten.mul, aten.sum", "Function", 10, 14)]),
        ("py", TRITON, [("kernel0", "(x, XBLOCK: tl.constexpr = 8)", "Function", 4, 6)]),
        ("txt", "toy - 1 graph\n\nBreaks\n  FL101 x\n", [
            ("toy - 1 graph", "", "Namespace", 1, 1), ("Breaks", "", "Namespace", 3, 4)]),
        ("txt", "# toy is reused\n\n# a\nTENSOR a\n", [("toy is reused", "", "String", 1, 2), ("a", "", "String", 3, 5)]),
        ("md", "# FL101: x\n\ntext\n## What to do\n- y\n", [("FL101: x", "", "String", 1, 3),
                                                            ("What to do", "", "String", 4, 6)]),
        ("loop", "", []),
        ("cpp", "}\n)\n  x\n", []),
    ],
)  # fmt: skip
def test_outlines(suffix, text, blocks):
    assert shape(outline.outline(SourceText(text), suffix)) == blocks


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        (LOOP, [(4, 5), (3, 5), (0, 7)]),
        (GRAPH, [(0, 4)]),
        (CPP, [(1, 2), (4, 5), (10, 11), (9, 12)]),
        ("", []),
        ("a\nb\n", []),
    ],
)
def test_foldings(text, folded):
    found = outline.folding_ranges(SourceText(text))
    assert sorted((f.start_line, f.end_line) for f in found) == sorted(folded)


def test_what_every_kernel_file_has_is_folded_like_imports():
    text = (
        CPP.replace("// kernel0:", "\n// kernel0:")
        + "\nunion Value { long integer; };\nstruct More {\n};\n\n// Host program of g.\n"
    )
    lines = text.split("\n")
    first = next(n for n, line in enumerate(lines, 1) if line.startswith("// kernel0"))
    stage = Stage("cpp", "cpp", text, (Line(first + 2, (Span("toy.py", 5, 8, 5, 9),)), Line(first, ())))
    found = list(outline.preludes(SourceText(text), stage))
    assert {f.kind for f in found} == {lsp.FoldingRangeKind.Imports}
    assert [(lines[f.start_line][:7], lines[f.end_line]) for f in found] == [("typedef", "};"), ("union V", "};")]


def test_symbols_are_within_their_ranges():
    text = SourceText("# 😀 é\n" + LOOP)
    for block in outline.outline(text, "loop"):
        symbol = outline.encode(text, block)
        assert symbol.range.start <= symbol.selection_range.start
        assert symbol.selection_range.end <= symbol.range.end


def test_flat_symbols_name_their_container():
    text = SourceText(LOOP)
    symbols = [outline.encode(text, block) for block in outline.outline(text, "loop")]
    found = {(s.name, s.container_name) for s in outline.flat(symbols, "fuselens:x")}
    assert {("g", None), ("kernel0", "g"), ("phase [r < 4]", "kernel0")} <= found


# --- links -----------------------------------------------------------------------------------------------------------


def linked(view, document: ReportDocument) -> list[tuple[str, str]]:
    text = SourceText(documents.report_content(view, document).text)
    found = document_links.document_links(text, view, document)
    return [(text.text[text.offset(k.range.start) : text.offset(k.range.end)], k.target) for k in found]


def with_text(toy, text: str, *lines: Line, **changes):
    graph = Graph(0, "toy", None, 1, stages=[Stage("s", "loop", text, lines)])
    report = FileReport(toy.path, [Report("toy", toy.path, graphs=[graph])])
    return toy.view(report=report, **changes), ReportDocument(toy.uri, "toy", "s", "loop", 0)


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("x  # toy.py:5:9", [("toy.py:5:9", "L5,9")]),
        ("// toy.py:5,6,11", [("toy.py:5", "L5,1"), ("6", "L6,1"), ("11", "L11,1")]),
        ("in /project/toy.py:5:3 x", [("/project/toy.py:5:3", "L5,3")]),
        ("# backward of line 5", [("line 5", "L5,1")]),
        ("line    10  32 B", [("line    10", "L10,1")]),
        ("lines 10, 11", [("lines 10", "L10,1"), ("11", "L11,1")]),
        ("nottoy.py:5 x/toy.py:5 other.py:1 toy.pyx:5 outline 5 line x", []),
        ("toy.py:5000", [("toy.py:5000", "L12,1")]),  # no such line (any more): the end
    ],
)
def test_places_of_user_code(toy, text, links):
    view, document = with_text(toy, text)
    assert linked(view, document) == [(shown, f"{toy.uri}#{place}") for shown, place in links]


def test_places_follow_edits(toy):
    inner = toy.text.index("x = a")
    view, document = with_text(toy, "x  # toy.py:5:5", edits=((inner, inner, "    "), (0, 0, "# 😀\n")))
    assert linked(view, document) == [("toy.py:5:5", f"{toy.uri}#L6,9")]


def test_files_of_one_name_are_told_apart_by_the_lines_origin(toy):
    other = Span("/elsewhere/toy.py", 5, 8, 5, 9)
    view, document = with_text(toy, "a  # toy.py:5\nb  # toy.py:5\n", Line(2, (other,)))
    assert [target for _, target in linked(view, document)] == [f"{toy.uri}#L5,1", "file:///elsewhere/toy.py#L5,9"]


def test_codes_lead_to_their_pages(toy):
    view, document = with_text(toy, "FL101 FL000 xFL101")
    assert linked(view, document) == [("FL101", "fuselens://codes/FL101.md")]
    found = document_links.code_links(SourceText("FL101 and FL102"), "fuselens://codes/FL101.md")
    assert [link.target for link in found] == ["fuselens://codes/FL102.md"]


def test_codes_in_the_users_comments(toy):
    (link,) = document_links.comment_links(toy.view(text=toy.text + "y = 'FL101'  # FL101: known\n"))
    assert link.range == lsp.Range(lsp.Position(11, 15), lsp.Position(11, 20))
    assert document_links.comment_links(toy.view(text="# FL101\n")) == []  # none of our files


def test_a_summary_links_to_stages_and_kernels(toy, view):
    found = linked(view, ReportDocument(toy.uri, "toy", "summary", "txt"))
    stages = [(text, parse(target).graph) for text, target in found if text in ("capture", "fuse", "cpp")]
    assert stages == [("capture", 0), ("fuse", 0), ("cpp", 0), ("fuse", 1)]
    (kernel,) = [target for text, target in found if text == "fused_0"]
    assert kernel.endswith("#L1")
    assert parse(kernel.partition("#")[0]).name == "cpp"


def test_kernels_of_one_name_lead_to_their_phases(toy):
    one, two = Span(toy.path, 5, 4, 5, 9), Span(toy.path, 6, 4, 6, 9)
    text = "// prelude\nvoid k_part() {}\nvoid k() {}\n"
    stages = [Stage("cpp", "cpp", text, (Line(3, (one,)),)), Stage("cpp.backward", "cpp", text)]
    graph = Graph(0, "toy", None, 1, stages=stages)
    forward = Kernel("k", "cpp", "forward", "pointwise", (), (one,))
    backward = Kernel("k", "cpp", "backward", "pointwise", (), (two,))
    assert Correspondence().kernel_place(graph, forward) == (stages[0], 3)
    assert Correspondence().kernel_place(graph, backward) == (stages[1], 2)
    assert Correspondence().kernel_place(graph, dataclasses.replace(forward, backend="triton")) is None


def test_guards_say_the_file_of_lines_elsewhere(toy):
    report = Report("toy", toy.path, guards=[Guard("IS", "f", "f is f", span=Span("/x/helpers.py", 3, 0, 3, 1))])
    assert "# helpers.py:3" in summary.guards(report)


# --- workspace symbols -----------------------------------------------------------------------------------------------


def test_workspace_symbols(toy, view):
    found = workspace_symbols.workspace_symbols([view], "")
    assert [(s.name, s.kind.name, s.container_name) for s in found] == [
        ("toy", "Function", "toy.py"),
        ("toy graph 0", "Module", "toy.py"),
        ("toy graph 1", "Module", "toy.py"),
        ("toy graph 0 fused_0", "Operator", "abs, add, div"),
    ]
    assert parse(found[1].location.uri).name == "capture"
    assert [s.name for s in workspace_symbols.workspace_symbols([view], "tg1")] == ["toy graph 1"]
    assert [s.name for s in workspace_symbols.workspace_symbols([toy.view()], "")] == ["toy"]


@pytest.mark.parametrize(
    ("query", "name", "found"),
    [
        ("", "toy", True),
        ("TY", "toy", True),
        ("yt", "toy", False),
        ("g 0", "toy graph 0", True),
        ("toyy", "toy", False),
    ],
)
def test_matches(query, name, found):
    assert workspace_symbols.matches(query, name) is found
