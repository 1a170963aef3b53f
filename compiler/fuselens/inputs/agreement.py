"""Whether a graph and its compiled form agree: results, gradients and inputs afterwards, by float64 where float32 is in doubt.

Rounding makes two right answers differ. So the graph is run once more in float64: what a compiled graph gives is right where it
is about as near to that as eager is.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from .compared import TOLERANCE, Closeness, closeness, plain, unlike
from .comparison import copied, interleaved, memory, seeds
from .doubled import Doubled, Exact
from .structures import Values

_WORSE = 4.0  # times eager's own error (root mean square) that is still rounding
_LIKE = 1.01  # times eager's own error is that error
_UNSTEADY = 0.05  # of the values' size: beyond, eager's error says nothing
# What is within tolerances is wrong, too, where its error is more than so many times eager's, and than so many last bits of the size
_FAR = {torch.float32: (16.0, 16.0), torch.bfloat16: (6.0, 2.0), torch.float16: (6.0, 2.0)}
_SMALLEST = 1e-30  # of what errors are divided by
Function = Callable[..., Any]


def observed(function: Function, given: Sequence[Any], names: Sequence[str], seed: int = 0) -> Values:
    """Every value that a call leaves: its results, the gradients of inputs that require them, and its inputs afterwards.
    Random numbers begin at the seed."""
    return observed_with_memory(function, given, names, seed)[0]


def observed_with_memory(
    function: Function, given: Sequence[Any], names: Sequence[str], seed: int = 0
) -> tuple[Values, Values]:
    """The values that a call leaves, and whose memory each of its results has, in words."""
    torch.manual_seed(seed)
    inputs: list[Any] = copied(list(given), False)
    passed = _passed(inputs)
    results, gradients = _called(function, inputs, passed)
    found: Values = [(f"result {k}", r) for k, r in enumerate(results)]
    named = [(name, v) for name, v in zip(names, passed, strict=True) if isinstance(v, torch.Tensor)]
    lies: Values = list(memory(results, named))
    found += [(f"gradient of {names[k]}", g) for k, g in gradients]
    return found + [(f"{name} afterwards", v) for name, v in zip(names, inputs, strict=True)], lies


def _passed(given: list[Any]) -> list[Any]:
    """A graph may write to what requires a gradient, but not where that is a leaf."""
    return [v.clone() if isinstance(v, torch.Tensor) and v.requires_grad else v for v in given]


def _called(function: Function, given: list[Any], passed: list[Any]) -> tuple[list[Any], list[tuple[int, Any]]]:
    """The results, and the gradients of what is ``given`` by their number; the function gets what is ``passed``."""
    leaves = [k for k, v in enumerate(given) if isinstance(v, torch.Tensor) and v.requires_grad]
    results = function(*passed)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    outputs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not outputs or not leaves:
        return results, []
    gradients = torch.autograd.grad(outputs, [given[k] for k in leaves], seeds(outputs), allow_unused=True)
    return results, list(zip(leaves, gradients, strict=True))


def in_double(function: Function, given: Sequence[Any], names: Sequence[str]) -> Values:
    """What the call leaves in float64, where that is known (see :mod:`.doubled`)."""
    with Doubled() as doubled:
        found = observed(function, given, names)
    return [(where, doubled.exactly(value)) for where, value in found]


def difference(expected: Values, found: Values, reference: Values | None) -> tuple[str, str] | None:
    """Where two calls first differ, and how; None where they agree."""
    return next(differences(expected, found, reference), None)


def differences(expected: Values, found: Values, reference: Values | None) -> Iterator[tuple[str, str]]:
    """Each value in which two calls differ: where, and how. ``reference`` is what float64 gives; without it, signs of zeros are
    not compared."""
    if [where for where, _ in expected] != [where for where, _ in found]:
        yield _of_others([where for where, _ in expected], [where for where, _ in found])
        return
    exact = dict(reference or ())
    for (where, e), (_, f) in zip(expected, found, strict=True):
        if how := differ(e, f, exact.get(where)):
            yield where, how


def _of_others(expected: list[str], found: list[str]) -> tuple[str, str]:
    """Where calls leave other values than eager's, and which."""
    missing, new = ([w for w in one if w not in other] for one, other in ((expected, found), (found, expected)))
    if missing:
        return missing[0], f"eager leaves it, compiled not ({len(expected)} values, compiled {len(found)})"
    where = new[0] if new else "results"
    return where, f"compiled leaves it, eager not ({len(expected)} values, compiled {len(found)})"


def differ(expected: Any, found: Any, exact: Any) -> str:
    """How two values differ, in words; "" where they agree."""
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        same = type(expected) is type(found) and (expected == found or expected != expected)
        return "" if same else f"eager gives {expected!r}, compiled {found!r}"
    e, f = plain(expected.detach()), plain(found.detach())
    if why := unlike(e, f):
        return why
    near = closeness(e, f)
    if near.first is None and isinstance(exact, Exact):
        near = _closely(e, f)
    if near.first is None:
        return _other_zeros(e, f, exact) or _far(e, f, exact)
    return "" if _as_exact(e, f, exact) else near.text(e.numel())


