"""Short kernels that become one: the same numbers, and where that may not be."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fuselens.ir.card import H100
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify
from fuselens.schedule.gpu.merge_short_kernels import merge_short_kernels

SMALL = dataclasses.replace(H100, processors=1)
PRODUCTS = """graph g
  input x: f32[30] strides [1]
  input q: f32[24, 30] strides [30, 1]
  input k: f32[8, 30] strides [30, 1]
  input b: f32[8] strides [1]
  input s: f32[] strides []
  buffer y: f32[24] strides [1]
  buffer z: f32[8] strides [1]
  buffer w: f32[30] strides [1]
  kernel first [i0 < 24]
    phase []
      t0 = load s[0] : f32
      t1 = rsqrt t0 : f32
    phase [r0 < 30]
      t2 = load x[r0] : f32
      t3 = mul t2, t1 : f32
      t4 = load q[30*i0 + r0] : f32
      t5 = mul t3, t4 : f32
      t6 = reduce sum t5 : f32
    phase []
      store y[i0] = t6
{between}  kernel second [i0 < 8]
    phase []
      t0 = load s[0] : f32
      t1 = rsqrt t0 : f32
    phase [r1 < 30]
      t2 = load x[r1] : f32
      t3 = mul t2, t1 : f32
      t4 = load k[30*i0 + r1] : f32
      t5 = mul t3, t4 : f32
      t6 = reduce max t5 : f32
    phase []
      t7 = load b[i0] : f32
      t8 = add t6, t7 : f32
      store z[i0] = t8
  return y, z{outputs}
"""
TURNED = """graph g
  input x: f32[6, 4] strides [4, 1]
  input y: f32[2, 4] strides [4, 1]
  input c: f32[4] strides [1]
  input at: i64[1] strides [1]
  input cache: f32[5, 8] strides [8, 1]
  buffer u: f32[6, 4] strides [4, 1]
  buffer new: f32[5, 8] strides [8, 1]
  kernel turned [i0 < 6, i1 < 4]
    phase []
      t0 = load x[4*i0 + i1] : f32
      t1 = load c[i1] : f32
      t2 = mul t0, t1 : f32
      store u[4*i0 + i1] = t2
  kernel copied [i0 < 40]
    phase []
      t0 = load cache[i0] : f32
      store new[i0] = t0
  kernel kept [i0 < 2, i1 < 4]
    phase []
      t0 = load at[0] : i64
      t1 = bounds t0, 5 : i64
      t2 = load y[4*i0 + i1] : f32
      t3 = load c[i1] : f32
      t4 = mul t2, t3 : f32
      store new[8*%t1 + 4*i0 + i1] = last t4
  return u, new
