"""Plans of rows: blocks, order of loads and policies of caches, chosen without a card and before any text."""

from __future__ import annotations

import dataclasses

from fuselens.codegen.nest import simplify
from fuselens.codegen.triton.choices.blocks import Blocks
from fuselens.codegen.triton.choices.row_plan import RowPlan, choose
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse

ROWS = """graph g
  input x: {d}[{m}, {n}] strides [{n}, 1]
  buffer s: f32[{m}] strides [1]
  buffer y: f32[{m}, {n}] strides [{n}, 1]
  kernel k [i0 < {m}] from [aten.mean.dim]
    phase [r0 < {n}]
      t0 = load x[{n}*i0 + r0] : {d}
      t1 = cast t0 : f32
      t2 = reduce sum t1 : f32
    phase []
      store s[i0] = t2
    phase [r1 < {n}]
      t3 = load x[{n}*i0 + r1] : {d}
      t4 = cast t3 : f32
      t5 = sub t4, t2 : f32
      store y[{n}*i0 + r1] = t5
  return s, y
"""


def rows(m: int, n: int, d: str = "f32") -> Graph:
    return parse(ROWS.format(m=m, n=n, d=d))


def plan(graph: Graph, tuned: Blocks | None = None) -> RowPlan:
    (kernel,) = graph.kernels()
    return choose(simplify(kernel, graph).kernel, graph, tuned=tuned)


def test_short_rows_are_held_whole_and_several_at_once() -> None:
    found = plan(rows(10000, 100))
    assert found.persistent
    assert found.blocks == Blocks(16, 1, 128, 4)


def test_few_rows_have_a_program_each_and_more_threads() -> None:
    assert plan(rows(3, 100)).blocks == Blocks(1, 1, 128, 1)
    assert plan(rows(128, 1000)).blocks == Blocks(1, 1, 1024, 8)
    assert plan(rows(300, 1000)).blocks == Blocks(2, 1, 1024, 4)


def test_a_program_has_no_more_rows_than_there_are() -> None:
    assert plan(rows(3, 5000), Blocks(64, 1, 8192, 8)).blocks.points == 4


def test_what_a_program_holds_is_not_loaded_again() -> None:
    graph = rows(10000, 100)
    loads = [o for p in plan(graph).phases for o in p.body if o.op == "load"]
    assert len(loads) == 1
    many = [o.op for p in plan(rows(10000, 5000), Blocks(1, 1, 8192, 8)).phases for o in p.body]
    assert many.count("load") == 2  # too much for registers: threads read again what is in their cache
    shared = plan(rows(64, 1 << 17), Blocks(1, 1, 1 << 15, 32, 4))
    assert shared.persistent and shared.blocks.parts == 4
    assert [o.op for p in shared.phases for o in p.body].count("load") == 1


def test_long_rows_are_read_back_from_where_the_last_walk_ended() -> None:
    found = plan(rows(10000, 200000))
    assert not found.persistent and found.stores_first
    assert [w.backward for w in found.walks] == [False, False, True]
    assert [dict(w.policies) for w in found.walks] == [{"x": "evict_last"}, {}, {"x": "evict_first"}]


def test_measured_blocks_are_taken_where_they_hold_a_row() -> None:
    assert plan(rows(64, 5000), Blocks(2, 1, 8192, 8)).persistent
    looped = plan(rows(64, 5000), Blocks(2, 1, 1024, 8))
    assert not looped.persistent and looped.blocks == Blocks(2, 1, 1024, 8)
    assert plan(rows(64, 5000), Blocks(1, 1, 1024, 8, 2)).blocks.parts == 1  # two programs do not hold a row


def test_the_card_decides_whether_neighbouring_columns_are_held() -> None:
    text = ROWS.replace("[{m}, {n}] strides [{n}, 1]", "[{m}, {n}] strides [1, {m}]")
    text = text.replace("{n}*i0 + r", "i0 + {m}*r")
    graph = parse(text.format(m=4096, n=1000, d="f32"))
    assert plan(graph).blocks == Blocks(16, 1, 1024, 8)
    small = graph.replace(card=dataclasses.replace(graph.card, processors=1))
    assert not plan(small).persistent


