"""Graphs as straight-line functions: the same results as the program they are of, no memory kept longer than needed."""

from __future__ import annotations

import collections
import gc
import math
import operator
import weakref

import pytest
import torch
from torch import fx

from fuselens.ir.graphs.straight_line import straight_line

Point = collections.namedtuple("Point", "x y")


def traced(fn):
    tracer = fx.Tracer()
    graph = tracer.trace(fn)
    return fx.GraphModule(tracer.root, graph)


def pair(p, q=None):
    return p.x + p.y * (1 if q is None else q)


fx.wrap("pair")

PROGRAMS = {
    "operators": lambda x, y: (x + y, x - 2, -x * y, x @ y, x**-1, -(2**x), x // 2, x % 2, ~(x > y), (x > 1) | (y < 0)),
    "reflected": lambda x, y: (2 - x, -1 / y, (-2) ** (x * 0 + 2)),
    "slices": lambda x, y: (x[0], x[1:], x[..., None, -1], x[::2, y.sum() > 1], x[slice(None, 1)]),
    "keywords": lambda x, y: torch.sum(input=x, dim=(0, 1), keepdim=True) + torch.clamp(y, max=-0.0),
    "containers": lambda x, y: {"sum": [torch.cat([x, y]), (torch.stack((x, y), dim=-1),)], "more": {"x": x}},
    "methods": lambda x, y: x.add(y, alpha=2).t().contiguous().view(-1).unsqueeze_(0),
    "named tuple": lambda x, y: pair(Point(x, y), q=3.5),
    "not a number": lambda x, y: torch.nan_to_num(x / 0, math.nan, posinf=math.inf, neginf=-math.inf) + y,
    "constants": lambda x, y: x.to(torch.float64).new_zeros(torch.Size((2, 3)), device=torch.device("cpu")) + y.sum(),
    "complex": lambda x, y: x * 2j + torch.full_like(y, -1.5),
    "unused": lambda x, y: (x.sum(), x * y)[1],
    "input returned": lambda x, y: (y, x, x),
    "in place": lambda x, y: (x.add_(y), x.mul_(2), y),
    "nothing": lambda x, y: (),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_the_program(name):
    module = traced(PROGRAMS[name])
    first, second = torch.arange(4.0).reshape(2, 2), torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    expected = PROGRAMS[name](first.clone(), second.clone())
    given = first.clone(), second.clone()
    flat, spec = torch.utils._pytree.tree_flatten(straight_line(module)(given))
    wanted, wanted_spec = torch.utils._pytree.tree_flatten(expected)
    assert spec == wanted_spec
    for a, b in zip(flat, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())


def test_submodules_and_attributes_are_bound():
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(2, 2))
            self.register_buffer("scale", torch.tensor(3.0))

        def forward(self, x):
            return self.inner(x) * self.scale + self.inner[0].weight

    module = fx.symbolic_trace(M())
    x = torch.randn(2, 2)
    assert torch.equal(straight_line(module)((x,)), module(x))


def test_values_die_after_their_last_use():
    alive = []

    def probe(x):
        gc.collect()
        alive.append(sum(r() is not None for r in refs))
        return x + 1

    def make(x):
        y = x * 2
        refs.append(weakref.ref(y))
        return y

    refs: list = []
    graph = fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(make, (x,))
    b = graph.call_function(make, (a,))
    c = graph.call_function(torch.add, (a, b))
    d = graph.call_function(probe, (c,))
    graph.output(d)
    straight_line(fx.GraphModule(torch.nn.Module(), graph))((torch.ones(2),))
    assert alive == [0]


def test_many_inputs_and_values():
    graph = fx.Graph()
    inputs = [graph.placeholder(f"p{i}") for i in range(1200)]
    total = inputs[0]
    for node in inputs[1:]:
        total = graph.call_function(operator.add, (total, node))
    graph.output((total,))
    run = straight_line(fx.GraphModule(torch.nn.Module(), graph))
    assert run.__code__.co_nlocals == 2
    assert run(tuple(range(1200))) == (sum(range(1200)),)