"""


def merged(text: str) -> Graph:
    graph = merge_short_kernels(parse(text).replace(card=SMALL))
    verify(graph)
    return graph


def test_products_by_a_vector() -> None:
    text = PRODUCTS.format(between="", outputs="")
    graph = merged(text)
    (kernel,) = graph.kernels()
    assert [int(a.size) for a in kernel.axes] == [8]
    assert [d.data for d in graph.decisions] == [{"rule": "beside"}]
    ops = [o.op for o in kernel.ops()]
    assert (ops.count("reduce"), ops.count("load"), ops.count("rsqrt")) == (4, 2 + 1 + 3 + 1, 1), show(graph)[0]
    torch.manual_seed(0)
    given = [torch.randn(30), torch.randn(24, 30), torch.randn(8, 30), torch.randn(8), torch.tensor(0.3)]
    x = given[0] * given[4].rsqrt()
    y, z = evaluate(graph, given)
    torch.testing.assert_close(y, given[1] @ x)
    torch.testing.assert_close(z, (given[2] * x).amax(1) + given[3])


def test_what_changes_elements_stays_where_it_is() -> None:
    graph = merged(TURNED)
    assert [k.name for k in graph.kernels()] == ["copied", "turned"]
    x, y, c, at, cache = torch.randn(6, 4), torch.randn(2, 4), torch.randn(4), torch.tensor([3]), torch.randn(5, 8)
    u, new = evaluate(graph, [x, y, c, at, cache])
    torch.testing.assert_close(u, x * c)
    torch.testing.assert_close(new, cache.index_copy(0, at, (y * c).view(1, 8)))


WRITES_K = "  kernel writes [i0 < 240]\n    phase []\n      t0 = const 1.0 : f32\n      store k[i0] = t0\n"
READS_Y = "  kernel reads [i0 < 30]\n    phase []\n      t0 = load y[0] : f32\n      store w[i0] = t0\n"


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        (PRODUCTS.format(between=READS_Y, outputs=", w"), 2),  # the second moves up
        (PRODUCTS.format(between=WRITES_K, outputs=""), 2),  # the first moves down
        (PRODUCTS.format(between=WRITES_K + READS_Y, outputs=", w"), 4),  # neither can
        (
            PRODUCTS.format(between="", outputs="").replace("load x[r1]", "load y[Mod(r1, 24)]"),
            2,
        ),  # one needs the other
        (PRODUCTS.format(between="", outputs="").replace("[i0 < 24]", "[i0 < 23]"), 2),  # no multiple
        (PRODUCTS.format(between="", outputs="").replace("[i0 < 24]", "[i0 < 8]"), 2),  # as many points
        (PRODUCTS.format(between="", outputs="").replace("r1 < 30", "r1 < 29"), 2),  # other columns
        (TURNED.replace("i1 < 4", "i1 < 3", 1), 3),  # two axes differ
    ],
)
def test_how_many_kernels_are_left(text: str, kernels: int) -> None:
    assert len(list(merged(text).kernels())) == kernels


def test_zeros_of_both_signs() -> None:
    zero = "    phase []\n      t9 = const 0.0 : f32\n      store {}[i0] = t9\n"
    text = PRODUCTS.format(between="", outputs="")
    text = text.replace("    phase []\n      store y[i0] = t6\n", zero.format("y"))
    text = text.replace("      store z[i0] = t8\n", "      t9 = const -0.0 : f32\n      store z[i0] = t9\n")
    graph = merged(text)
    assert len(graph.kernels()) == 1
    given = [torch.randn(30), torch.randn(24, 30), torch.randn(8, 30), torch.randn(8), torch.tensor(0.3)]
    y, z = evaluate(graph, given)
    assert not y.signbit().any() and z.signbit().all()


def test_passes_whose_axes_have_one_name() -> None:
    text = PRODUCTS.format(between="", outputs="")
    for axis, other, out in (("r0", "r0", "y[i0] = t6"), ("r1", "r2", "z[i0] = t8")):
        first = f"    phase [{other} < 5]\n      t10 = load x[{other}] : f32\n      t11 = reduce sum t10 : f32\n"
        text = text.replace(f"    phase [{axis} < 30]", f"{first}    phase [{axis} < 30]")
        added = f"t12 = add {out[-2:]}, t11 : f32\n      store {out[:-2]}t12"
        text = text.replace(f"store {out}", added)
    graph = merged(text)
    assert len(graph.kernels()) == 1
    given = [torch.randn(30), torch.randn(24, 30), torch.randn(8, 30), torch.randn(8), torch.tensor(0.3)]
    for found, wanted in zip(evaluate(graph, given), evaluate(parse(text), given), strict=True):
        torch.testing.assert_close(found, wanted)


def test_merged_kernels_stay_short() -> None:
    names = range(12)
    lines = ["graph g", "  input x: f32[4] strides [1]"]
    lines += [f"  buffer y{k}: f32[{8 if k else 4}] strides [1]" for k in names]
    for k in names:
        chain = [f"      t{n} = mul t{n - 1}, t{n - 1} : f32" for n in range(1, 40)]
        lines += [f"  kernel k{k} [i0 < {8 if k else 4}]", "    phase []", f"      t0 = load x[Mod(i0 + {k}, 4)] : f32"]
        lines += [*chain, f"      store y{k}[i0] = t39"]
    graph = merged("\n".join([*lines, f"  return {', '.join(f'y{k}' for k in names)}", ""]))
    assert 1 < len(graph.kernels()) < len(names)


def test_long_kernels_and_few_programs_stay_apart() -> None:
    text = PRODUCTS.format(between="", outputs="")
    slow = dataclasses.replace(SMALL, bandwidth=1e7)
    assert len(list(merge_short_kernels(parse(text).replace(card=slow)).kernels())) == 2
    assert len(list(merge_short_kernels(parse(text)).kernels())) == 2


TABLES = """graph g
  input at: i64[3, 6] strides [6, 1]
  input a: f32[9, 4] strides [4, 1]
  input b: f32[9, 4] strides [4, 1]
  input c: f32[6, 4] strides [4, 1]
  buffer y: f32[6, {width}] strides [{width}, 1]
  kernel first [i0 < 6, i1 < 4]
    phase []
      t0 = load at[i0] : i64
      t1 = bounds t0, 9 : i64
      t2 = load a[i1 + 4*%t1] : f32
      store y[{width}*i0 + i1] = t2
  kernel second [i0 < 6, i1 < 4]
    phase []
      t0 = load at[i0 + 6] : i64
      t1 = bounds t0, 9 : i64
      t2 = load b[i1 + 4*%t1] : f32
      store y[{width}*i0 + i1 + {gap}] = t2
  kernel third [i0 < 6, i1 < 4]
    phase []
      t0 = load c[4*i0 + i1] : f32
      store y[{width}*i0 + i1 + {last}] = t0
  return y
