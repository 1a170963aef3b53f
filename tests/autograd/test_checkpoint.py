"""Checkpoint regions and memory budgets, through the whole compiler: what is kept, what is computed again, and when."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import fuselens
from fuselens.record.report import Graph


def block(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    return F.gelu(x @ v) @ w


def blocks(x: Tensor, *weights: Tensor) -> Tensor:
    for v, w in zip(weights[::2], weights[1::2], strict=True):
        x = x + checkpoint(block, x, v, w, use_reentrant=False)
    return x.sum()


def leaves(count: int) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(16, 32)] + [(32, 64), (64, 32)] * count
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]


def graph_of(fn: Callable[..., Any], *args: Any, **options: Any) -> Graph:
    report = fuselens.explain(fn, **options)(*args)
    (graph,) = report.graphs
    assert not graph.fallback and not report.diagnostics
    return graph


def saved(graph: Graph) -> dict[str, int]:
    """What is kept from forward to backward, inputs apart: name → bytes."""
    return {d.subject: d.data["bytes"] for d in graph.decisions if d.code == "FL310" and d.data["source"] != "input"}


def text(graph: Graph, stage: str) -> str:
    return next(s.text for s in graph.stages if s.name == stage)


def agree(fn: Callable[..., Tensor], args: list[Tensor], **options: Any) -> None:
    wanted = torch.autograd.grad(fn(*args).sum(), args)
    backend = options.pop("backend", "fuselens")
    compiled = fuselens.compile(fn, fullgraph=True, backend=backend, options=options)
    found = torch.autograd.grad(compiled(*args).sum(), args)
    torch.testing.assert_close(found, wanted)


def test_keeps_what_the_checkpoints_are_given() -> None:
    args = leaves(3)
    assert list(saved(graph_of(blocks, *args)).values()) == [16 * 32 * 8] * 2
    agree(blocks, args)


def test_recomputes_just_before_it_is_needed() -> None:
    """The last block is differentiated before anything of the first is computed again."""
    backward = text(graph_of(blocks, *leaves(2)), "backward")
    lines = [line.strip() for line in backward.splitlines() if "erf" in line and "aten.erf" in line]
    positions = [backward.index(line) for line in lines]
    tangent_mm = backward.index("aten.mm.default(t, expand)")
    assert len(lines) == 2 and min(positions) < tangent_mm < max(positions)


def test_nested_checkpoints_are_one() -> None:
    def outer(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return checkpoint(block, x.tanh(), v, w, use_reentrant=False).cos()

    def fn(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return checkpoint(outer, x.exp(), v, w, use_reentrant=False)

    args = leaves(1)
    graph = graph_of(fn, *args)
    assert set(saved(graph).values()) <= {16 * 32 * 8}
    assert text(graph, "backward").count("aten.mm.default") == 2 + 4
    agree(fn, args)


def test_views_and_several_values_leave() -> None:
    def inner(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = (x @ w).tanh()
        return h.t(), h.exp().split(4, 1)[1]

    def fn(x: Tensor, w: Tensor) -> Tensor:
        a, b = checkpoint(inner, x, w, use_reentrant=False)
        return (b @ a[:4]).sin()

    agree(fn, [torch.randn(8, 8, dtype=torch.float64, requires_grad=True) for _ in range(2)])


@pytest.mark.parametrize("preserve", [True, False])
def test_dropout_in_a_checkpoint(preserve: bool) -> None:
    """The backward uses the mask of the forward: gradients are where the output is."""

    def fn(x: Tensor) -> Tensor:
        return checkpoint(lambda a: F.dropout(a.exp(), 0.5), x, use_reentrant=False, preserve_rng_state=preserve)

    x = torch.zeros(1000, requires_grad=True)
    out = fuselens.compile(fn, fullgraph=True)(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, out.detach()) and 300 < int((out == 0).sum()) < 700


def test_modules_in_checkpoints() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    torch.manual_seed(0)
    model, x = Model().double(), torch.randn(4, 8, dtype=torch.float64)
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    out = fuselens.compile(model, fullgraph=True)(x)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), list(model.parameters())), wanted)


def keep_products(context: Any, function: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    wanted = function is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if wanted else CheckpointPolicy.PREFER_RECOMPUTE


def contexts_of_policy() -> Any:
    return create_selective_checkpoint_contexts(keep_products)


CONTEXTS = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])


@pytest.mark.parametrize("given", [contexts_of_policy, CONTEXTS, None], ids=["function", "partial", "made inside"])
def test_selective_checkpoints(given: Any) -> None:
    def fn(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        contexts = given
        if contexts is None:
            contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)
        return checkpoint(block, x, v, w, use_reentrant=False, context_fn=contexts).sum()

    args = leaves(1)
    graph = graph_of(fn, *args)
    assert list(saved(graph).values()) == [16 * 64 * 8]
    assert any("policy" in d.reason for d in graph.decisions if d.code == "FL310")
    assert text(graph, "backward").count("aten.mm.default") == 4
    agree(fn, args)
    agree(fn, args, backend="eager")


def test_contexts_of_other_kinds_run_eagerly() -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def watch(what: str) -> Iterator[None]:
        entered.append(what)
        yield

    def fn(x: Tensor) -> Tensor:
        return checkpoint(torch.sin, x, use_reentrant=False, context_fn=lambda: (watch("forward"), watch("again")))

    x = torch.randn(4, requires_grad=True)
    (grad,) = torch.autograd.grad(fuselens.compile(fn)(x).sum(), x)
    torch.testing.assert_close(grad, x.cos())
    assert entered == ["forward", "again"]


def deep(x: Tensor, *weights: Tensor) -> Tensor:
    for w in weights:
        x = F.gelu(x @ w).sin()
    return x


def test_memory_budget() -> None:
    args = [torch.randn(32, 16, dtype=torch.float64, requires_grad=True)]
    args += [torch.randn(16, 16, dtype=torch.float64, requires_grad=True) for _ in range(5)]
    kept = [sum(saved(graph_of(deep, *args, memory_budget=b)).values()) for b in (1.0, 0.5, 0.0)]
    assert kept[0] >= 2 * kept[1] > 2 * kept[2] == 0
    for budget in (0.0, 0.3, 1.0):
        agree(deep, args, memory_budget=budget)


@pytest.mark.parametrize("budget", [-0.1, 1.5, float("nan")])
def test_a_budget_that_is_none(budget: float) -> None:
    with pytest.raises(ValueError, match="memory_budget"):
        fuselens.compile(deep, options={"memory_budget": budget})
