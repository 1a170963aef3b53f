"""Guards of a function whose program and weights are in an artifact.

What a guard compares of the function itself, of the module that it is a method of, of globals and closures cannot change: the
artifact has the code that was traced, and the tensors. Those guards are settled when it is made, and listed in it. What a call
brings (arguments, torch's state), and tensors that stand in the artifact, stays guarded.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.hook import _hook
from ..record.report import Guard

_OF_STATE = frozenset({_hook.GRAD_MODE, _hook.GLOBAL_CALL, _hook.STATE})
_CONSTANTS = (_hook.ROOT_CONST, _hook.ROOT_WEAK)
_COMPARED = (range, torch.device)  # of which a guard compares the identity, and which are made anew in each process


@dataclass(frozen=True, slots=True)
class Settled:
    """The guards that stay, with what explains a miss of them, and those that are settled. Tensors of the artifact are the keys
    of their nodes."""

    guards: _hook.Guards
    records: list[Guard]
    texts: list[str]
    settled: list[Guard]


def settle(
    guards: _hook.Guards, records: Sequence[Guard], texts: Sequence[str], function: types.FunctionType,
    args: tuple[Any, ...], inside: Collection[int], used: Collection[int],
) -> Settled:  # fmt: skip
    """``inside`` are the arguments that the artifact holds: the module of its ``forward``, the object of a method. Of what is
    gathered, the positions ``used`` are wanted."""
    return _Settling(guards, texts, function, args, inside).done(records, used)


class _Settling:
    def __init__(
        self, guards: _hook.Guards, texts: Sequence[str], function: types.FunctionType, args: tuple[Any, ...],
        inside: Collection[int],
    ) -> None:  # fmt: skip
        self._guards, self._texts, self._call = guards, texts, (function, args)
        self._inside: list[bool] = []
        for parent, kind, key in guards.nodes:
            self._inside.append(self._is_inside(parent, kind, key, inside))
        self._nodes: list[_hook.Node] = [(0, _hook.ROOT_FUNCTION, None)]
        self._names = ["the function"]
        self._numbers: dict[int, int] = {}

    def _is_inside(self, parent: int, kind: int, key: Any, inside: Collection[int]) -> bool:
        if kind == _hook.ROOT_LOCAL:
            return key in inside
        if kind in _CONSTANTS:
            return not _is_of_torch(key() if kind == _hook.ROOT_WEAK else key)
        return self._inside[parent] if kind > _hook.ROOT_WEAK else True

    def done(self, records: Sequence[Guard], used: Collection[int]) -> Settled:
        checks, kept, settled = [], [], []
        for check, record in zip(self._guards.checks, records, strict=True):
            found = self._check(*check)
            (settled if found is None else kept).append(record)
            if found is not None:
                checks.append(found)
        # Tensors of the artifact may be changed by who loaded it: what the code relies on is compared.
        numbers = [self._number(node) if i in used else 0 for i, node in enumerate(self._guards.gather)]
        return Settled(_hook.Guards(self._nodes, checks, numbers), kept, self._names, settled)

    def _check(self, node: int, kind: int, *operands: Any) -> tuple[Any, ...] | None:
        """The check over the nodes that stay; None where the artifact settles it."""
        if kind in _OF_STATE:
            return 0, kind, *operands
        if kind == _hook.DISTINCT:
            kept = [n for n in operands[0] if not self._inside[n] or self._holds_tensor(n)]
            if len(kept) < 2 or all(self._inside[n] for n in kept):
                return None
            return 0, kind, tuple(map(self._number, kept))
        if kind == _hook.SHAPE:
            variables, program = operands
            if all(self._inside[n] for n, _ in variables):
                return None
            return 0, kind, tuple((self._number(n), d) for n, d in variables), program
        if kind == _hook.SAME:
            if self._inside[node] and self._inside[operands[0]]:
                return None
            return self._number(node), kind, self._number(operands[0])
        if self._inside[node] and not (kind == _hook.TENSOR and self._holds_tensor(node)):
            return None
        if kind == _hook.IS and type(operands[0]) in _COMPARED:
            kind = _hook.EQUALS
        return self._number(node), kind, *operands

    def _holds_tensor(self, node: int) -> bool:
        return issubclass(type(self._at(node)), torch.Tensor)

    def _at(self, node: int) -> Any:
        gathered = _hook.Guards(self._guards.nodes, (), (node,)).check(*self._call)[2]
        return None if gathered is None else gathered[0]

    def _number(self, node: int) -> int:
        """The number that a node has among those that stay."""
        found = self._numbers.get(node)
        if found is None:
            parent, kind, key = self._guards.nodes[node]
            if self._inside[node]:
                made = (0, _hook.ROOT_CONST, self._at(node))
            elif kind > _hook.ROOT_WEAK:
                made = (self._number(parent), kind, key)
            else:
                made = (0, kind, key)
            found = self._numbers[node] = len(self._nodes)
            self._nodes.append(made)
            self._names.append(self._texts[node])
        return found


def _is_of_torch(obj: Any) -> bool:
    """Whether a constant of a guard is torch's: what hangs on it is state that a program may set."""
    if issubclass(type(obj), types.ModuleType):
        name = obj.__name__
    elif type(obj) is dict:
        name = dict.get(obj, "__name__")
    else:
        name = getattr(obj, "__module__", None) if issubclass(type(obj), (type, types.FunctionType)) else None
    if name is None and type(obj).__name__ == "OrderedDict":  # the hooks of all modules
        return True
    return type(name) is str and name.split(".")[0] == "torch"
