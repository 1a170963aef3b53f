"""What programs say to the compiler: leave this alone, break here, this is one operation, this is a constant."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .capture.breaks import UsageError
from .capture.hook import _hook
from .capture.program import marks
from .capture.program import stance as stances
from .capture.rules import table as rules
from .modules import proxy

F = TypeVar("F", bound=Callable[..., Any])


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Excludes ``fn`` from compilation: it runs as plain Python, and with ``recursive`` so does all that it calls.

    Without ``fn`` a decorator, and a context manager whose body is not captured. Of a class, its calls are excluded; of
    a module, its calls. ``reason`` is shown where a graph breaks because of it.
    Raises TypeError for what is not callable.
    """
    if fn is None:
        return _Disable(recursive, reason)
    if not callable(fn):
        raise TypeError(f"fuselens.disable expects a function, module or class, got {type(fn).__name__}")
    if isinstance(fn, type):
        fn.__call__ = disable(fn.__call__, recursive, reason=reason)  # type: ignore[method-assign]
        return fn
    if not recursive and inspect.isroutine(fn):
        marks.mark(fn, marks.EXCLUDED)
        return fn
    wrapped = _hook.disabled(fn)
    if isinstance(fn, torch.nn.Module):
        wrapped.__dict__["__fuselens_reason__"] = reason
        return proxy(fn, wrapped, functools.partial(disable, recursive=recursive, reason=reason))
    functools.update_wrapper(wrapped, fn)
    wrapped.__dict__["__fuselens_reason__"] = reason
    return wrapped


class _Disable(contextlib.ContextDecorator):
    """What ``disable()`` without a function gives."""

    def __init__(self, recursive: bool, reason: str | None) -> None:
        self.recursive = recursive
        self.reason = reason
        self.suspended: list[Any] = []

    def __call__(self, func: Any) -> Any:
        return disable(func, self.recursive, reason=self.reason)

    def __enter__(self) -> None:
        self.suspended.append(_hook.suspend())

    def __exit__(self, *exc: object) -> None:
        _hook.resume(self.suspended.pop())


copyreg.pickle(
    _hook.disabled, lambda wrapped: (_disabled_again, (wrapped.fn, wrapped.__dict__.get("__fuselens_reason__")))
)


def _disabled_again(fn: Any, reason: str | None) -> Any:
    return disable(fn, reason=reason)


def graph_break(msg: str = "") -> None:
    """Ends the graph here when the surrounding function is being compiled; does nothing otherwise."""


def is_compiling() -> bool:
    """True while the surrounding function is being traced, False when it runs as plain Python."""
    return False


marks.mark(graph_break, marks.BREAK)


def cudagraph_mark_step_begin() -> None:
    """A step of the program begins. With ``mode="reduce-overhead"`` results stay what they are for as long as they are held,
    so nothing is overwritten and no program needs this; memory of recordings that are gone is given back here.
    """
    recorded = sys.modules.get("fuselens.runtime.gpu.cuda_graphs")
    if recorded is not None:
        recorded.step_begins()


marks.mark(cudagraph_mark_step_begin, marks.IGNORED)
rules.RULES[is_compiling] = rules.RULES[torch.compiler.is_compiling]


def allow_in_graph(fn: Any) -> Any:
    """Calls of ``fn`` become one node of the graph: it is not looked into while tracing. Also takes a list or tuple.

    It must compute on its tensor arguments only, return tensors, or tuples and lists of them, and have no side effects;
    what it returns is guessed by running it on tensors without data. Returns ``fn`` itself.
    """
    if isinstance(fn, (list, tuple)):
        return [allow_in_graph(f) for f in fn]
    if not callable(fn):
        raise TypeError(f"fuselens.allow_in_graph expects a function, got {type(fn).__name__}")
    marks.mark(fn, marks.NODE)
    return fn


def assume_constant_result(fn: F) -> F:
    """``fn`` is called while tracing, and what it returns is part of the compiled code: it is not called again.

    Its arguments must be known while tracing; nobody checks that the result stays the same. Returns ``fn`` itself.
    """
    if not callable(fn):
        raise TypeError(f"fuselens.assume_constant_result expects a function, got {type(fn).__name__}")
    marks.mark(fn, marks.CONSTANT)
    return fn


def substitute_in_graph(original: Callable[..., Any], *, skip_signature_check: bool = False) -> Callable[[F], F]:
    """Decorator: calls of ``original``, e.g. of a C function, are traced as calls of the decorated Python function.

    Raises TypeError when one of them is no function, or when their signatures differ (where both are known).
    """
    if not callable(original) or isinstance(original, type):
        raise TypeError(f"fuselens.substitute_in_graph expects a function, got {original!r}")

    def register(function: F) -> F:
        if not isinstance(function, types.FunctionType):
            raise TypeError(f"the substitute must be a Python function, got {type(function).__name__}")
        if not skip_signature_check:
            _same_signature(original, function)
        marks.add_polyfill(original, function)
        return function  # type: ignore[return-value]

    return register


def _same_signature(original: Callable[..., Any], function: types.FunctionType) -> None:
    try:
        expected = inspect.signature(original)
    except (TypeError, ValueError):  # many C functions have none
        return
    given = inspect.signature(function)
    if [(p.name, p.kind) for p in expected.parameters.values()] != [
        (p.name, p.kind) for p in given.parameters.values()
    ]:
        raise TypeError(f"signatures differ: {original.__name__}{expected}, {function.__name__}{given}")


class set_stance:  # noqa: N801 - torch's own name for it
    """What the process does about compiling from now on; as a decorator or context manager: for as long as that lasts.

    "default"; "force_eager": nothing compiled runs; "eager_on_recompile": what is compiled runs, what is not runs eagerly;
    "fail_on_recompile": as before, but raises RuntimeError where it would compile; "eager_then_compile": each function
    runs eagerly once before it is compiled. Applies to all threads. ``skip_guard_eval_unsafe`` is a permission that is not needed:
    guards are checked all the same. Raises ValueError for unknown stances, RuntimeError
    inside compiled code.
    """

    def __init__(
        self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: Any = None
    ) -> None:
        if stance not in stances.STANCES:
            raise ValueError(f"unknown stance {stance!r}; stances are {', '.join(stances.STANCES)}")
        if force_backend is not None:
            raise ValueError("force_backend is not supported: give the backend to fuselens.compile")
        self.stance = stance
        self.before = _change_stance(stance)

    def __call__(self, fn: F) -> F:
        _change_stance(self.before)  # decorating is not calling
        stance = self.stance

        @functools.wraps(fn)
        def with_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(stance):
                return fn(*args, **kwargs)

        marks.mark(with_stance, marks.FORBIDDEN)
        return with_stance  # type: ignore[return-value]

    def __enter__(self) -> None:
        _change_stance(self.stance)

    def __exit__(self, *exc: object) -> None:
        _change_stance(self.before)


def _change_stance(stance: str) -> str:
    if _hook.is_capturing():
        raise UsageError("set_stance cannot be called inside compiled code")
    return stances.change(stance)


marks.mark(set_stance, marks.FORBIDDEN)
