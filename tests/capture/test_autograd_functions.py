"""torch.autograd.Function: forward, backward and double backward as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import fuselens
from fuselens.capture.breaks import GraphBreakError

from .harness import agrees_with_eager, check_training

factor = torch.tensor(3.0, dtype=torch.float64)


def tensor(*shape: int, grad: bool = True) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)
    return made.requires_grad_(grad)


class Power(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, n: int = 2) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.n = n
        return x**n

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.n * x ** (ctx.n - 1), None


class Linear(Function):
    """With setup_context, several outputs, a tensor kept as an attribute, and gradients only where they are needed."""

    @staticmethod
    def forward(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        y = x @ w
        return (y if bias is None else y + bias), x.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.total = output[1]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        gx = g @ w.t() + h * ctx.total.detach() if ctx.needs_input_grad[0] else None
        gw = x.t() @ g if ctx.needs_input_grad[1] else None
        return gx, gw, g.sum(0) if ctx.needs_input_grad[2] else None


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


class Sort(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        values, order = x.sort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        ctx.shape = x.shape
        return values, order

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, _: Any) -> torch.Tensor:
        (order,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=g.dtype).scatter(1, order, g)


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.cos(), None)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        cos, nothing = ctx.saved_tensors
        assert nothing is None
        return g * cos


class Missing(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor | None, b: torch.Tensor | None) -> Any:
        found = None
        if a is not None:
            found = a * 3
        if b is not None:
            found = b * 5 if found is None else found + b * 5
        return found


class StraightThrough(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.hardtanh(g) * factor


class Identity(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return -g


class Flat(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.shape = x.shape
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g.view(ctx.shape) * 5


class Nested(Function):
    """Calls another function in its forward and in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, keep: dict[str, Any]) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.keep = keep
        return Power.apply(x, 3) * keep["scale"]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * 3 * Power.apply(ctx.saved_tensors[0], 2) * ctx.keep["scale"], None


