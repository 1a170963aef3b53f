"""Measures the prelude's functions at the speed of C: every float32 bit pattern, or an even part of them.

A function's error is its distance from the double-precision result rounded to its type, in representable numbers.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuselens.codegen.cpu.vectors.isa import ISAS
from fuselens.codegen.cpu.vectors.parts import LIBM
from fuselens.codegen.cpu.vectors.prelude import print_prelude
from fuselens.runtime.build import build
from fuselens.runtime.cache.store import Cache

from .graphs import ISA, config

UNARY = tuple(n for n, arity in LIBM.items() if arity == 1)
OWN = {"sigmoid": "1 / (1 + exp(-x))", "rsqrt": "1 / sqrt(x)", "sqrt": "sqrt(x)"}  # references that libm lacks
_C = {"f32": ("float", "int", "double", ""), "f64": ("double", "long", "long double", "l")}
_ROOTS = {"": "__builtin_sqrt", "l": "__builtin_sqrtl"}

_CHECK = """
static inline long place(@S x) { @I b; __builtin_memcpy(&b, &x, sizeof b); return b < 0 ? -(long)(b & ~((@I)1 << (8 * sizeof b - 1))) : b; }
static inline @I bits_of(@S x) { @I b; __builtin_memcpy(&b, &x, sizeof b); return b; }
struct Found { long worst, at, other, over, specials; };
static inline void compare(Found* r, @S found, @S exact, long at, long other) {
  int wrong = (exact != exact) != (found != found);
  long d = exact != exact || found != found ? 0 : place(found) - place(exact);
  d = d < 0 ? -d : d;
  wrong |= exact == exact && found == found && d == 0 && bits_of(found) != bits_of(exact);
  r->specials += wrong;
  r->over += d > 1;
  if (d > r->worst || (wrong && !r->worst)) { r->worst = d; r->at = at; r->other = other; }
}
template <class V, V (*F)(V), @R (*G)(@R)>
static inline void every(long first, long step, long end, Found* r) {
  constexpr int W = sizeof(V) / sizeof(@S);
  for (long k = first; k < end; k += step * W) {
    V x;
    for (int l = 0; l < W; ++l) { @I b = k + l * step; @S f; __builtin_memcpy(&f, &b, sizeof b); x[l] = f; }
    V y = F(x);
    for (int l = 0; l < W; ++l)
      if (k + l * step < end) compare(r, y[l], (@S)G((@R)x[l]), k + l * step, 0);
  }
}
template <class V, V (*F)(V), @R (*G)(@R)>
static inline void check(const @S* a, const @S*, long n, Found* r) {
  constexpr int W = sizeof(V) / sizeof(@S);
  for (long k = 0; k + W <= n; k += W) {
    V x;
    for (int l = 0; l < W; ++l) x[l] = a[k + l];
    V y = F(x);
    for (int l = 0; l < W; ++l) compare(r, y[l], (@S)G((@R)x[l]), bits_of(x[l]), 0);
  }
}
template <class V, V (*F)(V, V), @R (*G)(@R, @R)>
static inline void check2(const @S* a, const @S* b, long n, Found* r) {
  constexpr int W = sizeof(V) / sizeof(@S);
  for (long k = 0; k + W <= n; k += W) {
    V x, y;
    for (int l = 0; l < W; ++l) { x[l] = a[k + l]; y[l] = b[k + l]; }
    V z = F(x, y);
    for (int l = 0; l < W; ++l) compare(r, z[l], (@S)G((@R)x[l], (@R)y[l]), bits_of(x[l]), bits_of(y[l]));
  }
}
template <class V, V (*F)(V)>
static inline void run(const V* x, const V*, V* y, long n) {
  for (long i = 0; i < n; ++i) y[i] = F(x[i]);
}
template <class V, V (*F)(V, V)>
static inline void run2(const V* x, const V* z, V* y, long n) {
  for (long i = 0; i < n; ++i) y[i] = F(x[i], z[i]);
}
"""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """``worst``: the largest distance, found at the bit pattern ``at`` (and ``other``, of the second operand).

    ``over`` counts distances above 1; ``specials`` wrong NaNs and wrong signs of zero.
    """

    worst: int
    at: int
    other: int
    over: int
    specials: int


class _Found(ctypes.Structure):
    _fields_ = [(n, ctypes.c_long) for n in ("worst", "at", "other", "over", "specials")]


@functools.cache
def library(names: tuple[str, ...], kind: str = "f32", isa: str = ISA, fast: bool = False) -> Any:
    """A library with ``check_NAME`` and ``run_NAME`` of each function, and ``every_NAME`` of unary ones on f32."""
    wide = kind == "f64" or isa == "scalar"
    instructions = dataclasses.replace(ISAS[isa], fast=fast)
    width = instructions.lanes(wide)
    vector = f"{kind}x{width}"
    scalar, bits, reference, suffix = _C[kind]
    parts = {f"{n}.{kind}" for n in names if n != "rsqrt" or fast} | {f"sqrt.{kind}"}
    head = print_prelude({(width, wide): parts}, {f"libm.{n}" for n in LIBM}, instructions)
    check = _CHECK.replace("@S", scalar).replace("@I", bits).replace("@R", reference)
    lines = [head, check]
    if not fast:
        lines.append(f"static inline {vector} rsqrt({vector} x) {{ return 1 / sqrt(x); }}")
    for n in names:
        two = LIBM.get(n) == 2
        if n in OWN:
            text = OWN[n].replace("exp", f"exp{suffix}").replace("sqrt", _ROOTS[suffix])
            lines.append(f"static inline {reference} {n}{suffix}({reference} x) {{ return {text}; }}")
        elif suffix:
            lines.append(f'extern "C" {reference} {n}{suffix}({reference}{f", {reference}" if two else ""}) noexcept;')
        more = "2" if two else ""
        lines.append(
            f'extern "C" void check_{n}(const {scalar}* a, const {scalar}* b, long n, Found* r)'
            f" {{ check{more}<{vector}, {n}, {n}{suffix}>(a, b, n, r); }}"
        )
        lines.append(
            f'extern "C" void run_{n}(const {vector}* x, const {vector}* z, {vector}* y, long n)'
            f" {{ run{more}<{vector}, {n}>(x, z, y, n); }}"
        )
        if kind == "f32" and not two:
            lines.append(
                f'extern "C" void every_{n}(long first, long step, long end, Found* r)'
                f" {{ every<{vector}, {n}, {n}>(first, step, end, r); }}"
            )
    if kind == "f64":
        lines.insert(1, 'extern "C" long double expl(long double) noexcept;')
    return build("\n".join(lines), ISAS[isa].flags, config(), Cache(config().cache_dir)).library


def every(loaded: Any, name: str, step: int = 1, first: int = 0, end: int = 1 << 32) -> Accuracy:
    """The accuracy of a float32 function over every ``step``-th bit pattern from ``first`` to ``end``."""
    found = _Found()
    call = getattr(loaded, f"every_{name}")
    call.argtypes = [ctypes.c_long] * 3 + [ctypes.c_void_p]
    call(first, step, end, ctypes.addressof(found))
    return _result(found)


def at(loaded: Any, name: str, x: Tensor, y: Tensor | None = None) -> Accuracy:
    """The accuracy of a function on vectors of operands."""
    found = _Found()
    call = getattr(loaded, f"check_{name}")
    call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p]
    other = x if y is None else y
    assert x.is_contiguous() and other.is_contiguous()
    call(x.data_ptr(), other.data_ptr(), x.numel(), ctypes.addressof(found))
    return _result(found)


def nanoseconds(loaded: Any, name: str, x: Tensor, y: Tensor | None = None) -> float:
    """Time per element on one core; operands need 64-byte alignment (which torch's memory has)."""
    lanes = 8  # of the vectors of AVX2
    out = torch.empty_like(x)
    call = getattr(loaded, f"run_{name}")
    call.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long]
    best = math.inf
    for _ in range(200):
        start = time.perf_counter()
        call(
            x.data_ptr(), (x if y is None else y).data_ptr(), out.data_ptr(), x.numel() * x.element_size() // 4 // lanes
        )
        best = min(best, time.perf_counter() - start)
    return best / x.numel() * 1e9


def _result(found: _Found) -> Accuracy:
    return Accuracy(*(getattr(found, field[0]) for field in _Found._fields_))  # pyright: ignore[reportPrivateUsage]
