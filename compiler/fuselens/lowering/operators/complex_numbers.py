"""Rules of operations on complex numbers. Which of the rules for real ones hold for pairs as they are is listed, so that
none is applied that does not mean it: all else is ATen's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fuselens.ir.affine import ZERO, product
from fuselens.ir.loops import Buffer
from fuselens.lowering.body import Complex, Scalar
from fuselens.lowering.builder import Builder, Declined, Pair, expressions
from fuselens.lowering.dtypes import NAMES, PARTS
from fuselens.lowering.operators import reductions, scans
from fuselens.lowering.operators.movement import fill
from fuselens.lowering.operators.pointwise import Formula

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]

AS_REALS: tuple[str, ...] = tuple(
    f"aten.{name}"
    for name in (
        # arithmetic; comparisons; predicates; logic, of whether a number is 0
        *"mul div true_divide neg _neg_view square positive pow lerp".split(),
        *"eq ne isfinite logical_and logical_or logical_xor logical_not any all sum where masked_fill".split(),
        *"reciprocal exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh tanh sigmoid".split(),
        *"asin acos atan asinh acosh atanh".split(),
        # numbers that are made and moved
        *"full full_like new_full fill scalar_tensor zeros zeros_like new_zeros ones ones_like new_ones eye".split(),
        *"empty empty_like empty_strided new_empty new_empty_strided empty_permuted clone _to_copy copy".split(),
        *"lift_fresh_copy contiguous cat stack constant_pad_nd slice_scatter select_scatter diagonal_scatter".split(),
        *"as_strided_scatter flip roll repeat tril triu embedding index_select gather take index index_put put".split(),
        *"index_add index_copy index_fill scatter scatter_add _unsafe_index _unsafe_index_put".split(),
        *(f"{kind}_pad{d}d" for kind in ("reflection", "replication") for d in (1, 2, 3)),
    )
) + ("prims.convert_element_type", "prims.device_put")


def _of_parts(compute: Callable[..., Any]) -> Formula:
    """A function of one complex tensor, whose result may be real."""
    return Formula(compute, "own")


def _named(op: str) -> Formula:
    return _of_parts(lambda z: z.apply(op))


def _scaled_sum(a: Any, b: Any, alpha: Any = 1) -> Scalar:
    """As ATen's kernels, which multiply by 1 too: that makes NaN of infinities."""
    body = (a if isinstance(a, Scalar) else b).body
    dtype = (a if isinstance(a, Scalar) else b).dtype
    return body.lift(a, dtype) + body.lift(b, dtype) * alpha


def _addcmul(a: Scalar, b: Scalar, c: Scalar, value: Any = 1) -> Scalar:
    return a + a.body.lift(value, a.dtype) * b * c


def _addcdiv(a: Scalar, b: Scalar, c: Scalar, value: Any = 1) -> Scalar:
    return a + a.body.lift(value, a.dtype) * b / c


def _conjugate(z: Scalar) -> Any:
    return z.apply("conj")


def _sigmoid_backward(g: Scalar, y: Scalar) -> Scalar:
    return g * _conjugate((1.0 - y) * y)


def _tanh_backward(g: Scalar, y: Scalar) -> Scalar:
    return g * _conjugate(1.0 - y * y)


def _silu_backward(g: Scalar, x: Scalar) -> Scalar:
    s = x.apply("sigmoid")
    return g * _conjugate(s * (1.0 + x * (1.0 - s)))


