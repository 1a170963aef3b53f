"""Kernels for a GPU: what is split, what is not, and that the pieces compute what the kernel did, eager's way."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuselens.ir.card import H100
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify
from fuselens.schedule.gpu import split
from fuselens.schedule.gpu.split import for_gpu
from fuselens.schedule.order import order

from .test_random_bodies import arguments, graphs

COLUMN_SQUARES = """graph g
  input x: f32[{n}, {m}] strides [{m}, 1]
  buffer y: f32[{m}] strides [1]
  kernel k [i0 < {m}]
    phase [r0 < {n}]
      t0 = load x[i0 + {m}*r0] : f32
      t1 = mul t0, t0 : f32
      t2 = reduce sum t1 : f32
    phase []
      store y[i0] = t2
  return y
"""
EVERYTHING = """graph g{symbols}
  input x: {d}[{n}] strides [1]
  buffer a: {d}[] strides []
  buffer b: {d}[] strides []
  buffer c: i64[] strides []
  buffer d: i64[] strides []
  kernel k []
    phase [r0 < {n}]
      t0 = load x[r0] : {d}
      t1 = reduce sum t0 : {d}
      t2 = reduce min t0 : {d}
      t3 = reduce argmax t0 : i64
      t4 = reduce argmin t0 : i64
    phase []
      store a[0] = t1
      store b[0] = t2
      store c[0] = t3
      store d[0] = t4
  return a, b, c, d
"""
GROUPS = """graph g
  input x: f32[{n}, {h}, {g}, {c}] strides [{h}*{g}*{c}, {g}*{c}, {c}, 1]
  buffer y: f32[{n}, {h}, {g}, {c}] strides [{h}*{g}*{c}, {g}*{c}, {c}, 1]
  kernel k [i0 < {n}, i1 < {g}]
    phase [r0 < {h}, r1 < {c}]
      t0 = load x[{h}*{g}*{c}*i0 + {g}*{c}*r0 + {c}*i1 + r1] : f32
      t1 = reduce sum t0 : f32
      t2 = reduce max t0 : f32
    phase []
      t3 = const {count}.0 : f32
      t4 = div t1, t3 : f32
    phase [r0 < {h}, r1 < {c}]
      t5 = load x[{h}*{g}*{c}*i0 + {g}*{c}*r0 + {c}*i1 + r1] : f32
      t6 = sub t5, t4 : f32
      t7 = div t6, t2 : f32
      store y[{h}*{g}*{c}*i0 + {g}*{c}*r0 + {c}*i1 + r1] = t7
  return y
"""
NORM = """graph g
  input x: f32[{n}, {c}, {h}] strides [{c}*{h}, {h}, 1]
  buffer y: f32[{n}, {c}, {h}] strides [{c}*{h}, {h}, 1]
  kernel k [i0 < {c}]
    phase [r0 < {n}, r1 < {h}]
      t0 = load x[{h}*i0 + {c}*{h}*r0 + r1] : f32
      t1 = reduce sum t0 : f32
    phase []
      t2 = const {count}.0 : f32
      t3 = div t1, t2 : f32
    phase [r0 < {n}, r1 < {h}]
      t4 = load x[{h}*i0 + {c}*{h}*r0 + r1] : f32
      t5 = sub t4, t3 : f32
      t6 = mul t5, t5 : f32
      t7 = reduce sum t6 : f32
    phase []
      t8 = const {count}.0 : f32
      t9 = div t7, t8 : f32
      t10 = rsqrt t9 : f32
    phase [r0 < {n}, r1 < {h}]
      t11 = load x[{h}*i0 + {c}*{h}*r0 + r1] : f32
      t12 = sub t11, t3 : f32
      t13 = mul t12, t10 : f32
      store y[{h}*i0 + {c}*{h}*r0 + r1] = t13
  return y
"""
LOG_SOFTMAX = """graph g
  input x: f32[{n}, {m}] strides [{m}, 1]
  buffer y: f32[{n}, {m}] strides [{m}, 1]
  kernel k [i0 < {n}]
    phase [r0 < {m}]
      t0 = load x[{m}*i0 + r0] : f32
      t1 = reduce max t0 : f32
    phase [r0 < {m}]
      t2 = load x[{m}*i0 + r0] : f32
      t3 = sub t2, t1 : f32
      t4 = exp t3 : f32
      t5 = reduce sum t4 : f32
    phase []
      t6 = log t5 : f32
    phase [r0 < {m}]
      t7 = load x[{m}*i0 + r0] : f32
      t8 = sub t7, t1 : f32
      t9 = sub t8, t6 : f32
      store y[{m}*i0 + r0] = t9
  return y
