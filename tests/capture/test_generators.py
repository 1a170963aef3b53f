"""Generators of random numbers: given, made, seeded, asked for their state; the default one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fuselens
from fuselens.inputs import comparison

from .programs import Program, Programs, t, verify

PROGRAMS = Programs()
case = PROGRAMS.case


def generator():
    return torch.Generator().manual_seed(7)


@case(lambda: generator(), t(3))
def given(g, x):
    a = torch.rand(3, generator=g) + x, torch.randn(2, generator=g), torch.randint(0, 9, (3,), generator=g)
    b = torch.randperm(4, generator=g), torch.empty(3).normal_(generator=g), torch.empty(3).uniform_(0, 1, generator=g)
    return (
        a,
        b,
        torch.bernoulli(torch.full((3,), 0.5), generator=g),
        torch.multinomial(torch.ones(4), 2, generator=g),
        g.device,
    )


@case(t(3))
def made(x):
    g, h = torch.Generator(), torch.Generator(device="cpu").manual_seed(3)
    g.manual_seed(3)
    return torch.rand(3, generator=g) + x, torch.rand(3, generator=h), h.device


@case(t(3))
def returned(x):
    g = torch.Generator().manual_seed(5)
    return torch.rand(3, generator=g), g.get_state()


@case(lambda: generator(), t(3))
def states(g, x):
    s, h = g.get_state(), g.clone_state()
    a = torch.rand(3, generator=g)
    g.set_state(s)
    b = torch.rand(3, generator=g)
    g.manual_seed(11)
    return a, b, torch.rand(3, generator=g) + x, torch.rand(3, generator=h)


@case(lambda: generator(), t(3), breaks="FL115")
def number(g, x):
    return g.initial_seed(), torch.rand(3, generator=g) + x


@case(t(3))
def default(x):
    a = torch.rand(3, generator=torch.default_generator) + x
    torch.manual_seed(5)
    b = torch.rand(3)
    s = torch.get_rng_state()
    c = torch.rand(3)
    torch.set_rng_state(s)
    return a, b, c, torch.rand(3)


@case(t(3), breaks="FL104 FL105")
def forked(x):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        a = torch.rand(3)
    return a + x, torch.rand(3)


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = generator()

    def forward(self, x):
        return x + torch.rand(3, generator=self.g), self.g.get_state()


@case(lambda: Holder(), t(3))
def held(m, x):
    return m(x)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_agrees_with_eager(program: Program) -> None:
    verify(program)


def noisy(x, g=None):
    return x.sin() + torch.rand(3, generator=g)


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("backend", ["eager", "fuselens"])
def test_calls_with_other_generators(backend: str, fullgraph: bool) -> None:
    function = fuselens.compile(noisy, backend=backend, fullgraph=fullgraph)
    g, h = generator(), generator()
    for a, b in ((g, h), (None, None), (g, h), (generator(), generator()), (torch.default_generator,) * 2):
        torch.manual_seed(1)
        expected = noisy(t(3), a)
        torch.manual_seed(1)
        assert comparison.differ(expected, function(t(3), b), "result") is None
    assert torch.equal(g.get_state(), h.get_state())
    breaks = function.__fuselens__.recorder.report.breaks
    assert {b.code for b in breaks} == ({"FL115"} if backend == "fuselens" and not fullgraph else set())
