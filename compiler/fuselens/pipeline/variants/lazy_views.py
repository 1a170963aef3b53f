"""Inputs that are lazily conjugated or negated: their graph takes what lies in memory, and conjugates and negates itself."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ... import torch_private
from ...capture.frame.captured import Captured

Turn = tuple[Callable[[torch.Tensor], torch.Tensor], ...]


def _conjugated(t: torch.Tensor) -> torch.Tensor:
    """The view of ``t`` that is lazily conjugated, or no longer. The gradient of ``t`` is not: eager has no such view."""
    out = torch.conj(t)
    if out.requires_grad:
        out.register_hook(lambda g: torch.conj(torch.conj_physical(g)))
    return out


def turns(inputs: Sequence[Any]) -> dict[int, Turn]:
    """By position, what makes the tensor of what lies in memory, and the reverse."""
    found: dict[int, Turn] = {}
    for i, t in enumerate(inputs):
        if isinstance(t, torch.Tensor) and (t.is_conj() or t.is_neg()):
            found[i] = (_conjugated,) * t.is_conj() + (torch_private.negated,) * t.is_neg()
    return found


def turned(inputs: Sequence[Any], turns: Mapping[int, Turn]) -> tuple[Any, ...]:
    """The inputs with those of ``turns`` as they lie in memory: views of the same elements."""
    out = list(inputs)
    for i, steps in turns.items():
        for step in steps:
            out[i] = step(out[i])
    return tuple(out)


def in_memory(captured: Captured, turns: Mapping[int, Turn]) -> Captured | None:
    """The graph of inputs as they lie in memory. None where it returns one of the inputs, which is an object of its own."""
    captured.valued()
    module = torch_private.graph_module(captured.module, copy.deepcopy(captured.module.graph))
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    if any(placeholders[i] in output.all_input_nodes for i in turns):
        return None
    with captured.fake_mode, torch.enable_grad():
        fakes = turned(captured.fakes, turns)
    for i, steps in turns.items():
        node = placeholders[i]
        readers = list(node.users)
        value, last = captured.fakes[i], node
        node.meta["val"] = fakes[i]
        for step in steps:
            with module.graph.inserting_after(last if last.op != "placeholder" else placeholders[-1]):
                last = module.graph.call_function(torch.conj if step is _conjugated else step, (last,))
            last.meta = {**node.meta, "val": value}
        for reader in readers:
            reader.replace_input_with(node, last)
    module.recompile()
    with torch.enable_grad():
        inputs = turned(captured.inputs, turns)
    return dataclasses.replace(
        captured, module=module, inputs=list(inputs), fakes=list(fakes), facts=None, digest="", keepable=False
    )
