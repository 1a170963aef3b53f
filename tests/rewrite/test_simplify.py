"""Simplification: what goes away, what must stay, and that values and aliasing are as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from fuselens.rewrite.simplify import simplify

aten = torch.ops.aten


def traced(fn: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    return make_fx(lambda *args: fn(*args), tracing_mode="fake")(*inputs)


def targets(gm: fx.GraphModule) -> list[str]:
    return [str(n.target).removeprefix("aten.") for n in gm.graph.nodes if n.op == "call_function"]


def simplified(fn: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    gm = simplify(traced(fn, *inputs))
    gm.graph.lint()
    expected = fn(*(t.clone() for t in inputs))
    actual = gm(*(t.clone() for t in inputs))
    torch.testing.assert_close(actual, expected)
    assert all("val" in n.meta for n in gm.graph.nodes if n.op == "call_function")
    return targets(gm)


X = torch.randn(4, 6)


CASES: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "repeated": (lambda x: x.exp() * x.exp(), ["exp.default", "mul.Tensor"]),
    "repeated views": (lambda x: x.t() @ x.t().t(), ["t.default", "t.default", "mm.default"]),
    "different constants": (lambda x: (x * 1.0 + 1) + (x + 1.0), ["add.Tensor", "add.Tensor", "add.Tensor"]),
    "same view": (lambda x: x.view(4, 6) + 1, ["add.Tensor"]),
    "lazy conjugate": (lambda x: aten._conj.default(torch.complex(x, x)) * 2,
                       ["complex.default", "_conj.default", "clone.default", "mul.Tensor"]),
    "same expand": (lambda x: x.expand(4, 6) + 1, ["add.Tensor"]),
    "clone of a temporary": (lambda x: (x + 1).clone() * 2, ["add.Tensor", "mul.Tensor"]),
    "clone for the caller": (lambda x: x.clone(), ["clone.default"]),
    "clone that transposes": (lambda x: x.t().contiguous() + 1, ["t.default", "clone.default", "add.Tensor"]),
    "neutral": (lambda x: (x * 1 - 0) / 1 + 2, ["add.Tensor"]),
    "adding zero is not neutral": (lambda x: x + 0.0, ["add.Tensor"]),
    "neutral for the caller": (lambda x: x * 1, ["mul.Tensor"]),
    "there and back": (lambda x: x.half().float().half() + 1, ["_to_copy.default", "add.Tensor"]),
    "narrowing stays": (lambda x: x.half().float() + 1, ["_to_copy.default", "_to_copy.default", "add.Tensor"]),
    "folded": (lambda x: x * (torch.full((), 2.0) * 3 + 1), ["full.default", "mul.Tensor"]),
    "dead": (lambda x: (x.exp(), x + 1)[1], ["add.Tensor"]),
    "conjugate": (lambda x: x + torch.view_as_complex(x.view(4, 3, 2)).conj().real.sum(), [
        "view.default", "view_as_complex.default", "_conj.default", "_conj.default", "view_as_real.default", "select.int",
        "sum.default", "add.Tensor"]),
    "two results do not become one": (lambda x: (x + 1, x + 1), ["add.Tensor", "add.Tensor"]),
    "in place on a temporary": (lambda x: (x * 2).add_(1) * 3, ["mul.Tensor", "add.Tensor", "mul.Tensor"]),
    "in place under a view": (lambda x: (lambda y: (y.t(), y.add_(1))[0] * 3)(x * 2),
                              ["mul.Tensor", "t.default", "add_.Tensor", "mul.Tensor"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_simplify(name: str) -> None:
    fn, expected = CASES[name]
    assert simplified(fn, X) == expected


def test_random_operators_are_not_shared() -> None:
    gm = simplify(traced(lambda x: torch.rand_like(x) + torch.rand_like(x), X))
    assert targets(gm).count("rand_like.default") == 2


def test_spans_stay() -> None:
    gm = traced(lambda x: x.exp() * x.exp().clone(), X)
    for number, node in enumerate(gm.graph.nodes):
        node.meta["span"] = number
    kept = {n.name: n.meta["span"] for n in gm.graph.nodes}
    gm = simplify(gm)
    assert all(n.meta["span"] == kept[n.name] for n in gm.graph.nodes)


@pytest.mark.parametrize(
    ("made", "given"),
    [
        (["mul.Tensor"], {}),
        (["mul.Tensor", "add.Tensor"], {"bias": True}),
        (["mul.Tensor"], {"dtype": torch.bfloat16}),
        (["mul.Tensor"], {"memory": torch.channels_last}),
        (["convolution.default"], {"bias": True, "dtype": torch.bfloat16}),
        (["convolution.default"], {"kernel": 2}),
        (["convolution.default"], {"groups": 1}),
        (["convolution.default"], {"stride": 2}),
        (["convolution.default"], {"padding": 1}),
    ],
    ids=str,
)
def test_points_of_channels(made: list[str], given: dict[str, Any]) -> None:
    """A convolution that multiplies each element by its channel's weight is a product; others stay."""
    how = dict(given)
    dtype, kernel, groups = how.pop("dtype", torch.float32), how.pop("kernel", 1), how.pop("groups", 3)
    x = torch.randn(2, 3, 4, 5).to(dtype, memory_format=how.pop("memory", torch.contiguous_format))
    weight, bias = torch.randn(3, 3 // groups, 1, kernel, dtype=dtype), how.pop("bias", False)
    offset = torch.randn(3, dtype=dtype) if bias else None
    fn = lambda x, w, *b: torch.nn.functional.conv2d(x, w, *b, groups=groups, **how)  # noqa: E731
    given_ = (x, weight) if offset is None else (x, weight, offset)
    gm = simplify(traced(fn, *given_))
    torch.testing.assert_close(gm(*given_), fn(*given_))
    assert [t for t in targets(gm) if t != "view.default"] == made
