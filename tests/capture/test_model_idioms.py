"""Idioms of public model libraries that once broke frames or gave other results."""

from __future__ import annotations

import functools
import types

import pytest
import torch

import fuselens

from .harness import agrees_with_eager

x = torch.tensor([1.0, -2.0, 3.0])


def scaled(x: torch.Tensor, k: int = 2, *, shift: int = 1) -> torch.Tensor:
    """Scales and shifts."""
    return x * k + shift


def logs_usage(x):
    name = scaled.__class__.__name__
    if isinstance(scaled, types.FunctionType):
        name = scaled.__name__
    return scaled(x), name


def wraps_an_existing_function(x):
    @functools.wraps(scaled)
    def inner(x, *args):
        return scaled(x, *args) if args else x

    return inner(x, 3), inner.__name__, inner.__doc__, sorted(inner.__annotations__), inner.__wrapped__ is scaled


def defaults(x):
    return x * scaled.__defaults__[0], scaled.__kwdefaults__


def asks_for_absent_attributes(x):
    return x + 1, hasattr(scaled, "temperature"), getattr(scaled, "temperature", 4)


@torch.jit.script
def softclamp(x: torch.Tensor, limit: float = 2.0):
    return (x / limit).tanh() * limit


@torch.jit.script_if_tracing
def added(x: torch.Tensor, n: int):
    for i in range(n):
        x = x + i
    return x


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.activation = softclamp

    def forward(self, x):
        return softclamp(x, 1.0), self.activation(x), added(x, 3)


class Named(torch.nn.Module):
    def forward(self, x):
        return x + 1, self.forward.__class__, self.forward.__name__


@pytest.mark.parametrize(
    "fn", [logs_usage, wraps_an_existing_function, defaults, asks_for_absent_attributes, Named(), Scripted()]
)
def test_captured_whole(fn):
    agrees_with_eager(fn, (x,), breaks=0)


def test_class_of_a_made_function():
    def f(x):
        def local(x):
            return x * 2

        return local(x), local.__class__, isinstance(local, scaled.__class__)

    agrees_with_eager(f, (x,), breaks=0)


@pytest.mark.parametrize("part", ["annotations", "defaults", "attribute"])
def test_parts_of_functions_are_guarded(part):
    def scaled(x: torch.Tensor, k: int = 2) -> torch.Tensor:
        return x * k

    def f(x):
        return x * scaled.__defaults__[0], list(scaled.__annotations__), hasattr(scaled, "temperature")

    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    assert str(compiled(x)) == str(f(x))
    if part == "annotations":
        scaled.__annotations__["other"] = int
    elif part == "defaults":
        scaled.__defaults__ = (7,)
    else:
        scaled.temperature = 3
    assert str(compiled(x)) == str(f(x))


@pytest.mark.parametrize("rate", [0, 0.0, -1.0, 1.0, 1])
def test_layers_are_skipped_with_a_probability_that_is_known(rate):
    def skips_layers(x, rate):
        for layer in range(2):
            drawn = torch.rand([])
            if drawn < rate:
                continue
            x = x * 2 + layer
        return x, torch.rand(2)

    agrees_with_eager(skips_layers, (x, rate), breaks=0, graphs=1)


def test_layers_are_skipped_with_a_probability_that_is_not_known():
    def skips_layers(x):
        return x * 2 if torch.rand([]) < 0.5 else x

    def draws_and_moves(x):
        drawn = torch.rand([])
        drawn.sub_(2)
        return x * 2 if drawn < 0 else x

    def turns_the_answer(x):
        below = torch.rand([]) < 0
        below.logical_not_()
        return x * 2 if below else x

    for program in (skips_layers, draws_and_moves, turns_the_answer):
        report = agrees_with_eager(program, (x,))
        assert report.breaks[0].code == "FL101"
