"""What the models of a GPU know of the card, and that code follows from it."""

from __future__ import annotations

import dataclasses
import importlib.util
from types import SimpleNamespace

import pytest
import torch

import fuselens
from fuselens.ir.card import H100, usual
from fuselens.ir.text import parse
from fuselens.pipeline.gpu import as_told
from fuselens.schedule.gpu.split import for_gpu

from .test_split import EVERYTHING


def test_a_card_is_what_torch_tells_of_it() -> None:
    """As torch 2.13 tells of an H100 and an H200, and as an older one tells of an H100."""
    about = {"major": 9, "minor": 0, "multi_processor_count": 132}
    more = {"memory_clock_rate": 2619000, "memory_bus_width": 5120, "shared_memory_per_multiprocessor": 228 << 10}
    faster = more | {"memory_clock_rate": 3201000, "memory_bus_width": 6144}
    assert as_told(SimpleNamespace(**about, **more)) == as_told(SimpleNamespace(**about)) == H100
    assert as_told(SimpleNamespace(**about, **faster)).bandwidth == pytest.approx(4.4e12)


def test_what_is_not_known_is_like_what_came_before() -> None:
    assert [usual(sm).architecture for sm in (75, 80, 87, 90, 103, 121)] == [80, 80, 86, 90, 100, 120]


def test_parts_are_as_many_as_fill_the_card() -> None:
    graph = parse(EVERYTHING.format(n=1 << 22, d="f32", symbols=""))
    cards = (usual(80), usual(100), dataclasses.replace(H100, processors=33))
    parts = [int(for_gpu(graph.replace(card=card)).kernels()[0].axes[-1].size) for card in cards]
    assert parts == [1024, 1024, 256]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_an_absent_gpu_has_kernels_that_suit_it() -> None:
    x, texts = torch.randn(1 << 22), {}
    for architecture in (86, 90):
        report = fuselens.explain(lambda x: x.sum(), target=f"cuda:sm_{architecture}", assembly=("ptx",))(x)
        (graph,) = report.graphs
        assert f".target sm_{architecture}" in graph.stage("ptx").text
        texts[architecture] = graph.stage("triton").text.replace(f"sm_{architecture}", "")
    assert texts[86] != texts[90]
