"""What pictures show of a fused graph."""

from __future__ import annotations

from fuselens.ir.text import parse
from fuselens.record.report import Operation
from fuselens.schedule.fuse import fuse
from fuselens.schedule.order import order
from fuselens.schedule.structure import operations

TEXT = """\
graph g symbols [n = x.0 hint 8]
  input x: f32[n, 8] strides [8, 1]
  input unused: f32[n, 8] strides [8, 1]
  buffer one: f32[] strides []
  buffer a: f32[n, 8] strides [8, 1]
  buffer b: f32[n, 8] strides [8, 1]
  buffer c: f32[n, 8] strides [8, 1]
  loop one [] from aten.full.default
    t0 = const 1.0 : f32
    store one[0] = t0
  loop a [i0 < n, i1 < 8] from aten.neg.default
    t0 = load x[8*i0 + i1] : f32
    t1 = neg t0 : f32
    store a[8*i0 + i1] = t1
  loop b [i0 < n, i1 < 8] from aten.add.Tensor
    t0 = load a[8*i0 + i1] : f32
    t1 = load one[0] : f32
    t2 = add t0, t1 : f32
    store b[8*i0 + i1] = t2
  extern c = aten.mm.default(b, x)
  return c
"""


def found() -> dict[str, Operation]:
    graph = parse(TEXT)
    return {o.name: o for o in operations(graph, order(fuse(graph)), "forward")}


def test_operations_know_their_kernel_and_what_they_read():
    made = found()
    assert made["a"].origin == "aten.neg.default"
    assert made["a"].kernels == made["b"].kernels
    assert made["c"].kernels == ("c",)
    assert made["c"].reads == ("b", "x")
    assert [name for name, o in made.items() if o.result] == ["c"]


def test_sizes_are_those_of_the_example():
    made = found()
    assert (made["a"].type, made["a"].bytes) == ("f32[n, 8]", 8 * 8 * 4)


def test_inputs_that_nothing_reads_are_left_out():
    made = found()
    assert made["x"].origin == ""
    assert "unused" not in made


def test_every_edge_has_both_ends():
    made = found()
    assert {name for o in made.values() for name in o.reads} <= made.keys()
