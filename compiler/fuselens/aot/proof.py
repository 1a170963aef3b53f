"""Whether an artifact gives what eager gives, for the calls that it was made for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import torch_private
from ..inputs import rounding
from ..inputs.comparison import copied, differ, seeds
from .container import refuse
from .loading import Artifact
from .making import Call


def prove(fn: Any, calls: Sequence[Call], artifact: Artifact) -> None:
    """Calls both on copies of the inputs, from the same random numbers: values, what is written to inputs and, for training,
    gradients. Raises ArtifactError (FL927) where anything differs."""
    before = {name: tensor.detach().clone() for name, tensor in artifact.weights.items()}
    for number, call in enumerate(calls):
        with torch.random.fork_rng():
            expected = _observed(_copy_of(fn), call, artifact.training)

        def moved(what: str, call: Call = call) -> Any:
            """The same of eager, with other last bits."""
            with torch.random.fork_rng(), rounding.Rounding(0):
                return _observed(_copy_of(fn), call, artifact.training)[what]

        with torch.random.fork_rng():
            actual = _observed(artifact, call, artifact.training)
        with torch.no_grad():
            for name, tensor in artifact.weights.items():
                tensor.copy_(before[name])
        for what, found in expected.items():
            why = differ(found, actual[what], what)
            if why is not None and not _is_rounding(found, actual[what], lambda what=what: moved(what)):
                raise refuse(
                    "FL927", what=artifact.name, why=f"it gives another {what} than eager in call {number}: {why}"
                )


def _copy_of(fn: Any) -> Any:
    """A module whose state may change."""
    return copy.deepcopy(fn) if isinstance(fn, torch.nn.Module) else fn


def _observed(fn: Any, call: Call, training: bool) -> dict[str, Any]:
    args, kwargs = _copied((call.args, dict(call.kwargs)))
    with torch.set_grad_enabled(training):
        result = fn(*args, **kwargs)
    inputs = [*_tensors(args), *_tensors(kwargs)]
    found = {"result": _detached(result), "inputs": [t.detach() for t in inputs]}
    outputs = [t for t in _tensors(result) if t.requires_grad]
    if training and outputs:
        leaves = {f"input {i}": t for i, t in enumerate(inputs) if t.requires_grad and t.is_leaf}
        named = fn.named_parameters() if isinstance(fn, torch.nn.Module) else getattr(fn, "weights", {}).items()
        leaves |= {name: t for name, t in named if t.requires_grad and t.is_leaf and not name.startswith("constant.")}
        grads = torch.autograd.grad(outputs, list(leaves.values()), seeds(outputs), allow_unused=True)
        found["gradient"] = {name: g for name, g in sorted(zip(leaves, grads, strict=True)) if g is not None}
    return found


def _is_rounding(expected: Any, actual: Any, moved: Callable[[], Any]) -> bool:
    """Whether what differs is what rounding may change: sums in another order, and what eager itself makes of other last bits.
    Gradients of norms amplify both."""
    pairs = list(zip(_tensors(expected), _tensors(actual), _tensors(moved()), strict=False))
    if len(pairs) != len(_tensors(actual)):
        return False
    for e, a, m in pairs:
        if (e.shape, e.dtype, e.stride()) != (a.shape, a.dtype, a.stride()) or not (
            e.is_floating_point() or e.is_complex()
        ):
            return False
        error, noise, size = (float((t - e).abs().max()) if e.numel() else 0.0 for t in (a, m, torch.zeros_like(e)))
        steps = 1000 if e.dtype.itemsize >= 4 else 8
        if not error <= max(10 * noise, steps * torch.finfo(e.dtype).eps * size):
            return False
    return bool(pairs)


def _copied(value: Any) -> Any:
    """The inputs with tensors cloned; one that comes twice does so then, too."""
    clones: dict[int, torch.Tensor] = {}

    def copy_of(leaf: Any) -> Any:
        return clones.setdefault(id(leaf), copied(leaf, False)) if isinstance(leaf, torch.Tensor) else leaf

    return torch_private.PYTREE.tree_map(copy_of, value)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in torch_private.PYTREE.tree_leaves(value) if isinstance(t, torch.Tensor)]


def _detached(value: Any) -> Any:
    return torch_private.PYTREE.tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, value)
