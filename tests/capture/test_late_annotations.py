"""Annotations of functions made while tracing: from Python 3.14 on another function makes them when they are asked for."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import pytest
import torch

import fuselens

from .harness import agrees_with_eager

# without `from __future__ import annotations`
PROGRAMS = """
import functools


def wrapped(x):
    def scaled(a: Tensor, k: "int" = 3) -> Tensor:
        return a * k

    @functools.wraps(scaled)
    def outer(*args):
        return scaled(*args) * len(outer.__annotations__)

    return outer(x), outer.__annotations__["k"], outer.__name__


def asked_for(x):
    def scaled(a: Tensor, k: Width = 3) -> Tensor:
        return a * k

    return scaled(x), [str(v) for v in scaled.__annotations__.values()], scaled.__annotations__ is scaled.__annotations__


def changed(x):
    def scaled(a: Tensor):
        return a * 2

    scaled.__annotations__["other"] = Width
    before = list(scaled.__annotations__)
    scaled.__annotations__ = {"a": Width}
    return scaled(x), before, scaled.__annotations__


def unknown(x):
    def scaled(a: NotDefinedAnywhere):
        return a * 2

    return scaled(x)


def returned(x):
    def scaled(a: Tensor) -> Width:
        return a * 2

    def plain(a):
        return a

    def asked(a: Width):
        return a

    asked.__annotations__["more"] = Width
    return scaled, functools.wraps(scaled)(plain), asked
"""


def programs() -> dict[str, Any]:
    module = types.ModuleType("annotated")
    module.__dict__.update(Tensor=torch.Tensor, Width=int)
    exec(compile(PROGRAMS, "annotated.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


@pytest.mark.parametrize("name", ["wrapped", "asked_for", "changed"])
def test_captured_whole(name: str) -> None:
    agrees_with_eager(programs()[name], (torch.ones(2),), breaks=0)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="older versions evaluate annotations when a function is made")
def test_what_is_not_asked_for_is_not_evaluated() -> None:
    agrees_with_eager(programs()["unknown"], (torch.ones(2),), breaks=0)


def test_functions_keep_their_annotations() -> None:
    fn = programs()["returned"]

    def shown(functions: Any) -> Any:
        late = [getattr(f, "__annotate__", None) for f in functions]
        return (
            [f.__annotations__ for f in functions],
            [a and (a.__qualname__, a.__code__, a(1)) for a in late],
            late[0] is late[1],
        )

    compiled = fuselens.compile(fn, backend="eager", fullgraph=True)
    assert shown(compiled(torch.ones(2))) == shown(fn(torch.ones(2)))


def test_an_annotation_that_fails_is_asked_for_eagerly() -> None:
    namespace = programs()

    def asks(x: torch.Tensor) -> Any:
        try:
            return x + 1, dict(existing.__annotations__)
        except NameError as error:
            return x - 1, str(error)

    source = "def existing(a: NotThere): return a"
    namespace["NotThere"] = int  # older versions need it at once
    exec(compile(source, "annotated.py", "exec", dont_inherit=True), namespace)
    existing = namespace["existing"]
    del namespace["NotThere"]
    agrees_with_eager(asks, (torch.ones(2),))


def test_wraps_copies_what_makes_them() -> None:
    def f(x: torch.Tensor) -> Any:
        @functools.wraps(scaled)
        def outer(a: int) -> int:
            return scaled(a)

        return outer(x), outer.__annotations__

    def scaled(a: torch.Tensor) -> torch.Tensor:
        return a * 2

    agrees_with_eager(f, (torch.ones(2),), breaks=0)
