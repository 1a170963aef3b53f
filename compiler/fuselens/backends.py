"""Backends by name: ours, those that the program registered, and those that installed packages declare for torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, TypeVar

Backend = Callable[..., Any]
F = TypeVar("F", bound=Backend)
BUILT_IN = {"fuselens": (), "aot_eager": ("debug",), "eager": ("debug",)}
_registered: dict[str, tuple[Backend, tuple[str, ...]]] = {}


def register_backend(compiler_fn: Any = None, name: str | None = None, tags: Sequence[str] = ()) -> Any:
    """Makes ``compiler_fn`` known to ``compile(backend=name)``, by default under its own name; also a decorator.

    Raises ValueError for a name that is taken.
    """
    if compiler_fn is None:
        return lambda function: register_backend(function, name, tags)
    if not callable(compiler_fn):
        raise TypeError(f"fuselens.register_backend expects a function, got {type(compiler_fn).__name__}")
    key = name or getattr(compiler_fn, "__name__", "")
    if not key:
        raise ValueError("a backend without a __name__ needs name=")
    if key in BUILT_IN or _registered.get(key, (compiler_fn,))[0] is not compiler_fn:
        raise ValueError(f"there is a backend {key!r} already")
    _registered[key] = (compiler_fn, tuple(tags))
    return compiler_fn


def list_backends(exclude_tags: Sequence[str] = ("debug", "experimental")) -> list[str]:
    """The names that ``compile(backend=...)`` takes, but those with one of ``exclude_tags``."""
    known = {**BUILT_IN, **dict.fromkeys(_declared(), ()), **{n: tags for n, (_, tags) in _registered.items()}}
    return sorted(name for name, tags in known.items() if not set(tags) & set(exclude_tags or ()))


def find(name: str) -> Backend | None:
    """The function behind a backend's name; None for our own. Raises ValueError for unknown names."""
    if name in BUILT_IN:
        return None
    if name in _registered:
        return _registered[name][0]
    declared = _declared()
    if name not in declared:
        raise ValueError(f"unknown backend {name!r}; backends are {', '.join(list_backends(()))}, or a callable")
    return declared[name].load()


def _declared() -> dict[str, metadata.EntryPoint]:
    return {e.name: e for e in metadata.entry_points(group="torch_dynamo_backends") if e.name not in BUILT_IN}
