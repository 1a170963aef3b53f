"""Reductions. Variance is two passes over the row (mean, then squared deviations): exact, and a row stays in cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
from sympy import Expr

from fuselens.ir.affine import product
from fuselens.ir.loops import Buffer
from fuselens.lowering.body import Scalar
from fuselens.lowering.builder import Builder, Declined, Sizes
from fuselens.lowering.dtypes import NAMES, compute_dtype

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]


def normal_dims(dims: Any, rank: int) -> list[int]:
    """ATen's ``dim`` argument as sorted nonnegative dimensions; None and [] mean all."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(rank))
    if isinstance(dims, int):
        dims = [dims]
    return sorted({d % rank if rank else 0 for d in dims}) if rank else []


def kept_sizes(sizes: Sizes, dims: Sequence[int]) -> Sizes:
    """The shape with the dimensions folded to size 1."""
    return tuple(sympy.Integer(1) if d in dims else s for d, s in enumerate(sizes))


def _count(x: Buffer, dims: Sequence[int]) -> Expr:
    return product(x.sizes[d] for d in dims)


def _number(e: Expr) -> Any:
    """A count as a Python number where it is one."""
    return int(e) if isinstance(e, sympy.Integer) else e


def _fold(
    kind: str,
    before: Callable[..., Scalar] | None = None,
    after: Callable[[Scalar], Scalar] | None = None,
    operand: str = "",
) -> Rule:
    """``op(x, dim=None, keepdim=False, ...)``. ``operand``: the type it folds in ("" is the result's)."""

    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        x = args[0]
        dims, keep = _dims_and_keep(x, args[1:], kwargs)
        dtype = {"": None, "own": compute_dtype(x.dtype), "bool": "bool"}[operand]
        return low.reduce(low.like(meta), kind, [x], dims, keep=keep, dtype=dtype, before=before, after=after)

    return rule


def _dims_and_keep(x: Buffer, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[int], bool]:
    dim = rest[0] if rest else kwargs.get("dim")
    keep = rest[1] if len(rest) > 1 else kwargs.get("keepdim", False)
    return normal_dims(dim, len(x.sizes)), bool(keep)


def _mean(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x = args[0]
    dims, keep = _dims_and_keep(x, args[1:], kwargs)
    count = _number(_count(x, dims))
    if count == 0:
        return low.reduce(low.like(meta), "sum", [x], dims, keep=keep, after=lambda total: total * math.nan)
    return low.reduce(low.like(meta), "sum", [x], dims, keep=keep, after=lambda total: total / count)


def _extremum(kind: str) -> Rule:
    """``max.dim``/``min.dim``: values and their positions."""

    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Buffer, Buffer]:
        x = args[0]
        dims, keep = _dims_and_keep(x, args[1:], kwargs)
        values = low.reduce(low.like(meta[0]), kind, [x], dims, keep=keep)
        own = compute_dtype(x.dtype)
        positions = low.reduce(low.like(meta[1]), f"arg{kind}", [x], dims, keep=keep, dtype=_ordered(own),
                               before=lambda v: v.cast(_ordered(own)))  # fmt: skip
        return values, positions

    return rule


def _ordered(dtype: str) -> str:
    return "u8" if dtype == "bool" else dtype


def _arg(kind: str) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        x = args[0]
        dims, keep = _dims_and_keep(x, args[1:], kwargs)
        return low.reduce(low.like(meta), kind, [x], dims, keep=keep, dtype=_ordered(compute_dtype(x.dtype)))

    return rule


def moments(
    low: Builder, x: Buffer, dims: Sequence[int], correction: Any, variance: Buffer | None = None,
    mean: Buffer | None = None,
) -> tuple[Buffer, Buffer]:  # fmt: skip
    """Mean and variance of ``x`` over ``dims``, kept with size 1, in the type that ``x`` computes in unless given."""
    dtype = compute_dtype(x.dtype)
    shape = kept_sizes(x.sizes, dims)
    count = _count(x, dims)
    divisor = _number(count - correction) if isinstance(correction, int) else _number(count)
    mean = mean or low.temporary(shape, dtype, x.device)
    low.reduce(mean, "sum", [x], dims, keep=True, after=lambda total: total / _number(count))
    variance = variance or low.temporary(shape, dtype, x.device)
    if isinstance(correction, int):
        known = max(divisor, 0) if isinstance(divisor, int) else divisor

        def after(total: Scalar) -> Scalar:
            return total / known
    else:

        def after(total: Scalar) -> Scalar:
            n = total.body.lift(divisor, total.dtype)
            return total / (n - float(correction)).apply("max", 0.0)

    low.reduce(variance, "sum", [x, mean], dims, keep=True, before=lambda v, m: (v - m) * (v - m), after=after)
    return mean, variance


