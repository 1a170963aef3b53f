"""Context managers of torch: as ``with``, as decorators, nested, across graph breaks, and around the compiled call."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import fuselens
from fuselens.inputs import comparison

from .harness import agrees_with_eager
from .programs import Program, Programs, t, verify

PROGRAMS = Programs()
case = PROGRAMS.case


lin = nn.Linear(3, 3)


@case(lin, t(2, 3))
def autocast1(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = m(x)
        z = y.softmax(-1)
        w = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return y, z, y.dtype, m(x), w


@case(lin, t(2, 3))
def autocast_nested(m, x):
    with torch.amp.autocast("cpu"):
        y = m(x)
        with torch.autocast("cpu", enabled=False):
            z = m(y.float())
        with torch.no_grad():
            v = m(x)
    return y, z, v


@case(lin, t(2, 3))
def autocast_cuda(m, x):
    with torch.autocast("cuda", dtype=torch.float16):
        y = m(x)
    return y


@case(lin, t(2, 3), breaks="FL103 FL104")
def autocast_break(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = m(x)
        print("mid", torch.is_autocast_enabled("cpu"))
        z = m(x)
        with torch.no_grad():
            print("in", torch.is_grad_enabled())
            w = m(x)
    print("out", torch.is_autocast_enabled("cpu"))
    return y, z, w, m(x)


def helper(m, x):
    with torch.autocast("cpu"):
        y = m(x)
        print("h")
        return m(y)


@case(lin, t(2, 3), breaks="FL103 FL104")
def autocast_callee(m, x):
    return (helper(m, x) * 2).detach(), m(x)  # a cast of its own for each graph: gradients round differently


@torch.autocast("cpu", dtype=torch.bfloat16)
def deco(m, x):
    return m(x)


@torch.no_grad()
def deco2(m, x):
    return m(x)


@torch.inference_mode()
def deco3(m, x):
    return m(x)


@torch.enable_grad()
def deco4(m, x):
    return m(x)


@case(lin, t(2, 3))
def decos(m, x):
    return deco(m, x), deco2(m, x), deco4(m, x)


@case(lin, t(2, 3))
def deco_inf(m, x):
    y = deco3(m, x)
    return y.requires_grad, y * 2


@case(lin, t(2, 3))
def inference(m, x):
    with torch.inference_mode():
        y = m(x)
        z = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return z, torch.is_grad_enabled(), m(x)


@case(lin, t(2, 3))
def setgrad(m, x):
    with torch.set_grad_enabled(False):
        y = m(x)
    with torch.set_grad_enabled(True):
        z = m(x)
    return y, z


@case(lin, t(2, 3))
def setgrad_stmt(m, x):
    torch.set_grad_enabled(False)
    y = m(x)
    torch.set_grad_enabled(True)
    return y, m(x)


@case(t(1, 2, 4, 8))
def sdpa(x):
    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(x, x, x)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        z = F.scaled_dot_product_attention(x, x, x)
    return y, z


@case(t(3))
def record(x):
    with torch.autograd.profiler.record_function("hello"):
        y = x * 2
    with torch.profiler.record_function("hello"):
        y = y * 2
    return y


@case(t(3))
def device_ctx(x):
    with torch.device("cpu"):
        y = torch.zeros(3)
    return x + y


@case(t(3))
def device_meta(x):
    with torch.device("meta"):
        y = torch.zeros(3)
    return y.device.type, y.shape


@case(t(3))
def default_dtype(x):
    torch.set_default_dtype(torch.float64)
    y = torch.zeros(3)
    torch.set_default_dtype(torch.float32)
    return y, torch.ones(2), torch.get_default_dtype()


@case(t(3, grad=True))
def multithread(x):
    with torch.autograd.set_multithreading_enabled(False):
        y = x * 2
    return y


@case(t(3, grad=True), breaks="FL104")
def savedhooks(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda v: v * 2, lambda v: v):
        y = x * x
    return y.sum()


@case(t(3), breaks="FL104 FL105")
def forkrng(x):
    with torch.random.fork_rng():
        a = torch.rand(3)
    return a, torch.rand(3)


@case(lin, t(2, 3))
def stored_ctx(m, x):
    ctx = torch.autocast("cpu")
    with ctx:
        y = m(x)
    with ctx:
        z = m(x)
    return y, z


@contextlib.contextmanager
def mine():
    with torch.autocast("cpu"):
        yield 3


@case(lin, t(2, 3))
def user_ctx(m, x):
    with mine() as k:
        y = m(x) * k
    return y, m(x)


@case(lin, t(2, 3), breaks="FL103 FL105 FL117")
def user_ctx_break(m, x):
    with mine() as k:
        y = m(x) * k
        print("q")
        z = m(x)
    return y.detach(), z, m(x)


@case(lin, t(2, 3))
def raises(m, x):
    try:
        with torch.autocast("cpu"):
            y = m(x)
            raise ValueError("x")
    except ValueError:
        pass
    return y, m(x), torch.is_autocast_enabled("cpu")


@case(lin, t(2, 3), breaks="FL104 FL109 FL116")
def raises_out(m, x):
    with torch.autocast("cpu"):
        y = m(x)
        raise ValueError("x")


@case(lin, t(2, 3), breaks="FL103 FL104 FL105")
def loop(m, x):
    out = []
    for i in range(3):
        with torch.autocast("cpu", enabled=i % 2 == 0):
            x = m(x)
            print(i, x.dtype)
            out.append(x)
            x = x.float()
    return out


@case(t(2, 3))
def exitstack(x):
    with contextlib.nullcontext():
        y = x * 2
    with contextlib.ExitStack() as s:
        z = x * 3
    return y, z


@case(t(2, 3), breaks="FL104 FL110")
def exitstack2(x):
    with contextlib.ExitStack() as s:
        s.enter_context(torch.no_grad())
        s.enter_context(torch.autocast("cpu"))
        z = x @ x.t()
    return z, torch.is_grad_enabled()


@case(t(2, 3))
def ret_inside(x):
    with torch.autocast("cpu"):
        return x @ x.t()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_agrees_with_eager(program: Program, backend: str) -> None:
    verify(program, backend)


AROUND: dict[str, Any] = {
    "nothing": contextlib.nullcontext,
    "autocast": lambda: torch.autocast("cpu"),
    "autocast to half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "autocast on CUDA devices": lambda: torch.autocast("cuda"),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "device": lambda: torch.device("cpu"),
    "again autocast": lambda: torch.autocast("cpu"),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_contexts_around_the_call(backend: str) -> None:
    def fn(m: Any, x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            y = m(x)
        return m(x), y, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_grad_enabled()

    compiled = fuselens.compile(fn, backend=backend)
    model = nn.Linear(3, 3)
    for _ in range(2):
        for name, make in AROUND.items():
            with make():
                expected, actual = fn(model, t(2, 3)), compiled(model, t(2, 3))
            difference = comparison.differ(expected, actual, name)
            assert difference is None, difference
            if expected[0].requires_grad:
                pairs = [
                    torch.autograd.grad(out[0].sum() + out[1].sum(), list(model.parameters()))
                    for out in (expected, actual)
                ]
                difference = comparison.differ(*pairs, f"gradients inside {name}")
                assert difference is None, difference


def test_one_capture_for_each_setting() -> None:
    compiled = fuselens.compile(lambda m, x: m(x), backend="eager")
    model = nn.Linear(3, 3)
    for _ in range(3):
        for make in (contextlib.nullcontext, AROUND["autocast"], AROUND["autocast to half"]):
            with make():
                compiled(model, t(2, 3))
    assert len(compiled.__fuselens__.recorder.report.graphs) == 3


def decorated(x):
    @torch.no_grad()
    def inner(v, scale=2):
        """Says so."""
        return v * scale, torch.is_grad_enabled()

    return inner(x), inner.__name__, inner.__doc__, torch.is_grad_enabled()


def decorated_without_parentheses(x):
    @torch.no_grad
    def off(v):
        return v * 2, torch.is_grad_enabled(), on(v)

    @torch.enable_grad
    def on(v):
        return v * 3, torch.is_grad_enabled()

    return off(x), on(x), torch.is_grad_enabled()


def decorated_recursion(x):
    @torch.no_grad()
    def deeper(v, n):
        return (v if n == 0 else deeper(v * 2, n - 1)), torch.is_grad_enabled()

    return deeper(x, 3), torch.is_grad_enabled()


def decorated_lambdas(x):
    inference = torch.inference_mode()(lambda v: (v * 2).sum())
    narrow = torch.autocast("cpu", dtype=torch.bfloat16)(lambda v: v @ v)
    return inference(x).item() * 0, narrow(x.expand(3, 3)), x @ x.t()


def decorated_and_returned(x):
    narrow = torch.autocast("cpu", dtype=torch.bfloat16)(lambda v: (v @ x).dtype)
    return torch.no_grad()(lambda v: (v * x).requires_grad), narrow, x


def decorated_raises(x):
    @torch.no_grad()
    def inner(v):
        raise ValueError(f"{torch.is_grad_enabled()}")

    try:
        inner(x)
    except ValueError as e:
        return str(e), torch.is_grad_enabled()


def decorated_generator(x):
    @torch.no_grad()
    def inner(v):
        yield torch.is_grad_enabled()
        yield v + 1

    return list(inner(x)), torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("program", "breaks"),
    [
        (decorated, 0), (decorated_without_parentheses, 0), (decorated_recursion, 0), (decorated_lambdas, 1),
        (decorated_raises, 0), (decorated_generator, None),
    ],
)  # fmt: skip
def test_contexts_decorate(program, breaks):
    agrees_with_eager(program, (torch.randn(1, 3),), breaks=breaks)


def test_decorated_functions_leave_the_frame():
    x = torch.randn(3, requires_grad=True)
    function, narrow, _ = fuselens.compile(decorated_and_returned, backend="eager")(x)
    assert function(x) is False
    assert [narrow(torch.ones(3, 3)) for _ in range(2)] == [torch.bfloat16] * 2
    assert torch.is_grad_enabled()
