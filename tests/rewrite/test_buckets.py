"""Collectives in buckets: a graph gives the same with them, in an order in which everything is computed before it is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fuselens.ir.collectives import OWN
from fuselens.rewrite.buckets import bucket_collectives

own = torch.ops.fuselens
RANKS = 3


class OnThree(fx.Interpreter):
    """Rank 1 of three that have the same, but for a factor."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target not in OWN:
            return super().call_function(target, args, kwargs)
        x = args[0]
        everybodys = [x * k for k in range(1, RANKS + 1)]
        if target is own.all_gather_into_tensor.default:
            return torch.cat(everybodys)
        whole = torch.stack(everybodys).sum(0) if args[1] == "sum" else torch.stack(everybodys).amax(0)
        return whole if target is own.all_reduce.default else whole.chunk(RANKS)[1].clone()


def calls(graph: fx.Graph) -> list[str]:
    return [str(node.target).split(".")[1] for node in graph.nodes if node.target in OWN]


def check(fn: Any, *inputs: Tensor, most: int = 1 << 20) -> tuple[list[str], list[str]]:
    """The collectives of the rewritten graph, and what is told of buckets."""
    module = make_fx(fn, tracing_mode="fake")(*inputs)
    expected = OnThree(module).run(*inputs)
    decisions = bucket_collectives(module, most)
    module.graph.lint()
    torch.testing.assert_close(OnThree(module).run(*inputs), expected)
    before: Any = None
    for node in module.graph.nodes:  # the order of collectives is kept by what they take
        if node.target in OWN:
            assert node.args[-1] is before
            before = node
    return calls(module.graph), [d.subject for d in decisions]


def reduce(x: Tensor, after: Tensor | None, op: str = "sum", group: str = "0") -> Tensor:
    return own.all_reduce.default(x, op, group, after)


def test_alike_ones_are_one() -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        a = reduce(x, None)
        b = reduce(y, a)
        c = reduce(x.t(), b)
        return a, b + 1, c

    assert check(fn, torch.randn(3, 4), torch.randn(5)) == (["all_reduce"], ["3 × all_reduce"])


@pytest.mark.parametrize("what", ["operation", "dtype", "group", "kind", "size"])
def test_others_stay_apart(what: str) -> None:
    def fn(x: Tensor) -> Any:
        a = reduce(x, None)
        b = {
            "operation": lambda: reduce(x, a, "max"),
            "dtype": lambda: reduce(x.double(), a),
            "group": lambda: reduce(x, a, group="1"),
            "kind": lambda: own.all_gather_into_tensor.default(x, RANKS, "0", a),
            "size": lambda: reduce(torch.cat([x] * 100), a),
        }[what]()
        return a, b

    assert check(fn, torch.randn(3, 4), most=1000)[1] == []


def test_what_needs_a_result_is_in_the_next_bucket() -> None:
    def fn(x: Tensor) -> Any:
        a = reduce(x, None)
        early = a.sin()
        b = reduce(x * 2, a)
        c = reduce(early, b)
        d = reduce(x * 3, c)
        return a, b, c, d

    assert check(fn, torch.randn(4))[1] == ["2 × all_reduce", "2 × all_reduce"]


def test_random_numbers_stay_where_they_are_drawn() -> None:
    def fn(x: Tensor) -> Any:
        a = reduce(x, None)
        noise = torch.rand_like(a)
        b = reduce(x * 2, a)
        return noise, torch.rand(4), a, b

    module = make_fx(fn, tracing_mode="fake")(torch.randn(4))
    assert bucket_collectives(module, 1 << 20) == []


KINDS = {
    "all_reduce": lambda x, after: own.all_reduce.default(x, "sum", "0", after),
    "all_gather": lambda x, after: own.all_gather_into_tensor.default(x, RANKS, "0", after),
    "reduce_scatter": lambda x, after: own.reduce_scatter_tensor.default(x, "sum", RANKS, "0", after),
}
STEP = st.tuples(st.sampled_from([*KINDS, "sin", "add"]), st.integers(0, 50), st.integers(0, 50))


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=12), st.sampled_from([100, 1000, 1 << 20]))
def test_any_program(steps: list[tuple[str, int, int]], most: int) -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        values, after = [x, y], None
        for kind, i, j in steps:
            value = values[i % len(values)]
            if kind == "sin":
                values.append(value.sin())
            elif kind == "add":
                values.append(value + values[j % len(values)].sum())
            elif kind != "reduce_scatter" or value.shape[0] % RANKS == 0:
                after = KINDS[kind](value, after)
                values.append(after)
        return values

    check(fn, torch.randn(6, 2), torch.randn(9))
