"""Whether a call's arguments fit a builtin's parameters, and what the builtin raises where they do not."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

from ..breaks import Break, Raised, raising

# what `inspect` cannot tell of builtins written without Argument Clinic
_SHAPES: dict[Any, Any] = {
    getattr: lambda obj, name, default=None, /: None, iter: lambda obj, sentinel=None, /: None,
    next: lambda iterator, default=None, /: None, vars: lambda obj=None, /: None,
    min: lambda first, /, *more, key=None, default=None: None, max: lambda first, /, *more, key=None, default=None: None,
    set: lambda iterable=(), /: None, frozenset: lambda iterable=(), /: None, bool: lambda x=False, /: None,
    dict: lambda items=(), /, **named: None, OrderedDict: lambda items=(), /, **named: None,
    defaultdict: lambda factory=None, items=(), /, **named: None, deque: lambda iterable=(), maxlen=None: None,
    map: lambda function, first, /, *iterables: None, zip: lambda *iterables, strict=False: None,
    filter: lambda function, iterable, /: None, range: lambda start, stop=None, step=None, /: None,
    slice: lambda start, stop=None, step=None, /: None,
    super: lambda cls=None, obj=None, /: None, str: lambda object="", encoding="", errors="": None,  # noqa: A006
    bytes: lambda source=b"", encoding="", errors="": None, int: lambda x=0, /, base=10: None,
    functools.reduce: lambda function, iterable, initial=None, /: None, functools.cmp_to_key: lambda mycmp: None,
    itertools.chain: lambda *iterables: None, itertools.islice: lambda iterable, a, b=None, c=None, /: None,
    itertools.repeat: lambda object, times=None: None,  # noqa: A006
    itertools.product: lambda *iterables, repeat=1: None,
    itertools.zip_longest: lambda *iterables, fillvalue=None: None, operator.itemgetter: lambda item, /, *items: None,
    operator.attrgetter: lambda attr, /, *attrs: None,
}  # fmt: skip
_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, type)


@functools.cache
def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(_SHAPES.get(function, function))
    except (TypeError, ValueError):
        return None


@functools.lru_cache(4096)
def fit(function: Any, n_args: int, keywords: tuple[str, ...]) -> bool:
    """Whether ``function`` takes that many arguments and those keywords, as far as can be told."""
    signature = _signature(function)
    if signature is None:
        return True
    try:
        signature.bind(*(None,) * n_args, **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def is_builtin(function: Any) -> bool:
    """Whether the parameters of ``function`` are those of the C function that it is."""
    return isinstance(function, _BUILTINS) and not (getattr(function, "__module__", None) or "").startswith("torch")


def misfit(function: Any, n_args: int, keywords: tuple[str, ...], what: str) -> Raised | Break:
    """What a builtin raises that is called with arguments that do not fit."""
    try:
        function(*(None,) * n_args, **dict.fromkeys(keywords))
    except TypeError as e:
        return raising(e)
    except Exception:  # noqa: BLE001 - it looked at the arguments: eager's own error is another
        pass
    return Break("FL104", what=what, why="its arguments do not fit")
