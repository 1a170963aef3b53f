"""Plans of C++ kernels: lanes, units, tiles and the loops of operations, chosen before any text."""

from __future__ import annotations

import pytest

from fuselens.codegen.cpu.choices import chunks, kernel_plan, levels, tiles, units
from fuselens.codegen.cpu.choices.kernel_plan import KernelPlan
from fuselens.codegen.cpu.choices.tiles import EDGE, TilePlan
from fuselens.codegen.cpu.choices.units import UNROLL, Units
from fuselens.codegen.cpu.translation_unit import TranslationUnit
from fuselens.codegen.cpu.vectors.isa import ISAS
from fuselens.codegen.nest import Tuning
from fuselens.ir.loops import Op
from fuselens.ir.text import parse

POINTS = """graph g
  input x: {d}[{m}, {n}] strides [{n}, 1]
  input y: {d}[{n}] strides [1]
  buffer z: {d}[{m}, {n}] strides [{n}, 1]
  kernel k [i0 < {m}, i1 < {n}]
    phase []
      a = load x[{n}*i0 + i1] : {d}
      b = load y[i1] : {d}
      c = add a, b : {d}
      store z[{n}*i0 + i1] = c
  return z
"""
SUMS = """graph g
  input x: f32[{m}, {n}] strides [{n}, 1]
  buffer z: f32[{out}] strides [1]
  kernel k [i0 < {out}]
    phase [r0 < {along}]
      a = load x[{index}] : f32
      b = {op} a : f32
      s = reduce sum b : f32
    phase []
      store z[i0] = s
  return z
"""
TRANSPOSE = """graph g
  input x: {d}[{m}, {n}] strides [1, {m}]
  input w: {d}[{m}, {n}] strides [{n}, 1]
  buffer z: {d}[{m}, {n}] strides [{n}, 1]
  kernel k [i0 < {m}, i1 < {n}]
    phase []
      a = load x[i0 + {m}*i1] : {d}
      b = load w[{n}*i0 + i1] : {d}
      c = add a, b : {d}
      store z[{n}*i0 + i1] = c
  return z
"""


def planned(text: str, isa: str = "avx2", tuning: Tuning | None = None) -> tuple[KernelPlan, TranslationUnit]:
    graph = parse(text)
    (kernel,) = graph.kernels()
    unit = TranslationUnit(graph, ISAS[isa], {kernel.name: tuning} if tuning else {})
    return kernel_plan.choose(kernel, unit), unit


def points(m: int, n: int, d: str = "f32", isa: str = "avx2") -> KernelPlan:
    return planned(POINTS.format(m=m, n=n, d=d), isa)[0]


def sums(m: int, n: int, dim: int, op: str = "neg", tuning: Tuning | None = None) -> KernelPlan:
    """Of a tensor of ``m`` rows and ``n`` columns, summed along ``dim``."""
    out, along, index = (n, m, f"i0 + {n}*r0") if dim == 0 else (m, n, f"{n}*i0 + r0")
    return planned(SUMS.format(m=m, n=n, out=out, along=along, index=index, op=op), tuning=tuning)[0]


def tiled(m: int, n: int, d: str = "f32", isa: str = "avx2") -> TilePlan:
    plan, unit = planned(TRANSPOSE.format(m=m, n=n, d=d), isa)
    assert units.choose(plan).way == "tiles"
    return tiles.choose(plan, unit)


@pytest.mark.parametrize(
    ("n", "dtype", "isa", "width", "wide"),
    [
        (1000, "f32", "avx2", 8, False),
        (1000, "f64", "avx2", 4, True),
        (1000, "f32", "avx512", 16, False),
        (1000, "f32", "scalar", 1, True),
        (5, "f32", "avx512", 8, True),
        (3, "f32", "avx512", 4, True),
    ],
)
def test_vectors_are_as_long_as_a_register_or_as_their_axis(
    n: int, dtype: str, isa: str, width: int, wide: bool
) -> None:
    plan = points(7, n, dtype, isa)
    assert (plan.width, plan.wide) == (width, wide)


def test_units_of_elementwise_kernels() -> None:
    assert units.choose(points(100, 300)).way == "points"  # short rows, whole
    assert units.choose(points(100, 30000)).way == "pieces"
    assert [a.name for a in units.choose(points(100, 30000)).outer] == ["i0"]
    assert units.choose(points(1, 30000)) == Units("row")


def test_units_of_sums() -> None:
    assert units.choose(sums(5000, 300, 1)).way == "points"
    assert units.choose(sums(300, 5000, 0)) == Units("strips", (), UNROLL)
    assert units.choose(sums(300, 5000, 0, "exp")) == Units("columns", (), 2)  # what takes long is kept in registers
    assert units.choose(sums(300, 5000, 0, tuning=Tuning("columns", 8))) == Units("columns", (), 8)
    assert units.choose(sums(1 << 20, 2, 0)).way == "shared"  # too few columns for threads


