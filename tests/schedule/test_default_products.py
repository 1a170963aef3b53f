"""What the default mode does with products and their readers: believed, measured, or left alone."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fuselens
from fuselens.codegen.triton.kernels import to_triton
from fuselens.config import Config
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Extern, Graph
from fuselens.ir.text import parse
from fuselens.ir.verify import verify
from fuselens.pipeline import tuning
from fuselens.runtime.gpu.triton_jobs import Module
from fuselens.schedule.order import order

from .test_products import each_choice_agrees, given

NORMED = """graph g
  input w: {d}[{out}, {channels}, 1, 1] strides [{channels}, 1, 1, 1]
  input x: {d}[{batch}, {channels}, 4, 4] strides [{image}, 1, {row}, {channels}]
  input mean: {d}[{out}] strides [1]
  buffer buf0: {d}[{batch}, {out}, 4, 4] strides [{made}, 1, {made_row}, {out}]
  buffer buf1: {d}[{batch}, {out}, 4, 4] strides [{made}, 1, {made_row}, {out}]
  buffer buf2: f32[{out}] strides [1]
  extern buf0 = aten.convolution.default(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  kernel kernel0 [i0 < {out}] from [aten.sub.Tensor]
    phase []
      t0 = load mean[i0] : {d}
      t1 = cast t0 : f32
      t2 = mul t1, t1 : f32
{kept}    phase [r0 < {points}]
      t3 = load buf0[i0 + {out}*r0] : {d}
      t4 = cast t3 : f32
      t5 = sub t4, t2 : f32
      t6 = cast t5 : {d}
      store buf1[i0 + {out}*r0] = t6
  return buf1{results}
"""


def normed(d: str = "bf16", batch: int = 2, channels: int = 32, out: int = 48, kept: bool = False) -> Graph:
    sizes = {"d": d, "batch": batch, "channels": channels, "out": out, "points": 16 * batch}
    sizes |= {"image": 16 * channels, "row": 4 * channels, "made": 16 * out, "made_row": 4 * out}
    text = NORMED.format(**sizes, kept="      store buf2[i0] = t2\n" if kept else "", results=", buf2" if kept else "")
    if d == "f32":
        text = text.replace("t1 = cast t0 : f32\n      t2 = mul t1, t1", "t2 = mul t0, t0")
        text = text.replace(
            "t4 = cast t3 : f32\n      t5 = sub t4, t2 : f32\n      t6 = cast t5 : f32", "t6 = sub t3, t2 : f32"
        )
    if not kept:
        text = text.replace(f"  buffer buf2: f32[{out}] strides [1]\n", "")
    return parse(text)


class Measured:
    """Says that each candidate takes ``seconds``, the vendor's one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[list[str]] = []

    def __call__(self, questions, generate, config, meanwhile):
        self.asked += [[c.label for c in q] for q in questions]
        meanwhile()
        return [[1.0, *[self.seconds] * (len(q) - 1)] for q in questions]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_kernel_of_lines_follows_in_the_same_one(dtype: str) -> None:
    assert each_choice_agrees(normed(dtype))[0] == "fused"


def test_one_that_keeps_something_of_its_lines_stays_apart() -> None:
    assert each_choice_agrees(normed(kept=True))[0] == "kernel"


def test_a_convolution_that_waits_for_memory_is_believed(tmp_path: Path) -> None:
    graph = normed(batch=512, channels=64, out=256)
    changed, chosen, decisions = tuning.with_readers(graph, Config(cache_dir=tmp_path), tuning.unmeasured)
    verify(changed)
    assert not [n for n in changed.nodes if isinstance(n, Extern)]
    (kernel,) = changed.kernels()
    assert list(chosen) == [kernel.name]
    (decision,) = decisions
    assert decision.verdict == "taken"
    assert "is expected to take" in decision.reason
    inputs = given(small := normed())
    changed, *_ = tuning.with_readers(small, Config(cache_dir=tmp_path), Measured(0.5))
    for found, wanted in zip(evaluate(changed, inputs), evaluate(small, inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-1, atol=1e-1)


@pytest.mark.parametrize(("seconds", "taken"), [(0.5, True), (0.99, False), (math.nan, False)])
def test_what_may_be_faster_is_measured(tmp_path: Path, monkeypatch, seconds: float, taken: bool) -> None:
    monkeypatch.setattr(tuning, "SURE", 0.0)
    graph = normed(batch=512, channels=64, out=256)
    measured = Measured(seconds)
    changed, chosen, _ = tuning.with_readers(graph, Config(cache_dir=tmp_path), measured)
    (asked,) = measured.asked
    assert asked[0] == tuning.VENDOR
    assert len(asked) == 1 + tuning.FEW
    assert bool(chosen) == taken
    assert (changed is graph) == (not taken)


def test_floats_and_products_that_compute_for_long_are_left_alone(tmp_path: Path) -> None:
    for graph in (normed("f32", batch=512, channels=64, out=256), normed(batch=64, channels=6912, out=768)):
        measured = Measured(0.5)
        assert tuning.with_readers(graph, Config(cache_dir=tmp_path), measured) == (graph, {}, [])
        assert not measured.asked


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_what_is_compiled_meanwhile_is_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    early: list[set[str]] = []
    late: list[set[str]] = []
    candidates: list[set[str]] = []

    def keys(graph: Graph, tunings: Any, open_: Collection[str] = ()) -> set[str]:
        return keys_of(to_triton(order(graph), tunings=tunings), open_)

    def keys_of(source: Any, open_: Collection[str] = ()) -> set[str]:
        module = Module(source, (), 300.0)
        return {module.job(k, 3, 90).key for k in source.kernels if k.same_as is None and k.name not in open_}

    def tuned(fused: Graph, loops: Graph, run: Any) -> Any:
        measured = Measured(seconds)

        def on_card(questions: Any, generate: Any, *rest: Any) -> Any:
            made = [generate(c.graph, c.tunings).triton for q in questions for c in q]
            candidates.extend(keys_of(source) for source in made if source is not None)
            return measured(questions, generate, *rest)

        found = tuning.with_readers(fused, run.config, on_card, lambda *what: early.append(keys(*what)))
        assert len(measured.asked) == 1
        late.append(keys(*found[:2]))
        return found

    monkeypatch.setattr("fuselens.pipeline.gpu.tuned", tuned)
    monkeypatch.setattr("fuselens.pipeline.gpu.compile_for_absent", lambda *_: None)
    a, b = (torch.randn(s, dtype=torch.bfloat16) for s in ((3072, 768), (768, 3072)))

    def block(x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(F.linear(F.layer_norm(x, [768]), a), approximate="tanh")
        return F.layer_norm(x + F.linear(y, b), [768]).exp()

    compiled = fuselens.compile(block, options={"target": "cuda:sm_90", "cache_dir": str(tmp_path)})
    with torch.no_grad():
        compiled(torch.randn(4096, 768, dtype=torch.bfloat16))
    assert early[0]
    assert early[0] < late[0], "but for the products and their readers, where the choice was open"
    assert late[0] <= early[0].union(*candidates), "and those were compiled to be measured"


def _externs(taps: int, groups: int = 32) -> list[str]:
    x, w = torch.randn(2, 32, 16, 16), torch.randn(32, 32 // groups, taps, taps)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, padding=taps // 2, groups=groups).relu()

    return [e for g in fuselens.explain(f, target="cuda:sm_90")(x, w).graphs for e in g.externs]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(("taps", "groups", "ours"), [(3, 32, True), (5, 32, True), (7, 32, False), (3, 16, False)])
def test_convolutions_of_single_channels_are_loops(taps: int, groups: int, ours: bool) -> None:
    assert _externs(taps, groups) == ([] if ours else ["aten.convolution.default"])
