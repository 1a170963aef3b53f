"""Scans: running sums, products, extrema and log-sum-exps along one dimension.

Sums and products of a float32 row run in double precision, as ATen's do on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sympy import Expr

from fuselens.ir.affine import ONE
from fuselens.ir.loops import Buffer
from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.builder import Builder
from fuselens.lowering.dtypes import FLOATS, compute_dtype

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]


def _accumulator(out: Buffer) -> str:
    """The type in which ATen adds up."""
    if out.dtype not in FLOATS:
        return "i64"
    return "f64" if out.dtype == "f32" and out.device == "cpu" else compute_dtype(out.dtype)


def _running(kind: str) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        x, out = args[0], low.like(meta)
        return low.scan(out, kind, [x], _dim(x, args[1]), _accumulator(out), lambda _body, _along, v: v.cast(out.dtype))

    return rule


def _logsumexp(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x = args[0]
    return low.scan(low.like(meta), "logsumexp", [x], _dim(x, args[1]), compute_dtype(x.dtype))


def _extrema(kind: str) -> Rule:
    """``cummax``/``cummin``: values and where they were found last, which is as far as elements reach the value so far."""

    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Buffer, Buffer]:
        x, dim = args[0], _dim(args[0], args[1])
        dtype = "u8" if x.dtype == "bool" else compute_dtype(x.dtype)
        values = low.scan(low.like(meta[0]), kind, [x], dim, dtype)
        size = x.sizes[dim] if x.sizes else ONE
        places = "i32" if size.is_Integer and int(size) < 1 << 31 else "i64"

        def place(body: Body, along: Expr, v: Scalar, best: Scalar) -> Scalar:
            v, best = v.cast(dtype), best.cast(dtype)
            found = v.apply("eq", best)
            found = found | v.apply("isnan") if dtype in FLOATS else found
            return found.where(body.lift(along, "i64").cast(places), 0)

        return values, low.scan(low.like(meta[1]), "max", [x, values], dim, places, place)

    return rule


def _dim(x: Buffer, dim: int) -> int:
    return dim % max(len(x.sizes), 1)


RULES: dict[str, Rule] = {
    "aten.cumsum": _running("sum"),
    "aten.cumprod": _running("prod"),
    "aten.logcumsumexp": _logsumexp,
    "aten.cummax": _extrema("max"),
    "aten.cummin": _extrema("min"),
}
