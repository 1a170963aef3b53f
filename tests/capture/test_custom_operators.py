"""Operators of torch.library, and torch.utils._pytree."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.parametrize as parametrize
from torch.nn.utils import parametrizations, stateless

import fuselens
from fuselens.capture.breaks import GraphBreakError
from fuselens.torch_private import PYTREE as pytree

from .harness import agrees_with_eager, check_training


def tensor(*shape: int, grad: bool = False) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return made.requires_grad_(grad)


@torch.library.custom_op("fuselens_tests::sine", mutates_args=())
def sine(x: torch.Tensor, k: float = 1.0) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.detach().numpy() * k))


@sine.register_fake
def _(x: torch.Tensor, k: float = 1.0) -> torch.Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.k = inputs[1]


def _derivative(ctx: Any, g: torch.Tensor) -> Any:
    return g * ctx.k * (ctx.saved_tensors[0] * ctx.k).cos(), None


sine.register_autograd(_derivative, setup_context=_keep)


@torch.library.custom_op("fuselens_tests::fill", mutates_args={"x"})
def fill(v: float, x: torch.Tensor) -> None:
    x.fill_(v)


@torch.library.custom_op("fuselens_tests::fill_and_add", mutates_args={"x"})
def fill_and_add(x: torch.Tensor, v: float) -> torch.Tensor:
    x.fill_(v)
    return x + 1


@fill_and_add.register_fake
def _(x: torch.Tensor, v: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("fuselens_tests::writes_first", mutates_args={"x"})
def writes_first(x: torch.Tensor, y: torch.Tensor) -> None:
    x.copy_(y.sum().expand_as(x))


@torch.library.custom_op("fuselens_tests::pair", mutates_args=())
def pair(x: torch.Tensor, ys: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return x + ys[0], x * 2


@pair.register_fake
def _(x: torch.Tensor, ys: list[torch.Tensor]) -> Any:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("fuselens_tests::shapeless", mutates_args=())
def shapeless(x: torch.Tensor) -> torch.Tensor:
    return x * 2


torch.library.define("fuselens_tests::times", "(Tensor x, int n) -> Tensor")


@torch.library.impl("fuselens_tests::times", "CPU")
def _times(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n


torch.library.define("fuselens_tests::untold", "(Tensor x) -> Tensor")


@torch.library.impl("fuselens_tests::untold", "CPU")
def _untold(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.register_fake("fuselens_tests::times")
def _(x: torch.Tensor, n: int) -> torch.Tensor:
    return torch.empty_like(x)


ops = torch.ops.fuselens_tests


def writes(x: torch.Tensor) -> Any:
    y = x.detach().clone()
    fill(3.0, y)
    return y + x


def writes_an_argument(x: torch.Tensor) -> torch.Tensor:
    ops.fill(2.0, x[0])
    return x * 2


def writes_and_returns(x: torch.Tensor) -> Any:
    y = x.detach().clone()
    return fill_and_add(y, 3.0), y + x


def writes_often(x: torch.Tensor) -> Any:
    y, z = x.detach().clone(), torch.zeros(2, 3, 4, dtype=x.dtype)
    for k in range(3):
        fill(float(k), y[k])
        ops.fill.default(x=z[:, :, k], v=k / 2)
    fill_and_add(z[1], 9.0)
    return y * 2, z, z[0] + y


OPERATORS: dict[str, Callable[..., Any]] = {
    "wrapper": lambda x: sine(x, 2.0) * 2,
    "packet and overload": lambda x: ops.sine(x, k=3.0) + ops.sine.default(x),
    "a list of tensors, two results": lambda x: pair(x, [x.sin()]),
    "defined by schema": lambda x: ops.times(x, 3),
    "writes": writes,
    "writes an argument": writes_an_argument,
    "writes and returns": writes_and_returns,
    "writes parts": writes_often,
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_custom_operators(name: str, backend: str) -> None:
    report = agrees_with_eager(OPERATORS[name], (tensor(3, 4),), backend=backend, breaks=0, graphs=1)
    assert not report.diagnostics


@pytest.mark.parametrize("name", [name for name in OPERATORS if name.startswith("writes")])
def test_operators_that_write_with_kernels(name: str) -> None:
    report = agrees_with_eager(OPERATORS[name], (tensor(3, 4),), backend="fuselens", breaks=0, graphs=1)
    assert not report.diagnostics


def test_an_operator_that_is_registered_again() -> None:
    """As when a notebook's cell runs again."""
    x = tensor(3)
    for k in (1.0, 2.0):
        plain = torch.library.custom_op(
            "fuselens_tests::again", lambda x, k=k: x.add_(k), mutates_args={"x"}, schema="(Tensor(a!) x) -> ()"
        )

        def f(x: torch.Tensor, plain: Any = plain) -> torch.Tensor:
            y = x * 2
            plain(y)
            return y + 1

        report = agrees_with_eager(f, (x,), backend="fuselens", breaks=0, graphs=1)
        assert not any(d.code == "FL301" for d in report.diagnostics)


