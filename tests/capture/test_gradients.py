"""``torch.autograd.grad`` inside compiled functions: first and second derivatives, what cannot be inside the graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fuselens

from .programs import Program, Programs, t, verify

PROGRAMS = Programs()
case = PROGRAMS.case


@case(t(3, grad=True))
def first(x):
    y = (x**2).sum()
    (g,) = torch.autograd.grad(y, x)
    return g * 2, g.requires_grad, y.detach()


@case(t(3, grad=True))
def differentiable(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return (g**2).sum() + y


@case(t(3, grad=True), breaks="FL122")
def freed(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x)
    try:
        y.backward()
    except RuntimeError as e:
        return str(e)[:40], g


@case(t(3, grad=True))
def kept(x):
    y = (x**3).sum()
    a = torch.autograd.grad(y, x, retain_graph=True)
    return a, torch.autograd.grad(outputs=[y], inputs=[x])


@case(t(3, grad=True), t(3, grad=True, seed=1))
def unused(x, z):
    y = (x**2).sum()
    a = torch.autograd.grad(y, [x, z], allow_unused=True, retain_graph=True)
    return a, torch.autograd.grad(y, (x, z), materialize_grads=True)


@case(t(3, grad=True), t(3, grad=True, seed=1), breaks="FL107")
def refused(x, z):
    try:
        return torch.autograd.grad((x**2).sum(), [x, z])
    except RuntimeError as e:
        return str(e)


@case(t(3), breaks="FL122")
def without_gradients(x):
    try:
        return torch.autograd.grad(x.sum(), x)
    except RuntimeError as e:
        return str(e)


@case(lambda: t(3, grad=True) * 2, breaks="FL122")
def history_outside(x):
    return torch.autograd.grad((x**2).sum(), x)[0] + 1


@case(t(3, grad=True))
def of_intermediates(x):
    h = torch.tanh(x)
    y = (h**2).sum()
    return torch.autograd.grad(y, h, create_graph=True)[0] * h


@case(t(3, grad=True), t(3))
def weighted(x, v):
    y = torch.sin(x)
    return torch.autograd.grad(y, x, v, create_graph=True)[0] + y


@case(t(3, grad=True))
def under_no_grad(x):
    y = (x * 2).mul_(3).sin().sum()
    with torch.no_grad():
        return torch.autograd.grad(y, x)[0] * 2


@case(t(2, 3, grad=True))
def penalty(x):
    y = torch.tanh(x).sum(1)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return ((g.norm(dim=1) - 1) ** 2).mean() + y.mean()


@case(t(3, grad=True))
def twice(x):
    (g,) = torch.autograd.grad((x**4).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    return h.sum() + g.sum()


@case(t(3, grad=True), breaks="FL104")
def looking_for_anomalies(x):
    with torch.autograd.detect_anomaly(check_nan=False):
        return (x * 2).sum()


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, positions):
        energy = self.net(positions).sum()
        return energy, -torch.autograd.grad(energy, positions, create_graph=self.training)[0]


@case(lambda: Energy(), t(4, 3, grad=True))
def forces(m, positions):
    energy, force = m(positions)
    return energy + (force**2).sum()


@case(lambda: Energy().eval(), t(4, 3, grad=True))
def forces_only(m, positions):
    return m(positions)[1]


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_agrees_with_eager(program: Program, backend: str) -> None:
    verify(program, backend)


def slope(x):
    return torch.autograd.grad((x**2).sum(), x)[0]


def test_leaves_and_hooks_are_guarded() -> None:
    function = fuselens.compile(slope, backend="eager")
    plain = t(3, grad=True)
    expected = slope(plain)
    assert torch.equal(function(plain), expected)
    watched = t(3, grad=True)
    watched.register_hook(lambda g: g * 3)
    assert torch.equal(function(watched), slope(watched))
    behind = t(3, grad=True) * 1
    assert torch.equal(function(behind), slope(behind))
    assert torch.equal(function(plain), expected)
    assert len(function.__fuselens__.recorder.report.graphs) >= 2
