"""Gradients by running the captured graph again, in eager.

A compiled backward gives numbers, not tensors that could be differentiated in their turn, and its kernels read ordinary tensors
only. For second derivatives, and for tangents of other kinds, autograd differentiates the program as it was captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fuselens import torch_private

if TYPE_CHECKING:
    from fuselens.ir.contracts.signature import Signature

Values = tuple[Any, ...]


class Replay:
    """Differentiates the captured graph eagerly: second derivatives, and tangents that kernels cannot read."""

    def __init__(
        self,
        signature: Signature,
        eager: Callable[[Values], Sequence[Any]],
        on_double_backward: Callable[[], None] | None,
    ) -> None:
        self.signature = signature
        self.eager = eager
        self.on_double_backward = on_double_backward
        self.autocast = torch_private.AutocastState()  # that of the trace

    def __call__(self, inputs: list[Any], grads: Values, random_state: Any, create_graph: bool) -> Values:
        signature = self.signature
        if not signature.replayable:
            raise RuntimeError(
                "second derivatives: the graph overwrote an input that its outputs depend on, so it cannot be run again"
            )
        if create_graph and self.on_double_backward is not None:
            self.on_double_backward()
        with torch.enable_grad(), _random_restored(random_state):
            # Aliases, so that one input computed from another is not differentiated twice; copies where eager writes.
            first = dict(signature.duplicates)
            aliases: list[Any] = []
            for i, t in enumerate(inputs):
                if i in first:
                    aliases.append(aliases[first[i]])
                elif not isinstance(t, torch.Tensor):
                    aliases.append(t)
                elif i in signature.written:
                    aliases.append(t.clone())
                else:
                    aliases.append(torch.ops.aten.alias(t) if t.requires_grad else t)  # sparse gradients pass
            with self.autocast.entered():
                outputs = self.eager(tuple(aliases))
            results, tangents = [], []
            for tangent in signature.tangents:
                g = grads[tangent.result]
                t = None if g is None else _result_of(signature, outputs, tangent.result)
                if t is not None and t.requires_grad:
                    results.append(t)
                    tangents.append(g)
            wanted = [i for i, g in enumerate(signature.gradients) if g is not None and aliases[i].requires_grad]
            found: list[Any] = [None] * len(signature.gradients)
            if results and wanted:
                computed = torch.autograd.grad(
                    results, [aliases[i] for i in wanted], tangents, create_graph=create_graph, allow_unused=True
                )
                for i, g in zip(wanted, computed, strict=True):
                    found[i] = g
            return tuple(found)


def _result_of(signature: Signature, outputs: Sequence[Any], result: int) -> torch.Tensor | None:
    """The eager tensor that stands for ``result``: an output, or the base of outputs that are views of it."""
    based = None
    for o, t in zip(signature.outputs, outputs, strict=True):
        if o.kind == "result" and o.index == result:
            if o.view is None:
                return t
            if o.view.link == "view":
                based = torch_private.tensor_base(t)
    return based


def random_state(inputs: Values) -> Any:
    devices = {t.device for t in inputs if isinstance(t, torch.Tensor) and t.device.type == "cuda"}
    return torch.get_rng_state(), {d: torch.cuda.get_rng_state(d) for d in devices}


@contextlib.contextmanager
def _random_restored(state: Any) -> Iterator[None]:
    """Inside, generators are as they were when the forward ran; afterwards as before."""
    if state is None:
        yield
        return
    cpu, cuda = state
    now = torch.get_rng_state(), {d: torch.cuda.get_rng_state(d) for d in cuda}
    torch.set_rng_state(cpu)
    for d, s in cuda.items():
        torch.cuda.set_rng_state(s, d)
    try:
        yield
    finally:
        torch.set_rng_state(now[0])
        for d, s in now[1].items():
            torch.cuda.set_rng_state(s, d)