"""


def suited(text: str) -> Graph:
    graph = parse(text)
    verify(graph)
    made = order(for_gpu(graph))
    verify(made)
    assert show(parse(show(made)[0]))[0] == show(made)[0]
    return made


def rules(graph: Graph) -> list[str]:
    return [d.data["rule"] for d in graph.decisions if d.code == "FL410"]


def same(graph: Graph, x: Tensor, *expected: Tensor) -> None:
    for found, wanted in zip(evaluate(graph, [x]), expected, strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-4, atol=1e-5)


def test_a_column_sum_is_a_kernel_of_parts_and_one_that_folds_them() -> None:
    graph = suited(COLUMN_SQUARES.format(n=16384, m=4))
    parts, fold = graph.kernels()
    assert rules(graph) == ["split"]
    assert (parts.name, fold.name) == ("k_1", "k")
    number = next(a for a in parts.axes if a.name != "i0").size
    assert [a.size for a in fold.phases[0].axes] == [number]
    assert [a.size * number for a in parts.phases[0].axes] == [16384]
    x = torch.randn(16384, 4)
    same(graph, x, (x * x).sum(0))


def test_parts_that_do_not_divide_the_axis() -> None:
    graph = suited(COLUMN_SQUARES.format(n=16381, m=4))  # a prime
    assert rules(graph) == ["split"]
    x = torch.randn(16381, 4)
    same(graph, x, (x * x).sum(0))


def test_groups_of_neighbouring_channels_are_read_by_columns() -> None:
    """Of 2 channels of 8 bytes each row has 8 elsewhere: a program reads all channels of a few rows."""
    graph = for_gpu(parse(GROUPS.format(n=2, h=65536, g=16, c=2, count=131072)))
    first, fold, last = graph.kernels()
    assert [a.name for a in first.axes] == ["i0", "i1", "r0_part", "r1"]
    assert [a.name for a in first.phases[0].axes] == ["r0"]
    store = next(o for o in first.ops() if o.op == "store")
    assert str(store.args[1]).startswith("32*i0 + 2*i1 + ") and str(store.args[1]).endswith(" + r1")
    assert [a.name for a in fold.phases[0].axes] == ["r0_part", "r1"]
    assert not any(o.op == "reduce" for o in last.ops())
    few = for_gpu(parse(GROUPS.format(n=2, h=256, g=16, c=2, count=512)))
    assert len(few.kernels()) == 1  # more kernels would take longer than they save
    wide = for_gpu(parse(GROUPS.format(n=512, h=4096, g=4, c=64, count=262144)))
    assert len(wide.kernels()) == 1  # neighbours fill what memory gives at once, and programs the card


def test_what_fills_the_gpu_is_left_alone() -> None:
    for text in (COLUMN_SQUARES.format(n=1000, m=65536), COLUMN_SQUARES.format(n=100, m=4)):
        assert rules(suited(text)) == []
        assert len(suited(text).kernels()) == 1


@pytest.mark.parametrize("n", [1 << 18, 262139])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_a_joint_reduction_of_everything(n: int, dtype: str) -> None:
    graph = suited(EVERYTHING.format(n=n, d=dtype, symbols=""))
    assert rules(graph) == ["split"]
    x = torch.randint(-50, 50, (n,))
    x = x if dtype == "i64" else x.float()
    same(graph, x, x.sum(dtype=x.dtype), x.min(), x.argmax(), x.argmin())  # ties go to the lowest index
    if dtype == "f32":
        x[n - 3] = x[n // 2] = torch.nan
        same(graph, x, x.sum(), x.min(), x.argmax(), x.argmin())


def test_a_fold_of_what_does_not_vary_along_its_axis() -> None:
    text = """graph g
  input x: f32[262139] strides [1]
  input y: f32[] strides []
  buffer a: f32[] strides []
  buffer b: f32[] strides []
  buffer c: i64[] strides []
  kernel k []
    phase []
      t0 = load y[0] : f32
    phase [r0 < 262139]
      t1 = load x[r0] : f32
      t2 = reduce max t1 : f32
      t3 = reduce sum t0 : f32
      t4 = reduce argmax t0 : i64
    phase []
      store a[0] = t2
      store b[0] = t3
      store c[0] = t4
  return a, b, c
