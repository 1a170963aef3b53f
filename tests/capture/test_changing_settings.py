"""Settings of torch, modes, and calls that fail.

Something changes between calls; compiled code must notice whatever eager would notice.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from tests.support.scenarios import Scenarios, agrees, raised
from tests.support.tensors import t

SCENARIOS = Scenarios()
scenario = SCENARIOS.add


@scenario
def grad_mode(wrap):
    w = t(3).requires_grad_()
    f = wrap(lambda x: (x * w, torch.is_grad_enabled()))
    g = wrap(lambda: torch.is_grad_enabled())
    for _ in range(2):
        yield f(t(3)), g()
        with torch.no_grad():
            yield f(t(3)), g()
        torch.set_grad_enabled(False)
        yield f(t(3)), g()
        torch.set_grad_enabled(True)
        with torch.inference_mode():
            y, _ = f(t(3))
            yield y.is_inference(), g()
    yield f(t(3)), g()


@scenario
def inference_mode(wrap):
    f = wrap(lambda x: (x * 2, torch.is_inference_mode_enabled(), torch.zeros(2)))
    for on in (False, True, False, True):
        with torch.inference_mode(on):
            y, flag, z = f(t(3))
            yield y.is_inference(), flag, z.is_inference()
    with torch.no_grad():
        yield f(t(3))[1]


@scenario
def requires_grad_of_an_argument(wrap):
    f = wrap(lambda x: (x * 2, x.requires_grad))
    for flag in (False, True, False, True):
        yield f(t(3).requires_grad_(flag))


@scenario
def default_dtype(wrap):
    f = wrap(lambda x: (torch.zeros(2), torch.arange(3) / 2, x * 1.5, torch.tensor(1.5), torch.get_default_dtype()))
    g = wrap(lambda: torch.ones(2))
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            yield f(torch.arange(3)), g()
        finally:
            torch.set_default_dtype(torch.float32)


@scenario
def autocast(wrap):
    f = wrap(lambda a, b: a @ b)
    for on in (False, True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
            yield f(t(3, 3), t(3, 3))


@scenario
def default_device(wrap):
    f = wrap(lambda: torch.zeros(2))
    yield f().device.type
    with torch.device("meta"):
        yield f().device.type
    yield f().device.type


@scenario
def randomness(wrap):
    f = wrap(
        lambda x: (torch.rand(3) + x, nn.functional.dropout(x, 0.5), torch.randn_like(x), torch.randint(0, 9, (3,)))
    )
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        yield f(t(3)), f(t(3)), torch.rand(1)


@scenario
def a_dispatch_mode(wrap):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        n = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.n += 1
            return func(*args, **(kwargs or {}))

    f = wrap(lambda x: x * 2 + 1)
    yield f(t(3))
    with Count():
        yield f(t(3)), Count.n > 0


@scenario
def a_function_mode(wrap):
    class Double(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.relu else result

    f = wrap(lambda x: torch.relu(x) + 1)
    yield f(t(3))
    with Double():
        yield f(t(3))
    yield f(t(3))


@scenario
def functorch(wrap):
    f = wrap(lambda x: (x * 2).sum())
    yield f(t(3))
    yield torch.func.grad(f)(t(3)), torch.func.vmap(f)(t(2, 3)), torch.func.jvp(f, (t(3),), (t(3),))
    yield f(t(3))


@scenario
def tensor_subclass(wrap):
    class Loud(torch.Tensor):
        pass

    f = wrap(lambda x: x * 2)
    yield f(t(3))
    y = f(t(3).as_subclass(Loud))
    yield type(y).__name__
    yield type(f(nn.Parameter(t(3)))).__name__


@scenario
def warnings_repeat(wrap):
    def fn(x):
        y = x + 1
        warnings.warn("careful", stacklevel=1)
        return y * 2

    f = wrap(fn)
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield f(t(3)), [str(w.message) for w in caught]


@scenario
def exceptions_then_success(wrap):
    def fn(x, k):
        y = x + 1
        if k == 2:
            raise ValueError("two")
        assert k != 3, f"three {k}"
        return y / k if isinstance(k, int) else y @ k

    f = wrap(fn)
    for k in (1, 2, 3, 1, 0, t(3), t(4), "a", None, 2, 1):
        yield raised(f, t(3), k)


@scenario
def grad_mode_is_left_changed(wrap):
    def fn(x, on):
        y = x * 2
        torch.set_grad_enabled(on)
        return y, x * 3

    f = wrap(fn)
    x = t(3).requires_grad_()
    try:
        for on in (False, True, True, False, False, True):
            yield f(x, on), torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


@scenario
def a_call_fails_inside_no_grad(wrap):
    def fn(x, k):
        with torch.no_grad():
            y = x * 2
            z = y / [1][k]
        return z + x

    f = wrap(fn)
    x = t(3).requires_grad_()
    for k in (0, 5, 0):
        yield raised(f, x, k), torch.is_grad_enabled()


@scenario
def shapes_fail_at_the_second_call(wrap):
    f = wrap(lambda x, y: (x @ y).relu())
    yield (
        f(t(2, 3), t(3, 2)),
        raised(f, t(2, 3), t(2, 3)),
        f(t(2, 3), t(3, 2)),
        raised(f, t(2, 3), t(3).double()),
        raised(f, t(2, 3), None),
    )


@scenario
def data_makes_an_operation_fail(wrap):
    f = wrap(lambda x, i: x[i] * 2)
    yield f(t(3), torch.tensor([0, 2])), raised(f, t(3), torch.tensor([0, 7])), f(t(3), torch.tensor([1, 1]))


@pytest.mark.parametrize("made", SCENARIOS, ids=lambda s: s.__name__)
def test_notices_what_eager_notices(made):
    agrees(made)