def squeezed(low: Builder, x: Buffer, meta: Any, dims: Sequence[int], then: Callable[[Scalar], Scalar]) -> Buffer:
    """A copy of ``x`` (dims kept with size 1) in the geometry of ``meta``, which may have dropped them."""
    out = low.like(meta)
    if len(out.sizes) != len(x.sizes):
        kept = [d for d in range(len(x.sizes)) if d not in set(dims)]
        x = low.view(x, tuple(x.sizes[d] for d in kept), tuple(x.strides[d] for d in kept), x.offset)
    return low.pointwise(out, [x], then)


def _variance(low: Builder, x: Buffer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, list[int]]:
    dims = normal_dims(args[0] if args else kwargs.get("dim"), len(x.sizes))
    correction = kwargs.get("correction", 1)
    correction = 1 if correction is None else correction
    if isinstance(correction, float) and correction.is_integer():
        correction = int(correction)
    if x.dtype.startswith("c"):
        raise Declined(f"loops do not compute with {x.dtype}")
    return (*moments(low, x, dims, correction), dims)


def _var(then: Callable[[Scalar], Scalar]) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        _, variance, dims = _variance(low, args[0], args[1:], kwargs)
        return squeezed(low, variance, meta, dims, then)

    return rule


def _var_mean(then: Callable[[Scalar], Scalar]) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Buffer, Buffer]:
        mean, variance, dims = _variance(low, args[0], args[1:], kwargs)
        return squeezed(low, variance, meta[0], dims, then), squeezed(low, mean, meta[1], dims, lambda m: m)

    return rule


def _vector_norm(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x = args[0]
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    dims, keep = _dims_and_keep(x, args[2:], kwargs)
    kinds: dict[float, tuple[str, Callable[..., Scalar], Callable[[Scalar], Scalar]]] = {
        2.0: ("sum", lambda v: v * v, lambda s: s.apply("sqrt")),
        1.0: ("sum", lambda v: v.apply("abs"), lambda s: s),
        math.inf: ("max", lambda v: v.apply("abs"), lambda s: s),
        -math.inf: ("min", lambda v: v.apply("abs"), lambda s: s),
        0.0: ("sum", lambda v: v.ne(0).cast(v.dtype), lambda s: s),
    }
    kind, before, after = kinds.get(
        float(order),
        ("sum", lambda v: v.apply("abs").apply("pow", float(order)), lambda s: s.apply("pow", 1.0 / order)),
    )
    return low.reduce(low.like(meta), kind, [x], dims, keep=keep, before=before, after=after)


def _logsumexp(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x = args[0]
    dims, _ = _dims_and_keep(x, args[1:], kwargs)
    dtype = compute_dtype(NAMES[meta.dtype])
    top = low.temporary(kept_sizes(x.sizes, dims), dtype, x.device)
    low.reduce(top, "max", [x], dims, keep=True, after=lambda m: m.apply("isinf").where(0.0, m))
    total = low.temporary(top.sizes, dtype, x.device)
    low.reduce(total, "sum", [x, top], dims, keep=True, before=lambda v, m: (v - m).apply("exp"))
    value = low.temporary(top.sizes, dtype, x.device)
    low.pointwise(value, [total, top], lambda s, m: s.apply("log") + m)
    return squeezed(low, value, meta, dims, lambda v: v)


def _aminmax(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Buffer, Buffer]:
    x = args[0]
    dims, keep = _dims_and_keep(x, args[1:], kwargs)
    return tuple(
        low.reduce(low.like(m), kind, [x], dims, keep=keep) for m, kind in zip(meta, ("min", "max"), strict=True)
    )  # type: ignore[return-value]


RULES: dict[str, Rule] = {
    "aten.sum": _fold("sum"),
    "aten.prod": _fold("prod"),
    "aten.amax": _fold("max"),
    "aten.amin": _fold("min"),
    "aten.max.default": _fold("max"),
    "aten.min.default": _fold("min"),
    "aten.any": _fold("any", operand="bool"),
    "aten.all": _fold("all", operand="bool"),
    "aten.mean": _mean,
    "aten.max.dim": _extremum("max"),
    "aten.min.dim": _extremum("min"),
    "aten.argmax": _arg("argmax"),
    "aten.argmin": _arg("argmin"),
    "aten.var.correction": _var(lambda v: v),
    "aten.std.correction": _var(lambda v: v.apply("sqrt")),
    "aten.var_mean.correction": _var_mean(lambda v: v),
    "aten.std_mean.correction": _var_mean(lambda v: v.apply("sqrt")),
    "aten.linalg_vector_norm": _vector_norm,
    "aten.logsumexp": _logsumexp,
    "aten.aminmax": _aminmax,
}