def _closely(expected: torch.Tensor, found: torch.Tensor) -> Closeness:
    """Where all values are small, what they may differ by is small as well."""
    finite = expected[torch.isfinite(expected)].double().abs() if expected.is_floating_point() else None
    size = 0.0 if finite is None or not finite.numel() else float(finite.max())
    if not 0.0 < size < 1.0:
        return Closeness()
    near = closeness((expected.double() / size).float(), (found.double() / size).float())
    if near.first is None or expected.dtype is not torch.float32:
        return Closeness()
    return replace(near, eager=expected[near.first].item(), compiled=found[near.first].item())


def _far(expected: torch.Tensor, found: torch.Tensor, exact: Any) -> str:
    """How much further from the exact values the found ones are than eager's, where that is more than functions of other libraries and
    sums in other orders may be: tolerances leave room for those of a whole model."""
    if not isinstance(exact, Exact) or expected.dtype not in _FAR or torch.equal(expected, found):
        return ""
    times, bits = _FAR[expected.dtype]
    own, other = distance(exact.value, expected)[0], distance(exact.value, found)[0]
    if other <= times * own or other <= bits * torch.finfo(expected.dtype).eps:
        return ""
    return f"the error is {other:.1e} of the values' size, eager's {own:.1e} (root mean squares, beside float64)"


def _other_zeros(expected: torch.Tensor, found: torch.Tensor, exact: Any) -> str:
    """Zeros with another sign, where float64 agrees with eager that it is a zero of that sign."""
    if not isinstance(exact, Exact) or not exact.signed or not expected.is_floating_point():
        return ""
    exact = exact.value
    zeros = (expected == 0) & (found == 0) & (exact == 0) & (torch.signbit(exact) == torch.signbit(expected))
    other = zeros & (torch.signbit(found) != torch.signbit(expected))
    if not bool(other.any()):
        return ""
    at = tuple(other.nonzero()[0].tolist())
    count = f"{int(other.sum())} of {expected.numel()} zeros have another sign"
    return f"{count}, first at {at}: eager {expected[at].item()}, compiled {found[at].item()}"


def in_doubt(expected: Values, found: Values) -> bool:
    """Whether two calls that agree leave another bit somewhere, or the sign of a zero: float64 says whether that matters."""
    return any(_with_other_bits(e, f) for (_, e), (_, f) in zip(expected, found, strict=True))


def _with_other_bits(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or not one.is_floating_point():
        return False
    if one.shape != other.shape or one.layout is not torch.strided or one.is_meta:
        return False
    return not torch.equal(one, other) or bool((torch.signbit(one) != torch.signbit(other)).any())


def _as_exact(expected: torch.Tensor, found: torch.Tensor, exact: Any) -> bool:
    """Whether what is found is as near to the exact values as eager's are."""
    if not isinstance(exact, Exact) or expected.dtype not in TOLERANCE or not expected.is_floating_point():
        return False
    right, e, f = exact.value, expected.double(), found.double()
    # Eager may overflow on the way, and a library's function may have no answer for an infinity where float64 has one.
    overflown = ~torch.isfinite(e) & torch.isfinite(right)
    if bool((_other_kinds(e, f) & _other_kinds(right, f) & ~overflown).any()):
        return False
    finite = torch.isfinite(right) & torch.isfinite(e) & torch.isfinite(f)
    if not bool(finite.any()):
        return True
    size, own, other = (float(v[finite].square().mean().sqrt()) for v in (right, e - right, f - right))
    return other <= _LIKE * own or (own <= _UNSTEADY * size and other <= _WORSE * own)


def _other_kinds(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where one is a number, an infinity of a sign or no number, and the other is something else of these."""
    finite = torch.isfinite(one) & torch.isfinite(other)
    return ~(finite | (one == other) | (torch.isnan(one) & torch.isnan(other)))


def distance(right: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """How far ``other`` is from ``right``, beside the root mean square of ``right``: as a root mean square, and at most. Elements that
    are not finite do not count."""
    right, other = right.detach().double(), other.detach().double()
    finite = torch.isfinite(right) & torch.isfinite(other)
    right, other = right[finite], other[finite]
    size = right.square().mean().sqrt() if right.numel() else right.new_zeros(())
    if not bool(size > 0):
        return 0.0, 0.0
    error, size = other - right, size.clamp_min(_SMALLEST)
    return float(error.square().mean().sqrt() / size), float(error.abs().amax() / size)


def seconds(eager: Function, compiled: Function, given: Sequence[Any]) -> tuple[float, float]:
    """The medians of calls with their gradients, made in turn."""
    inputs = copied(list(given), False)
    first, second = interleaved(*(lambda of=of: _called(of, inputs, _passed(inputs)) for of in (eager, compiled)))
    return statistics.median(first), statistics.median(second)