class Strided(Function):
    """Decides by the layout of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        if not g.is_contiguous():
            g = g.contiguous()
        return g.view(-1).view(g.shape) * 2


class Mixed(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x.sin(), 7, None

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, *rest: Any) -> Any:
        assert rest == (None, None)
        return g * 2


class Asks(Function):
    """Asks its context what it has."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        assert not hasattr(ctx, "scale") and hasattr(ctx, "save_for_backward")
        ctx.scale = 3
        return x * getattr(ctx, "scale", 1) * getattr(ctx, "other", 2)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        try:
            return g * ctx.other
        except AttributeError as e:
            return g * ctx.scale * len(str(e))


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([tensor(4, 4).detach() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, w in enumerate(self.weights):
            x, _ = Linear.apply(x, w)
            x = Power.apply(x, i + 1)
        return x


def made_here(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda a: Power.apply(a, 2) * a, x, use_reentrant=False)


power = Power.apply
CASES: dict[str, Callable[..., Any]] = {
    "old style": lambda x: Power.apply(x, 3) + Power.apply(x) + power(x, 1),
    "setup_context": lambda x: Linear.apply(x, x * 2),
    "not all inputs need gradients": lambda x: Linear.apply(x.detach(), x * 2),
    "no input needs gradients": lambda x: Linear.apply(x.detach(), x.detach())[0] + x,
    "in place": lambda x: InPlace.apply(x * 1) + 1,
    "in place, the very object": lambda x: written_in_place(x * 1),
    "not differentiable": lambda x: Sort.apply(x),
    "once differentiable": lambda x: Once.apply(x),
    "missing gradients": lambda x: Missing.apply(x),
    "missing gradients, first": lambda x: Missing.apply(x)[0],
    "missing gradients, second": lambda x: Missing.apply(x)[1] * 2,
    "closes over a tensor": lambda x: StraightThrough.apply(x),
    "returns its input": lambda x: Identity.apply(x),
    "returns a view": lambda x: Flat.apply(x) * 2,
    "nested": lambda x: Nested.apply(x, {"scale": 2.0}),
    "decides by layout": lambda x: Strided.apply(x).sum(0).expand(3, 4),
    "numbers among the outputs": lambda x: Mixed.apply(x),
    "asks its context": lambda x: Asks.apply(x),
    "in a checkpoint": made_here,
    "under no_grad": lambda x: under_no_grad(x),
}


def written_in_place(x: torch.Tensor) -> Any:
    y = InPlace.apply(x)
    return y is x, x * 3, y


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_keywords(backend: str) -> None:
    """Torch 2.11 takes none."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return Linear.apply(x, w=x * 2, bias=x[0])

    x = tensor(4, 4)
    try:
        f(x)
    except TypeError:
        agrees_with_eager(f, (x,), backend=backend)
    else:
        check_training(f, x, backend=backend, breaks=0)


def under_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = Power.apply(x, 3)
    return y + x


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_functions(name: str, backend: str) -> None:
    report = check_training(CASES[name], tensor(4, 4), backend=backend, breaks=0)
    falls_back = backend == "aot_eager" and name in ("returns its input", "returns a view")
    assert [d.code for d in report.diagnostics] == ["FL301"] * falls_back


@pytest.mark.parametrize("name", ["old style", "setup_context", "not differentiable", "returns a view", "nested"])
def test_sizes_that_change(name: str) -> None:
    compiled = fuselens.compile(CASES[name], backend="aot_eager")
    for n in (3, 4, 5):
        results = []
        for f in (CASES[name], compiled):
            x = tensor(n, n)
            y = f(x)
            (y if isinstance(y, torch.Tensor) else y[0]).sin().sum().backward()
            results.append((y, x.grad))
        torch.testing.assert_close(results[1], results[0])


def test_in_a_module() -> None:
    for backend in ("eager", "aot_eager"):
        check_training(Layers(), tensor(4, 4), backend=backend, breaks=0)


@pytest.mark.parametrize("name", ["old style", "setup_context", "nested", "in place"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_double_backward(name: str, backend: str) -> None:
    f = CASES[name]

    def derivatives(function: Callable[..., Any]) -> Any:
        x = tensor(4, 4)
        y = function(x)
        total = (y if isinstance(y, torch.Tensor) else y[0]).sin().sum()
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        return first, torch.autograd.grad((first**2).sum(), x)[0]

    for e, a in zip(derivatives(f), derivatives(fuselens.compile(f, backend=backend)), strict=True):
        torch.testing.assert_close(a, e)


def test_once_differentiable_refuses_double_backward() -> None:
    x = tensor(4)
    y = fuselens.compile(CASES["once differentiable"], backend="eager")(x)
    (first,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_a_changed_backward_recompiles() -> None:
    class Changing(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    def f(x: torch.Tensor) -> torch.Tensor:
        return Changing.apply(x)

    def doubled(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 4

    compiled = fuselens.compile(f, backend="eager")
    for expected in (2.0, 4.0):
        x = tensor(3)
        compiled(x).sum().backward()
        assert x.grad is not None and bool((x.grad == expected).all())
        Changing.backward = staticmethod(doubled)  # type: ignore[assignment]


class Prints(Power):
    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        print("backward")
        return g, None


class GradMode(Power):
    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        with torch.no_grad():
            return g * 2, None


class Raises(Power):
    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        raise ValueError("no gradient")


class Remembers(Power):
    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        ctx.count = getattr(ctx, "count", 0) + 1
        return g * ctx.count, None


class Effects(Function):
    calls: list[int] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Effects.calls.append(1)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


@pytest.mark.parametrize("function", [Prints, GradMode, Remembers, Effects])
def test_functions_that_run_eagerly(function: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return function.apply(x) + 1

    assert check_training(f, tensor(4)).breaks
    with pytest.raises(GraphBreakError):
        fuselens.compile(f, backend="eager", fullgraph=True)(tensor(4))


def test_a_backward_that_raises() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return Raises.apply(x) + 1

    y = fuselens.compile(f, backend="eager")(tensor(4))
    with pytest.raises(ValueError, match="no gradient"):
        y.sum().backward()


def test_inside_a_function_transform() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda a: Linear.apply(a, a)[0].sum())(x)

    check_training(f, tensor(4, 4, grad=False))
