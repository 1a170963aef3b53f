"""Operators of the program that write to operands, as functions: they give the new values beside their results.

``fuselens::written…`` copies what the operator writes to, and calls it. It is defined when a graph first needs it. Graphs that call
operators of the program are not kept for other processes, so nobody else asks for it.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import torch
from torch import Tensor

from ... import torch_private

_library = torch.library.Library("fuselens", "FRAGMENT")
_numbers = itertools.count()
_OF_TORCH = ("aten", "prims", "fuselens", "_c10d_functional", "c10d")


def as_function(called: Any) -> Any:
    """The function that an operator of the program is, which writes to tensors and gives none of them; None for others."""
    is_operator = isinstance(called, torch_private.OpOverload) and called.namespace not in _OF_TORCH
    return _as_function(called) if is_operator else None


@functools.cache
def _as_function(operator: Any) -> Any:
    schema = operator._schema
    arguments = {a.name: i for i, a in enumerate(schema.arguments)}
    written = torch_private.written_arguments(operator)
    gives_operands = any(r.alias_info is not None for r in schema.returns)
    if not written or gives_operands or any(str(schema.arguments[arguments[n]].type) != "Tensor" for n in written):
        return None
    name = f"written{next(_numbers)}_{operator.overloadpacket.__name__}"
    parameters, results = re.sub(r"\(\w+!? *(?:-> *[\w|]+)?\)", "", str(schema).partition("(")[2]).rsplit(" -> ", 1)
    every = [r for r in results.strip("() ").split(", ") if r] + ["Tensor"] * len(written)
    _library.define(
        f"{name}({parameters} -> ({', '.join(every)})" if len(every) > 1 else f"{name}({parameters} -> Tensor"
    )

    def run(*args: Any, **kwargs: Any) -> Any:
        given, names = list(args), {**kwargs}
        made: list[Tensor] = []
        for n in written:
            at, place = (given, arguments[n]) if arguments[n] < len(given) else (names, n)
            at[place] = torch.empty_like(at[place], memory_format=torch.preserve_format).copy_(at[place])  # type: ignore[index,call-overload]
            made.append(at[place])  # type: ignore[index,call-overload]
        found = operator(*given, **names)
        count = len(schema.returns)
        every: list[Any] = [*([] if count == 0 else [found] if count == 1 else found), *made]
        return tuple(every) if len(every) > 1 else every[0]

    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fuselens::{name}", run, lib=_library)
    return getattr(torch.ops.fuselens, name).default
