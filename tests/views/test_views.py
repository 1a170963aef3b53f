"""Views are pure functions of reports: no compiler is needed to test them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from fuselens.record import diagnostics, views
from fuselens.record.plain import from_plain
from fuselens.record.printed import folder
from fuselens.record.printed.sarif import sarif
from fuselens.record.report import (
    Decision,
    FileReport,
    Frame,
    Graph,
    Guard,
    Kernel,
    Report,
    RunResult,
    Shape,
    Span,
    Stage,
    Symbol,
    Tensor,
    Timing,
)

SOURCE = "def toy(a, b):\n    x = a / 2\n    if b.sum() < 0:\n        b = b * -1\n    return x * b\n"
CONDITION = Span("/w/toy.py", 3, 7, 3, 18)


def source_of(file: str) -> str | None:
    return SOURCE if file == "/w/toy.py" else None


def toy_report() -> Report:
    graph = Graph(0, "toy", Span("/w/toy.py", 1, 4, 1, 7), 2, training=True)
    graph.inputs = (Tensor("float32", ("n",)),)
    graph.stages = [Stage("capture", "py", "x = a / 2\n"), Stage("cpp", "cpp", "void kernel0();")]
    graph.kernels = [
        Kernel("kernel0", "cpp", "forward", "pointwise", ("div", "mul"), (CONDITION,), 2048, None, {"registers": 12})
    ]
    graph.externs = ["aten.mm"]
    graph.decisions = [Decision("FL410", "refused", "loop1 + loop2", "different sizes", CONDITION)]
    report = Report("toy", "/w/toy.py", graph.span, "default", "cpu", [graph])
    outer = Frame("toy", Span("/w/toy.py", 5, 4, 5, 10))
    inner = Frame("inner", CONDITION)
    report.breaks = [
        diagnostics.make(
            "FL101", CONDITION, stack=(outer, inner), mode="fullgraph=False", cost="2 graphs", what="b.sum() < 0"
        )
    ]
    report.guards = [Guard("TENSOR", "a", "a is float32[n]", ("a",), CONDITION)]
    report.shapes = [Shape("x", Span("/w/toy.py", 2, 4, 2, 5), Tensor("float32", ("n",)))]
    report.symbols = [Symbol("n", "a.shape[0]", 16, 2, None)]
    report.timings = [Timing("capture", 0.0015), Timing("build.cpp", 0.05)]
    report.versions = {"torch": "2.13"}
    return report


@pytest.mark.parametrize(
    "line, column, end, expected",
    [
        ("    if b.sum() < 0:", 7, 18, " 1 |     if b.sum() < 0:\n   |        ^^^^^^^^^^^"),
        ("\tx = y", 1, 2, " 1 |     x = y\n   |     ^"),
        ("ä = f(ö)", 5, 10, " 1 | ä = f(ö)\n   |     ^^^^"),
        ("変 = g()", 6, 9, " 1 | 変 = g()\n   |      ^^^"),
        ("x", 0, 0, " 1 | x\n   | ^"),
        ("x", 40, 50, " 1 | x\n   |  ^"),
    ],
)
def test_excerpt(line: str, column: int, end: int, expected: str) -> None:
    assert views.excerpt(line + "\n", Span("f", 1, column, 1, end)) == expected


def test_excerpt_of_several_lines_shows_the_first() -> None:
    assert views.excerpt("f(\n  x)\n", Span("f", 1, 0, 2, 4)) == " 1 | f(\n   | ^^"


def test_excerpt_outside_the_source() -> None:
    assert views.excerpt("x\n", Span("f", 7, 0, 7, 1)) == ""


def test_diagnostic_text() -> None:
    found = toy_report().breaks[0]
    assert views.diagnostic_text(found, source_of) == (
        "/w/toy.py:3:8: warning FL101: graph break: `b.sum() < 0` branches on a tensor's value\n"
        " 3 |     if b.sum() < 0:\n"
        "   |        ^^^^^^^^^^^"
    )
    full = views.diagnostic_text(found, source_of, full=True)
    for part in ("= The condition", "= hint: Compute both", "= holds for fullgraph=False", "= cost: 2 graphs",
                 "/w/toy.py:5:5 in toy"):  # fmt: skip
        assert part in full


def test_diagnostic_without_position() -> None:
    assert views.diagnostic_text(diagnostics.make("FL912", what="f"), source_of).startswith("warning FL912: `f`")


def test_summary_lines() -> None:
    text = "\n".join(views.summary_lines(toy_report()))
    assert "/w/toy.py:1:5: toy: 1 graph · 1 break · 1 kernel" in text
    assert "graph 0 toy: 2 operations, with backward" in text
    assert "forward kernel kernel0 (cpp, pointwise)" in text
    assert "div, mul; reads 2 KiB, writes ?; 12 registers; line 3" in text
    assert "extern: aten.mm" in text
    assert "capture 1.5 ms · build.cpp 50 ms" in text


def test_places_in_other_files_name_them() -> None:
    report = toy_report()
    report.shapes, report.guards = [], []
    (kernel,) = report.kernels
    far = [dataclasses.replace(s, file="/lib/layers.py", line=line) for s in kernel.spans for line in (41, 12)]
    report.graphs[0].kernels = [dataclasses.replace(kernel, spans=(*far, *kernel.spans))]
    report.graphs[0].decisions = [Decision("FL410", "refused", "a + b", "sizes", far[0])]
    assert "; line 3; layers.py:12, 41\n" in "\n".join(views.summary_lines(report))
    text = views.explain(report)
    assert "; line 3; layers.py:12, 41\n" in text and "refused: a + b (FL410, layers.py:41): sizes" in text


def test_explain_says_everything() -> None:
    text = views.explain(toy_report(), source_of)
    for part in ("Breaks", "FL101", "^^^^", "Guards", "a is float32[n]  [line 3]", "line 2: x is float32[n]",
                 "n = a.shape[0] (2 …, here 16)", "refused: loop1 + loop2 (FL410, line 3): different sizes",
                 "12 registers", "(float32[n]) -> ()", "stages: capture, cpp", "torch 2.13",
                 "target cpu"):  # fmt: skip
        assert part in text


def test_explain_of_nothing() -> None:
    assert views.explain(Report("f", "f.py")).splitlines()[0] == "f  f.py"


def test_many_guards_are_cut() -> None:
    report = Report("f", "f.py", guards=[Guard("TYPE", "x", f"guard {i}") for i in range(300)])
    assert "and 100 more" in views.explain(report)


def test_stages_text() -> None:
    report = toy_report()
    assert views.stages_text(report, ["cpp"]) == "--- toy · graph 0 toy · cpp ---\nvoid kernel0();"
    assert "x = a / 2" in views.stages_text(report, ["all"])
    assert views.stages_text(report, ["triton"]) == ""


def test_dump(tmp_path: Path) -> None:
    report = toy_report()
    report.function = "outer.<locals>.f"
    written = folder.dump(report, tmp_path)
    names = [str(path.relative_to(tmp_path)) for path in written]
    assert names == [
        "outer._locals_.f/graph0/00_capture.py",
        "outer._locals_.f/graph0/01_cpp.cpp",
        "outer._locals_.f/explain.txt",
        "outer._locals_.f/report.json",
        "outer._locals_.f/trace.json",
        "outer._locals_.f/index.html",
    ]
    assert written[0].read_text() == "x = a / 2\n"
    assert from_plain(Report, json.loads(written[3].read_text())) == report


@pytest.mark.parametrize(
    "seconds, text",
    [(None, "–"), (2.0, "2 s"), (0.0345, "34.5 ms"), (5.6e-6, "5.6 µs"), (2e-7, "200 ns"), (0.0, "0 ns")],
)
def test_seconds_text(seconds: float | None, text: str) -> None:
    assert views.seconds_text(seconds) == text


def test_run_text() -> None:
    result = RunResult("f", True, "2 outputs", 1e-7, True, 1e-5, 5e-6, 0.1)
    text = views.run_text(result)
    assert "f: agrees with eager: 2 outputs" in text
    assert "eager 10 µs · compiled 5 µs (2.00 ×) · compilation 100 ms" in text
    result.eager_bytes, result.compiled_bytes = 3 << 20, 1 << 20
    assert "memory of a call at most: eager 3 MiB · compiled 1 MiB" in views.run_text(result)
    assert "DIFFERS" in views.run_text(RunResult("f", False, "output 0"))
    failed = RunResult("f", False, "", error=diagnostics.make("FL912", what="f"))
    assert "not run" in views.run_text(failed)


def test_json_round_trip() -> None:
    file = FileReport("/w/toy.py", [toy_report()], [diagnostics.make("FL912", what="g")])
    (back,) = json.loads(views.json_text([file]))
    assert from_plain(FileReport, back) == file


def test_sarif() -> None:
    report = toy_report()
    report.breaks[0] = diagnostics.make("FL103", Span("/w/ä.py", 1, 6, 1, 9), what="f")
    text = sarif([FileReport("/w/ä.py", [report])], lambda _: "ä = f()\n# x", version="1.2")
    log = json.loads(text)
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"]["version"] == "1.2"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["FL103"]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("FL103", "warning")
    location = result["locations"][0]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "file:///w/%C3%A4.py"
    assert location["physicalLocation"]["region"] == {"startLine": 1, "startColumn": 6, "endLine": 1, "endColumn": 8}
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "toy"


def test_sarif_without_position_or_source() -> None:
    file = FileReport("rel.py", diagnostics=[diagnostics.make("FL907", None, what="python", why="gone")])
    (result,) = json.loads(sarif([file]))["runs"][0]["results"]
    assert result["level"] == "error"
    assert result["locations"][0]["physicalLocation"] == {"artifactLocation": {"uri": "rel.py"}}
