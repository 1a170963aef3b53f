"""Scenarios: call, change something, call again.

A scenario is a generator that is given ``wrap`` and yields what it observes. It runs once with ``wrap`` doing nothing
and once compiling; both must observe the same.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch

import fuselens
from fuselens.inputs import comparison

Wrap = Callable[..., Any]
Scenario = Callable[[Wrap], Iterator[Any]]


class Scenarios(list[Scenario]):
    """Those of one file of tests."""

    def add(self, scenario: Scenario) -> Scenario:
        self.append(scenario)
        return scenario


def raised(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call raises, as text; its result when it raises nothing."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - any exception is an observation
        return f"{type(error).__name__}: {error}"


def snapshot(value: Any) -> Any:
    """A copy that later writes do not reach."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(snapshot(v) for v in value)
    if type(value) is dict:
        return {k: snapshot(v) for k, v in value.items()}
    return value


def observe(made: Scenario, wrap: Wrap) -> tuple[list[Any], str]:
    """What a scenario yields, and what it prints."""
    torch.manual_seed(0)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        seen = [snapshot(v) for v in made(wrap)]
    return seen, out.getvalue()


def agrees(made: Scenario) -> None:
    """Compiled code observes what eager observes."""
    expected, printed = observe(made, lambda fn, **options: fn)
    fuselens.reset()
    actual, printed_too = observe(made, lambda fn, **options: fuselens.compile(fn, backend="eager", **options))
    for i, (e, a) in enumerate(zip(expected, actual, strict=True)):
        difference = comparison.differ(e, a, f"observation {i}")
        assert difference is None, difference
    assert printed == printed_too


class Base:
    """A class with one member of each kind."""

    scale = 2.0
    shared: list[Any] = []

    def apply(self, x):
        return x * self.scale

    @staticmethod
    def static(x):
        return x + 1

    @classmethod
    def build(cls, x):
        return x * cls.scale

    @property
    def double(self):
        return self.scale * 2
