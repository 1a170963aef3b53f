"""The account of a graph's memory is a pure function of the report; the numbers agree with the graph's buffers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fuselens
from fuselens.record import live_memory, views
from fuselens.record.plain import from_plain, to_plain
from fuselens.record.report import Decision, Graph, MemoryStep, Report, Span


def span(line: int) -> Span:
    return Span("/w/f.py", line, 4, line, 9)


def graph() -> Graph:
    g = Graph(0, "f", span(1), 3, training=True)
    g.memory = [
        MemoryStep("kernel0", "forward", 1024, (span(2),)),
        MemoryStep("kernel1", "forward", 3072, (span(2), span(3))),
        MemoryStep("kernel2", "backward", 2048, (span(3),)),
    ]
    g.decisions = [
        Decision(
            "FL310", "saved", "mm", "mm is not computed twice", span(2), {"bytes": 1024, "shape": "float32[16, 16]"}
        ),
        Decision("FL310", "saved", "x", "an input: alive anyway", span(1), {"bytes": 0, "shape": "float32[16, 16]"}),
        Decision("FL311", "recomputed", "exp", "cheap", span(3), {"bytes": 512, "shape": "float32[128]"}),
        Decision("FL410", "taken", "loop0 + loop1", "both read x", span(2)),
    ]
    return g


def test_peak_and_lines() -> None:
    found = live_memory.peak(graph(), "forward")
    assert found is not None and found.name == "kernel1"
    assert live_memory.by_line(graph(), "forward") == {("/w/f.py", 2): 3072, ("/w/f.py", 3): 3072}
    assert live_memory.by_line(graph(), "backward") == {("/w/f.py", 3): 2048}
    assert live_memory.peak(Graph(0, "f", None, 0), "forward") is None


def test_lines_of_other_files_name_them() -> None:
    text, _ = live_memory.text(graph(), "/w/main.py")
    assert "f.py:2       3 KiB  ####" in text and ", f.py:2: mm is" in text


def test_document_is_linked_to_lines() -> None:
    text, lines = live_memory.text(graph(), "/w/f.py")
    assert text == (
        "forward: at most 3 KiB held at once, in kernel1\n"
        "  line     2       3 KiB  ########################\n"
        "  line     3       3 KiB  ########################\n"
        "backward: at most 2 KiB held at once, in kernel2\n"
        "  line     3       2 KiB  ########################\n"
        "saved for backward: 1 KiB in 1 value\n"
        "       1 KiB  mm float32[16, 16], line 2: mm is not computed twice\n"
        "read again by the backward, alive anyway: x\n"
        "computed again in the backward\n"
        "       512 B  exp float32[128], line 3: cheap\n"
    )
    assert {entry.line: [s.line for s in entry.spans] for entry in lines} == {
        1: [2, 3], 2: [2], 3: [3], 4: [3], 5: [3], 7: [2], 10: [3],
    }  # fmt: skip
    assert live_memory.text(Graph(0, "f", None, 0), "/w/f.py") == ("", ())


def test_sentences_about_a_line() -> None:
    assert live_memory.at(graph(), lambda s: s.line == 2) == [
        "saved for backward: 1 KiB (`mm`), because mm is not computed twice",
        "peak memory of the forward here: 3 KiB",
    ]
    assert live_memory.at(graph(), lambda s: s.line == 1) == []


def test_steps_cross_the_wire() -> None:
    assert from_plain(Graph, to_plain(graph())) == graph()


def test_explained_once() -> None:
    text = views.explain(Report("f", "/w/f.py", graphs=[graph()]))
    assert text.count("mm is not computed twice") == 1
    assert "taken: loop0 + loop1" in text


def test_curve_of_a_compiled_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))

    def f(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        h = F.gelu(x @ w)
        return ((h.softmax(-1) * h) @ v).sum()

    shapes = (16, 80), (80, 32), (32, 20)
    report = fuselens.explain(f)(*[torch.randn(s, requires_grad=True) for s in shapes])
    (g,) = report.graphs
    steps = {phase: [s.bytes for s in g.memory if s.phase == phase] for phase in live_memory.PHASES}
    wide = 16 * 32 * 4
    assert steps["forward"][0] == wide  # the first matmul
    assert max(steps["forward"]) < 4 * wide  # nothing but what is saved outlives its use
    held = live_memory.saved_bytes(g)
    assert held >= wide and all(b >= held for b in steps["backward"])
    assert {line for _, line in live_memory.by_line(g, "forward")} <= set(range(1, 200))
    stage = g.stage("memory")
    assert stage is not None and stage.text.startswith("forward: at most") and stage.lines
