"""What is read in a kernel's source: against what Triton's own compiler makes of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from fuselens.capture.kernels import analysis  # noqa: E402

from . import kernels as k  # noqa: E402


@triton.jit
def loop_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    a, b = x_ptr, out_ptr
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(a + at, mask=at < n)
        order = tl.load(y_ptr + at, mask=at < n)
        tl.store(b + order, value, mask=at < n)


@triton.jit
def block_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    source = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (BLOCK,), (0,))
    target = tl.make_block_ptr(out_ptr, (n,), (1,), (0,), (BLOCK,), (0,))
    target = tl.advance(target, (0,))
    tl.store(target, tl.load(source, boundary_check=(0,)), boundary_check=(0,))


@triton.jit
def choose(condition: tl.constexpr, a, b):
    return a if condition else b


@triton.jit
def chosen_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, FIRST: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(choose(FIRST, x_ptr, out_ptr) + at, at.to(tl.float32), mask=at < n)


@triton.jit
def swapped_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    p = x_ptr
    q = out_ptr
    for _ in range(n):
        tl.store(p, 1.0)
        p, q = q, p


@triton.jit
def cas_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    old = tl.atomic_cas(out_ptr, 0, 1)
    tl.atomic_max(pointer=x_ptr, val=old)


CASES: dict[str, tuple[Any, dict[str, str], dict[str, Any], set[str]]] = {
    "add": (k.add_kernel, {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}, {"BLOCK": 32}, {"out_ptr"}),
    "double": (k.double_kernel, {"x_ptr": "*fp32", "n": "i32"}, {"BLOCK": 32}, {"x_ptr"}),
    "helper": (
        k.helper_kernel, {"x_ptr": "*fp32", "out_ptr": "*fp32", "factor": "fp32", "n": "i32"},
        {"bias_ptr": None, "BLOCK": 32, "NEGATE": False}, {"out_ptr"},
    ),
    "rows": (
        k.rows_kernel, {"x_ptr": "*fp32", "out_ptr": "*fp32", "sums_ptr": "*fp32", "stride": "i32", "columns": "i32"},
        {"BLOCK": 32}, {"out_ptr", "sums_ptr"},
    ),
    "loop": (loop_kernel, {"x_ptr": "*fp32", "y_ptr": "*i64", "out_ptr": "*fp32", "n": "i32"}, {"BLOCK": 32}, {"out_ptr"}),
    "block": (block_kernel, {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}, {"BLOCK": 32}, {"out_ptr"}),
    "first": (
        chosen_kernel, {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}, {"BLOCK": 32, "FIRST": True}, {"x_ptr"}
    ),
    "second": (
        chosen_kernel, {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}, {"BLOCK": 32, "FIRST": False}, {"out_ptr"}
    ),
    "swapped": (
        swapped_kernel, {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}, {"BLOCK": 32}, {"x_ptr", "out_ptr"}
    ),
    "cas": (cas_kernel, {"x_ptr": "*i32", "out_ptr": "*i32", "n": "i32"}, {"BLOCK": 32}, {"x_ptr", "out_ptr"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_written(name: str) -> None:
    kernel, signature, constants, expected = CASES[name]
    tensors = [n for n, kind in signature.items() if kind.startswith("*")]
    assert analysis.facts_of(kernel, tensors, constants).written == expected


@pytest.mark.parametrize(
    "name", [n for n in CASES if n != "swapped"]
)  # of loops, Triton's IR does not name the parameters
def test_as_triton_compiles_it(name: str) -> None:
    """The addresses that TTIR stores to lead to the same parameters."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if name == "block" and tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):
        pytest.skip("this Triton has no block pointers any more")
    kernel, signature, constants, expected = CASES[name]
    names = list(kernel.arg_names)
    types = {n: signature.get(n, "constexpr") for n in names}
    source = ASTSource(fn=kernel, signature=types, constexprs={(names.index(n),): v for n, v in constants.items()})
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"]
    made = dict(re.findall(r"^\s*(%[\w#]+)(?::\d+)? = (.*)$", text, re.MULTILINE))
    written: set[str] = set()
    work = re.findall(r"(?:tt\.store|tt\.atomic_\w+ [\w, ]*?) ?(%[\w#]+)", text)
    seen: set[str] = set()
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.removeprefix("%") in signature:
            written.add(value.removeprefix("%"))
        elif not made.get(value, "").startswith(("tt.load", "tt.atomic")):
            pointers = "tt.addptr" in made.get(value, "") or "tt.advance" in made.get(value, "")
            operands = re.findall(r"%[\w#]+", made.get(value, ""))
            work += operands[:1] if pointers or "make_tensor_ptr" in made.get(value, "") else operands
    assert written == expected, text


def test_addresses_of_numbers_are_refused() -> None:
    with pytest.raises(analysis.Unreadable, match="addresses of numbers"):
        analysis.facts_of(k.addresses_kernel, ["table_ptr"], {"BLOCK": 16})


def _unknown(pointer: Any) -> None: ...


@triton.jit
def unknown_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    _unknown(x_ptr)


def test_what_is_not_known_may_write() -> None:
    assert analysis.facts_of(unknown_kernel, ["x_ptr", "y_ptr"], {"BLOCK": 16}).written == {"x_ptr"}


def test_digests_follow_sources_and_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    first = analysis.digest_of(k.helper_kernel)
    assert first == analysis.digest_of(k.helper_kernel) != analysis.digest_of(k.add_kernel)
    monkeypatch.setattr(k, "SCALE", tl.constexpr(4))  # a helper reads it
    second = analysis.digest_of(k.helper_kernel)
    monkeypatch.setattr(k, "put", k.scaled)
    assert len({first, second, analysis.digest_of(k.helper_kernel)}) == 3
    monkeypatch.setattr(k, "put", object())
    with pytest.raises(analysis.NoDigest):
        analysis.digest_of(k.helper_kernel)
