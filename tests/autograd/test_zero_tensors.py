"""Derivatives that are zero, which torch makes as tensors without memory: values as eager's, infinities included."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, hessian, jvp, vmap

import fuselens

BACKENDS = ["default", "aot_eager"]


def compiled(f: Callable[..., Any], backend: str) -> Callable[..., Any]:
    return fuselens.compile(f) if backend == "default" else fuselens.compile(f, backend=backend)


def net(n: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(n, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(16, 16, 1, padding="same"), nn.BatchNorm2d(16)
        self.last = nn.Linear(1024, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.l1_loss(self.last(torch.flatten(F.relu(self.norm(self.conv(x))) + x)), t)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("collecting", [False, True])
def test_the_second_derivative_of_a_sign_is_viewed(backend: str, collecting: bool) -> None:
    """The gradient of ``l1_loss`` is a sign, whose own is a zero tensor that ``view`` and ``t`` then read."""
    model = Critic()
    x, t = torch.rand(1, 16, 8, 8, requires_grad=True), torch.rand(1)
    go = torch.tensor(1.0, requires_grad=True)

    def f(m: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        (g,) = torch.autograd.grad(m(x, t), x, create_graph=True, grad_outputs=go)
        return g

    def run(f: Callable[..., Any]) -> list[Tensor | None]:
        model.zero_grad()
        go.grad = None
        g = f(model, x, t)
        g.square().sum().backward()
        return [g.detach(), go.grad, *(p.grad for p in model.parameters())]

    expected = run(f)
    before = gc.get_threshold()
    gc.set_threshold(1) if collecting else None
    try:
        found = run(compiled(f, backend))
    finally:
        gc.set_threshold(*before)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grads", [False, True])
def test_forward_over_forward(backend: str, grads: bool) -> None:
    f, x, v = net(), torch.rand(5, 3), torch.rand(5, 3)

    def g(x: Tensor, v: Tensor) -> Tensor:
        return jvp(lambda y: jvp(f, (y,), (v,))[1], (x,), (v,))[1]

    with torch.set_grad_enabled(grads):
        torch.testing.assert_close(compiled(g, backend)(x, v), g(x, v))


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_on_second_derivatives(backend: str) -> None:
    """As networks do that solve differential equations."""
    model, x = net(), torch.rand(5, 3)

    def f(p: Tensor) -> Tensor:
        return model(p).squeeze()

    def loss(x: Tensor) -> Tensor:
        laplacian = vmap(lambda p: hessian(f)(p).diagonal().sum())(x)
        return (laplacian + vmap(grad(f))(x).pow(2).sum(1)).square().sum()

    def run(loss: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
        model.zero_grad()
        value = loss(x)
        value.backward()
        return [value.detach(), *(p.grad for p in model.parameters())]

    torch.testing.assert_close(run(compiled(loss, backend)), run(loss))


def products(z: Tensor) -> list[Tensor]:
    """What is made of a zero tensor of four elements, with infinities and numbers that are none."""
    inf, nan, other = torch.full((4,), math.inf), torch.tensor(math.nan), torch.tensor([1.0, -2.0, 0.0, math.inf])
    return [
        z * inf, inf * z, z * nan, z * math.inf, z.view(2, 2).t() * math.nan, z / other, other / z, z / z, z + other,
        other - z, (z + z) * inf, (z - z) * nan, torch.dot(z, inf), z.clone() * inf, z.sin() * inf, z * z / inf,
        z[1:].expand(2, 3) * inf[:3], z.unsqueeze(0).detach() * inf, torch.zeros(4) * inf, (other * z).sum() * inf,
    ]  # fmt: skip


def test_arithmetic_is_that_of_zero_tensors() -> None:
    """Eager's zero tensors stay zero whatever they are multiplied by; its ``torch.zeros`` do not."""
    from fuselens import torch_private
    from fuselens.autograd import joint

    gm = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    gm.graph.placeholder("x").meta["val"] = fake = torch_private.fake_mode().from_tensor(torch.ones(4))

    def given(x: Tensor) -> list[Tensor]:
        return products(torch._efficientzerotensor((4,)))

    node = gm.graph.call_function(given, (next(iter(gm.graph.nodes)),))
    gm.graph.output(tuple(gm.graph.call_function(lambda s, i: s[i], (node, i)) for i in range(20)))
    made = joint.trace(gm, [fake], grad_enabled=False)
    found = made.module(torch.ones(4))
    expected = products(torch._efficientzerotensor((4,)))
    assert not any(t._is_zerotensor() for t in found)  # all have memory
    torch.testing.assert_close(list(found), [t.clone() for t in expected], equal_nan=True)
