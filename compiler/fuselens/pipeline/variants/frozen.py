"""Graphs for which parameters and buffers were frozen, and how their changes are noticed.

A frozen tensor is known by its identity, its version and its memory: another tensor, a write to it, or ``p.data = …``
makes the graph compile again with what is there now. Writes through ``p.data`` itself go unnoticed, as by autograd.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import is_, itemgetter
from typing import Any

import torch

from ... import torch_private

Call = Callable[[tuple[Any, ...]], Any]


def freezable(tensor: Any) -> bool:
    """Whether changes of the tensor can be noticed: inference tensors count no versions."""
    return isinstance(tensor, torch.Tensor) and not tensor.is_inference() and not torch_private.is_foreign(tensor)


class _State:
    """The frozen tensors of one compilation, held weakly."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = [weakref.ref(t) for t in tensors]
        self.facts = _facts(tensors)

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        return _facts(tensors) == self.facts and all(map(is_, tensors, [r() for r in self.tensors]))

    def may_return(self) -> bool:
        """Whether these tensors can be as they were: they live, and nothing was written to them."""
        tensors = [r() for r in self.tensors]
        return all(
            t is not None and torch_private.version_of(t) == v for t, v in zip(tensors, self.facts[0], strict=True)
        )


def _facts(tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[int]]:
    return list(map(torch_private.version_of, tensors)), list(map(torch.Tensor.data_ptr, tensors))


def by_state(
    positions: Sequence[int], compile_for: Callable[[Mapping[int, Any]], Call], inputs: Sequence[Any], limit: int
) -> Call:
    """Calls what was compiled for the frozen inputs as they are: at first as in ``inputs``. Compiles again for others,
    at most ``limit`` times, and then without freezing anything. What cannot come back is freed."""
    pick = itemgetter(*positions) if len(positions) > 1 else lambda inputs: (inputs[positions[0]],)
    tensors = pick(inputs)
    variants = [(_State(tensors), compile_for(dict(zip(positions, tensors, strict=True))))]
    compiled = 1
    del inputs, tensors
    unfrozen: list[Call] = []
    lock = threading.Lock()

    def run(inputs: tuple[Any, ...]) -> Any:
        nonlocal compiled, variants
        tensors = pick(inputs)
        for state, call in variants:
            if state.holds(tensors):
                return call(inputs)
        with lock:
            variants = [v for v in variants if v[0].may_return()]
            if compiled < limit:
                compiled += 1
                call = compile_for(dict(zip(positions, tensors, strict=True)))
                variants = [(_State(tensors), call), *variants]
            else:
                if not unfrozen:
                    unfrozen.append(compile_for({}))
                call = unfrozen[0]
        return call(inputs)

    return run
