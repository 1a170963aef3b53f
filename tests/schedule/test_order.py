"""Order and memory: fewer bytes alive, memory taken over, effects in program order."""

from __future__ import annotations

import re

import pytest
import torch

from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Extern, Graph
from fuselens.ir.text import parse
from fuselens.ir.verify import verify
from fuselens.schedule.fuse import fuse
from fuselens.schedule.order import live_bytes, order

MATMULS = """\
graph g
  input x: f32[8, 8] strides [8, 1]
""" + "".join(f"  buffer {n}: f32[8, 8] strides [8, 1]\n" for n in ("a", "b", "c", "d", "e", "f"))  # fmt: skip


def neg(name: str, source: str, at: str = "8*i0 + i1") -> str:
    return (
        f"  loop {name} [i0 < 8, i1 < 8]\n    t0 = load {source}[8*i0 + i1] : f32\n    t1 = neg t0 : f32\n"
        f"    store {name}[{at}] = t1\n"
    )


def planned(text: str, *inputs: torch.Tensor, donated: tuple[str, ...] = ()) -> Graph:
    graph = parse(text)
    verify(graph)
    result = order(fuse(graph), donated)
    verify(result)
    before, after = [x.clone() for x in inputs], [x.clone() for x in inputs]
    for a, b in zip(evaluate(result, list(after)), evaluate(graph, list(before)), strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(after, before, strict=True):
        torch.testing.assert_close(a, b)
    return result


def peak(graph: Graph) -> int:
    return next(d.data["peak_bytes"] for d in graph.decisions if d.code == "FL412")


def test_memory_of_dead_buffers_is_taken_over() -> None:
    text = MATMULS + neg("a", "x") + "  extern b = aten.mm.default(a, x)\n" + neg("c", "b")
    text += "  extern d = aten.mm.default(c, x)\n" + neg("e", "d") + "  extern f = aten.mm.default(e, x)\n  return f\n"
    graph = planned(text, torch.randn(8, 8))
    assert graph.reuse["c"] == "b"  # in place: the kernel reads b for the last time
    assert graph.reuse["e"] == "d"


def test_bytes_alive_at_each_node() -> None:
    text = MATMULS + neg("a", "x") + "  extern b = aten.mm.default(a, x)\n" + neg("c", "b")
    text += "  extern d = aten.mm.default(c, x)\n" + neg("e", "d") + "  return a, e\n"
    graph = planned(text, torch.randn(8, 8))
    assert graph.reuse["c"] == "b"
    matrix = 8 * 8 * 4
    assert live_bytes(graph) == [
        matrix,
        2 * matrix,
        2 * matrix,
        3 * matrix,
        2 * matrix,
    ]  # a, and e in place of d, are results


def test_in_place_needs_the_same_index() -> None:
    text = MATMULS + "  extern a = aten.mm.default(x, x)\n" + neg("b", "a", at="8*i1 + i0") + neg("c", "b")
    text += "  extern d = aten.mm.default(b, x)\n  extern e = aten.mm.default(d, c)\n  return e\n"
    graph = planned(text, torch.randn(8, 8))
    assert graph.reuse.get("b") != "a"


def test_outputs_and_inputs_keep_their_memory() -> None:
    text = MATMULS + neg("a", "x") + "  extern b = aten.mm.default(a, a)\n" + neg("c", "b") + "  return c, a, b\n"
    graph = planned(text, torch.randn(8, 8))
    assert graph.reuse == {}


def test_an_output_is_written_in_place_of_a_dead_tensor() -> None:
    text = MATMULS + "  extern a = aten.mm.default(x, x)\n" + neg("b", "a") + "  return b\n"
    x = torch.randn(8, 8)
    assert planned(text, x).reuse == {"b": "a"}
    flat = text.replace("b: f32[8, 8] strides [8, 1]", "b: f32[64] strides [1]")
    assert planned(flat, x).reuse == {"b": "a"}
    later = text.replace("return b", "extern d = aten.mm.default(a, x)\n  return b, d")
    turned = text.replace("store b[8*i0 + i1]", "store b[i0 + 8*i1]")
    longer = text.replace("b: f32[8, 8] strides [8, 1]", "b: f32[9, 8] strides [8, 1]")
    aliased = text.replace("aten.mm.default(x, x)", "aten.view.default(x, [8, 8])")
    for other in (later, turned, aliased):
        assert planned(other, x).reuse == {}
    assert order(fuse(parse(longer))).reuse == {}


def test_only_on_a_gpu_every_dead_buffer_is_a_tensor() -> None:
    text = MATMULS + neg("a", "x") + "  extern d = aten.mm.default(a, a)\n" + neg("b", "a") + "  return b, d\n"
    kernels = re.sub(r"loop (\w) (.*)\n(.*)\n(.*)\n(.*)", r"kernel \1 \2\n    phase []\n  \3\n  \4\n  \5", text)
    for device, reuse in (("", {}), (" on cuda", {"b": "a"})):
        graph = order(parse(kernels.replace("strides [8, 1]", f"strides [8, 1]{device}")))
        verify(graph)
        assert graph.reuse == reuse


def test_donated_inputs_are_overwritten_in_place() -> None:
    text = MATMULS + neg("a", "x") + "  extern b = aten.mm.default(a, a)\n  return b\n"
    x = torch.randn(8, 8)
    assert planned(text, x).reuse == {}
    graph = planned(text, x, donated=("x",))
    assert graph.reuse == {"a": "x"} and graph.overwritten() == ("x",)
    assert live_bytes(graph) == [0, 8 * 8 * 4]
    later = text.replace("(a, a)", "(a, x)")  # read when the kernel has run
    turned = text.replace("store a[8*i0 + i1]", "store a[i0 + 8*i1]")
    result = MATMULS + neg("a", "x") + "  return a\n"
    returned = text.replace("return b", "return b, x")
    for other in (later, turned, result, returned):
        assert planned(other, x, donated=("x",)).reuse == {}


def test_dead_intermediates_come_before_donated_inputs() -> None:
    text = MATMULS + "  extern a = aten.mm.default(x, x)\n"
    text += """\
  loop b [i0 < 8, i1 < 8]
    t0 = load a[8*i0 + i1] : f32
    t1 = load x[8*i0 + i1] : f32
    t2 = add t0, t1 : f32
    store b[8*i0 + i1] = t2
  extern c = aten.mm.default(b, b)
  return c
"""
    assert planned(text, torch.randn(8, 8), donated=("x",)).reuse == {"b": "a"}


def test_operands_run_close_to_their_use() -> None:
    """Four products of which two are alive at a time when each is consumed at once."""
    text = "graph g\n  input x: f32[8, 8] strides [8, 1]\n"
    for k in range(4):
        text += f"  buffer p{k}: f32[8, 8] strides [8, 1]\n  buffer s{k}: f32[8] strides [1]\n"
    for k in range(4):
        text += f"  extern p{k} = aten.mm.default(x, x)\n"
    for k in range(4):
        text += (f"  loop s{k} [i0 < 8] reduce [r0 < 8]\n    t0 = load p{k}[8*i0 + r0] : f32\n"
                 f"    t1 = reduce sum t0 : f32\n    store s{k}[i0] = t1\n")  # fmt: skip
    graph = planned(text + "  return s0, s1, s2, s3\n", torch.randn(8, 8))
    assert peak(graph) == 8 * 8 * 4
    assert [type(n) is Extern for n in graph.nodes] == [True, False] * 4


def test_random_operators_keep_their_order() -> None:
    text = "graph g\n  input x: f32[64] strides [1]\n" + "".join(
        f"  buffer {n}: f32[{size}] strides [1]\n" for n, size in (("a", 64), ("b", 1), ("c", 64), ("d", 64))
    )
    text += "  extern a = aten.rand.default([64])\n  extern b = aten.rand.default([1])\n"
    text += "  extern c = aten.rand_like.default(x)\n"
    text += "  loop d [i0 < 64]\n    t0 = load a[i0] : f32\n    t1 = load c[i0] : f32\n    t2 = add t0, t1 : f32\n"
    text += "    store d[i0] = t2\n  return b, d\n"
    graph = order(fuse(parse(text)))
    assert [n.name for n in graph.externs()] == ["a", "b", "c"]


def test_what_mutates_waits_for_earlier_readers() -> None:
    text = "graph g\n  input x: f32[4] strides [1]\n  buffer a: f32[4] strides [1]\n  buffer b: f32[4] strides [1]\n"
    text += "  extern a = aten.clone.default(x)\n  extern b = aten.neg.default(a)\n"
    text += "  extern w [_] = aten.mul_.Tensor(a, 2.0) mutates [a]\n  return a, b\n"
    graph = order(fuse(parse(text)))
    assert [n.name for n in graph.nodes] == ["a", "b", "w"]
    x = torch.randn(4)
    a, b = evaluate(graph, [x])
    torch.testing.assert_close(a, x * 2)
    torch.testing.assert_close(b, -x)


# --- new values of inputs

SQUARE = "graph g\n" + "".join(f"  input {n}: f32[8, 8] strides [8, 1]\n" for n in ("x", "w")) + "".join(
    f"  buffer {n}: f32[8, 8] strides [8, 1]\n" for n in ("a", "b", "c", "d")
)  # fmt: skip
XW = (torch.randn(8, 8), torch.randn(8, 8))


def verdict(graph: Graph, written: str) -> str:
    (decision,) = [d for d in graph.decisions if d.code == "FL413" and d.subject == written]
    return decision.verdict


def test_a_new_value_is_written_in_place() -> None:
    graph = planned(SQUARE + neg("a", "x") + "  write x = a\n  return None\n", *XW)
    assert graph.reuse == {"a": "x"}
    assert len(graph.nodes) == 1
    assert verdict(graph, "x") == "taken"


def test_readers_of_the_old_value_run_first() -> None:
    text = SQUARE + neg("a", "x") + "  extern b = aten.mm.default(x, x)\n  write x = a\n  return b\n"
    graph = planned(text, *XW)
    assert graph.reuse == {"a": "x"}
    assert isinstance(graph.nodes[0], Extern)


def test_what_is_computed_from_the_new_value_runs_later() -> None:
    text = SQUARE + neg("a", "x") + "  extern b = aten.mm.default(a, a)\n  write x = a\n  return b\n"
    graph = planned(text, *XW)
    assert graph.reuse == {"a": "x"}


REFUSED = {
    "read at another index": SQUARE + neg("a", "x", at="8*i1 + i0") + "  write x = a\n  return None\n",
    "returned as well": SQUARE + neg("a", "x") + "  write x = a\n  return a\n",
    "read after what is computed from the new value": SQUARE + neg("a", "x") + "  extern b = aten.mm.default(a, a)\n"
    "  extern c = aten.mm.default(b, x)\n  write x = a\n  return c\n",
    "computed by an operator": SQUARE + "  extern a = aten.mm.default(x, x)\n  write x = a\n  return None\n",
    "another input": SQUARE + neg("a", "x") + "  write x = w\n  return a\n",
    "what may raise comes later": SQUARE + neg("a", "x") + "  extern b = aten.linalg_inv.default(a)\n"
    "  write x = a\n  return b\n",
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_where_the_old_value_is_needed_a_copy_is_made_at_the_end(case: str) -> None:
    graph = planned(REFUSED[case], *XW)
    assert verdict(graph, "x") == "refused"
    assert graph.writes == {}
    assert graph.nodes[-1].name == "write0"


def test_two_inputs_of_one_value_and_an_exchange() -> None:
    graph = planned(SQUARE + neg("a", "x") + "  write x = a\n  write w = a\n  return None\n", *XW)
    assert {verdict(graph, "x"), verdict(graph, "w")} == {"taken", "refused"}
    planned(SQUARE + neg("a", "x") + neg("b", "w") + "  write x = b\n  write w = a\n  return None\n", *XW)


def copy_and_update(source: str) -> str:
    """``a``: ``x`` with rows of another matrix added at positions from data."""
    return (
        "graph g\n  input at: i64[3] strides [1]\n" + SQUARE.removeprefix("graph g\n")
        + "  view u: f32[8, 8] strides [8, 1] offset 0 of a\n"
        "  loop a [i0 < 8, i1 < 8]\n    t0 = load x[8*i0 + i1] : f32\n    store a[8*i0 + i1] = t0\n"
        "  loop u [i0 < 8] reduce [r0 < 3]\n    t0 = load at[r0] : i64\n    t1 = bounds t0, 8 : i64\n"
        f"    t2 = load {source}[8*r0 + i0] : f32\n    store a[8*%t1 + i0] = sum t2\n"
    )  # fmt: skip


def test_a_few_elements_change_in_place_after_their_positions_are_checked() -> None:
    at = torch.tensor([5, 2, 5])
    text = copy_and_update("w") + "  extern b = aten.mm.default(x, x)\n  write x = a\n  return b\n"
    graph = planned(text, at, *XW)
    assert verdict(graph, "x") == "taken"
    assert graph.reuse == {"a": "x"}
    check, update = graph.kernels()
    assert not check.writes()
    assert [o.op for o in check.ops()] == ["load", "bounds"]
    assert update.writes() == ("a",)


def test_a_copy_that_is_needed_is_updated_and_copied_back() -> None:
    at = torch.tensor([5, 2, 5])
    for text in (
        copy_and_update("x") + "  write x = a\n  return None\n",
        copy_and_update("w") + "  extern b = aten.linalg_inv.default(a)\n  write x = a\n  return b\n",
        copy_and_update("w") + "  write x = a\n  return a\n",
    ):
        graph = planned(text, at, *XW)
        assert verdict(graph, "x") == "refused"
        assert graph.nodes[-1].name == "write0"


def test_nothing_raises_after_a_write() -> None:
    text = SQUARE + neg("a", "x") + "  extern b = aten.linalg_inv.default(w)\n  write x = a\n  return b\n"
    graph = planned(text, *XW)
    assert isinstance(graph.nodes[0], Extern)
    assert graph.reuse == {"a": "x"}
