"""Operators of the program that write to operands, as functions: they give the new values beside their results.

``fuselens::written…`` copies what the operator writes to, and calls it. It is defined when a graph, or a program that another
process generated, first needs it; its name says which operator it is of.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch import Tensor

from .. import torch_private

_library = torch.library.Library("fuselens", "FRAGMENT")
_NAME = re.compile(r"\bfuselens\.(written(\d+)_(\d+)_(\w+))")
_operators: dict[str, Any] = {}
_signatures: dict[str, str] = {}
_OF_TORCH = ("aten", "prims", "fuselens", "_c10d_functional", "c10d")


@functools.cache
def as_function(operator: Any) -> Any:
    """The function that an operator of the program is, which writes to tensors and gives none of them; None for others."""
    if not isinstance(operator, torch_private.OpOverload) or operator.namespace in _OF_TORCH:
        return None
    schema = operator._schema
    arguments = {a.name: i for i, a in enumerate(schema.arguments)}
    written = torch_private.written_arguments(operator)
    gives_operands = any(r.alias_info is not None for r in schema.returns)
    if not written or gives_operands or any(str(schema.arguments[arguments[n]].type) != "Tensor" for n in written):
        return None
    name = _name(operator)
    parameters, results = re.sub(r"\(\w+!? *(?:-> *[\w|]+)?\)", "", str(schema).partition("(")[2]).rsplit(" -> ", 1)
    every = [r for r in results.strip("() ").split(", ") if r] + ["Tensor"] * len(written)
    signature = f"{parameters} -> ({', '.join(every)})" if len(every) > 1 else f"{parameters} -> Tensor"
    _operators[name] = operator
    if name in _signatures:  # the program has registered it again
        return getattr(torch.ops.fuselens, name).default if _signatures[name] == signature else None
    _signatures[name] = signature
    _library.define(f"{name}({signature}")

    def run(*args: Any, **kwargs: Any) -> Any:
        given, names = list(args), {**kwargs}
        made: list[Tensor] = []
        for n in written:
            at, place = (given, arguments[n]) if arguments[n] < len(given) else (names, n)
            at[place] = torch.empty_like(at[place], memory_format=torch.preserve_format).copy_(at[place])  # type: ignore[index,call-overload]
            made.append(at[place])  # type: ignore[index,call-overload]
        found = _operators[name](*given, **names)
        count = len(schema.returns)
        every: list[Any] = [*([] if count == 0 else [found] if count == 1 else found), *made]
        return tuple(every) if len(every) > 1 else every[0]

    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fuselens::{name}", run, lib=_library)
    return getattr(torch.ops.fuselens, name).default


def define(text: str) -> None:
    """Defines those that a generated program calls, whose operators the program has registered."""
    for _, space, packet, rest in set(_NAME.findall(text)):
        name, packet_ends = rest[: int(space)], int(space) + int(packet)
        found = getattr(getattr(torch.ops, name), rest[int(space) : packet_ends])
        as_function(getattr(found, rest[packet_ends:]))


def _name(operator: Any) -> str:
    packet = operator.overloadpacket.__name__
    return f"written{len(operator.namespace)}_{len(packet)}_{operator.namespace}{packet}{operator._overloadname}"
