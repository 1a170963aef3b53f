"""Runs both sides of a data-dependent branch, so that the editor shows the graphs of both; or the other side alone, so
that what a program needs is built that takes it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .resuming import run_tails

visited: contextvars.ContextVar[set[Any] | None] = contextvars.ContextVar("fuselens_explored", default=None)
_turned: contextvars.ContextVar[set[Any] | None] = contextvars.ContextVar("fuselens_turned", default=None)


@contextlib.contextmanager
def turning() -> Iterator[set[Any]]:
    """Inside, each branch goes the other way the first time that it is met: no loop depends on it for ever. Yields the
    branches met."""
    met: set[Any] = set()
    token = _turned.set(met)
    try:
        yield met
    finally:
        _turned.reset(token)


def explore_both(
    condition: Any,
    jumps_when: bool,
    key: Any,
    fall: Callable[..., Any],
    fall_arguments: tuple[Any, ...],
    jump: Callable[..., Any],
    jump_arguments: tuple[Any, ...],
) -> Any:
    """The result of the side that ``condition`` chooses; the other one ran first, once per branch, on copies."""
    jumps = bool(condition) == jumps_when
    chosen, arguments = (jump, jump_arguments) if jumps else (fall, fall_arguments)
    other, other_arguments = (fall, fall_arguments) if jumps else (jump, jump_arguments)
    turned = _turned.get()
    if turned is not None and key not in turned:
        turned.add(key)
        return run_tails(other, *(_copied(a) for a in other_arguments))
    seen = visited.get()
    if seen is not None and key not in seen:
        seen.add(key)
        try:
            run_tails(other, *(_copied(a) for a in other_arguments))
        except Exception:  # noqa: BLE001 - the side that the program would not take may fail in any way
            pass
    return run_tails(chosen, *arguments)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone()
        return copy.requires_grad_(value.requires_grad) if copy.is_floating_point() or copy.is_complex() else copy
    if type(value) in (list, tuple):
        return type(value)(_copied(v) for v in value)
    if type(value) is dict:
        return {k: _copied(v) for k, v in value.items()}
    return value
