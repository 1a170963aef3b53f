"""What rounding may do to a call: operators get their inputs moved by a bit, at random, as another order of sums would move them, and so
are their results. What chooses, compares or moves values rounds nothing: the largest of some values stays one of them.

So it is with the order in which elements are written to one place: torch leaves open which of them stays there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import torch_private
from ..autograd.decompositions import table
from .compared import plain, unlike
from .structures import Values, mapped

RUNS = 3
MORE_RUNS = (12, 60)  # before something is called different: few make a sum the very number that it is compared with
_CANCELLED = 4.0  # times the precision of what was added: a sum that is no larger may be zero
_ROUNDED_OFF = 0.5  # of its last bit, that each level of a tree of additions may leave
_EXACT = (torch.float32, torch.float64)  # others are added up in one of these
_DIGITS = 0.01  # of the values' size: where runs move them by more, not even the first digits are known
_FACTOR = 3.0  # times what the runs were moved by
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Rounding(torch_private.RecordingMode):
    """Inside, operators compute with other last bits, and those that the compiler takes apart are taken apart. ``seed`` says which;
    with a ``side``, all bits go to that one, and with ``cancels`` none does, but sums that may be zero are, and what
    is out of the range of half precision alone is not."""

    def __init__(self, seed: int = 0, *, side: int = 0, cancels: bool = False) -> None:
        super().__init__()
        self._side, self._cancels = side, cancels
        self._alike = seed % 2 == 0
        self._bits = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (reordered := _PLACED.get(func.overloadpacket)) is not None:
            with contextlib.suppress(TypeError, IndexError, RuntimeError):  # other overloads; what raises, raises again
                args = reordered(self._bits, *args, **kwargs)
                kwargs = {}
        if not torch_private.makes_new(func):  # what gives views or writes gets what it is given
            result = func(*args, **kwargs)
            return self._limited(func, args, kwargs, result) if func.overloadpacket is torch.ops.aten.to else result
        if func.overloadpacket in _UNROUNDED:
            return self._limited(func, args, kwargs, func(*args, **kwargs))
        apart = _BY_DEFINITION.get(func) or table().get(func)
        if torch_private.is_pure(func) and apart is not None:
            with self, contextlib.suppress(Exception):  # what it refuses is computed whole
                if (found := apart(*args, **kwargs)) is not NotImplemented:
                    return found
        result = func(*mapped(self._moved, args), **mapped(self._moved, kwargs))
        if func.overloadpacket in _SUMS and isinstance(result, torch.Tensor):
            result = self._added_up(result, args[0].numel() // max(result.numel(), 1))
        elif torch_private.is_pure(func):
            result = mapped(self._moved, result)
        return self._limited(func, args, kwargs, result)

    def _added_up(self, result: torch.Tensor, count: int) -> torch.Tensor:
        """As another order of additions may leave a sum of so many numbers: bits that go to all sides cancel where these are alike, and
        what is rounded off does not. Sums of the same numbers are rounded off alike, so in every other run all are."""
        if self._cancels or result.dtype not in _EXACT or count < 2:
            return result
        most = _ROUNDED_OFF * math.log2(count) * torch.finfo(result.dtype).eps
        shape = () if self._alike else result.shape
        parts = torch.rand(shape, generator=self._bits, device="cpu", dtype=result.dtype).to(result.device) * 2 - 1
        return result * (1 + most * (torch.full_like(result, self._side) if self._side else parts))

    def _limited(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        if self._cancels and isinstance(result, torch.Tensor) and result.dtype in _DTYPES and not result.is_meta:
            result = _with_zeros(func, args, kwargs, result)
            if result.dtype.itemsize == 2 and torch_private.is_pure(func):
                result = _in_range(func, args, kwargs, result)
        return result

    def _moved(self, value: Any) -> Any:
        if self._cancels or type(value) not in (torch.Tensor, torch.nn.Parameter):
            return value
        if value.dtype not in _DTYPES or value.is_meta:
            return value
        if value.layout is not torch.strided:
            return value
        with torch.no_grad():
            if self._side:
                signs = torch.full_like(value, self._side, dtype=torch.int8)
            else:
                signs = torch.randint(-1, 2, value.shape, generator=self._bits, device="cpu", dtype=torch.int8).to(
                    value.device
                )
            stays = (signs == 0) | (value == 0) | torch.isinf(value)  # these are what they are by no rounding
            return torch.where(stays, value, torch.nextafter(value, signs * torch.full_like(value, float("inf"))))


def _var_mean(
    x: torch.Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """By their definition. Eager takes one element after another, in double precision on a CPU: squares that are too small or too large
    for single precision come out, and a mean in which an infinity is is no number."""
    if x.is_complex():
        raise NotImplementedError
    wide = x.float() if x.dtype.itemsize < 4 else x
    dims = list(range(x.ndim)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    mean = wide.mean(dims, keepdim=True)
    count = math.prod(x.shape[d] for d in dims)
    squares = (wide - mean).square().sum(dims, keepdim=keepdim)
    var = squares / max(count - (1 if correction is None else correction), 0)
    return var.to(x.dtype), (mean if keepdim else mean.squeeze(dims)).to(x.dtype)


def _std_mean(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    var, mean = _var_mean(*args, **kwargs)
    return var.sqrt(), mean


def _index_put(
    bits: torch.Generator, x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False, *rest: Any
) -> tuple[Any, ...]:  # fmt: skip
    """The arguments of an operator that writes ``values`` to places, in another order of these."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if accumulate or any(i.dtype in (torch.bool, torch.uint8) for _, i in given):
        return x, indices, values, accumulate, *rest
    places = torch.broadcast_tensors(*(i for _, i in given))
    dims = [d for d, _ in given]
    shape, count = places[0].shape, places[0].numel()
    first = dims[0] if dims == [*range(dims[0], dims[0] + len(dims))] else 0
    others = [n for d, n in enumerate(x.shape) if d not in dims]
    full = values.broadcast_to(*others[:first], *shape, *others[first:])
    order = torch.randperm(count, generator=bits, device="cpu").to(x.device)
    flat = full.reshape(*others[:first], count, *others[first:]).index_select(first, order)
    new: list[Any] = [None] * len(indices)
    for d, place in zip(dims, places, strict=True):
        new[d] = place.reshape(-1)[order]
    return x, new, flat, accumulate, *rest


