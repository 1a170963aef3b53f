"""Functions of points for other Triton programs: their text, and that a kernel which calls them compiles for a card."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fuselens

pytest.importorskip("triton")

import triton

from tests.kernels import from_functions as programs


def compiled(kernel: Any, pointers: list[str], function: Any, architecture: int = 90) -> str:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names[: len(pointers)]
    signature = {**dict(zip(names, pointers, strict=True)), "n": "i32", "function": "constexpr", "BLOCK": "constexpr"}
    unit = ASTSource(fn=kernel, signature=signature, constexprs={"function": function, "BLOCK": 128})
    return triton.compile(unit, target=GPUTarget("cuda", architecture, 32)).asm["ptx"]


_POINTERS = {
    torch.float64: "*fp64", torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int32: "*i32",
    torch.bool: "*i1", torch.float8_e4m3fn: "*fp8e4nv",
}  # fmt: skip


@pytest.mark.parametrize("name", programs.FUNCTIONS)
def test_a_kernel_that_calls_it_compiles(name: str) -> None:
    fn, dtypes = programs.FUNCTIONS[name]
    result = fn(*(torch.empty(4, dtype=d) for d in dtypes)).dtype
    function = fuselens.triton_function(fn, dtypes=dtypes)
    kernel = programs.one if len(dtypes) == 1 else programs.two
    assert ".visible .entry" in compiled(kernel, [_POINTERS[d] for d in (*dtypes, result)], function)


def test_functions_of_the_vendors_library() -> None:
    function = fuselens.triton_function(lambda x: torch.atan(x) + torch.lgamma(x))
    assert ".visible .entry" in compiled(programs.one, ["*fp32", "*fp32"], function)


TEXT = '''
"""The function leaky of a PyTorch program. Written by fuselens."""

import triton
import triton.language as tl


@triton.jit
def leaky(x, y):
    x = tl.cast(x, tl.float32)
    y = tl.cast(y, tl.float16)
    t2 = x > 0.0
    t4 = x * 0.25
    t5 = tl.where(t2, x, t4)
    t7 = y.to(tl.float32)
    t8 = t5 + t7
    buf3 = t8
    return buf3
'''


def test_the_text() -> None:
    import inspect

    def leaky(x, y, slope=0.25):
        return torch.where(x > 0, x, x * slope) + y

    function = fuselens.triton_function(leaky, dtypes=[torch.float32, torch.float16])
    text = inspect.getsource(inspect.getmodule(function.fn) or function.fn)
    assert text.strip() in (TEXT.strip(), TEXT.partition("language as tl\n")[2].strip())


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_a_kernel_tells(dynamic: bool) -> None:
    x, weight = torch.empty(30, 256, dtype=torch.bfloat16), torch.empty(256)
    kernel = fuselens.triton_kernel(programs.rms_norm, x, weight, dynamic=dynamic)
    shown = [(a.name, a.dtype, a.written) for a in kernel.arguments]
    assert shown == [("x", torch.bfloat16, False), ("weight", torch.float32, False), ("out0", torch.float32, True)]
    assert len(kernel.sizes) == (2 if dynamic else 0) and kernel.sizes_of(x, weight) == ((30, 256) if dynamic else ())
    assert kernel.grid(*kernel.sizes_of(x, weight))[0] <= 30
    assert repr(kernel).startswith("<fuselens.TritonKernel rms_norm(x, weight, out0")
    assert "@triton.jit" in kernel.text and kernel.function.fn.__name__ in kernel.text
