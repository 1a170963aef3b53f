"""Plans of products: which axes are what, which tiles the card copies, and what is masked, chosen before any text."""

from __future__ import annotations

import dataclasses

import pytest
import sympy

from fuselens.codegen.triton.choices.product_plan import DESCRIPTORS, ProductPlan, choose, descriptors_of
from fuselens.codegen.triton.choices.tiles import Tiles
from fuselens.ir.affine import within
from fuselens.ir.contracts.source import Unsupported
from fuselens.ir.loops import Graph, symbol
from fuselens.ir.text import parse
from fuselens.schedule.gpu.product_kernels import with_room

PRODUCT = """graph g
  input x: f16[{m}, {k}] strides [{k}, 1]
  input w: f16[{k}, {n}] strides [{n}, 1]
  buffer y: f32[{m}, {n}] strides [{n}, 1]
  kernel p [i0 < {m}, i1 < {n}] from [aten.mm.default]
    phase [r0 < {k}]
      t0 = load x[{k}*i0 + r0] : f16
      t1 = cast t0 : f32
      t2 = load w[{n}*r0 + i1] : f16
      t3 = cast t2 : f32
      t4 = mul t1, t3 : f32
      t5 = reduce sum t4 : f32
    phase []
      store y[{n}*i0 + i1] = t5
  return y
"""
WINDOW = """graph g
  input x: f16[30] strides [1]
  input w: f16[3, 20] strides [20, 1]
  buffer y: f32[30, 20] strides [20, 1]
  kernel p [i0 < 30, i1 < 20] from [aten.convolution.default]
    phase [r0 < 3]
      t0 = index r0 + i0 - 1 : i64
      t1 = const 0 : i64
      t2 = ge t0, t1 : bool
      t3 = const 30 : i64
      t4 = lt t0, t3 : bool
      t5 = and t2, t4 : bool
      t6 = load x[Min(29, Max(0, r0 + i0 - 1))] : f16
      t7 = cast t6 : f32
      t8 = const 0 : f32
      t9 = where t5, t7, t8 : f32
      t10 = load w[20*r0 + i1] : f16
      t11 = cast t10 : f32
      t12 = mul t9, t11 : f32
      t13 = reduce sum t12 : f32
    phase []
      store y[20*i0 + i1] = t13
  return y
"""


def product(m: int, n: int, k: int) -> Graph:
    return parse(PRODUCT.format(m=m, n=n, k=k))


def plan(graph: Graph, tiles: Tiles) -> ProductPlan:
    (kernel,) = graph.kernels()
    return choose(kernel, graph, tiles)


def test_rows_and_columns_are_the_axes_of_one_factor_each() -> None:
    found = plan(product(100, 70, 64), Tiles(32, 64, 32))
    form = found.form
    assert [[a.name for a in axes] for axes in (form.rows, form.columns, form.terms, form.batches)] == [
        ["i0"], ["i1"], ["r0"], []
    ]  # fmt: skip
    assert (found.tall, found.broad, found.launch.grid) == (4, 2, 8)
    assert (found.whole_rows, found.whole_columns, found.whole_terms) == (False, False, True)
    assert found.left.value.dtype == found.right.value.dtype == "f16"  # what is made wider loses nothing as it is
    assert found.launch.constants == {"YBLOCK": 32, "XBLOCK": 64, "DEPTH": 32, "GROUP": 8}


def test_the_card_copies_tiles_of_aligned_matrices_where_there_is_room() -> None:
    tiles = Tiles(32, 32, 32, programs=3)
    graph = product(96, 60, 64)
    assert not plan(graph, tiles).descriptors
    found = plan(with_room(graph, descriptors_of("p"), 3 * DESCRIPTORS), tiles)
    assert found.left.copy is not None and not found.left.copy.deep and found.left.copy.step == 64
    assert found.right.copy is None  # rows of 120 bytes
    assert found.descriptors == found.launch.descriptors == "p_descriptors"
    assert found.launch.constants["ALIGNED"] == 1 and found.launch.grid == 3


def test_programs_are_no_more_than_tiles() -> None:
    assert plan(product(32, 64, 64), Tiles(32, 32, 32, programs=100)).programs == 2


def test_what_is_zero_outside_is_loaded_inside_only() -> None:
    graph = parse(WINDOW)
    (kernel,) = graph.kernels()
    held = within(symbol("i0") + symbol("r0") - 1, sympy.Integer(29))  # as it is where it is not parsed
    first, *rest = kernel.phases
    body = tuple(dataclasses.replace(o, args=("x", held)) if o.name == "t6" else o for o in first.body)
    kernel = dataclasses.replace(kernel, phases=(dataclasses.replace(first, body=body), *rest))
    found = choose(kernel, graph, Tiles(16, 16, 16))
    assert found.left.inside == "t5" and found.left.value.name == "t6"
    assert found.left.limited is not None
    assert str(found.left.limited.args[1]) == "i0 + r0 - 1"
    assert "t6" not in {o.name for o in found.left.moving}
    assert found.right.inside == "" and found.right.limited is None


def test_other_sums_are_no_products() -> None:
    graph = parse(PRODUCT.replace("mul t1", "add t1").format(m=8, n=8, k=8))
    with pytest.raises(Unsupported, match="other things"):
        plan(graph, Tiles(16, 16, 16))
