"""What a function was called with in the user's own runs: metadata in the user's cache, and inputs made from it again.

Of tensors their dtype, sizes, strides, device and what autograd knows of them; numbers and short texts as they are;
tuples, lists and dictionaries of these; and whether gradients were recorded. A call with anything else (but for the
``self`` of a method) is not recorded.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import math
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..capture.classify import is_library_file
from ..runtime.cache.store import Cache, key_of
from .example_inputs import random_tensor

CALLS = 8  # kept of a function: the first ones of a run that it was compiled for
LARGEST_TEXT = 64
LARGEST_INPUTS = 1 << 30  # bytes that are made of one call
_KIND = "inputs"
_SELF = {"self": True}


class NotRecordable(Exception):
    """The call has an argument that metadata does not describe."""


class Call(NamedTuple):
    """Inputs of one call, and whether gradients are recorded in it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad: bool = True
    inference: bool = False

    def of(self, function: Callable[..., Any]) -> Any:
        with torch.inference_mode() if self.inference else torch.set_grad_enabled(self.grad):
            return function(*self.args, **self.kwargs)


_below: contextvars.ContextVar[tuple[str, str] | None] = contextvars.ContextVar("fuselens_files_below", default=None)


@contextlib.contextmanager
def of_files_below(folder: str, top: str) -> Iterator[None]:
    """In the block, files below ``folder`` are called as those below ``top`` were."""
    token = _below.set((folder, top))
    try:
        yield
    finally:
        _below.reset(token)


def _place(file: str) -> str:
    path, below = Path(file).resolve(), _below.get()
    if below is not None and path.is_relative_to(below[0]):
        path = Path(below[1], path.relative_to(below[0]))
    return str(path)


class Recording:
    """The calls of one function, by its file and qualified name; of a library's, those of one program, by its path."""

    def __init__(self, cache: Path, file: str, function: str, program: str) -> None:
        self._cache = Cache(cache)
        of = {"program": _place(program)} if is_library_file(file) else {}
        self._key = key_of({"file": _place(file), "function": function, **of})

    def calls(self) -> list[Any]:
        """Plain descriptions of calls, oldest first."""
        data = self._cache.get(_KIND, self._key, ".json")
        with contextlib.suppress(ValueError):
            found = json.loads(data) if data is not None else []
            return found if isinstance(found, list) else []
        return []

    def keep(self, calls: Sequence[Any]) -> None:
        self._cache.put(_KIND, self._key, json.dumps(list(calls[:CALLS])).encode(), ".json")


def described(code: types.CodeType, args: Sequence[Any]) -> dict[str, Any]:
    """A call as plain data: ``args`` are its arguments in the order of ``code``'s variables. Raises NotRecordable."""
    names, positional = code.co_varnames, code.co_argcount
    given = dict(zip(names, args, strict=False))
    first = names[0] if positional else ""
    out: dict[str, Any] = {"args": [], "grad": torch.is_grad_enabled(), "inference": torch.is_inference_mode_enabled()}
    for name in names[:positional]:
        is_self = name == first == "self"
        out["args"].append(_SELF if is_self else _described(given[name]))
    last = positional + code.co_kwonlyargcount
    out["kwargs"] = {name: _described(given[name]) for name in names[positional:last]}
    if code.co_flags & 0x04:
        out["args"] += [_described(value) for value in given[names[last]]]
        last += 1
    if code.co_flags & 0x08:
        out["kwargs"] |= {name: _described(value) for name, value in given[names[last]].items()}
    return out


def _described(value: Any) -> Any:
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.layout is not torch.strided or value.is_quantized:
            raise NotRecordable
        return {
            "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "stride": list(value.stride()),
            "device": value.device.type, "requires_grad": value.requires_grad, "is_leaf": value.is_leaf,
            "inference": value.is_inference(), "parameter": type(value) is torch.nn.Parameter,
        }  # fmt: skip
    if _is_plain(value):
        return value
    if type(value) in (tuple, list):
        return {type(value).__name__: [_described(v) for v in value]}
    if type(value) is dict and all(type(k) is str for k in value):
        return {"dict": {k: _described(v) for k, v in value.items()}}
    raise NotRecordable


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return len(value) <= LARGEST_TEXT
    return kind in (bool, int, type(None)) or (kind is float and math.isfinite(value))


def made(call: Any, owner: Any = None) -> Call:
    """A call like the one that was described; ``owner`` stands for its ``self``. Raises NotRecordable for
    what cannot be made here: a device that is not there, too much memory, a description of something else."""
    generator = torch.Generator().manual_seed(0)
    try:
        if _bytes(call) > LARGEST_INPUTS or (owner is None and _SELF in call["args"]):
            raise NotRecordable
        args = tuple(owner if a == _SELF else _made(a, generator) for a in call["args"])
        kwargs = {str(name): _made(a, generator) for name, a in call["kwargs"].items()}
        return Call(args, kwargs, bool(call.get("grad", True)), bool(call.get("inference")))
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise NotRecordable from error


def _bytes(plain: Any) -> int:
    if isinstance(plain, dict):
        if "stride" in plain:
            return 8 * (1 + sum((n - 1) * abs(s) for n, s in zip(plain["shape"], plain["stride"], strict=True)))
        return sum(_bytes(v) for v in plain.values())
    return sum(_bytes(v) for v in plain) if isinstance(plain, list) else 0


def _made(plain: Any, generator: torch.Generator) -> Any:
    if not isinstance(plain, dict):
        return plain
    if "dtype" in plain:
        return _tensor(plain, generator)
    ((kind, content),) = plain.items()
    if kind == "dict":
        return {k: _made(v, generator) for k, v in content.items()}
    items = [_made(v, generator) for v in content]
    return tuple(items) if kind == "tuple" else items


def _tensor(plain: dict[str, Any], generator: torch.Generator) -> torch.Tensor:
    """Random numbers, laid out as the recorded tensor was: an axis of stride 0 repeats one element."""
    dtype, shape, stride = getattr(torch, plain["dtype"]), plain["shape"], plain["stride"]
    own = [1 if s == 0 else n for n, s in zip(shape, stride, strict=True)]
    with torch.inference_mode(bool(plain.get("inference"))):
        made = torch.empty_strided(own, stride, dtype=dtype)
        made.copy_(random_tensor(tuple(own), dtype, generator))
        made = made.expand(shape).to(plain["device"])
        if plain.get("parameter"):
            return torch.nn.Parameter(made, plain["requires_grad"])
        made.requires_grad_(plain["requires_grad"])
    return made if plain.get("is_leaf", True) else made.clone()


def varying(calls: Sequence[Any], names: Sequence[str]) -> dict[str, dict[int, str]]:
    """Sizes that differ from call to call: positional tensor parameter → dimension → a name for it."""
    found: dict[str, dict[int, str]] = {}
    for i, name in enumerate(names):
        shapes = [c["args"][i]["shape"] for c in calls if len(c["args"]) > i and _is_tensor(c["args"][i])]
        if len({len(s) for s in shapes}) == 1:
            axes = {d: f"{name}_{d}" for d, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1}
            if axes:
                found[name] = axes
    return found


def _is_tensor(plain: Any) -> bool:
    return isinstance(plain, dict) and "dtype" in plain
