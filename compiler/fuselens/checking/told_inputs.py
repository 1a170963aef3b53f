"""What a report says of the inputs of the call that was compiled: the parameters, types in a few words, and the origin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..inputs.example_inputs import ExampleInputs
from ..record.report import Input, Inputs
from ..slices import Compiled, described
from ..system.signatures import signature
from .located import Found


def told(inputs: ExampleInputs, found: Found, evaluated: Compiled | None, path: str) -> Inputs:
    """Of a function of the file ``path``. ``evaluated`` is what the evaluation of a program found, whose call they may come from.
    ``self`` is left out."""
    values = list(_named(found.target, inputs.args, inputs.kwargs))
    if found.owner is not None and inputs.args:
        values = values[1:]
    call = evaluated if inputs.origin == "call" else None
    if call is None:
        return Inputs(inputs.origin, tuple(values))
    return Inputs(inputs.origin, tuple(values), call.line, call.completed, call.file if call.file != path else "")


def _named(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Input]:
    """Several arguments of one ``*args`` have no names of their own."""
    try:
        form = signature(target.forward if isinstance(target, torch.nn.Module) else target).parameters.values()
    except (TypeError, ValueError):
        form = ()
    names = [p.name for p in form if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names += [""] * (len(args) - len(names))
    yield from (Input(name, described(value)) for name, value in zip(names, args, strict=False))
    yield from (Input(name, described(value), by_name=True) for name, value in kwargs.items())