def _complex(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    return low.pointwise(low.like(meta), args, lambda re, im: Complex(re, im), PARTS[NAMES[meta.dtype]])


def _polar(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    def compute(size: Scalar, angle: Scalar) -> Scalar:
        return Complex(size * angle.apply("cos"), size * angle.apply("sin"))

    return low.pointwise(low.like(meta), args, compute, PARTS[NAMES[meta.dtype]])


def _view_as_real(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """In the memory of complex numbers; those that were computed are put side by side."""
    x, sizes, strides = args[0], expressions(meta.shape), expressions(meta.stride())
    if x.scale == 2:
        return replace(x.part(0), sizes=sizes, strides=strides)
    out = low.like(meta)
    for k in range(2):
        target = low.view(out, x.sizes, out.strides[:-1], out.offset + k * out.strides[-1], low.fresh_name())
        low.pointwise(target, [x.part(k)], lambda v: v)
    low.halves[out.name] = x
    return out


def _view_as_complex(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x = args[0]
    parts = ((x.owner, x.offset), (x.owner, x.offset + x.strides[-1]))
    sizes, strides = expressions(meta.shape), expressions(meta.stride())
    return Pair("", NAMES[meta.dtype], sizes, strides, device=x.device, parts=parts, scale=2)


def _mean(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, out = args[0], low.like(meta)
    dims = reductions.normal_dims(args[1] if len(args) > 1 else kwargs.get("dim"), len(x.sizes))
    keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
    total = low.reduce(low.like(meta), "sum", [x], dims, keep=keep)
    count = product(x.sizes[d] for d in dims)
    return low.pointwise(out, [total], lambda s: s / count)


def _cumsum(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    return _each(low, meta, scans.RULES["aten.cumsum"], args, kwargs)


def _var(then: Callable[[Scalar], Scalar]) -> Rule:
    """Variances of the parts, added."""

    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        return _variance(low, meta, args, kwargs, then)

    return rule


def _var_mean(then: Callable[[Scalar], Scalar]) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Buffer, Buffer]:
        dims = {"dim": args[1] if len(args) > 1 else kwargs.get("dim"), "keepdim": kwargs.get("keepdim", False)}
        return _variance(low, meta[0], args, kwargs, then), _mean(low, meta[1], args[:1], dims)

    return rule


def _variance(
    low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Callable[[Scalar], Scalar]
) -> Buffer:  # fmt: skip
    x = args[0]
    if not isinstance(x, Pair):
        raise Declined("real numbers that become complex")
    rule = reductions.RULES["aten.var.correction"]
    parts = [rule(low, meta, (x.part(k), *args[1:]), kwargs) for k in range(2)]
    return low.pointwise(low.like(meta), parts, lambda re, im: then(re + im))


class _Part:
    """What rules read of a fake tensor, for one part of a complex one."""

    def __init__(self, meta: Any) -> None:
        self.meta, self.dtype = meta, meta.dtype.to_real()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.meta, name)


def _each(low: Builder, meta: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """A rule for real numbers, on the real and on the imaginary part of the first argument."""
    x = args[0]
    if not isinstance(x, Pair):
        raise Declined("real numbers that become complex")
    found = [rule(low, _Part(meta), (x.part(k), *args[1:]), kwargs) for k in range(2)]
    sizes, strides = expressions(meta.shape), expressions(meta.stride())
    parts = tuple((b.name, ZERO) for b in found)
    return Pair("", NAMES[meta.dtype], sizes, strides, device=x.device, parts=parts)  # pyright: ignore


def _vector_norm(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x = args[0]
    sizes = low.fresh(x.sizes, x.strides, PARTS[x.dtype], x.device)
    low.pointwise(sizes, [x], lambda z: z.apply("abs"), x.dtype)
    return reductions.RULES["aten.linalg_vector_norm"](low, meta, (sizes, *args[1:]), kwargs)


def _conj(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    if not isinstance(args[0], Buffer):  # a number, which the graph has in the place of a tensor of one
        return fill(low, low.like(meta), complex(args[0]).conjugate())
    return _named("conj")(low, meta, args, kwargs)


RULES: dict[str, Rule] = {
    "aten.add": Formula(_scaled_sum),
    "aten.sub": Formula(lambda a, b, alpha=1: _scaled_sum(a, b, -alpha)),
    "aten.rsub": Formula(lambda a, b, alpha=1: _scaled_sum(b, a, -alpha)),
    "aten.addcmul": Formula(_addcmul),
    "aten.addcdiv": Formula(_addcdiv),
    "aten._conj": _conj,
    "aten._conj_physical": _named("conj"),
    "aten.conj_physical": _named("conj"),
    "aten.abs": _named("abs"),
    "aten.angle": _named("angle"),
    "aten.sgn": _named("sign"),
    "aten.isnan": _named("isnan"),
    "aten.isinf": _named("isinf"),
    "aten.sigmoid_backward": Formula(_sigmoid_backward),
    "aten.tanh_backward": Formula(_tanh_backward),
    "aten.silu": Formula(lambda z: z / (1.0 + (-z).apply("exp"))),
    "aten.silu_backward": Formula(_silu_backward),
    "aten.complex": _complex,
    "aten.polar": _polar,
    "aten.view_as_real": _view_as_real,
    "aten.view_as_complex": _view_as_complex,
    "aten.mean": _mean,
    "aten.var.correction": _var(lambda v: v),
    "aten.std.correction": _var(lambda v: v.apply("sqrt")),
    "aten.var_mean.correction": _var_mean(lambda v: v),
    "aten.std_mean.correction": _var_mean(lambda v: v.apply("sqrt")),
    "aten.cumsum": _cumsum,
    "aten.linalg_vector_norm": _vector_norm,
}