"""
    graph = suited(text)
    verify(graph)
    assert rules(graph) == ["split"]
    found = evaluate(graph, [torch.arange(262139.0), torch.tensor(0.5)])
    assert [f.item() for f in found] == [262138.0, 131069.5, 0]


def test_a_size_that_changes() -> None:
    graph = suited(EVERYTHING.format(n="s0", d="f32", symbols=" symbols [s0 = x.0 hint 300000]"))
    assert rules(graph) == ["split"]
    for n in (1, 7, 300000, 300001):
        x = torch.randn(n)
        same(graph, x, x.sum(), x.min(), x.argmax(), x.argmin())


@pytest.mark.parametrize(
    ("h", "reductions"), [(4096, 2), (4093, 4)]
)  # parts of one size have their variance in one pass
def test_passes_after_a_reduction_run_over_all_programs(h: int, reductions: int) -> None:
    graph = suited(NORM.format(n=8, c=3, h=h, count=8 * h))
    assert rules(graph) == ["split"]
    assert [k.kind for k in graph.kernels()] == ["reduction"] * reductions + ["pointwise"]
    x = torch.randn(8, 3, h) + 2
    mean = x.mean((0, 2), keepdim=True)
    same(graph, x, (x - mean) / x.var((0, 2), keepdim=True, correction=0).sqrt())


def special(n: int, m: int) -> list[Tensor]:
    """Rows with NaN, with infinities, of nothing but -inf, and beginning with more -inf than a part has."""
    x = torch.randn(n, m)
    found = [x]
    for value in (torch.nan, torch.inf, -torch.inf):
        found.append(x.clone())
        found[-1][0, 3] = value
    found.append(x.clone())
    found[-1][0] = -torch.inf
    found.append(x.clone())
    found[-1][0, : m - 1] = -torch.inf
    return found


def test_softmax_folds_its_maximum_and_sum_in_one_pass() -> None:
    graph = suited(LOG_SOFTMAX.format(n=4000, m=16))
    assert rules(graph) == ["online"]
    (kernel,) = graph.kernels()
    assert [len(p.axes) for p in kernel.phases] == [1, 0, 1]
    assert re.search(r"reduce sumexp t0 : f32", show(graph)[0])
    for x in special(4000, 16):
        same(graph, x, x.log_softmax(-1))


@pytest.mark.parametrize("m", [40960, 40961])
def test_long_rows_of_few_points(m: int) -> None:
    graph = suited(LOG_SOFTMAX.format(n=2, m=m))
    assert rules(graph) == ["online", "split"]
    assert [k.kind for k in graph.kernels()] == ["reduction", "reduction", "pointwise"]
    for x in special(2, m):
        same(graph, x, x.log_softmax(-1))


def test_a_sum_of_other_exponentials_keeps_its_pass() -> None:
    text = LOG_SOFTMAX.format(n=4000, m=16).replace("t3 = sub t2, t1", "t3 = add t2, t1")
    assert rules(suited(text)) == []
    text = LOG_SOFTMAX.format(n=4000, m=16).replace("t2 = load x[16*i0 + r0]", "t2 = load x[16*i0 - r0 + 15]")
    assert rules(suited(text)) == []


LOG_SUM_EXP = """graph g
  input x: f32[{n}, {m}] strides [{m}, 1]
  buffer y: f32[{n}] strides [1]
  kernel k [i0 < {n}]
    phase [r0 < {m}]
      t0 = load x[{m}*i0 + r0] : f32
      t1 = reduce max t0 : f32
    phase []
      t2 = abs t1 : f32
      t3 = const inf : f32
      t4 = eq t2, t3 : bool
      t5 = const 0.0 : f32
      t6 = where t4, t5, t1 : f32
    phase [r0 < {m}]
      t7 = load x[{m}*i0 + r0] : f32
      t8 = sub t7, t6 : f32
      t9 = exp t8 : f32
      t10 = reduce sum t9 : f32
    phase []
      t11 = log t10 : f32
      t12 = add t11, t6 : f32
      store y[i0] = t12
  return y
"""


@pytest.mark.parametrize(("n", "m", "kernels"), [(4000, 16, 1), (2, 40961, 2)])
def test_logsumexp_which_takes_0_for_an_infinite_maximum(n: int, m: int, kernels: int) -> None:
    graph = suited(LOG_SUM_EXP.format(n=n, m=m))
    assert rules(graph)[0] == "online"
    assert len(graph.kernels()) == kernels
    for x in special(n, m):
        same(graph, x, x.logsumexp(-1))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU for which small sizes are large."""
    for name, value in {"PROGRAM_BANDWIDTH": 1.0, "COLUMNS": 8, "LEAST": {True: 2, False: 2}}.items():
        monkeypatch.setattr(split, name, value)


def agrees(graph: Graph, inputs: list[Any]) -> bool:
    """Whether anything was done; what is computed must be what it was."""
    made = for_gpu(graph.replace(card=dataclasses.replace(H100, processors=8)))
    verify(made)
    clones = [[i.clone() if isinstance(i, Tensor) else i for i in inputs] for _ in range(2)]
    for found, wanted in zip(evaluate(made, clones[0]), evaluate(graph, clones[1]), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-3, atol=1e-3)
    return made.nodes != graph.nodes


