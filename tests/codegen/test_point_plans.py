"""Plans of points and tiles: blocks, axes and order of loads, chosen without a card and before any text."""

from __future__ import annotations

import dataclasses

import pytest
import sympy

from fuselens.codegen.nest import simplify
from fuselens.codegen.triton.choices.blocks import Blocks
from fuselens.codegen.triton.choices.point_plan import PointPlan, TilePlan, choose, reused_axes
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse

POINTS = """graph g
  input x: f32[{n}] strides [1]
  input y: {d}[{n}] strides [1]
  buffer a: f32[{n}] strides [1]
  buffer b: {d}[{n}] strides [1]
  kernel k [i0 < {n}] from [aten.neg.default]
    phase []
      t0 = load x[i0] : f32
      t1 = neg t0 : f32
      store a[i0] = t1
      t2 = load y[i0] : {d}
      store b[i0] = t2
  return a, b
"""
TRANSPOSED = """graph g
  input x: f32[{m}, 100] strides [100, 1]
  buffer y: f32[100, {m}] strides [{m}, 1]
  kernel k [i0 < {m}, i1 < 100] from [aten.clone.default]
    phase []
      t0 = load x[100*i0 + i1] : f32
      store y[i0 + {m}*i1] = t0
  return y
"""


def points(n: int, d: str = "f32") -> Graph:
    return parse(POINTS.format(n=n, d=d))


def weights(many: int) -> Graph:
    """A kernel that loads so many weights of its columns."""
    loads = "".join(f"      t{k} = load w[64*{k} + i1] : f32\n" for k in range(many))
    return parse(f"""graph g
  input w: f32[{many}, 64] strides [64, 1]
  buffer y: f32[100, 64] strides [64, 1]
  kernel k [i0 < 100, i1 < 64] from [aten.sum.default]
    phase []
{loads}      store y[64*i0 + i1] = t{many - 1}
  return y
""")


def plan(graph: Graph, tuned: Blocks | None = None) -> PointPlan | TilePlan:
    (kernel,) = graph.kernels()
    return choose(simplify(kernel, graph).kernel, graph, tuned)


def test_a_program_has_fewer_points_where_the_card_would_have_few_programs() -> None:
    large, small = plan(points(1 << 24)), plan(points(1 << 14))
    assert large.blocks == Blocks(1024, warps=4) and small.blocks == Blocks(128, warps=1)
    graph = points(1 << 14)
    alone = graph.replace(card=dataclasses.replace(graph.card, processors=1))
    assert plan(alone).blocks == Blocks(1024, warps=4)
    assert plan(points(3)).blocks.points == 16


def test_points_beyond_the_last_have_a_mask() -> None:
    even, odd = plan(points(4096)), plan(points(4097))
    assert isinstance(even, PointPlan) and isinstance(odd, PointPlan)
    assert even.exact and not odd.exact
    assert (even.launch.grid, odd.launch.grid) == (32, 33)
    assert even.launch.constants == {"XBLOCK": 128}


@pytest.mark.parametrize(
    ("d", "block", "early"), [("f32", 64, True), ("f32", 64 * 128, False), ("f64", 64 * 32, False)]
)
def test_loads_come_before_the_first_store_as_far_as_registers_allow(d: str, block: int, early: bool) -> None:
    ops = [o.op for o in plan(points(1 << 20, d), Blocks(block, warps=1)).body]
    assert (ops == ["load", "neg", "load", "store", "store"]) == early


def test_accesses_that_disagree_are_tiles() -> None:
    found = plan(parse(TRANSPOSED.format(m=200)))
    assert isinstance(found, TilePlan)
    assert {found.outer.name, found.inner.name} == {"i0", "i1"} and not found.rest and not found.once
    assert found.launch.constants == {"YBLOCK": 32, "XBLOCK": 32}
    assert found.launch.grid == 4 * 7
    short = plan(parse(TRANSPOSED.format(m=8)))
    assert isinstance(short, TilePlan) and sorted(short.launch.constants.values()) == [8, 128]
    assert isinstance(plan(parse(TRANSPOSED.format(m=3))), PointPlan)  # too short


def test_loads_that_many_points_share_are_tiles_where_measuring_says_so() -> None:
    graph = weights(8)
    assert reused_axes(next(iter(graph.kernels()))) is not None
    assert isinstance(plan(graph), PointPlan)
    found = plan(graph, Blocks(32, 8, warps=1))
    assert isinstance(found, TilePlan) and found.once
    assert (found.across, found.down) == (2, 13) and found.launch.grid == sympy.Integer(26)
    assert isinstance(plan(weights(7), Blocks(32, 8, warps=1)), PointPlan)


@pytest.mark.parametrize(("places", "points", "warps"), [(3, 1024, 4), (4, 256, 4), (9, 256, 4)])
def test_blocks_of_windows_are_small(places: int, points: int, warps: int) -> None:
    """So that a warp's loads, each of a place of its points' windows, lie beside each other."""
    lines = [f"      t{k} = load x[i0 + {k}] : f32" for k in range(places)]
    lines += [f"      s{k} = add {f's{k - 1}' if k else 't0'}, t{k} : f32" for k in range(places)]
    text = f"""graph g
  input x: f32[{1 << 20}] strides [1]
  buffer y: f32[1000000] strides [1]
  kernel k [i0 < 1000000] from [aten.avg_pool1d.default]
    phase []
{chr(10).join(lines)}
      store y[i0] = s{places - 1}
  return y
"""
    graph = parse(text)
    plan = choose(graph.kernels()[0], graph)
    assert isinstance(plan, PointPlan) and (plan.blocks.points, plan.blocks.warps) == (points, warps)
