"""numpy's operations on tensors: torch's own translation of numpy, as functions that a graph can call.

An :class:`Operation` takes and gives tensors where numpy takes and gives arrays. A tensor without dimensions stands for a number
of numpy's. What it gives is meant to be what numpy gives; whoever records one compares the two first.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from .names import private

_OWNERS = ("", "linalg", "fft")
_NOT_OPERATIONS = {"array_equal", "array_equiv", "from_dlpack", "gcd", "lcm", "set_default_dtype"}
_WRITING_FUNCTIONS = {"copyto", "fill_diagonal", "put", "put_along_axis"}
_WRITING_METHODS = {"fill", "put", "sort"}
_NOT_METHODS = {"item", "resize", "tolist"}


class Operation:
    """One operation: a ``function`` of numpy's, a ``method`` or ``attribute`` of its arrays, or an ``operator`` on them."""

    def __init__(self, kind: str, name: str, run: Callable[..., Any], writes: bool) -> None:
        self.kind = kind
        self.name = name
        self.writes = writes
        self._run = run
        self.__module__ = "numpy"  # which texts of graphs show
        self.__name__ = name.rpartition(".")[2]
        self.__qualname__ = f"ndarray.{name}" if kind in ("method", "attribute") else name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.kind != "function":  # arguments of functions may be tensors as they are
            args = tuple(map(_array, args))
        return _tensors(self._run(*args, **kwargs))

    def __repr__(self) -> str:
        return f"numpy.{self.__qualname__}"

    def __reduce__(self) -> Any:
        return _named, (self.kind, self.name)

    def __deepcopy__(self, memo: Any) -> Operation:
        return self


def _array(value: Any) -> Any:
    return private.numpy.ndarray(value) if isinstance(value, torch.Tensor) else value


def _tensors(value: Any) -> Any:
    """A result with tensors for torch's arrays."""
    if isinstance(value, private.numpy.ndarray):
        return value.tensor
    if isinstance(value, (list, tuple)):
        return [*map(_tensors, value)] if isinstance(value, list) else tuple(map(_tensors, value))
    return value


def operation(function: Any) -> Operation | None:
    """The operation that a function of numpy's is; None where torch does not know it."""
    name = _functions().get(id(function))
    return None if name is None else _named("function", name)


def operation_of_array(kind: str, name: str) -> Operation | None:
    """The ``method``, ``attribute`` or ``operator`` (of the module of that name) that arrays have; None where torch's have not."""
    return _named(kind, name)


@functools.cache
def _functions() -> dict[int, str]:
    """Names of numpy's functions that torch knows, by identity."""
    numpy, known = sys.modules.get("numpy"), private.numpy
    found: dict[int, str] = {}
    for owner in _OWNERS if numpy is not None and isinstance(known, types.ModuleType) else ():
        theirs, ours = (getattr(m, owner) if owner else m for m in (numpy, known))
        for name in dir(ours):
            function, translated = getattr(theirs, name, None), getattr(ours, name)
            module = getattr(translated, "__module__", None) or ""
            plain = callable(function) and not isinstance(function, type) and callable(translated)
            if plain and not name.startswith("_") and name not in _NOT_OPERATIONS and module.startswith(known.__name__):
                found.setdefault(id(function), f"{owner}.{name}" if owner else name)
    return found


@functools.cache
def _named(kind: str, name: str) -> Operation | None:
    own = _OWN.get(name if kind == "function" else name.strip("_"))
    if own is not None:
        return Operation(kind, name, own, own is _write or _is_in_place(name))
    if kind == "function":
        run: Any = functools.reduce(getattr, name.split("."), private.numpy)
        return Operation(kind, name, _no_halves(run) if name in _OVERFLOWING else run, name in _WRITING_FUNCTIONS)
    if kind == "operator":
        return Operation(kind, name, getattr(operator, name), _is_in_place(name))
    if name in _NOT_METHODS or not hasattr(private.numpy.ndarray, name):
        return None
    if kind == "attribute":
        return Operation(kind, name, operator.attrgetter(name), False)
    if name in _OVERFLOWING:
        return Operation(kind, name, _no_halves(getattr(private.numpy.ndarray, name)), False)
    return Operation(kind, name, getattr(private.numpy.ndarray, name), name in _WRITING_METHODS or _is_in_place(name))


# --- what torch translates to other numbers -----------------------------------------------------------------------
# At infinities, zeros with signs and what is not a number these follow numpy, whose documentation of each function says what
# they give. Keywords, as ``out=``, they do not take: numpy computes then.


def _tensor(value: Any) -> Any:
    return value.tensor if isinstance(value, private.numpy.ndarray) else value


def _sign(x: Any) -> Any:
    x = _tensor(x)
    return torch.where(x.isnan(), x, x.sign()) if x.is_floating_point() else x.sign()


