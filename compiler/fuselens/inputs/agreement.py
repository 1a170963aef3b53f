"""Whether a graph and its compiled form agree: results, gradients and inputs afterwards, by float64 where float32 is in doubt.

Rounding makes two right answers differ. So the graph is run once more in float64: what a compiled graph gives is right where it
is about as near to that as eager is.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .compared import TOLERANCE, closeness, plain, unlike
from .comparison import copied, interleaved, seeds

_WORSE = 4.0  # times eager's own error (root mean square) that is still rounding
_UNSTEADY = 0.05  # of the values' size: beyond, eager's error says nothing
_SINGLE = frozenset({torch.float32, torch.float16, torch.bfloat16})
_CASTS = {"float": torch.Tensor.double, "half": torch.Tensor.double, "bfloat16": torch.Tensor.double}
Values = list[tuple[str, Any]]
Function = Callable[..., Any]


class InDouble(TorchFunctionMode):
    """Inside, what functions are asked to make in a smaller floating dtype, they make in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _CASTS and func is getattr(torch.Tensor, name, None):
            return torch.Tensor.double(args[0])
        return func(*_doubled(args), **_doubled(kwargs or {}))


def _doubled(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _SINGLE else value
    if type(value) in (list, tuple):
        return type(value)(_doubled(v) for v in value)
    if type(value) is dict:
        return {k: _doubled(v) for k, v in value.items()}
    return value


def observed(function: Function, given: Sequence[Any], names: Sequence[str], seed: int = 0) -> Values:
    """Every value that a call leaves: its results, the gradients of inputs that require them, and its inputs afterwards.
    Random numbers begin at the seed."""
    torch.manual_seed(seed)
    inputs: list[Any] = copied(list(given), False)
    results, gradients = _called(function, inputs)
    found: Values = [(f"result {k}", r) for k, r in enumerate(results)]
    found += [(f"gradient of {names[k]}", g) for k, g in gradients]
    return found + [(f"{name} afterwards", v) for name, v in zip(names, inputs, strict=True)]


def _called(function: Function, given: list[Any]) -> tuple[list[Any], list[tuple[int, Any]]]:
    """The results, and the gradients of inputs by their number."""
    leaves = [k for k, v in enumerate(given) if isinstance(v, torch.Tensor) and v.requires_grad]
    # A graph may write to what requires a gradient, but not where that is a leaf.
    results = function(*(v.clone() if k in leaves else v for k, v in enumerate(given)))
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    outputs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not outputs or not leaves:
        return results, []
    gradients = torch.autograd.grad(outputs, [given[k] for k in leaves], seeds(outputs), allow_unused=True)
    return results, list(zip(leaves, gradients, strict=True))


def in_double(function: Function, given: Sequence[Any], names: Sequence[str]) -> Values | None:
    """What the call leaves in float64; None where it cannot be called so."""
    wide = [
        v.detach().double().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) and v.dtype in _SINGLE else v
        for v in given
    ]
    try:
        with InDouble():
            return observed(function, wide, names)
    except Exception:  # noqa: BLE001 - an operator that has no kernel for float64, a check of a dtype
        return None


def difference(expected: Values, found: Values, reference: Values | None) -> tuple[str, str] | None:
    """Where two calls first differ, and how; None where they agree."""
    if len(expected) != len(found):
        return "results", f"eager leaves {len(expected)} values, compiled {len(found)}"
    exact = dict(reference or ())
    for (where, e), (_, f) in zip(expected, found, strict=True):
        if how := _differ(e, f, exact.get(where)):
            return where, how
    return None


def _differ(expected: Any, found: Any, exact: Any) -> str:
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        same = type(expected) is type(found) and (expected == found or expected != expected)
        return "" if same else f"eager gives {expected!r}, compiled {found!r}"
    e, f = plain(expected.detach()), plain(found.detach())
    if why := unlike(e, f):
        return why
    near = closeness(e, f)
    if near.first is None or _as_exact(e, f, exact):
        return ""
    return near.text(e.numel())


def _as_exact(expected: torch.Tensor, found: torch.Tensor, exact: Any) -> bool:
    """Whether what is found is as near to the exact values as eager's are."""
    if not isinstance(exact, torch.Tensor) or exact.shape != expected.shape or expected.dtype not in TOLERANCE:
        return False
    if expected.is_complex() or not expected.is_floating_point():
        return False
    right = plain(exact.detach()).double()
    e, f = expected.double(), found.double()
    if bool((torch.isfinite(e) != torch.isfinite(f)).any()):
        return False
    finite = torch.isfinite(right) & torch.isfinite(e)
    size, own, other = (float(v[finite].square().mean().sqrt()) for v in (right, e - right, f - right))
    return own <= _UNSTEADY * size and other <= _WORSE * own


def seconds(eager: Function, compiled: Function, given: Sequence[Any]) -> tuple[float, float]:
    """The medians of calls with their gradients, made in turn."""
    inputs = copied(list(given), False)
    first, second = interleaved(lambda: _called(eager, inputs), lambda: _called(compiled, inputs))
    return statistics.median(first), statistics.median(second)
