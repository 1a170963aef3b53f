"""Choices by measurement for a GPU: what is asked, what is remembered and what is taken. Times are given by the tests."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fuselens.codegen.generate import generate
from fuselens.codegen.triton.choices.blocks import Blocks, Work, candidates, predicted
from fuselens.codegen.triton.kernels import to_triton, variants
from fuselens.config import Config
from fuselens.ir.card import H100
from fuselens.ir.contracts.source import Generated
from fuselens.ir.loops import Graph
from fuselens.ir.parts import part
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify
from fuselens.pipeline import tuning
from fuselens.record import views
from fuselens.record.report import Decision
from fuselens.record.report import Graph as ReportedGraph
from fuselens.runtime.gpu import tune as tune_gpu
from fuselens.runtime.gpu.tune import Candidate
from tests.codegen.test_layouts import LAYER_NORM
from tests.codegen.test_triton import check_all

LAYERS = """graph g
  input arg0: f32[300, 700] strides [700, 1]
  input arg1: f32[300] strides [1]
  buffer buf0: f32[300] strides [1]
  buffer buf1: f32[300] strides [1]
  buffer buf2: f32[300, 300] strides [300, 1]
  view buf3: f32[1, 300] strides [300, 1] offset 0 of buf0
  view buf4: f32[300, 1] strides [1, 1] offset 0 of buf1
  kernel kernel0 [i0 < 300] from [aten.sum.dim_IntList]
    phase [i1 < 700]
      a = load arg0[700*i0 + i1] : f32
      s = reduce sum a : f32
    phase []
      b = load arg1[i0] : f32
      c = mul s, b : f32
      store buf0[i0] = c
  kernel kernel1 [i0 < 300] from [aten.sum.dim_IntList]
    phase [i1 < 700]
      a = load arg0[700*i0 + i1] : f32
      s = reduce sum a : f32
    phase []
      b = load buf0[i0] : f32
      c = mul s, b : f32
      store buf1[i0] = c
  extern buf2 [buf2] = aten.mm.default(buf4, buf3)
  return buf2
"""


class Card:
    """Stands for the card: candidates take the seconds that ``seconds`` says by label, others one."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[list[str]] = []

    def __call__(
        self, questions: Sequence[Sequence[Candidate]], generate: Any, config: Config, meanwhile: Any
    ) -> list[list[float]]:
        self.asked += [[c.label for c in q] for q in questions]
        for question in questions:
            for candidate in question:
                assert generate(candidate.graph, candidate.tunings).triton is not None
        return [[self.seconds.get(c.label, 1.0) for c in q] for q in questions]


def made(graph: Graph, tunings: Any) -> Generated:
    return generate(graph, "cuda", "scalar", tunings=tunings)


def tune(graph: Graph, card: Card, path: Path) -> tuple[dict[str, Blocks], list[Decision]]:
    return tune_gpu.tune(graph, variants(graph), made, Config(cache_dir=path), card)


def test_the_fastest_is_taken_for_all_equal_kernels(tmp_path: Path) -> None:
    graph = parse(LAYERS)
    default, other, *_ = variants(graph)["kernel0"]
    card = Card(**{str(other): 0.5})
    chosen, (decision,) = tune(graph, card, tmp_path)
    assert chosen == {"kernel0": other, "kernel1": other}
    assert len(card.asked) == 1  # the two kernels are equal
    assert (decision.code, decision.verdict, decision.subject) == ("FL416", "taken", "kernel0, kernel1")
    assert decision.candidates[0] == (str(other), 0.5)
    assert f"{other} takes 0.50 of the time of {default}" in decision.reason
    report = ReportedGraph(0, "f", None, 1, decisions=[decision])
    table = [line for line in views._graph_text(report, "f.py") if line.startswith("  ")]
    assert table[0].split(maxsplit=2) == ["500", "ms", str(other)]
    assert len(table) == len(decision.data)


def test_a_small_gain_is_none(tmp_path: Path) -> None:
    graph = parse(LAYERS)
    card = Card(**{str(variants(graph)["kernel0"][1]): 0.97})
    chosen, (decision,) = tune(graph, card, tmp_path)
    assert chosen == {}
    assert decision.verdict == "default"


def test_times_are_remembered(tmp_path: Path) -> None:
    graph = parse(LAYERS)
    other = variants(graph)["kernel0"][2]
    first = tune(graph, Card(**{str(other): 0.5, str(variants(graph)["kernel0"][3]): math.inf}), tmp_path)
    card = Card()
    assert tune(graph, card, tmp_path) == first
    assert card.asked == []
    larger = parse(LAYERS.replace("700", "900"))
    tune(larger, card, tmp_path)
    assert len(card.asked) == 1


def test_what_could_not_be_measured_is_asked_again(tmp_path: Path) -> None:
    graph = parse(LAYERS)
    everything = {str(v): math.inf for v in variants(graph)["kernel0"]}
    card = Card(**everything)
    assert tune(graph, card, tmp_path) == ({}, [])
    assert tune(graph, card, tmp_path) == ({}, [])
    assert len(card.asked) == 2


