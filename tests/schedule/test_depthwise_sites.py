"""Convolutions of each channel by itself as loops: the same values as the calls, alone and fused with what reads them."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fuselens.codegen.triton.kernels import variants
from fuselens.config import Config
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph, Loop
from fuselens.ir.verify import verify
from fuselens.pipeline import tuning
from fuselens.schedule import fuse
from fuselens.schedule.gpu import split
from fuselens.schedule.sites.depthwise import depthwise, matched
from tests.codegen.test_triton import check_all
from tests.codegen.test_triton_convolutions import convolution, given

CASES: list[dict[str, Any]] = [
    {},
    {"kernel": (7, 7), "padding": (3, 3), "last": "xy"},
    {"kernel": (5, 3), "stride": (2, 1), "padding": (2, 0), "dilation": (1, 2)},
    {"kernel": (2, 3), "padding": (3, 0), "stride": (1, 2), "bias": False},
    {"size": (13,), "kernel": (3,), "stride": (1,), "padding": (2,), "dilation": (2,), "last": ""},
    {"d": "f16", "last": "xwy"},
]


def channels(d: str = "f32", last: str = "", **more: Any) -> Graph:
    """A convolution of 12 channels and, before fusion, the loop that reads it."""
    graph = convolution(d, last, channels=12, made=12, groups=12, **more)
    nodes = [Loop("z", n.axes, (), n.phases[0].body, n.origins[0]) if n.name == "kernel0" else n  # type: ignore[union-attr]
             for n in graph.nodes]  # fmt: skip
    return graph.replace(nodes=tuple(nodes))


@pytest.mark.parametrize("case", CASES)
def test_values(case: dict[str, Any]) -> None:
    graph = channels(**case)
    made = graph.with_calls_replaced(depthwise(graph))
    verify(made)
    assert not made.externs()
    inputs = given(graph)
    tolerance = 1e-2 if case.get("d") == "f16" else 1e-4
    for changed in (made, split.for_gpu(fuse.fuse(made))):
        torch.testing.assert_close(evaluate(changed, inputs), evaluate(graph, inputs), rtol=tolerance, atol=tolerance)


def test_other_convolutions() -> None:
    assert depthwise(convolution("f32", "", channels=12, made=12, groups=3)) == {}
    assert depthwise(convolution("f32", "", channels=12, made=24, groups=12)) == {}
    assert depthwise(channels(kernel=(9, 9), padding=(4, 4))) == {}


def test_what_is_compared() -> None:
    graph = channels()
    found = depthwise(graph)
    before, after = (split.for_gpu(fuse.fuse(g)) for g in (graph, graph.with_calls_replaced(found)))
    (group,) = matched(before, after, found)
    assert group.calls == {"y"}
    assert [n.name for n in group.nodes] == [n.name for n in before.nodes]
    assert group.kernels == after.kernels()
    assert len(group.kernels) == 1


def test_loops_are_taken_where_they_are_faster(tmp_path: Path) -> None:
    graph = channels(last="xwy")
    fused = split.for_gpu(fuse.fuse(graph))
    asked: list[list[str]] = []

    def card(questions: Any, *_: Any) -> list[list[float]]:
        asked.extend([c.label for c in q] for q in questions)
        return [[1.0 if c.label == tuning.VENDOR else faster for c in q] for q in questions]

    for faster, kernels in ((0.5, 1), (2.0, 1), (math.inf, 1)):
        changed, _, decisions = tuning.for_gpu(fused, Config(cache_dir=tmp_path / str(faster)), card, loops=graph)
        taken = faster < 1
        assert (len(changed.externs()), len(changed.kernels())) == (0 if taken else 1, kernels)
        assert decisions[0].verdict == ("taken" if taken else "vendor")
        verify(changed)
    assert asked[0][0] == tuning.VENDOR
    assert asked[0][1].startswith("loops, ")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_every_block() -> None:
    """Those in which weights are loaded once for several points among them."""
    cases = []
    for d, last in (("f32", "xwy"), ("f32", ""), ("f16", "xwy")):
        graph = channels(d, last, reader=False)
        made = split.for_gpu(fuse.fuse(graph.with_calls_replaced(depthwise(graph))))
        (kernel,) = made.kernels()
        blocks = variants(made)[kernel.name]
        assert sum(b.across > 1 for b in blocks) >= 5  # type: ignore[union-attr]
        cases += [(made, given(graph), {kernel.name: b}) for b in blocks[:4]]
    check_all(cases, rtol=1e-2, atol=1e-3)
