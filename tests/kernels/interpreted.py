"""Checks of functions that launch kernels, in a process in which Triton's interpreter runs these: JSON, by name what is wrong."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import fuselens
from fuselens.capture.breaks import CodedError
from fuselens.record.report import Report
from tests.capture.harness import agrees_with_eager, check_training

from . import from_functions
from . import kernels as k

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def compiled(function: Callable[..., Any], *calls: Any, **options: Any) -> Report:
    report = agrees_with_eager(function, *calls, backend="fuselens", fullgraph=True, **options)
    assert not [d for d in report.diagnostics if d.code.startswith("FL3")], report.summary()
    return report


def _whole(function: Callable[..., Any]) -> Callable[[], None]:
    def run() -> None:
        compiled(function, k.inputs(), graphs=1)

    return run


CHECKS |= {name: _whole(function) for name, function in k.FUNCTIONS.items()}


CHECKS |= {
    f"function: {name}": (lambda name=name: from_functions.agrees(name, "cpu")) for name in from_functions.FUNCTIONS
}
CHECKS |= {
    f"kernel: {name}{', any size' if dynamic else ''}": (
        lambda name=name, dynamic=dynamic: from_functions.launches(name, "cpu", dynamic)
    )
    for name in from_functions.KERNELS
    for dynamic in (False, True)
    if not (dynamic and name == from_functions.A_VIEW)
}


@check
def sizes_that_vary() -> None:
    for function, graphs in ((k.by_function_of_parameters, 1), (k.tuned, 1), (k.ruled, 2)):  # its rule asks for a size
        calls = [(torch.randn(n), torch.randn(n)) for n in (100, 90, 130, 1000)]
        report = compiled(function, *calls, dynamic=True)
        assert len(report.graphs) == graphs, report.summary()


@check
def inputs_that_share_memory() -> None:
    run = fuselens.compile(k.writes_inputs, fullgraph=True)

    def made(start: int, other: int) -> tuple[Tensor, Tensor, Tensor]:
        memory = torch.arange(300.0)
        return memory, memory[start : start + 100], memory[other : other + 100]

    for start, other in ((0, 0), (0, 200), (0, 50), (50, 0)):
        (mine, *given), (theirs, *others) = made(start, other), made(start, other)
        assert torch.equal(run(*given), k.writes_inputs(*others)) and torch.equal(mine, theirs)


@check
def inputs_with_gaps() -> None:
    run = fuselens.compile(k.writes_inputs)
    mine, theirs = torch.arange(200.0).view(100, 2), torch.arange(200.0).view(100, 2)
    y = k.inputs()[1]
    assert torch.equal(run(mine[:, 1], y), k.writes_inputs(theirs[:, 1], y)) and torch.equal(mine, theirs)
    assert "FL301" in [d.code for d in run.__fuselens__.recorder.report.diagnostics]


@check
def writes_count_as_eagers() -> None:
    for function in (k.writes_inputs, k.writes_by_an_operator, k.optimised):
        mine, theirs = k.inputs(), k.inputs()
        fuselens.compile(function, fullgraph=True)(*mine)
        function(*theirs)
        assert [t._version for t in mine] == [t._version for t in theirs]


@check
def parameters_are_written() -> None:
    parameter, gradient = torch.nn.Parameter(k.inputs()[0]), k.inputs()[1]
    expected = parameter.detach() + gradient
    fuselens.compile(k.optimised, fullgraph=True)(parameter, gradient)
    assert torch.equal(parameter, expected) and parameter.is_leaf and parameter.requires_grad


@check
def inputs_are_written_in_place() -> None:
    run = fuselens.compile(k.optimised, fullgraph=True)
    run(*k.inputs())
    report = run.__fuselens__.recorder.report
    assert [x.verdict for g in report.graphs for x in g.decisions if x.code == "FL413"] == ["taken"]
    assert [x.name for x in report.kernels] == ["add_kernel"]


@check
def nothing_fills_what_a_kernel_fills() -> None:
    run = fuselens.compile(k.returned, fullgraph=True)
    run(*k.inputs())
    assert [x.name for x in run.__fuselens__.recorder.report.kernels] == ["add_kernel"]


@check
def training() -> None:
    x, y = (t.requires_grad_() for t in k.inputs())
    report = check_training(k.trained, x, y, backend="fuselens", breaks=0)
    assert len(report.graphs) == 1 and not [d for d in report.diagnostics if d.code.startswith("FL3")]
    for phase in ("forward", "backward"):
        assert [x.name for x in report.kernels if x.backend == "user_triton" and x.phase == phase]


@check
def addresses_of_numbers_break() -> None:
    z = k.inputs()[0]
    table = torch.tensor([z.data_ptr()])

    def function(table: Tensor) -> Tensor:
        k.addresses_kernel[(1,)](table, 10, BLOCK=16)
        return table + 1

    run = fuselens.compile(function)
    assert torch.equal(run(table), table + 1) and not z[:10].any() and z[10:].all()
    breaks = run.__fuselens__.recorder.report.breaks  # of the kernel's own frame as well, which is Python here
    assert [b.code for b in breaks if "addresses of numbers" in b.message] == ["FL124"]


@check
def kernels_and_helpers_that_are_replaced() -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        changing_kernel[(1,)](x, out, 100, BLOCK=128)
        return out + x

    run = fuselens.compile(function, fullgraph=True)
    x = k.inputs()[0]
    for kernel, helper in (
        (first_kernel, plain),
        (first_kernel, into_x),
        (second_kernel, plain),
        (first_kernel, plain),
    ):
        globals().update(changing_kernel=kernel, changing=helper)
        mine, theirs = x.clone(), x.clone()
        assert torch.equal(run(mine), function(theirs)) and torch.equal(mine, theirs)


@triton.jit
def plain(x_ptr, out_ptr, at, mask):
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask), mask=mask)


@triton.jit
def into_x(x_ptr, out_ptr, at, mask):
    tl.store(x_ptr + at, at * 1.0, mask=mask)


changing = plain


@triton.jit
def first_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    changing(x_ptr, out_ptr, at, at < n)


@triton.jit
def second_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 3, mask=at < n)


changing_kernel = first_kernel


@check
def other_ways_to_call_break() -> None:
    def warmed(x: Tensor, y: Tensor) -> Tensor:
        k.double_kernel.run(x, x.numel(), grid=(4,), warmup=True, BLOCK=32)
        return x + y

    def mapped(x: Tensor, y: Tensor) -> Tensor:
        return torch.vmap(lambda row: k.returned(row, y))(x.view(1, 100))

    report = agrees_with_eager(warmed, k.inputs(), backend="fuselens")
    assert [b.code for b in report.breaks] == ["FL124"]
    agrees_with_eager(mapped, k.inputs(), backend="fuselens")


@check
def the_text_shows_the_kernels_source() -> None:
    found = fuselens.explain(k.with_bias)(*k.inputs())
    text = str(found)
    assert (
        "forward kernel helper_kernel (user_triton, launch)" in text and "user_triton" in text.rpartition("stages: ")[2]
    )


@check
def artifacts_say_why_not() -> None:
    with pytest.raises(CodedError, match="FL927.*the Triton kernel helper_kernel"):
        fuselens.aot_compile(k.with_bias, k.inputs(), to=os.devnull)


@check
def functions_inside_of_compiled_programs() -> None:
    """A kernel that calls such a function is a node as others are: what it writes to is known."""
    x, y = k.inputs()
    function = fuselens.triton_function(from_functions.swiglu)

    def program(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        from_functions.two[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), function, BLOCK=64)
        return out * 2

    compiled(program, (x, y), graphs=1)


@check
def what_is_no_function_is_refused() -> None:
    kept = torch.randn(4093)
    for fn, why in {
        lambda x: x.softmax(0): "computes one element of several",
        lambda x: x.sum(): "computes one element of several",
        lambda x: x.flip(0): "other elements than the point's own",
        lambda x: x + torch.arange(x.numel()): "depends on where an element is|at positions|other elements",
        lambda x: torch.rand_like(x): "aten.rand_like.* is no operation on single elements",
        lambda x: x.add_(1): "it writes to an argument",
        lambda x: x @ x: "no operation on single elements|computes one element of several",
        lambda x: x + 1 if x.sum() > 0 else x: "it cannot be traced",
        lambda x: x + kept: "a tensor that is not an argument|cannot be traced",
        lambda x: x.numel(): "what is no tensor|cannot be traced",
        lambda *x: x[0]: "its parameter x is not positional",
        lambda tl: tl: "its parameter tl is called as what Triton's programs use",
    }.items():
        with pytest.raises(CodedError, match=f"FL934.*({why})"):
            fuselens.triton_function(fn)
    with pytest.raises(CodedError, match="it has 2 parameters without defaults, and 1 dtypes are given"):
        fuselens.triton_function(from_functions.swiglu, dtypes=[torch.float32])


@check
def what_is_no_kernel_is_refused() -> None:
    x = torch.randn(8, 8)
    for fn, why in {
        lambda x: x @ x: "is the vendor's, and no kernel of ours",
        lambda x: x.softmax(0) @ x: "is the vendor's|becomes",
        lambda x: x: "it returns an argument, or what is no tensor|becomes 0",
        lambda x: x.sin().view(-1)[:3].numel(): "is no tensor|becomes 0",
        lambda x: x.mul_(2): "it writes to an argument",
    }.items():
        with pytest.raises(CodedError, match=f"FL934.*({why})"):
            fuselens.triton_kernel(fn, x)
    kernel = fuselens.triton_kernel(lambda x: x + 1, x)
    for given, why in {
        (x.double(),): "x is to be float32.*is float64",
        (x.t(),): r"strides \[8, 1\], and is .*strides \[1, 8\]",
        (x, x): "it takes x, and got 2 arguments",
        (x[:4],): r"float32\[4, 8\]",
    }.items():
        with pytest.raises(CodedError, match=f"FL934.*{why}"):
            kernel(*given)
    with pytest.raises(CodedError, match="argument 0 is a float"):
        fuselens.triton_kernel(lambda x: x + 1, 1.0)


@check
def keys() -> None:
    """Prints what the cache says, for who runs this twice."""
    scale = os.environ.get("SCALE")
    if scale:
        k.SCALE = tl.constexpr(int(scale))
    x, y = k.inputs()
    run = fuselens.compile(k.with_bias, fullgraph=True)
    assert torch.equal(run(x, y), k.with_bias(x, y))


def main() -> None:
    wrong: dict[str, str] = {}
    for name in sys.argv[1:] or [n for n in CHECKS if n != "keys"]:
        fuselens.reset()
        try:
            CHECKS[name]()
            wrong[name] = ""
        except (Exception, pytest.fail.Exception):  # the test that asks for it shows it
            wrong[name] = traceback.format_exc()
    print(json.dumps(wrong))


if __name__ == "__main__":
    main()