def test_a_strip_has_room_in_the_first_level_cache() -> None:
    plan = sums(300, 5000, 0)
    width = units.strip_width(plan)
    assert width % UNROLL == 0 and 3 * width * plan.width * 4 <= units.STRIP < 3 * (width + UNROLL) * plan.width * 4


def test_functions_and_short_sums_are_computed_side_by_side() -> None:
    def count(op: str, size: int = 5000) -> int:
        plan = sums(300, size, 1, op)
        phase = plan.kernel.phases[0]
        return units.side_by_side(plan, phase.body, phase.axes[0].size, plan.width)

    assert count("neg") == UNROLL
    assert count("exp") == UNROLL
    assert count("sin") == 1  # no chain: a processor finds the next vector by itself
    assert count("neg", 40) == 1  # too short


def test_threads_share_a_phase_in_chunks_whose_number_depends_on_sizes_only() -> None:
    def cut(plan: KernelPlan, inner: str, across: int = 1) -> chunks.Chunks:
        phase = plan.kernel.phases[0]
        return chunks.choose(plan, phase.body, phase.axes, inner, across)

    row = cut(sums(1, 1 << 20, 1), "r0")
    assert (row.axis.name, row.most, row.least, row.quantum, row.in_order) == ("r0", chunks.CHUNKS, 2048, 8, False)
    assert (row.points, row.dearness) == (1 << 20, 1)
    assert cut(sums(1, 1 << 20, 1, "exp"), "r0").dearness == 4
    columns = cut(sums(1 << 20, 4, 0), "", across=4)
    assert (columns.most, columns.quantum) == (chunks.CHUNKS // 4, units.ROWS)
    assert columns.points == 1 << 22


def test_tiles_are_as_wide_as_a_cache_line() -> None:
    plan = tiled(100, 300)
    assert (plan.small, plan.rows, plan.edge, plan.side) == (True, 16, 16, 0)
    assert plan.unit_edge(across=True) == plan.unit_edge(across=False) == EDGE
    (crossing,) = plan.crossings.values()
    assert (crossing.op.name, crossing.step, crossing.size, crossing.register) == ("a", 100, 4, 32)
    assert tiled(100, 300, "f64").edge == 8
    assert tiled(100, 300, "f32", "sse2").crossings["a"].register == 16


def test_tiles_are_larger_where_lines_throw_each_other_out() -> None:
    plan = tiled(512, 300)
    assert (plan.small, plan.rows, plan.edge, plan.side) == (False, EDGE, EDGE, 0)


def test_what_is_far_is_copied_to_a_block_first() -> None:
    plan = tiled(2048, 2048)
    assert (plan.small, plan.rows, plan.edge, plan.side) == (True, 16, 128, 128)
    assert plan.unit_edge(across=True) == plan.unit_edge(across=False) == 128
    assert plan.pitch(plan.crossings["a"]) == 128 + 16
    assert tiled(2048, 2048, "f32", "scalar").side == 0


def test_operations_go_to_the_outermost_loop_where_their_operands_are() -> None:
    (kernel,) = parse(
        """graph g
  input x: f32[10, 20] strides [20, 1]
  input y: f32[10] strides [1]
  buffer z: f32[10, 20] strides [20, 1]
  kernel k [i0 < 10, i1 < 20]
    phase []
      c = const 2.0 : f32
      a = load y[i0] : f32
      d = add a, c : f32
      b = load x[20*i0 + i1] : f32
      e = div b, d : f32
      f = div e, before : f32
      store z[20*i0 + i1] = f
  return z
"""
    ).kernels()
    ops: tuple[Op, ...] = kernel.phases[0].body

    def chosen(**other: bool) -> levels.Levels:
        return levels.choose(ops, ["i0", "i1"], "i1", lambda n: n == "before", lambda s: s == "y", **other)

    found = levels.choose(ops, ["i0", "i1"], "i1", lambda n: False, lambda s: False)
    assert [found.of[n] for n in "cadbef"] == [0, 1, 1, 2, 2, 2]
    assert found.varying >= {"b", "e", "f"} and not found.varying & {"a", "c", "d"}
    assert levels.divisors(ops, found.of, 2, ()) == ("d", "before")
    assert levels.divisors(ops, found.of, 2, ("before",)) == ("d",)
    assert chosen().of["a"] == 2  # what the kernel writes to is read in order
    assert set(chosen(innermost=True).of.values()) == {2}