def test_a_long_row_is_shared_by_a_cluster_where_that_reads_it_once() -> None:
    assert plan(rows(10000, 50000)).blocks.parts == 4


def test_columns_are_divided_among_blocks_and_programs() -> None:
    _, none, last = plan(rows(10000, 100)).divisions
    assert none is None and last is not None
    assert (last.width, last.share, last.exact, last.ends) == (128, 128, False, None)
    shared = plan(rows(64, 50304), Blocks(1, 1, 1 << 14, 32, 4))
    (division, _, _) = shared.divisions
    assert division is not None and (division.width, division.share, division.exact) == (16384, 12576, False)
    assert shared.launch.grid == 256 and shared.launch.cluster == 4
    (anywhere, _, _) = plan(rows(64, 50257)).divisions
    assert anywhere is not None and anywhere.ends is not None
    assert anywhere.ends.whole % anywhere.width == 0 and anywhere.ends.whole + anywhere.ends.rest == 50257


def test_programs_have_constants_for_their_blocks() -> None:
    assert plan(rows(10000, 100)).launch.constants == {"XBLOCK": 16, "RBLOCK0": 128, "RBLOCK2": 128}
    assert plan(rows(10000, 100)).exact and not plan(rows(10001, 100)).exact


SCORES = """graph g
  input x: f32[{m}, {n}] strides [{n}, 1]
  buffer y: f32[{m}, {n}] strides [{n}, 1]
  kernel k [i0 < {m}] from [aten._softmax.default]
    phase [r0 < {n}]
      t0 = load x[{n}*i0 + r0] : f32
      t1 = abs t0 : f32
      store y[{n}*i0 + r0] = t1
      t2 = reduce max t1 : f32
    phase [r0 < {n}]
      t3 = load y[{n}*i0 + {read}] : f32
      t4 = sub t3, t2 : f32
      store y[{n}*i0 + r0] = t4
  return y
"""


def test_what_is_stored_over_before_it_is_read_is_not_stored() -> None:
    stores = [
        o.args[2] for p in plan(parse(SCORES.format(m=500, n=100, read="r0"))).phases for o in p.body if o.op == "store"
    ]
    assert stores == ["t4"]
    other = plan(parse(SCORES.format(m=500, n=100, read="99 - r0")))
    assert [o.args[2] for p in other.phases for o in p.body if o.op == "store"] == ["t1", "t4"]
    long = plan(parse(SCORES.format(m=500, n=100000, read="r0")))
    assert [o.args[2] for p in long.phases for o in p.body if o.op == "store"] == ["t1", "t4"]


LINES = """graph g
  input x: f32[4, 32, 20, 30] strides [19200, 1, 960, 32]
  buffer y: f32[4, 32, 20] strides [640, 20, 1]
  kernel k [i0 < 4, i1 < 32, i2 < 20]
    phase [r0 < 30]
      t0 = load x[{load}] : f32
      t1 = reduce max t0 : f32
    phase []
      store y[640*i0 + 20*i1 + i2] = t1
  return y
"""


def test_points_go_the_way_that_the_passes_read() -> None:
    (kernel,) = parse(LINES.format(load="19200*i0 + i1 + 960*i2 + 32*r0")).kernels()
    graph = parse(LINES.format(load="19200*i0 + i1 + 960*i2 + 32*r0"))
    assert [a.name for a in simplify(kernel, graph).kernel.axes] == ["i0", "i2", "i1"]
    graph = parse(LINES.format(load="19200*i0 + 600*i1 + 30*i2 + r0"))
    (kernel,) = graph.kernels()
    assert len(simplify(kernel, graph).kernel.axes) == 1  # in the order of what they store, where all are one