def _index_copy(
    bits: torch.Generator, x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor
) -> tuple[Any, ...]:
    order = torch.randperm(index.numel(), generator=bits, device="cpu").to(index.device)
    return x, dim, index.reshape(-1)[order], source.index_select(dim, order)


def _scatter(
    bits: torch.Generator, x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> tuple[Any, ...]:
    if not isinstance(src, torch.Tensor):
        raise TypeError  # one number for all
    order = torch.randperm(index.shape[dim], generator=bits, device="cpu").to(index.device)
    for d, size in enumerate(index.shape):
        src = src.narrow(d, 0, size)
    return x, dim, index.index_select(dim, order), src.index_select(dim, order)


def _with_zeros(func: Any, args: Any, kwargs: Any, result: torch.Tensor) -> torch.Tensor:
    """What cancelled in a sum is noise, and may be zero."""
    try:
        noise = _ADDED[func.overloadpacket](*args, **kwargs) * torch.finfo(result.dtype).eps * _CANCELLED
    except (KeyError, TypeError):  # it is no sum, or one of other things than tensors
        return result
    return torch.where((result.abs() <= noise) & (result != 0), torch.zeros_like(result), result)


def _in_range(func: Any, args: Any, kwargs: Any, result: torch.Tensor) -> torch.Tensor:
    """What is too small for half precision is its smallest number, and what is too large its largest: a kernel may hold it in more."""
    try:
        wide = func(*mapped(_single, args), **mapped(_single, kwargs))
    except Exception:  # noqa: BLE001  operators without a kernel for it
        return result
    if not isinstance(wide, torch.Tensor) or wide.dtype is not torch.float32 or wide.shape != result.shape:
        return result
    smallest = torch.nextafter(torch.zeros_like(result), torch.copysign(torch.ones_like(result), wide.to(result.dtype)))
    largest = torch.copysign(torch.full_like(result, torch.finfo(result.dtype).max), result)
    found = torch.where((result == 0) & (wide != 0), smallest, result)
    return torch.where(torch.isinf(result) & torch.isfinite(wide), largest, found)


def _single(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float32 if value in (torch.float16, torch.bfloat16) else value
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _both(a: Any, b: Any, *, alpha: float = 1) -> torch.Tensor:
    return abs(a) + abs(b * alpha)


_ADDED = {  # how large what is added is
    torch.ops.aten.sum: lambda x, *args, **kwargs: torch.sum(x.abs(), *args, **kwargs),
    torch.ops.aten.mean: lambda x, *args, **kwargs: torch.mean(x.abs(), *args, **kwargs),
    torch.ops.aten.add: _both,
    torch.ops.aten.sub: _both,
}
_BY_DEFINITION = {
    torch.ops.aten.var_mean.correction: _var_mean,
    torch.ops.aten.var.correction: lambda *args, **kwargs: _var_mean(*args, **kwargs)[0],
    torch.ops.aten.std_mean.correction: _std_mean,
    torch.ops.aten.std.correction: lambda *args, **kwargs: _std_mean(*args, **kwargs)[0],
}


_aten = torch.ops.aten
_SUMS = frozenset({_aten.sum, _aten.mean})
_UNROUNDED = frozenset(getattr(_aten, name) for name in (
    "eq", "ne", "lt", "le", "gt", "ge", "amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "maximum", "minimum", "fmax", "fmin",
    "sort", "argsort", "topk", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin", "clamp", "clamp_min", "clamp_max", "relu",
    "threshold_backward", "where", "abs", "neg", "sign", "sgn", "signbit", "copysign", "isnan", "isinf", "isfinite", "isclose", "bucketize",
    "searchsorted", "floor", "ceil", "trunc", "round", "clone", "copy", "cat", "stack", "index_select", "gather", "index", "take", "flip",
    "roll", "repeat", "tril", "triu", "masked_fill", "masked_select", "constant_pad_nd", "select_scatter", "slice_scatter", "_to_copy",
    "one_hot", "nonzero", "unique_dim", "empty_like", "zeros_like", "ones_like", "full_like",
))  # fmt: skip
_PLACED = {
    **dict.fromkeys((_aten.index_put, _aten.index_put_, _aten._index_put_impl_, _aten._unsafe_index_put), _index_put),
    **dict.fromkeys((_aten.index_copy, _aten.index_copy_), _index_copy),
    **dict.fromkeys((_aten.scatter, _aten.scatter_), _scatter),
}  # fmt: skip


def limits() -> Iterator[Rounding]:
    """What rounding may do at limits: a sigmoid of large numbers needs all values on one side, and what cancels may be zero."""
    yield from (Rounding(side=-1), Rounding(side=1), Rounding(cancels=True))


def decides(
    where: str, expected: Values, found: Values, moved: Sequence[Values], at_limits: Sequence[Values] = ()
) -> bool:
    """Whether what is ``found`` is as near to what is ``expected`` as the calls are that rounding has ``moved``. ``at_limits`` are calls
    in :func:`limits`, which do not say how far values may be apart."""
    values: list[Any] = [dict(of).get(where) for of in (expected, found, *moved, *at_limits)]
    one, other, *others = values
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and unlike(plain(one), plain(other)):
        return False  # rounding makes no other dtype
    if all(isinstance(v, torch.Tensor) and v.shape == one.shape for v in values):
        return _as_near(values[0], values[1], values[2 : 2 + len(moved)], values[2 + len(moved) :])
    return any(type(other) is type(one) and not isinstance(one, torch.Tensor) and other != one for other in others)


def _as_near(
    expected: torch.Tensor, found: torch.Tensor, moved: list[torch.Tensor], at_limits: list[torch.Tensor]
) -> bool:
    if expected.is_meta or expected.layout is not torch.strided:
        return False
    if not expected.is_floating_point():
        return any(not torch.equal(expected, m) for m in (*moved, *at_limits)) and expected.dtype == found.dtype
    e, f = expected.detach().double(), found.detach().double()
    runs = [m.detach().double() for m in moved]
    finite = torch.isfinite(e) & torch.isfinite(f)
    for m in runs:
        finite &= torch.isfinite(m)
    unlike = ~finite & ~((e == f) | (torch.isnan(e) & torch.isnan(f)))
    zeros = (e == 0) & (f == 0) & (torch.signbit(e) != torch.signbit(f))
    spread = max(_size((m - e)[finite]) for m in runs)
    # where rounding decides the first digits of values, it decides the signs of what zeros were multiplied by
    decided = zeros & (spread > _DIGITS * _size(e[finite]))
    unlike |= zeros
    # rounding makes an infinity of it, or a number, or none, or a zero of the other sign
    for m in (*runs, *(m.detach().double() for m in at_limits)):
        decided |= (torch.isfinite(m) != torch.isfinite(e)) | (torch.isnan(m) != torch.isnan(e))
        decided |= (torch.signbit(m) != torch.signbit(e)) & ~torch.isnan(e)  # what is no number has any sign
    if bool((unlike & ~decided).any()):
        return False
    if not bool(finite.any()):
        return True
    return _size((f - e)[finite]) <= _FACTOR * spread


def _size(values: torch.Tensor) -> float:
    """The root mean square; 0 of none."""
    return float(values.square().mean().sqrt()) if values.numel() else 0.0
