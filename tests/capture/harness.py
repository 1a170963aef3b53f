"""Compiled against eager in value, type, aliasing, output and exception."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from typing import Any

import torch

import fuselens
from fuselens.inputs import comparison
from fuselens.record.report import Report

STRICT = {"strict": True}


def run(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, str, BaseException | None, tuple[Any, ...]]:
    """(result, what it printed, what it raised, the arguments afterwards) of a call on copies of ``args``."""
    given = copy.deepcopy(args)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            result, error = fn(*given), None
        except Exception as e:  # noqa: BLE001 - the comparison is about exceptions too
            result, error = None, e
    return result, out.getvalue(), error, given


def agrees_with_eager(fn: Callable[..., Any], *calls: tuple[Any, ...], backend: str = "eager", breaks: int | None = None,
                      graphs: int | None = None, **options: Any) -> Report:  # fmt: skip
    """Calls ``fn`` eagerly and compiled with each argument tuple, twice over (the second time from the cache)."""
    compiled = fuselens.compile(fn, backend=backend, options=None, **options)
    report = compiled.__fuselens__.recorder.report
    for args in calls * 2:
        state = torch.get_rng_state()
        expected, printed, error, after = run(fn, args)
        torch.set_rng_state(state)
        actual, printed_too, error_too, after_too = run(compiled, args)
        if error is not None or error_too is not None:
            assert type(error) is type(error_too), f"eager raised {error!r}, compiled {error_too!r}"
            assert str(error) == str(error_too)
        difference = comparison.differ(expected, actual, "result")
        assert difference is None, difference
        assert printed == printed_too
        difference = comparison.differ(after, after_too, "arguments afterwards")
        assert difference is None, difference
    if breaks is not None:
        assert len(report.breaks) == breaks, [f"{b.span}: {b.message}" for b in report.breaks]
    if graphs is not None:
        assert len(report.graphs) == graphs, report.summary()
    return report


def check_training(
    fn: Callable[..., Any], *args: Any, backend: str = "eager", breaks: int | None = None, steps: int = 2,
    eager: Callable[..., Any] | None = None, unused_gradients: bool = False,
) -> Report:  # fmt: skip
    """Calls ``fn`` eagerly (or ``eager`` in its place) and compiled, then backward: results and gradients agree.

    ``unused_gradients``: eager's missing gradients may be zeros.
    """
    compiled = fuselens.compile(fn, backend=backend)
    report = compiled.__fuselens__.recorder.report

    def once(function: Callable[..., Any]) -> tuple[Any, list[Any]]:
        torch.manual_seed(0)
        given = copy.deepcopy(args)
        result = function(*given)
        roots = [t for t in _tensors(result) if t.requires_grad]
        torch.autograd.backward(roots, [torch.cos(t.detach()) for t in roots])
        held = [*_tensors(given), *(fn.parameters() if isinstance(fn, torch.nn.Module) else ())]
        gradients = [t.grad for t in held]
        if isinstance(fn, torch.nn.Module):
            fn.zero_grad()
        if unused_gradients:
            gradients = [torch.zeros_like(t) if g is None else g for t, g in zip(held, gradients, strict=True)]
        return result, gradients

    for _ in range(steps):
        expected, actual = once(eager or fn), once(compiled)
        for what, e, a in zip(("result", "gradient"), expected, actual, strict=True):
            difference = comparison.differ(e, a, what)
            assert difference is None, difference
        requires = [[t.requires_grad for t in _tensors(r)] for r in (expected[0], actual[0])]
        assert eager is not None or requires[0] == requires[1]
    if breaks is not None:
        assert len(report.breaks) == breaks, [f"{b.span}: {b.message}" for b in report.breaks]
    return report


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []
