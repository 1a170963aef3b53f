"""Small programs by the dozen: each runs eagerly and compiled, cold and from the cache, forward and backward."""

from __future__ import annotations

import contextlib
import copy
import io
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import fuselens
from fuselens import torch_private
from fuselens.inputs import comparison

Make = Callable[[], Any]


def t(*shape: int, seed: int = 0, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


@dataclass
class Program:
    """``fn`` on ``args`` (functions of no argument make theirs anew); ``breaks``: the codes of its graph breaks, none if it is
    captured whole, with FL109 if code after one stays eager."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    breaks: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.fn.__name__


class Programs(list[Program]):
    """A list that its ``case`` decorator fills."""

    def case(self, *args: Any, breaks: str = "", **options: Any) -> Callable[[Any], Any]:
        def add(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.append(Program(fn, args, tuple(breaks.split()), options))
            return fn

        return add


def made(arg: Any) -> Any:
    return arg() if type(arg) is types.FunctionType else copy.deepcopy(arg)


def observe(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a call does: result, printed text, exception, arguments and state of modules afterwards, gradients, grad mode."""
    given = [made(a) for a in args]
    torch.manual_seed(3)
    printed = io.StringIO()
    result, error = None, None
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = fn(*given)
        except fuselens.GraphBreakError:
            raise
        except Exception as e:  # noqa: BLE001 - the comparison is about exceptions too
            error = f"{type(e).__name__}: {e}"
        with torch_private.DisableTorchFunctionSubclass():  # what follows is not the program
            modules = [m for m in given if isinstance(m, nn.Module)]
            tensors = [a for a in given if not isinstance(a, nn.Module)]
            leaves = [
                x for x in pytree.tree_leaves(tensors) if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf
            ]
            outputs = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.grad_fn is not None]
            if outputs:
                torch.autograd.backward([o.sum() for o in outputs])
            gradients = [x.grad for x in leaves] + [p.grad for m in modules for p in m.parameters()]
            flat = [x for x in pytree.tree_leaves((result, tensors)) if isinstance(x, torch.Tensor)]
            same = [next(i for i, y in enumerate(flat) if y is x) for x in flat]
            strides = [x.stride() for x in flat if x.layout is torch.strided]
            state = [dict(m.state_dict()) for m in modules]
            modes = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
            tensors = [a.get_state() if isinstance(a, torch.Generator) else a for a in tensors]
    return result, error, printed.getvalue(), tensors, state, gradients, same, strides, modes


def verify(program: Program, backend: str = "eager") -> None:
    expected = observe(program.fn, program.args)
    fuselens.reset()
    compiled = fuselens.compile(program.fn, backend=backend, fullgraph=False, **program.options)
    report = compiled.__fuselens__.recorder.report
    for attempt in ("cold", "cached"):
        actual = observe(compiled, program.args)
        difference = comparison.differ(expected, actual, attempt)
        assert difference is None, difference
    found = [*report.breaks, *(d for d in report.diagnostics if d.code in ("FL109", "FL112"))]
    assert {d.code for d in found} == set(program.breaks), [f"{d.code} {d.span}: {d.message}" for d in found]
