"""What fusion must and must not do, on small programs written for one rule each."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch

from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify
from fuselens.schedule.fuse import fuse
from fuselens.schedule.order import order


def checked(text: str, *inputs: torch.Tensor) -> Graph:
    """The program fused, after comparing what it computes with the program itself."""
    graph = parse(text)
    verify(graph)
    fused = fuse(graph)
    verify(fused)
    for a, b in zip(evaluate(fused, list(inputs)), evaluate(graph, list(inputs)), strict=True):
        torch.testing.assert_close(a, b)
    return fused


def rules(graph: Graph, code: str) -> set[str]:
    return {d.data["rule"] for d in graph.decisions if d.code == code}


def pointwise(name: str, op: str, source: str, size: str = "i0 < 6, i1 < 8", at: str = "8*i0 + i1") -> str:
    return (
        f"  loop {name} [{size}] from aten.{op}.default\n    t0 = load {source}[{at}] : f32\n"
        f"    t1 = {op} t0 : f32\n    store {name}[{at}] = t1\n"
    )


def buffers(*names: str, size: str = "6, 8", strides: str = "8, 1") -> str:
    return "".join(f"  buffer {n}: f32[{size}] strides [{strides}]\n" for n in names)


X = "graph g\n  input x: f32[6, 8] strides [8, 1]\n"


def test_a_chain_is_one_kernel_and_stores_only_its_result() -> None:
    graph = checked(
        X + buffers("a", "b", "c") + pointwise("a", "exp", "x") + pointwise("b", "neg", "a")
        + pointwise("c", "tanh", "b") + "  return c\n", torch.randn(6, 8),
    )  # fmt: skip
    (kernel,) = graph.kernels()
    assert kernel.reads() == ("x",)
    assert kernel.writes() == ("c",)
    assert kernel.loops == ("a", "b", "c")
    assert [a.size for a in kernel.axes] == [48]  # both axes walk as one
    assert set(graph.buffers) == {"x", "c"}


def test_a_result_in_the_middle_is_stored_too() -> None:
    graph = checked(X + buffers("a", "b") + pointwise("a", "exp", "x") + pointwise("b", "neg", "a") + "  return b, a\n",
                    torch.randn(6, 8))  # fmt: skip
    (kernel,) = graph.kernels()
    assert sorted(kernel.writes()) == ["a", "b"]


def test_no_fusion_around_an_extern() -> None:
    """a → extern → c, and a → c: one kernel of a and c would need the extern in its middle."""
    graph = checked(
        X + buffers("a", "c") + buffers("m", size="6, 6", strides="6, 1")
        + "  view at: f32[8, 6] strides [1, 8] offset 0 of a\n  buffer d: f32[6, 8] strides [8, 1]\n"
        + pointwise("a", "exp", "x") + "  extern m = aten.mm.default(a, at)\n  extern d = aten.mm.default(m, a)\n"
        + "  loop c [i0 < 6, i1 < 8]\n    t0 = load a[8*i0 + i1] : f32\n    t1 = load d[8*i0 + i1] : f32\n"
        + "    t2 = mul t0, t1 : f32\n    store c[8*i0 + i1] = t2\n  return c\n", torch.randn(6, 8) * 0.1,
    )  # fmt: skip
    assert len(graph.kernels()) == 2
    assert "cycle" in rules(graph, "FL411")


def test_no_cycle_through_a_group_that_began_before_both() -> None:
    """The pieces of c → d, a → extern → e: when a and d are one kernel, c and e cannot be."""
    text = """\
