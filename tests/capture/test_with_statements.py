"""``with`` statements: context managers of programs and of torch.

Whatever a compiled function does, it does as in eager, in however many graphs that takes.

PYTEST_DONT_REWRITE: asserts are among what is compiled, with their own messages.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from tests.support.functions import prints_and_adds
from tests.support.tensors import t

from .harness import agrees_with_eager


class Ctx:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, trace):
        self.log.append(f"exit {kind and kind.__name__}")
        return self.swallow


def user_context(x):
    log: list[Any] = []
    with Ctx(log) as c:
        y = x * 2
        c.log.append("in")
        print("inside", log)
        y = y + 1
    return y, log


def user_context_swallows(x):
    log: list[Any] = []
    with Ctx(log, True):
        x = x + 1
        raise ValueError("x")
    return x, log


@contextlib.contextmanager
def managed(log):
    log.append("in")
    try:
        yield 5
    finally:
        log.append("out")


def generator_context(x):
    log: list[Any] = []
    with managed(log) as k, torch.no_grad():
        y = x * k
        flag = torch.is_grad_enabled()
    return y, log, flag, torch.is_grad_enabled()


def returns_inside_with(x):
    with torch.no_grad():
        return x * 2, torch.is_grad_enabled()


def loops_with_with(x):
    out = []
    for i in range(3):
        with torch.no_grad():
            if i == 1:
                continue
            out.append((x * i, torch.is_grad_enabled()))
        out.append(torch.is_grad_enabled())
    return out, x + 1


def grad_contexts(x):
    out = []
    with torch.no_grad():
        out.append(x * 1)
        with torch.enable_grad():
            out.append(x * 2)
        out.append(x * 3)
    with torch.set_grad_enabled(False):
        out.append(x * 4)
    with torch.inference_mode():
        out.append((x * 5).is_inference())
    torch.set_grad_enabled(False)
    out.append(x * 6)
    torch.set_grad_enabled(True)
    return out, x * 7


def raises_in_no_grad(x):
    try:
        with torch.no_grad():
            y = x + 1
            raise ValueError("x")
    except ValueError:
        return y, torch.is_grad_enabled(), x * 2


def breaks_in_no_grad_callee(x):
    with torch.no_grad():
        y = prints_and_adds(x, 1)
        z = prints_and_adds(y, 2) * 2
    return y, z, x * 2


def suppresses(x):
    with contextlib.suppress(KeyError):
        x = x + 1
        {}["k"]  # noqa: B018
    return x * 2


def with_in_loop_print(x):
    for i in range(3):
        with torch.no_grad():
            print(i)
            x = x * 2
    return x, torch.is_grad_enabled()


CASES = [
    (user_context, (t(2),)), (user_context_swallows, (t(2),)), (generator_context, (t(2).requires_grad_(),)),
    (returns_inside_with, (t(2).requires_grad_(),)), (loops_with_with, (t(2).requires_grad_(),)),
    (grad_contexts, (t(2).requires_grad_(),)), (raises_in_no_grad, (t(2).requires_grad_(),)),
    (breaks_in_no_grad_callee, (t(2).requires_grad_(),)), (suppresses, (t(2),)), (with_in_loop_print, (t(3),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_same_as_eager(case):
    agrees_with_eager(*case)


IN_KERNELS = [grad_contexts]


@pytest.mark.parametrize("backend", ["aot_eager", "fuselens"])
@pytest.mark.parametrize("case", [c for c in CASES if c[0] in IN_KERNELS], ids=lambda c: c[0].__name__)
def test_same_as_eager_when_lowered(case, backend):
    agrees_with_eager(*case, backend=backend)