def test_memory_that_is_written_and_read() -> None:
    """What such an operator does then is its own affair, so the graph runs as it was captured."""

    def f(x: torch.Tensor) -> Any:
        y = x.detach().clone()
        writes_first(y, y.view(-1))
        return y

    report = agrees_with_eager(f, (tensor(3, 4),), backend="fuselens", breaks=0, graphs=1)
    assert [d.code for d in report.diagnostics] == ["FL301"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_of_custom_operators(backend: str) -> None:
    check_training(OPERATORS["wrapper"], tensor(3, 4, grad=True), backend=backend, breaks=0)
    check_training(lambda x: torch.vmap(lambda a: ops.times(a * 2, 1))(x), tensor(3, 4), backend=backend)


@pytest.mark.parametrize("operator", [shapeless, torch.ops.fuselens_tests.untold])
def test_operators_without_a_shape_function_break_the_graph(operator: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return operator(x.sin()) + 1

    agrees_with_eager(f, (tensor(3),), breaks=1)
    with pytest.raises(GraphBreakError, match=r"FL123.*\n.*\n.*\n.*\n.*register_fake"):
        fuselens.compile(f, backend="eager", fullgraph=True)(tensor(3))


def test_a_branch_may_not_write_through_an_operator() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        def writing(a: torch.Tensor) -> torch.Tensor:
            fill(1.0, a)
            return a.sin()

        return torch.cond(x.sum() > 0, writing, torch.cos, (x,))

    with pytest.raises(GraphBreakError, match="writes to a tensor"):
        fuselens.compile(f, backend="eager", fullgraph=True)(tensor(3))


# --- pytrees ----------------------------------------------------------------------------------------------------

Point = namedtuple("Point", "x y")
spec_outside = pytree.tree_structure({"a": 0, "b": [0, (0, 0)]})


def flatten_and_back(x: torch.Tensor) -> Any:
    leaves, spec = pytree.tree_flatten({"a": x, "b": [x + 1, 3, None]})
    return len(leaves), spec.num_leaves, pytree.tree_unflatten([v if v is None else v * 2 for v in leaves], spec)


TREES: dict[str, Callable[..., Any]] = {
    "map": lambda x: pytree.tree_map(lambda t: t * 2, {"a": x, "b": [x + 1, (x, 2)], "c": Point(x, x)}),
    "map of two": lambda x: pytree.tree_map(lambda a, b: a + b, [x, (x, 1)], [x, (x, 2)]),
    "map, subtrees of the rest": lambda x: pytree.tree_map(lambda a, b: a * b[0] + b[1], [x, x], [(x, 1), [2, x]]),
    "map, is_leaf": lambda x: pytree.tree_map(lambda t: t[0], [(x, 1), (x + 1, 2)], is_leaf=lambda t: isinstance(t, tuple)),
    "map, ordered": lambda x: pytree.tree_map(torch.sin, OrderedDict(z=x, a=x)),
    "map_only": lambda x: pytree.tree_map_only(torch.Tensor, lambda t: t + 1, [x, 3, {"k": x}, None]),
    "map_only, types": lambda x: pytree.tree_map_only((int, float), lambda t: t + 1, [x, 3, 2.5]),
    "map_only, predicate": lambda x: pytree.tree_map_only(lambda t: t is not x, lambda t: t + 1, [x, 3]),
    "leaves": lambda x: pytree.tree_leaves([x, {"z": x, "n": 3}]),
    "any and all": lambda x: (pytree.tree_all(lambda t: t.ndim == 2, [x, x]), pytree.tree_any(lambda t: t.ndim > 2, [x]),
                              pytree.tree_any_only(int, lambda n: n > 2, [x, 3])),
    "flatten and unflatten": flatten_and_back,
    "a structure from outside": lambda x: pytree.tree_unflatten([x, x + 1, x + 2, 7], spec_outside),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_pytrees(name: str) -> None:
    agrees_with_eager(TREES[name], (tensor(3, 4),), breaks=0)


def test_a_structure_leaves_the_frame() -> None:
    def f(x: torch.Tensor) -> Any:
        leaves, spec = pytree.tree_flatten({"a": x, "b": [x]})
        return leaves, spec

    agrees_with_eager(f, (tensor(3),))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: pytree.tree_map(lambda a, b: a + b, [x, x], [x]),
        lambda x: pytree.tree_unflatten([x], spec_outside),
        lambda x: pytree.tree_map(torch.sin, {"s": {1, 2}, "x": x}),
    ],
)
def test_errors_of_pytrees(f: Callable[..., Any]) -> None:
    agrees_with_eager(f, (tensor(3),))


# --- parametrised modules ---------------------------------------------------------------------------------------


class Symmetric(torch.nn.Module):
    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


def parametrised(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 4, dtype=torch.float64)
    if kind == "symmetric":
        parametrize.register_parametrization(linear, "weight", Symmetric())
        return linear
    return getattr(parametrizations, kind)(linear).eval()


@pytest.mark.parametrize("kind", ["symmetric", "weight_norm", "spectral_norm", "orthogonal"])
def test_parametrised_modules(kind: str) -> None:
    check_training(parametrised(kind), tensor(3, 4, grad=True), breaks=0)


def test_parameters_replaced_in_their_table() -> None:
    linear = torch.nn.Linear(4, 4, dtype=torch.float64)

    def f(x: torch.Tensor) -> Any:
        return stateless.functional_call(linear, {"bias": x[0]}, (x,)), linear(x)

    with pytest.warns(FutureWarning):
        agrees_with_eager(f, (tensor(3, 4),))


def test_norms_of_gradients() -> None:
    linear = torch.nn.Linear(4, 4, dtype=torch.float64)
    given = [tensor(4, 4), tensor(4)]

    def clip(limit: float) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(linear.parameters(), limit)

    compiled = fuselens.compile(clip, backend="eager")
    for limit in (0.1, 100.0):
        results = []
        for f in (clip, compiled):
            for p, g in zip(linear.parameters(), given, strict=True):
                p.grad = g.clone()
            results.append((f(limit), [p.grad for p in linear.parameters()]))
        torch.testing.assert_close(results[1], results[0])
    assert not compiled.__fuselens__.recorder.report.breaks
    agrees_with_eager(lambda x: torch.nn.utils.get_total_norm([x, x * 2]), (tensor(3, 4),), breaks=0)
    agrees_with_eager(lambda x: torch.nn.utils.get_total_norm([x, x.float()]), (tensor(3, 4),))  # two groups
    agrees_with_eager(lambda x: torch.nn.utils.parameters_to_vector([x, x * 2]), (tensor(3, 4),), breaks=0)


def test_padded_sequences() -> None:
    agrees_with_eager(
        lambda x: torch.nn.utils.rnn.pad_sequence([x, x[:2]], batch_first=True), (tensor(3, 4),), breaks=0
    )

    def packed(x: torch.Tensor) -> Any:
        made = torch.nn.utils.rnn.pack_padded_sequence(x * 2, torch.tensor([4, 3, 2]), batch_first=True)
        return torch.nn.utils.rnn.pad_packed_sequence(made, batch_first=True)

    agrees_with_eager(packed, (tensor(3, 4, 1),))