graph g
  input y: f32[16] strides [1]
  input v: f32[8] strides [1]
  buffer a: f32[16] strides [1]
  buffer m: f32[16] strides [1]
  buffer c: f32[16] strides [1]
  view c0: f32[8] strides [1] offset 0 of c
  view c1: f32[8] strides [1] offset 8 of c
  buffer d: f32[16] strides [1]
  buffer e: f32[8] strides [1]
  loop a [i0 < 16]
    t0 = load y[i0] : f32
    t1 = exp t0 : f32
    store a[i0] = t1
  extern m = aten.cumsum.default(a, 0)
  loop c0 [i0 < 8]
    t0 = load v[i0] : f32
    store c[i0] = t0
  loop c1 [i0 < 8]
    t0 = load v[i0] : f32
    store c[i0 + 8] = t0
  loop d [i0 < 16]
    t0 = load y[i0] : f32
    t1 = load c[i0] : f32
    t2 = add t0, t1 : f32
    store d[i0] = t2
  loop e [i0 < 8]
    t0 = load m[i0] : f32
    t1 = load v[i0] : f32
    t2 = add t0, t1 : f32
    store e[i0] = t2
  return d, e
"""
    fused = checked(text, torch.randn(16), torch.randn(8))
    assert len(fused.kernels()) == 3
    assert "cycle" in rules(fused, "FL411")


def test_rows_and_columns_stay_apart() -> None:
    graph = checked(
        X + buffers("a") + buffers("r", size="6", strides="1") + buffers("c", size="8", strides="1")
        + pointwise("a", "exp", "x")
        + "  loop c [i0 < 8] reduce [r0 < 6]\n    t0 = load a[8*r0 + i0] : f32\n    t1 = reduce sum t0 : f32\n"
        + "    store c[i0] = t1\n"
        + "  loop r [i0 < 6] reduce [r0 < 8]\n    t0 = load a[8*i0 + r0] : f32\n    t1 = reduce sum t0 : f32\n"
        + "    store r[i0] = t1\n  return r, c, a\n", torch.randn(6, 8),
    )  # fmt: skip
    assert [k.loops for k in graph.kernels()] == [("a", "r"), ("c",)]
    assert {"rows first", "reduction"} <= rules(graph, "FL411")


def test_other_rows_of_a_reduction_are_not_at_hand() -> None:
    graph = checked(
        X + buffers("r", size="6", strides="1") + buffers("d", size="5", strides="1")
        + "  loop r [i0 < 6] reduce [r0 < 8]\n    t0 = load x[8*i0 + r0] : f32\n    t1 = reduce max t0 : f32\n"
        + "    store r[i0] = t1\n"
        + "  loop d [i0 < 5]\n    t0 = load r[i0 + 1] : f32\n    t1 = load r[i0] : f32\n    t2 = sub t0, t1 : f32\n"
        + "    store d[i0] = t2\n  return d\n", torch.randn(6, 8),
    )  # fmt: skip
    assert len(graph.kernels()) == 2


def test_constants_vanish_into_their_readers() -> None:
    graph = checked(
        X + buffers("k", "a") + "  loop k [i0 < 6, i1 < 8]\n    t0 = const 2.0 : f32\n    store k[8*i0 + i1] = t0\n"
        + "  loop a [i0 < 6, i1 < 8]\n    t0 = load x[8*i0 + i1] : f32\n    t1 = load k[8*i0 + i1] : f32\n"
        + "    t2 = mul t0, t1 : f32\n    store a[8*i0 + i1] = t2\n  return a\n", torch.randn(6, 8),
    )  # fmt: skip
    assert "k" not in graph.buffers
    assert "inline" in rules(graph, "FL410")


def test_what_does_not_vary_along_a_pass_is_computed_once_per_row() -> None:
    graph = checked(
        X + buffers("v", size="6", strides="1") + buffers("a")
        + "  loop v [i0 < 6] reduce [r0 < 8]\n    t0 = load x[8*i0 + r0] : f32\n    t1 = mul t0, t0 : f32\n"
        + "    t2 = reduce sum t1 : f32\n    store v[i0] = t2\n"
        + "  loop a [i0 < 6, i1 < 8]\n    t0 = load x[8*i0 + i1] : f32\n    t1 = load v[i0] : f32\n"
        + "    t2 = rsqrt t1 : f32\n    t3 = mul t0, t2 : f32\n    store a[8*i0 + i1] = t3\n  return a\n",
        torch.randn(6, 8),
    )  # fmt: skip
    (kernel,) = graph.kernels()
    (phase,) = [p for p in kernel.phases if any(o.op == "rsqrt" for o in p.body)]
    assert phase.axes == ()


def test_two_flat_halves_of_one_buffer_share_a_kernel() -> None:
    graph = checked(
        "graph g\n  input x: f32[8] strides [1]\n  buffer y: f32[16] strides [1]\n"
        "  view lo: f32[8] strides [1] offset 0 of y\n  view hi: f32[8] strides [1] offset 8 of y\n"
        "  loop lo [i0 < 8]\n    t0 = load x[i0] : f32\n    store y[i0] = t0\n"
        "  loop hi [i0 < 8]\n    t0 = load x[i0] : f32\n    t1 = neg t0 : f32\n    store y[i0 + 8] = t1\n  return y\n",
        torch.randn(8),
    )
    (kernel,) = graph.kernels()
    assert len([o for o in kernel.ops() if o.op == "store"]) == 2
    assert len([o for o in kernel.ops() if o.op == "load"]) == 1


def test_an_explicit_cast_rounds_and_an_implied_one_does_not() -> None:
    def program(origin: str) -> str:
        return (
            "graph g\n  input x: f32[8] strides [1]\n  buffer h: bf16[8] strides [1]\n  buffer y: f32[8] strides [1]\n"
            f"  loop h [i0 < 8] from {origin}\n    t0 = load x[i0] : f32\n    t1 = exp t0 : f32\n"
            "    t2 = cast t1 : bf16\n    store h[i0] = t2\n"
            "  loop y [i0 < 8]\n    t0 = load h[i0] : bf16\n    t1 = cast t0 : f32\n    store y[i0] = t1\n  return y\n"
        )

    def casts(origin: str) -> int:
        (kernel,) = fuse(parse(program(origin))).kernels()
        return len([o for o in kernel.ops() if o.op == "cast"])

    assert casts("aten.exp.default") == 0
    assert casts("aten._to_copy.default") == 2


def test_a_full_reduction_does_not_take_a_big_elementwise_pass_with_it() -> None:
    graph = parse(
        "graph g symbols [s0 = x.0 hint 100000]\n  input x: f32[s0] strides [1]\n  buffer t: f32[] strides []\n"
        "  buffer y: f32[s0] strides [1]\n"
        "  loop t [] reduce [r0 < s0]\n    t0 = load x[r0] : f32\n    t1 = reduce sum t0 : f32\n    store t[0] = t1\n"
        "  loop y [i0 < s0]\n    t0 = load x[i0] : f32\n    t1 = load t[0] : f32\n    t2 = div t0, t1 : f32\n"
        "    store y[i0] = t2\n  return y\n"
    )
    fused = fuse(graph)
    assert len(fused.kernels()) == 2
    assert "parallel" in rules(fused, "FL411")


def _chain(count: int) -> Graph:
    names = [f"b{k}" for k in range(count)]
    body = "".join(pointwise(n, "tanh", p) for p, n in zip(["x", *names], names, strict=False))
    return parse(X + buffers(*names) + body + f"  return {names[-1]}\n")


def _fan(count: int) -> Graph:
    """Many readers of one input, each with a reduction of its own."""
    names = [f"b{k}" for k in range(count)]
    text = X + "".join(buffers(f"r{n}", size="6", strides="1") + buffers(n) for n in names)
    for n in names:
        text += pointwise(n, "tanh", "x")
        text += (f"  loop r{n} [i0 < 6] reduce [r0 < 8]\n    t0 = load {n}[8*i0 + r0] : f32\n"
                 f"    t1 = reduce sum t0 : f32\n    store r{n}[i0] = t1\n")  # fmt: skip
    return parse(text + f"  return {', '.join(f'r{n}' for n in names)}\n")


@pytest.mark.parametrize("make", [_chain, _fan])
def test_work_grows_linearly(make: Callable[[int], Graph]) -> None:
    """Calls of functions, which are the same on every machine, stand for time."""

    def calls(count: int) -> int:
        graph = make(count)
        total = 0

        def count_calls(frame: object, event: str, arg: object) -> None:
            nonlocal total
            total += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count_calls)
        try:
            order(fuse(graph))
        finally:
            sys.setprofile(before)
        return total

    calls(20)  # fills the caches
    small, large = calls(100), calls(800)
    assert large < 8 * small * 1.5, (small, large)


def test_programs_without_loops() -> None:
    graph = fuse(parse(X + "  return x\n"))
    assert graph.nodes == ()
    assert show(order(graph))[0].startswith("graph g\n")


def test_a_pass_of_which_only_scratch_is_left_joins_the_one_that_reads_it() -> None:
    """The gradient of a cross-entropy: the sum of a row with one element that is not zero needs no pass."""
    text = """\