"""


def test_pieces_of_one_buffer() -> None:
    text = TABLES.format(width=12, gap=4, last=8)
    graph = merged(text)
    (kernel,) = graph.kernels()
    assert "writes another piece of y" in graph.decisions[0].reason
    assert [o.op for o in kernel.ops()].count("store") == 3
    torch.manual_seed(0)
    given = [torch.randint(9, (3, 6)), torch.randn(9, 4), torch.randn(9, 4), torch.randn(6, 4)]
    (found,) = evaluate(graph, given)
    assert torch.equal(found, torch.cat([given[1][given[0][0]], given[2][given[0][1]], given[3]], 1))


@pytest.mark.parametrize(
    ("width", "gap", "last", "kernels"),
    [
        (12, 8, 4, 1),
        (12, 3, 8, 2),  # the first two meet
        (12, 4, 7, 2),
        (12, 4, 2, 2),  # the third meets both
        (12, 4, 12 * 6, 1),  # behind all
        (12, 4, 11, 2),  # it goes on into the next row, where the first begins
    ],
)
def test_pieces_must_not_meet(width: int, gap: int, last: int, kernels: int) -> None:
    text = TABLES.format(width=width, gap=gap, last=last).replace(f"y: f32[6, {width}]", f"y: f32[13, {width}]")
    assert len(list(merged(text).kernels())) == kernels


def test_pieces_that_take_long_stay_apart() -> None:
    text = TABLES.format(width=12, gap=4, last=8)
    slow = dataclasses.replace(SMALL, bandwidth=1e6)
    assert len(list(merge_short_kernels(parse(text).replace(card=slow)).kernels())) == 3


COUNTERS = """graph g
{inputs}
{buffers}
  kernel big [i0 < 64] from [aten.neg.default]
    phase []
      t0 = load x[i0] : f32
      t1 = neg t0 : f32
      store y[i0] = t1
{kernels}
  return {results}
"""


def counters(count: int, other: str = "") -> Graph:
    """``count`` numbers that are raised by one; ``other`` is what the last kernel loads instead."""
    names = [f"n{k}" for k in range(count)]
    kernels = [
        f"  kernel k{k} [] from [aten.add.Tensor]\n    phase []\n      t0 = load {other if other and k == count - 1 else n}[0] : i64\n"
        f"      t1 = const 1 : i64\n      t2 = add t0, t1 : i64\n      store m{k}[0] = t2"
        for k, n in enumerate(names)
    ]  # fmt: skip
    inputs = ["  input x: f32[64] strides [1]", *(f"  input {n}: i64[] strides []" for n in names)]
    buffers = ["  buffer y: f32[64] strides [1]", *(f"  buffer m{k}: i64[] strides []" for k in range(count))]
    return parse(
        COUNTERS.format(
            inputs="\n".join(inputs), buffers="\n".join(buffers), kernels="\n".join(kernels),
            results=", ".join(["y", *(f"m{k}" for k in range(count))]),
        )
    )  # fmt: skip


@pytest.mark.parametrize(("count", "kernels"), [(1, 2), (2, 2), (32, 2), (70, 4)])
def test_numbers_that_nobody_else_has_are_raised_together(count: int, kernels: int) -> None:
    graph = counters(count)
    made = merge_short_kernels(graph)
    verify(made)
    assert len(made.kernels()) == kernels
    given = [torch.randn(64), *(torch.tensor(5 * k) for k in range(count))]
    torch.testing.assert_close(evaluate(made, given), evaluate(graph, given))


def test_a_number_that_others_have_stays_where_it_is() -> None:
    graph = counters(3, other="m0")  # the last one reads what the first one writes
    made = merge_short_kernels(graph)
    verify(made)
    given = [torch.randn(64), *(torch.tensor(5 * k) for k in range(3))]
    torch.testing.assert_close(evaluate(made, given), evaluate(graph, given))
    assert len(made.kernels()) == 4