def test_parts_are_graphs() -> None:
    graph = parse(LAYERS)
    first, second = (part(graph, [k]) for k in graph.kernels())
    for each in (first, second):
        verify(each)
    assert show(first)[0] == show(second)[0]
    assert (len(first.inputs), first.outputs) == (2, ("buf2",))
    both = part(graph, graph.nodes[1:])
    verify(both)
    assert [len(both.inputs), both.outputs] == [2, (both.nodes[1].name,)]
    symbolic = parse(LAYER_NORM.format(d="bf16"))
    alone = part(symbolic, symbolic.nodes)
    verify(alone)
    assert alone.hints == {"n0": 64, "n1": 768}


def test_the_model_prefers_what_keeps_memory_busy() -> None:
    work = Work(points=1 << 26, columns=0, bytes=1 << 29, loads=1, width=4, along=False, card=H100)
    default = Blocks(1024)
    assert predicted(work, Blocks(64, warps=1)) > predicted(work, default)
    assert predicted(work, Blocks(8192, warps=1)) == math.inf  # does not fit registers
    found = candidates(work, default)
    assert found[0] == default
    assert 4 <= len(found) == len(set(found)) <= 8
    assert candidates(dataclasses.replace(work, points=0, bytes=0), default) == (default,)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_every_block_computes_the_same() -> None:
    texts = {
        "points": """graph g
  input arg0: f32[50, 70] strides [70, 1]
  buffer buf0: f32[50, 70] strides [70, 1]
  kernel kernel0 [i0 < 50, i1 < 70] from [aten.abs.default]
    phase []
      a = load arg0[70*i0 + i1] : f32
      b = abs a : f32
      store buf0[70*i0 + i1] = b
  return buf0
""",
        "tiles": """graph g
  input arg0: f32[50, 70] strides [1, 50]
  buffer buf0: f32[50, 70] strides [70, 1]
  kernel kernel0 [i0 < 50, i1 < 70] from [aten.clone.default]
    phase []
      a = load arg0[i0 + 50*i1] : f32
      store buf0[70*i0 + i1] = a
  return buf0
""",
        "rows": """graph g
  input arg0: f32[30, 700] strides [700, 1]
  buffer buf0: f32[30] strides [1]
  kernel kernel0 [i0 < 30] from [aten.sum.dim_IntList]
    phase [i1 < 700]
      a = load arg0[700*i0 + i1] : f32
      s = reduce sum a : f32
    phase []
      store buf0[i0] = s
  return buf0
""",
    }
    texts["columns"] = texts["rows"].replace("700*i0 + i1", "i0 + 30*i1").replace("strides [700, 1]", "strides [1, 30]")
    generator = torch.Generator().manual_seed(0)
    cases = []
    for name, text in texts.items():
        graph = parse(text)
        tried = variants(graph)["kernel0"]
        sources = {to_triton(graph, tunings={"kernel0": v}).text for v in tried}
        assert len(sources) > 2, name
        shape = [int(s) for s in graph.buffers["arg0"].sizes]
        strides = [int(s) for s in graph.buffers["arg0"].strides]
        x = torch.randn(max(a * b for a, b in zip(shape, strides, strict=True)), generator=generator)
        cases += [(graph, [x.as_strided(shape, strides)], {"kernel0": v}) for v in tried]
    check_all(cases)


PRODUCT = """graph g
  input w: bf16[3072, 768] strides [768, 1]
  input b: bf16[3072] strides [1]
  input x: bf16[16, 512, 768] strides [393216, 768, 1]
  view buf0: bf16[8192, 768] strides [768, 1] offset 0 of x
  view buf1: bf16[768, 3072] strides [1, 768] offset 0 of w
  buffer buf2: bf16[8192, 3072] strides [3072, 1]
  buffer buf3: bf16[8192, 3072] strides [3072, 1]
  extern buf2 = aten.addmm.default(b, buf0, buf1)
  kernel kernel0 [i0 < 25165824] from [aten.sigmoid.default]
    phase []
      t0 = load buf2[i0] : bf16
      t1 = cast t0 : f32
      t2 = sigmoid t1 : f32
      t3 = cast t2 : bf16
      store buf3[i0] = t3
  return buf3
"""


def test_a_product_is_a_kernel_where_that_is_faster(tmp_path: Path) -> None:
    graph = parse(PRODUCT)
    label = "fused, 128 x 256 x 64, 8 warps, 4 stages"
    card = Card(**{label: 0.5})
    changed, tunings, decisions = tuning.for_gpu(graph, Config(cache_dir=tmp_path), card)
    verify(changed)
    assert [k.name for k in changed.nodes] == ["kernel0"]
    assert str(tunings["kernel0"]) in label
    assert decisions[0].subject == "buf2 + kernel0"
    assert decisions[0].candidates[0] == (label, 0.5)
    assert 5 <= len(card.asked[0]) <= 11
    assert card.asked[0][0] == tuning.VENDOR
    assert "tl.dot" in made(changed, tunings).triton.text  # type: ignore[union-attr]
    again = Card()
    assert tuning.for_gpu(graph, Config(cache_dir=tmp_path), again)[1] == tunings
    assert again.asked == []


def test_a_product_stays_the_vendors_where_nothing_is_faster(tmp_path: Path) -> None:
    graph = parse(PRODUCT)
    changed, tunings, decisions = tuning.for_gpu(graph, Config(cache_dir=tmp_path), Card())
    assert changed.nodes == graph.nodes
    assert tunings == {}
    assert [d.verdict for d in decisions] == ["vendor", "default"]