def _cube_root(x: Any) -> Any:
    """A power, and one step of Newton's method."""
    x = _tensor(x)
    if x.dtype is torch.float16:
        return _cube_root(x.float()).half()
    if not x.is_floating_point():
        x = x.double()
    near = torch.copysign(x.abs() ** (1 / 3), x)
    better = near - (near * near * near - x) / (3 * near * near)
    return torch.where(better.isfinite(), better, near)


def _heaviside(x: Any, at_zero: Any) -> Any:
    x, at_zero = _tensor(x), _tensor(at_zero)
    found = private.numpy.heaviside(x, at_zero).tensor
    return torch.where(x.isnan(), x, found)


def _parts(x: Any) -> Any:
    """Fraction and whole part, both with the sign of ``x``."""
    x = _tensor(x)
    whole = x.trunc()
    return torch.copysign(torch.where(x.isinf(), torch.zeros_like(x), x - whole), x), whole


def _remainder(x: Any, y: Any) -> Any:
    """With the sign of the divisor, also where it is zero."""
    found = _by_divisor("remainder", x, y)
    if not found.is_floating_point():
        return found
    y = _tensor(y)
    signed = torch.copysign(found, y if isinstance(y, torch.Tensor) else torch.tensor(float(y), dtype=found.dtype))
    return torch.where(found == 0, signed, found)


def _by_divisor(name: str, x: Any, y: Any) -> torch.Tensor:
    """A quotient or remainder; of an integer by zero it is zero, where torch raises."""
    function, given, divisor = getattr(private.numpy, name), _tensor(x), _tensor(y)
    floats = (isinstance(v, float) or (isinstance(v, torch.Tensor) and v.is_floating_point()) for v in (given, divisor))
    if any(floats) or not isinstance(divisor, torch.Tensor):
        return function(x, y).tensor
    by_zero = divisor == 0
    found = function(x, private.numpy.ndarray(torch.where(by_zero, torch.ones_like(divisor), divisor))).tensor
    return torch.where(by_zero, torch.zeros_like(found), found)


def _quotient(x: Any, y: Any) -> Any:
    return _by_divisor("floor_divide", x, y)


def _truncated_remainder(x: Any, y: Any) -> Any:
    return _by_divisor("fmod", x, y)


def _divided(x: Any, y: Any) -> Any:
    return _quotient(x, y), _remainder(x, y)


def _power(x: Any, y: Any) -> Any:
    exponent = _tensor(y)
    if isinstance(exponent, torch.Tensor) and not (exponent.is_floating_point() or exponent.is_complex()):
        base = _tensor(x)
        if not (isinstance(base, torch.Tensor) and (base.is_floating_point() or base.is_complex())):
            raise NotImplementedError("numpy refuses negative exponents of integers, which only data decides")
    return private.numpy.power(x, y).tensor


def _no_halves(function: Callable[..., Any]) -> Callable[..., Any]:
    """numpy sums squares of half precision in half precision, and torch does not."""

    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_tensor(x), "dtype", None) is torch.float16:
            raise NotImplementedError("numpy's sums overflow")
        return function(x, *args, **kwargs)

    return run


def _write(x: Any, index: Any, value: Any) -> None:
    """numpy copies what is written where both lie in the same memory."""
    held = _tensor(value)
    x[index] = held.clone() if isinstance(held, torch.Tensor) else value


def _in_place(function: Callable[[Any, Any], torch.Tensor]) -> Callable[[Any, Any], torch.Tensor]:
    def run(x: Any, y: Any) -> torch.Tensor:
        return _tensor(x).copy_(function(x, y))

    return run


def _reversed(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: function(y, x)


_OWN: dict[str, Callable[..., Any]] = {
    "sign": _sign, "cbrt": _cube_root, "heaviside": _heaviside, "modf": _parts, "divmod": _divided, "rdivmod": _reversed(_divided),
    **dict.fromkeys(("mod", "remainder"), _remainder), "rmod": _reversed(_remainder), "imod": _in_place(_remainder),
    **dict.fromkeys(("floordiv", "floor_divide"), _quotient), "rfloordiv": _reversed(_quotient), "ifloordiv": _in_place(_quotient),
    "fmod": _truncated_remainder, "setitem": _write,
    **dict.fromkeys(("power", "pow"), _power), "rpow": _reversed(_power), "ipow": _in_place(_power),
}  # fmt: skip
"""By the name of a function, an operator or a special method without underscores."""
_OVERFLOWING = frozenset({"std", "var", "nanstd", "nanvar"})


def _is_in_place(name: str) -> bool:
    """Whether it is the function, or the special method, of an augmented assignment."""
    bare = name.strip("_")
    return bare.startswith("i") and hasattr(operator, f"__{bare}__") and hasattr(operator, f"__{bare[1:]}__")
