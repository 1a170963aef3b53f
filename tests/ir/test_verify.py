"""Each rule of the loop IR, by a program that breaks it and one that does not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fuselens.ir.loops import Op
from fuselens.ir.text import parse
from fuselens.ir.verify import IRError, verify
from fuselens.record.report import Span

HEAD = """\
graph g symbols [s0 = x.0 hint 8]
  input x: f32[s0, 4] strides [4, 1]
  input h: bf16[4] strides [1]
  input at: i64[s0] strides [1]
  buffer y: f32[s0, 4] strides [4, 1]
  buffer z: f32[s0] strides [1]
  buffer w: f32[s0, 4] strides [4, 1]
  buffer q: f32[s0, 4] strides [4, 1]
"""
COPY = "  loop y [i0 < s0, i1 < 4]\n    t0 = load x[4*i0 + i1] : f32\n    store y[4*i0 + i1] = t0\n"
UPDATE = """\
  view u: f32[s0, 4] strides [4, 1] offset 0 of y
  loop u [i0 < 4] reduce [r0 < s0]
    t0 = load at[r0] : i64
    t1 = bounds t0, s0, wrap : i64
    t2 = load x[4*r0 + i0] : f32
    store y[4*%t1 + i0] = sum t2
"""
GATHER = """\
  loop y [i0 < s0, i1 < 4]
    t0 = load at[i0] : i64
    t1 = bounds t0, s0 : i64
    t2 = load x[4*%t1 + i1] : f32
    store y[4*i0 + i1] = t2
"""
KERNEL = """\
  kernel k [i0 < s0]
    phase [r0 < 4]
      t0 = load x[4*i0 + r0] : f32
      t1 = reduce sum t0 : f32
    phase []
      t2 = neg t1 : f32
      store z[i0] = t2
    phase [r0 < 4]
      t3 = load x[4*i0 + r0] : f32
      t4 = sub t3, t2 : f32
      store y[4*i0 + r0] = t4