graph g
  input x: f32[6, 8] strides [8, 1]
  input at: i64[6] strides [1]
  input g: f32[6] strides [1]
  buffer h: f32[6, 8] strides [8, 1]
  buffer s: f32[6] strides [1]
  buffer y: f32[6, 8] strides [8, 1]
  loop h [i0 < 6, i1 < 8]
    t0 = load at[i0] : i64
    t1 = bounds t0, 8 : i64
    t2 = index i1 : i64
    t3 = eq t2, t1 : bool
    t4 = load g[i0] : f32
    t5 = exp t4 : f32
    t6 = const 0.0 : f32
    t7 = where t3, t5, t6 : f32
    store h[8*i0 + i1] = t7
  loop s [i0 < 6] reduce [r0 < 8]
    t0 = load h[8*i0 + r0] : f32
    t1 = reduce sum t0 : f32
    store s[i0] = t1
  loop y [i0 < 6, i1 < 8]
    t0 = load x[8*i0 + i1] : f32
    t1 = exp t0 : f32
    t2 = load s[i0] : f32
    t3 = mul t1, t2 : f32
    t4 = load h[8*i0 + i1] : f32
    t5 = sub t4, t3 : f32
    store y[8*i0 + i1] = t5
  return y
"""
    given = torch.randn(6, 8), torch.tensor([0, 7, 3, 3, 1, 2]), torch.randn(6)
    (kernel,) = checked(text, *given).kernels()
    assert [len(p.axes) for p in kernel.phases if p.axes] == [1]
    assert sum(op.op == "store" for p in kernel.phases for op in p.body) == 1


CHANNELS = """graph g
  input x: f32[4, 6, 10, 16] strides [960, 160, 16, 1]
  input v: f32[6] strides [1]
  buffer s: f32[6] strides [1]
  buffer n: f32[4, 6, 10, 16] strides [960, 160, 16, 1]
  buffer m: f32[4, 6, 10] strides [60, 10, 1]
  loop s [i0 < 6] from aten.sqrt.default
    t0 = load v[i0] : f32
    t1 = sqrt t0 : f32
    t2 = reciprocal t1 : f32
    store s[i0] = t2
  loop n [i0 < 4, i1 < 6, i2 < 10, i3 < 16] from aten.mul.Tensor
    t0 = load x[960*i0 + 160*i1 + 16*i2 + i3] : f32
    t1 = load s[i1] : f32
    t2 = mul t0, t1 : f32
    store n[960*i0 + 160*i1 + 16*i2 + i3] = t2
  loop m [i0 < 4, i1 < 6, i2 < 10] reduce [i3 < 16] from aten.amax.default
    t0 = load n[960*i0 + 160*i1 + 16*i2 + i3] : f32
    t1 = reduce max t0 : f32
    store m[60*i0 + 10*i1 + i2] = t1
  return m{more}
"""


@pytest.mark.parametrize(("more", "kernels"), [("", 1), (", n", 1), (", s", 2)])
def test_what_a_channel_has_is_computed_again_for_its_lines(more: str, kernels: int) -> None:
    """Not where it is a result, which one line must store."""
    graph = checked(CHANNELS.replace("{more}", more), torch.randn(4, 6, 10, 16), torch.rand(6) + 0.5)
    assert len(graph.kernels()) == kernels, show(graph)[0]