@pytest.mark.usefixtures("small")
def test_random_kernels() -> None:
    split_up = []

    @settings(
        max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=tuple(HealthCheck)
    )
    @given(graphs(), st.integers(0, 1000))
    def run(graph: Graph, seed: int) -> None:
        split_up.append(agrees(graph, arguments(graph, seed)))

    run()
    assert sum(split_up) > 10


@pytest.mark.parametrize(
    ("old", "new", "kernels"),
    [
        ("t5 = sub t4, t3", "t5 = sub t4, t3", 3),
        ("t4 = load x[4096*i0 + 12288*r0 + r1]", "t4 = load x[4096*i0 + 12288*r0 - r1 + 4095]", 5),  # other elements
        ("t6 = mul t5, t5", "t6 = mul t5, t4", 5),  # no variance
        ("t2 = const 32768.0", "t2 = const 32767.0", 5),  # no mean
        ("t7 = reduce sum t6", "t7 = reduce max t6", 5),
    ],
)
def test_the_variance_of_parts_takes_one_pass(old: str, new: str, kernels: int) -> None:
    text = NORM.format(n=8, c=3, h=4096, count=8 * 4096)
    text = re.sub(r"(\d+)\*(\d+)", lambda m: str(int(m[1]) * int(m[2])), text)
    assert old in text
    plain = parse(text.replace(old, new))
    graph = suited(text.replace(old, new))
    assert len(graph.kernels()) == kernels
    x = torch.randn(8, 3, 4096) + (
        1000 if kernels == 3 else 0
    )  # far from 0, where squares would lose what tells them apart
    for found, wanted in zip(evaluate(graph, [x]), evaluate(plain, [x]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=5e-3, atol=5e-3)


TURNED = """graph g
  input x: f32[8, {h}, {w}, 16] strides [{h}*{w}*16, {w}*16, 16, 1]
  buffer y: f32[8, 16, {h}, {w}] strides [{h}*{w}*16, {h}*{w}, {w}, 1]
  kernel k [i0 < 8, i1 < {w}, i2 < 16]
    phase [r0 < {h}]
      t0 = load x[{h}*{w}*16*i0 + 16*i1 + i2 + {w}*16*r0] : f32
      t1 = reduce max t0 : f32
    phase [r0 < {h}]
      t2 = load x[{h}*{w}*16*i0 + 16*i1 + i2 + {w}*16*r0] : f32
      t3 = sub t2, t1 : f32
      store y[{store} + {w}*r0] = t3
  return y
"""


def test_a_pass_that_stores_across_what_all_read_is_a_kernel_of_its_own() -> None:
    turned = "{h}*{w}*16*i0 + i1 + {h}*{w}*i2"
    text = TURNED.replace("{store}", turned).format(h=144, w=147)
    graph = suited(text)
    assert rules(graph) == ["split"] and [k.kind for k in graph.kernels()] == ["reduction", "pointwise"]
    x = torch.randn(8, 144, 147, 16)
    same(graph, x, (x - x.amax(1, keepdim=True)).permute(0, 3, 1, 2).contiguous())
    assert rules(suited(TURNED.replace("{store}", turned).format(h=20, w=40))) == []  # it stores little
    along = TURNED.replace("{store} + {w}*r0", "{h}*{w}*16*i0 + 16*i1 + i2 + {w}*16*r0")
    assert rules(suited(along.format(h=144, w=147))) == []


@pytest.mark.parametrize(("longest", "kernels"), [(16 << 10, 2), (64 << 10, 1)])
def test_long_rows_that_are_read_twice_are_cut(monkeypatch: pytest.MonkeyPatch, longest: int, kernels: int) -> None:
    """Although there are programs enough: a part's second reading is from cache, a row's is not."""
    monkeypatch.setattr(split, "UNCACHED", longest)
    monkeypatch.setattr(split, "CACHED", 8 << 10)
    text = """graph g
  input x: f32[6000, 8192] strides [8192, 1]
  buffer y: f32[6000] strides [1]
  kernel k [i0 < 6000] from [aten.var.correction]
    phase [r0 < 8192]
      t0 = load x[8192*i0 + r0] : f32
      t1 = reduce sum t0 : f32
    phase []
      t2 = const 8192.0 : f32
      t3 = div t1, t2 : f32
    phase [r0 < 8192]
      t4 = load x[8192*i0 + r0] : f32
      t5 = sub t4, t3 : f32
      t6 = mul t5, t5 : f32
      t7 = reduce sum t6 : f32
    phase []
      t8 = div t7, t2 : f32
      store y[i0] = t8
  return y
"""
    graph = suited(text)
    assert len(graph.kernels()) == kernels
    x = 100 + torch.randn(6000, 8192)
    torch.testing.assert_close(evaluate(graph, [x])[0], x.var(1, correction=0))