"""

GOOD = {
    "loop": COPY + "  return y\n",
    "kernel": KERNEL + "  return y, z\n",
    "row scratch": KERNEL.replace("load x[4*i0 + r0] : f32\n      t4", "load y[4*i0 + r0] : f32\n      t4").replace(
        "      t1 = reduce", "      store y[4*i0 + r0] = t0\n      t1 = reduce"
    ) + "  return y, z\n",
    "in place": COPY + COPY.replace("y", "w").replace("x[", "y[") + "  return w\n",
    "after a fold": "  loop z [i0 < s0] reduce [r0 < 4]\n    t0 = const 4.0 : f32\n    t1 = load x[4*i0 + r0] : f32\n"
    "    t2 = mul t1, t0 : f32\n    t3 = reduce sum t2 : f32\n    t4 = div t3, t0 : f32\n    store z[i0] = t4\n"
    "  return z\n",
    "memory taken over": COPY + COPY.replace("y", "w").replace("x[", "y[") + COPY.replace("y", "q").replace("x[", "w[")
    + "  extern out = aten.neg.default(q)\n  reuse q = y\n  return out\n",
    "a gather": GATHER + "  return y\n",
    "an update": COPY + UPDATE + "  return y\n",
    "an update by rows of positions": COPY
    + UPDATE.replace("[i0 < 4] reduce [r0 < s0]", "[i0 < s0] reduce [r0 < 2]").replace("s0, wrap", "4")
    .replace("load x[4*r0 + i0]", "load x[4*i0 + r0]").replace("4*%t1 + i0", "4*i0 + 2*FloorDiv(%t1, 2) + Mod(%t1, 2)"),
    "an update in turn": COPY + UPDATE.replace("4*%t1 + i0", "%t1").replace("[i0 < 4] reduce [r0 < s0]",
                                                                      "[] reduce [r0 < s0, i0 < 4]") + "  return y\n",
    "donated": COPY + COPY.replace("y", "w").replace("x[", "y[") + "  donated x\n  reuse y = x\n  return w\n",
    "an input written in place": COPY + "  reuse y = x\n  write x = y\n  return None\n",
    "an input to be written": COPY + "  write x = y\n  return y\n",
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_good(name: str) -> None:
    head = HEAD + ("  buffer out: f32[s0, 4] strides [4, 1]\n" if "out" in GOOD[name] else "")
    verify(parse(head + GOOD[name]))


RETURN = "  return y\n"
BAD = {
    "view of a view": ("buffers",
                       "  view a: f32[4] strides [1] offset 0 of y\n  view b: f32[4] strides [1] offset 0 of a\n"
                       + COPY + RETURN),
    "view of another type": ("buffers", "  view a: i32[4] strides [1] offset 0 of y\n" + COPY + RETURN),
    "unknown size": ("buffers", "  buffer a: f32[s9] strides [1]\n" + COPY + RETURN),
    "read before write": ("order", COPY.replace("x[", "w[") + RETURN),
    "output never written": ("order", COPY + "  return w\n"),
    "defined twice": ("order", COPY + COPY + RETURN),
    "loop does not write its buffer": ("order", COPY.replace("store y", "store w") + RETURN),
    "name twice": ("ssa", COPY.replace("    store", "    t1 = neg t9 : f32\n    store") + RETURN),
    "own reduce": ("ssa",
                   KERNEL.replace("t1 = reduce sum t0 : f32", "t1 = reduce sum t0 : f32\n      t8 = neg t1 : f32")
                   + RETURN),
    "value leaves its phase": ("ssa", KERNEL.replace("neg t1", "neg t0") + RETURN),
    "axis of another phase": ("ssa", KERNEL.replace("store z[i0]", "store z[r0]") + RETURN),
    "reduce without axes": ("ssa", KERNEL.replace("t2 = neg t1", "t2 = reduce sum t1") + RETURN),
    "kernel name twice": ("ssa",
                          KERNEL.replace("t3 = load", "t0 = load").replace("sub t3", "sub t0") + RETURN),
    "load type": ("dtypes", COPY.replace("[4*i0 + i1] : f32", "[4*i0 + i1] : f64") + RETURN),
    "mixed operands": ("dtypes",
                       COPY.replace("    store", "    t1 = const 1 : i64\n    t2 = add t0, t1 : f32\n    store")
                       + RETURN),
    "half arithmetic": ("dtypes", COPY.replace("t0 = load x[4*i0 + i1] : f32",
                                               "t1 = load h[i1] : bf16\n    t2 = neg t1 : bf16\n"
                                               "    t0 = cast t2 : f32") + RETURN),
    "arity": ("dtypes", COPY.replace("    store", "    t1 = add t0 : f32\n    store") + RETURN),
    "unknown op": ("dtypes", COPY.replace("    store", "    t1 = frobnicate t0 : f32\n    store") + RETURN),
    "kind": ("dtypes", COPY.replace("    store", "    t1 = shl t0, t0 : f32\n    store") + RETURN),
    "comparison is bool": ("dtypes", COPY.replace("    store", "    t1 = lt t0, t0 : f32\n    store") + RETURN),
    "too far": ("bounds", COPY.replace("x[4*i0 + i1]", "x[4*i0 + i1 + 1]") + RETURN),
    "negative": ("bounds", COPY.replace("x[4*i0 + i1]", "x[4*i0 + i1 - 1]") + RETURN),
    "all write one": ("stores", COPY.replace("y[4*i0 + i1]", "y[4*i0]") + RETURN),
    "a position too far": ("bounds", GATHER.replace("4*%t1 + i1", "4*%t1 + i1 + 1") + RETURN),
    "a position of floats": ("dtypes", GATHER.replace("load at[i0] : i64", "load x[i0] : f32") + RETURN),
    "a position below an unknown size": ("bounds", GATHER.replace("bounds t0, s0", "bounds t0, s0 + 1") + RETURN),
    "an update of nothing": ("order", UPDATE + RETURN),
    "an update of no kind": ("dtypes", COPY + UPDATE.replace("sum t2", "mean t2") + RETURN),
    "points that update one element": ("stores", COPY + UPDATE.replace("4*%t1 + i0", "4*%t1") + RETURN),
    "rows of positions that overlap": (
        "stores",
        COPY + UPDATE.replace("[i0 < 4] reduce [r0 < s0]", "[i0 < s0] reduce [r0 < 2]").replace("s0, wrap", "8")
        .replace("load x[4*r0 + i0]", "load x[4*i0 + r0]")
        .replace("4*%t1 + i0", "4*i0 + 2*FloorDiv(%t1, 2) + Mod(%t1, 2)") + RETURN,
    ),
    "points that may update one element": ("stores", COPY + UPDATE.replace("4*%t1 + i0", "2*%t1 + i0") + RETURN),
    "points in parallel at positions from data": (
        "stores", COPY + UPDATE.replace("[i0 < 4] reduce [r0 < s0]", "[i0 < 4, r0 < s0]") + RETURN),
    "neighbour": ("races", KERNEL.replace("t3 = load x[4*i0 + r0]", "t3 = load y[4*i0 - r0 + 3]").replace(
        "      t1 = reduce", "      store y[4*i0 + r0] = t0\n      t1 = reduce") + RETURN),
    "takes live memory": ("reuse", COPY + COPY.replace("y", "w").replace("x[", "y[")
                          + COPY.replace("y", "q").replace("x[", "y[") + "  reuse w = y\n  return q\n"),
    "takes an output": ("reuse", COPY + COPY.replace("y", "w").replace("x[", "y[") + "  reuse w = y\n  return w, y\n"),
    "too small": ("reuse", KERNEL + COPY.replace("y", "w") + COPY.replace("y", "q").replace("x[", "w[")
                  + "  reuse w = z\n  return q, y\n"),
    "takes an input": ("reuse", COPY + "  reuse y = x\n" + RETURN),
    "takes a donated input that is returned": (
        "reuse",
        COPY + COPY.replace("y", "w").replace("x[", "y[") + "  donated x\n  reuse y = x\n  return w, x\n",
    ),
    "takes a donated input that is read later": (
        "reuse",
        COPY + COPY.replace("y", "w") + COPY.replace("y", "q").replace("x[", "y[") + "  donated x\n  reuse y = x\n  return w, q\n",
    ),
    "takes an input and is returned": ("reuse", COPY + "  reuse y = x\n  write x = y\n" + RETURN),
    "takes an input that is read later": ("reuse", COPY + COPY.replace("y", "w") + "  reuse y = x\n  write x = y\n"
                                          "  return w\n"),
    "writes no input": ("order", COPY + "  write w = y\n" + RETURN),
    "writes other sizes": ("order", KERNEL + "  write x = z\n" + RETURN),
    "writes what is never computed": ("order", COPY + "  write x = w\n" + RETURN),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad(name: str) -> None:
    rule, program = BAD[name]
    with pytest.raises(IRError) as caught:
        verify(parse(HEAD + program))
    assert caught.value.rule == rule, caught.value


def test_a_lost_span() -> None:
    graph = parse(HEAD + COPY + RETURN)
    (loop,) = graph.nodes
    span = Span("a.py", 1, 0, 1, 5)
    kept = tuple(dataclasses.replace(o, spans=(span,)) for o in loop.body)
    good = dataclasses.replace(loop, spans=(span,), body=kept)
    verify(graph.replace(nodes=(good,)))
    bad = dataclasses.replace(good, body=(Op("t0", "load", kept[0].args, "f32"), kept[1]))
    with pytest.raises(IRError) as caught:
        verify(graph.replace(nodes=(bad,)))
    assert caught.value.rule == "spans"


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
def test_loops_do_not_read_packed_weights() -> None:
    graph = parse(HEAD + "  constant c: f32[4] strides [1]\n" + COPY.replace("x[4*i0 + i1]", "c[i1]") + RETURN)
    verify(graph)
    with pytest.raises(IRError, match="layout of a library's own"):
        verify(graph.replace(constants={"c": torch.rand(4).to_mkldnn()}))
