"""Elementwise ATen operations: each is its formula, in one table.

A formula gets the operation's arguments in ATen's order, tensors as :class:`Scalar`, numbers and options as they are.
Half precision computes in f32 throughout and rounds when an operation's result is stored: a fused kernel keeps the
unrounded value (as the peer does), which is closer to the real number than eager's rounding after each operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from fuselens.ir.affine import ZERO
from fuselens.ir.loops import Buffer
from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.builder import Builder, Declined, Sizes, contiguous_strides, element_index
from fuselens.lowering.dtypes import DTYPES, HALVES, NAMES, compute_dtype, promote


@dataclass(frozen=True, slots=True)
class Formula:
    """``compute`` and the type its operands arrive in.

    ``operands``: "result" (the type the result computes in), "promoted" (torch's promotion of the first two: for
    comparisons, whose result is bool), "bool" (truth values), "own" (that of the first: for predicates).
    ``converts``: with half precision, eager converts a second operand that is a number, or has no dimensions, to it as
    it does all others. ``halves``: whether those may be computed in single precision.
    """

    compute: Callable[..., Any]
    operands: str = "result"
    converts: bool = False
    halves: bool = True

    def __call__(self, low: Builder, meta: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        dtype = NAMES.get(meta.dtype, "")
        if self.operands == "promoted":
            dtype = promote(args[:2])
        own = args[0].dtype if isinstance(args[0], Buffer) else ""
        wanted = {"bool": "bool", "own": compute_dtype(own)}.get(self.operands, compute_dtype(dtype))
        half = dtype if dtype in HALVES and wanted == "f32" else ""
        if half and not self.halves:
            raise Declined("single precision has other neighbours")
        if half and self.converts:
            args = tuple(_rounded(a, half) for a in args)
            kwargs = {k: _rounded(a, half) for k, a in kwargs.items()}
        places = [k for k, a in enumerate(args) if isinstance(a, Buffer)]
        keys = [k for k, a in kwargs.items() if isinstance(a, Buffer)]
        buffers = [args[k] for k in places] + [kwargs[k] for k in keys]

        def compute(*scalars: Scalar) -> Any:
            if half:
                exact = 1 if not self.converts and 1 in places and not args[1].sizes else None
                converted = (s if place == exact else s.cast(half) for place, s in zip(places, scalars, strict=False))
                scalars = (*converted, *scalars[len(places) :])
            scalars = tuple(s.cast(wanted) for s in scalars)
            full = list(args)
            for place, scalar in zip(places, scalars, strict=False):
                full[place] = scalar
            return self.compute(*full, **kwargs | dict(zip(keys, scalars[len(places) :], strict=True)))

        if not buffers:
            raise Declined("no operand is a tensor")
        return low.pointwise(low.like(meta), buffers, compute, "")


def _rounded(value: Any, dtype: str) -> Any:
    """A number as ``dtype`` holds it; what is no number as it is."""
    return torch.tensor(value, dtype=DTYPES[dtype]).item() if type(value) in (int, float) else value


def _unary(op: str) -> Formula:
    return Formula(lambda x: x.apply(op))


def _rounding(op: str) -> Formula:
    """Rounding leaves integers alone."""
    return Formula(lambda x: x.apply(op) if x.floating else _number(x))


def _number(x: Any) -> Any:
    """``x``, which is no bool: eager has no kernel for those and says so."""
    if isinstance(x, Scalar) and x.dtype == "bool":
        raise Declined("eager does not compute it of bools")
    return x


def _binary(op: str) -> Formula:
    def compute(a: Any, b: Any) -> Scalar:
        a, b = _pair(a, b)
        return a.apply(op, b)

    return Formula(compute, converts=True)


def _pair(a: Any, b: Any) -> tuple[Scalar, Any]:
    """Two operands of which at least one is a scalar; the first comes back as one."""
    return (a if isinstance(a, Scalar) else b.body.lift(a, b.dtype)), b


def _compare(op: str) -> Formula:
    return Formula(lambda a, b: a.apply(op, b), "promoted", converts=True)


def _bits(op: str) -> Formula:
    def compute(a: Any, b: Any) -> Scalar:
        a, b = _pair(a, b)
        return a.apply(op, b)

    return Formula(compute)


# --- division --------------------------------------------------------------------------------------------------


def _divide(a: Any, b: Any, op: str) -> Scalar:
    """Rounding division. Kernels report an integer divisor that is zero, and the call raises what eager raises."""
    a, b = _pair(a, b)
    return a.apply(op, b)


def _divide_mode(a: Any, b: Any, rounding_mode: str | None = None) -> Scalar:
    if rounding_mode is None:
        return _pair(a, b)[0] / b
    return _divide(a, b, {"floor": "floordiv", "trunc": "truncdiv"}[rounding_mode])


# --- powers ----------------------------------------------------------------------------------------------------

_POWERS: dict[float, Callable[[Scalar], Any]] = {
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    4: lambda x: (x * x) * (x * x),
    0.5: lambda x: x.apply("sqrt"),
    -0.5: lambda x: x.apply("rsqrt"),
    -1: lambda x: x.apply("reciprocal"),
    -2: lambda x: (x * x).apply("reciprocal"),
}


def _pow(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, (int, float)):
        if exponent == 0:
            return base.body.const(1, base.dtype)
        if not base.floating and exponent < 0:
            raise Declined("a negative integer power raises")
        known = _POWERS.get(exponent)
        if known:
            return known(base)
    base, exponent = _pair(base, exponent)
    return _number(base).apply("pow", exponent)


# --- clamping --------------------------------------------------------------------------------------------------


def _clamp(x: Scalar, low: Any = None, high: Any = None) -> Scalar:
    """Of equal operands, the second is kept: the value that is clamped by a number is as in eager, also -0 by 0."""
    for op, bound in (("max", low), ("min", high)):
        if isinstance(bound, (int, float)):
            x = x.body.const(bound, x.dtype).apply(op, x)
        elif bound is not None:
            x = x.apply(op, bound)
    return x


def _nan_to_num(x: Scalar, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Scalar:
    if not x.floating:
        return x
    limit = {"f64": 1.7976931348623157e308, "f32": 3.4028234663852886e38}[x.dtype]
    x = x.apply("isnan").where(nan or 0.0, x)
    x = x.eq(math.inf).where(limit if posinf is None else posinf, x)
    return x.eq(-math.inf).where(-limit if neginf is None else neginf, x)


# --- activations -----------------------------------------------------------------------------------------------

_SQRT_HALF = 0.7071067811865476
_SQRT_2_OVER_PI = 0.7978845608028654
_INV_SQRT_2PI = 0.3989422804014327
_SIXTH = 0.1666666716337204  # of single precision, as eager multiplies doubles by, too


def _gelu(x: Scalar, approximate: str = "none") -> Scalar:
    if approximate == "tanh":
        inner = _SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1.0 + inner.apply("tanh"))
    return x * 0.5 * (1.0 + (x * _SQRT_HALF).apply("erf"))


def _gelu_backward(g: Scalar, x: Scalar, approximate: str = "none") -> Scalar:
    if approximate == "tanh":
        inner = _SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))
        t = inner.apply("tanh")
        slope = _SQRT_2_OVER_PI * (1.0 + 3 * 0.044715 * (x * x))
        return g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
    cdf = 0.5 * (1.0 + (x * _SQRT_HALF).apply("erf"))
    pdf = (x * x * -0.5).apply("exp") * _INV_SQRT_2PI
    return g * (cdf + x * pdf)


def _elu(x: Scalar, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Scalar:
    return (x > 0).where(x * scale, (x * input_scale).apply("expm1") * (alpha * scale))


def _elu_backward(g: Scalar, alpha: float, scale: float, input_scale: float, is_result: bool, y: Scalar) -> Scalar:
    if is_result:
        low = g * input_scale * (y + alpha * scale)
    else:
        low = g * (input_scale * alpha * scale) * (y * input_scale).apply("exp")
    return (y <= 0).where(low, g * scale)


def _softplus(x: Scalar, beta: float = 1.0, threshold: float = 20.0) -> Scalar:
    scaled = x * beta
    return (scaled > threshold).where(x, scaled.apply("exp").apply("log1p") / beta)


def _softplus_backward(g: Scalar, x: Scalar, beta: float, threshold: float) -> Scalar:
    z = (x * beta).apply("exp")
    return ((x * beta) > threshold).where(g, g * z / (z + 1.0))


def _silu(x: Scalar) -> Scalar:
    return x * x.apply("sigmoid")


def _silu_backward(g: Scalar, x: Scalar) -> Scalar:
    s = x.apply("sigmoid")
    return g * s * (1.0 + x * (1.0 - s))


def _hardsigmoid(x: Scalar) -> Scalar:
    return _clamp(x + 3.0, 0.0, 6.0) / 6.0


def _hardswish_backward(g: Scalar, x: Scalar) -> Scalar:
    inside = (x < 3.0).where(g * (x / 3.0 + 0.5), g)
    return (x <= -3.0).where(0.0, inside)


def _mish(x: Scalar) -> Scalar:
    return x * _softplus(x).apply("tanh")


def _log_sigmoid(x: Scalar) -> Scalar:
    return x.apply("min", 0.0) - (-x.apply("abs")).apply("exp").apply("log1p")


def _logaddexp(a: Scalar, b: Scalar, base: str = "") -> Scalar:
    top, bottom = a.apply("max", b), a.apply("min", b)
    exp, log = ("exp2", "log2") if base else ("exp", "log1p")
    power = (bottom - top).apply(exp)
    total = top + ((power + 1.0).apply("log2") if base else power.apply(log))
    same = a.apply("isinf") & a.eq(b)
    return same.where(a, total)


def _lerp(a: Scalar, b: Scalar, weight: Any) -> Scalar:
    """torch's form, which is exact at both ends."""
    if isinstance(weight, Scalar):
        near = weight.apply("abs") < 0.5
        return near.where(a + weight * (b - a), b - (b - a) * (1.0 - weight))
    return a + weight * (b - a) if abs(weight) < 0.5 else b - (b - a) * (1 - weight)


def _xlogy(x: Any, y: Any, log: str = "log") -> Scalar:
    body = (x if isinstance(x, Scalar) else y).body
    dtype = (x if isinstance(x, Scalar) else y).dtype
    x, y = body.lift(x, dtype), body.lift(y, dtype)
    value = x.eq(0.0).where(0.0, x * y.apply(log))
    return y.apply("isnan").where(y, value)


def _addcdiv(a: Scalar, b: Scalar, c: Scalar, value: Any = 1) -> Scalar:
    return a + (b if value == 1 else b * value) / c


def _addcmul(a: Scalar, b: Scalar, c: Scalar, value: Any = 1) -> Scalar:
    return a + (b if value == 1 else b * value) * c


def _logit(x: Scalar, eps: float | None = None) -> Scalar:
    if eps is not None:
        x = (x < eps).where(eps, (x > 1 - eps).where(1 - eps, x))
    return (x / (1.0 - x)).apply("log")


def _isfinite(x: Scalar) -> Any:
    return ~(x.apply("isinf") | x.apply("isnan")) if x.floating else x.body.const(True, "bool")


def _signbit(x: Scalar) -> Scalar:
    return x.body.const(False, "bool") if x.dtype in ("bool", "u8") else x.apply("signbit")


def _test(op: str) -> Formula:
    """A predicate that is false for everything but floats."""
    return Formula(lambda x: x.apply(op) if x.floating else x.body.const(False, "bool"), "own")


def _heaviside(x: Scalar, at_zero: Scalar) -> Scalar:
    step = x.eq(0).where(at_zero, (x < 0).where(0, x.body.const(1, x.dtype)))
    return x.apply("isnan").where(0, step) if x.floating else step


def _threshold(x: Scalar, threshold: Any, value: Any) -> Scalar:
    return (x <= threshold).where(value, x)


def _round(x: Scalar, decimals: int = 0) -> Scalar:
    if not x.floating:
        return _number(x)
    if decimals == 0:
        return x.apply("round")
    scale = 10.0 ** abs(decimals)
    return (x * scale).apply("round") / scale if decimals > 0 else (x / scale).apply("round") * scale


def _sub(a: Any, b: Any, alpha: Any = 1) -> Scalar:
    a, b = _pair(a, b)
    return a - (b if alpha == 1 else b * alpha)


def _rsub(a: Scalar, b: Any, alpha: Any = 1) -> Scalar:
    return b - (a if alpha == 1 else a * alpha)


FORMULAS: dict[str, Formula] = {
    # arithmetic
    "aten.add": Formula(lambda a, b, alpha=1: _pair(a, b)[0] + (b if alpha == 1 else b * alpha), converts=True),
    "aten.sub": Formula(_sub, converts=True),
    "aten.rsub": Formula(_rsub, converts=True),
    "aten.mul": Formula(lambda a, b: _pair(a, b)[0] * b),
    "aten.div": Formula(_divide_mode),
    "aten.true_divide": Formula(lambda a, b: a / b),
    "aten.floor_divide": Formula(lambda a, b: _divide(a, b, "floordiv")),
    "aten.remainder": Formula(lambda a, b: _divide(a, b, "mod"), converts=True),
    "aten.fmod": Formula(lambda a, b: _divide(a, b, "fmod"), converts=True),
    "aten.neg": Formula(lambda x: -x),
    "aten._neg_view": Formula(lambda x: -x),
    "aten.abs": Formula(lambda x: _number(x).apply("abs")),
    "aten.sign": Formula(lambda x: x.apply("sign") if x.dtype != "bool" else x),
    "aten.sgn": Formula(lambda x: x.apply("sign") if x.dtype != "bool" else x),
    "aten.square": Formula(lambda x: x * x),
    "aten.positive": Formula(lambda x: x),
    "aten.pow": Formula(_pow, converts=True),
    "aten.addcmul": Formula(_addcmul),
    "aten.addcdiv": Formula(_addcdiv),
    "aten.lerp": Formula(_lerp),
    "aten.maximum": _binary("max"),
    "aten.minimum": _binary("min"),
    "aten.fmax": Formula(lambda a, b: a.apply("fmax" if a.floating else "max", b), converts=True),
    "aten.fmin": Formula(lambda a, b: a.apply("fmin" if a.floating else "min", b), converts=True),
    "aten.clamp": Formula(lambda x, min=None, max=None: _clamp(x, min, max), converts=True),  # noqa: A006 - ATen's names
    "aten.clamp_min": Formula(lambda x, low: _clamp(x, low), converts=True),
    "aten.clamp_max": Formula(lambda x, high: _clamp(x, None, high), converts=True),
    "aten.nan_to_num": Formula(_nan_to_num),
    # comparisons and predicates
    "aten.eq": _compare("eq"),
    "aten.ne": _compare("ne"),
    "aten.lt": _compare("lt"),
    "aten.le": _compare("le"),
    "aten.gt": _compare("gt"),
    "aten.ge": _compare("ge"),
    "aten.isnan": _test("isnan"),
    "aten.isinf": _test("isinf"),
    "aten.isfinite": Formula(_isfinite, "own"),
    "aten.signbit": Formula(_signbit, "own"),
    "aten.heaviside": Formula(_heaviside, converts=True),
    # logic and bits
    "aten.logical_and": Formula(lambda a, b: a & b, "bool"),
    "aten.logical_or": Formula(lambda a, b: a | b, "bool"),
    "aten.logical_xor": Formula(lambda a, b: a ^ b, "bool"),
    "aten.logical_not": Formula(lambda x: ~x, "bool"),
    "aten.bitwise_and": _bits("and"),
    "aten.bitwise_or": _bits("or"),
    "aten.bitwise_xor": _bits("xor"),
    "aten.bitwise_not": Formula(lambda x: ~x),
    "aten.bitwise_left_shift": _bits("shl"),
    "aten.bitwise_right_shift": _bits("shr"),
    "aten.__lshift__": _bits("shl"),
    "aten.__rshift__": _bits("shr"),
    # rounding
    "aten.floor": _rounding("floor"),
    "aten.ceil": _rounding("ceil"),
    "aten.trunc": _rounding("trunc"),
    "aten.fix": _rounding("trunc"),
    "aten.round": Formula(lambda x, decimals=0: _round(x, decimals)),
    "aten.frac": Formula(lambda x: x - x.apply("trunc")),
    # the rest of the analytic functions go by their own names
    **{
        f"aten.{name}": _unary(name)
        for name in (
            "sqrt",
            "rsqrt",
            "reciprocal",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "sigmoid",
            "erf",
            "erfc",
            "lgamma",
        )
    },
    "aten.special_erf": _unary("erf"),
    "aten.atan2": _binary("atan2"),
    "aten.hypot": _binary("hypot"),
    "aten.copysign": _binary("copysign"),
    "aten.nextafter": replace(_binary("nextafter"), halves=False),
    "aten.logaddexp": Formula(_logaddexp, converts=True),
    "aten.logaddexp2": Formula(lambda a, b: _logaddexp(a, b, "2")),
    "aten.xlogy": Formula(_xlogy, converts=True),
    "aten.special_xlog1py": Formula(lambda x, y: _xlogy(x, y, "log1p")),
    "aten.logit": Formula(_logit),
    "aten.deg2rad": Formula(lambda x: x * (math.pi / 180)),
    "aten.rad2deg": Formula(lambda x: x * (180 / math.pi)),
    # activations and their derivatives
    "aten.relu": Formula(lambda x: _clamp(_number(x), 0)),
    "aten.relu6": Formula(lambda x: _clamp(x, 0, 6)),
    "aten.leaky_relu": Formula(lambda x, slope=0.01: (x > 0).where(x, x * slope)),
    "aten.leaky_relu_backward": Formula(lambda g, x, slope, _result: (x > 0).where(g, g * slope)),
    "aten._prelu_kernel": Formula(lambda x, w: (x > 0).where(x, w * x)),
    "aten.gelu": Formula(_gelu),
    "aten.gelu_backward": Formula(_gelu_backward),
    "aten.silu": Formula(_silu),
    "aten.silu_backward": Formula(_silu_backward),
    "aten.mish": Formula(_mish),
    "aten.elu": Formula(_elu),
    "aten.elu_backward": Formula(_elu_backward),
    "aten.softplus": Formula(_softplus),
    "aten.softplus_backward": Formula(_softplus_backward),
    "aten.hardtanh": Formula(lambda x, low=-1.0, high=1.0: _clamp(x, low, high)),
    "aten.hardtanh_backward": Formula(lambda g, x, low, high: ((x <= low) | (x >= high)).where(0, g)),
    "aten.hardsigmoid": Formula(_hardsigmoid),
    "aten.hardsigmoid_backward": Formula(lambda g, x: ((x > -3.0) & (x < 3.0)).where(g * _SIXTH, 0.0)),
    "aten.hardswish": Formula(lambda x: x * _clamp(x + 3.0, 0.0, 6.0) / 6.0),
    "aten.hardswish_backward": Formula(_hardswish_backward),
    "aten.log_sigmoid": Formula(_log_sigmoid),
    "aten.sigmoid_backward": Formula(lambda g, y: g * (1.0 - y) * y),
    "aten.tanh_backward": Formula(lambda g, y: g * (1.0 - y * y)),
    "aten.threshold": Formula(_threshold),
    "aten.threshold_backward": Formula(lambda g, x, threshold: (x <= threshold).where(0, g)),
}

# --- operations whose operands differ in kind --------------------------------------------------------------------


def _where(low: Builder, meta: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    condition, yes, no = args
    dtype = compute_dtype(NAMES.get(meta.dtype, ""))
    out = low.like(meta)

    def compute(c: Scalar, a: Any, b: Any) -> Scalar:
        return c.cast("bool").where(*(c.body.lift(v, out.dtype).cast(dtype) for v in (a, b)))

    return low.pointwise(out, (condition, yes, no), compute, "")


def _masked_fill(low: Builder, meta: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, mask, value = args
    out, dtype = low.like(meta), compute_dtype(NAMES.get(meta.dtype, ""))

    def compute(a: Scalar, m: Scalar, v: Any) -> Scalar:
        return m.where(a.body.lift(v, out.dtype).cast(dtype), a.cast(dtype))

    return low.pointwise(out, (x, mask, value), compute, "")


def _cast(low: Builder, meta: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """Conversions and copies: no arithmetic, so half precision is not widened on the way."""
    if str(meta.device) != args[0].device and low.device is None:
        raise Declined("it moves data between devices")
    return low.pointwise(low.like(meta), (args[0],), lambda x: x, "")


def _copy(low: Builder, meta: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """``aten.copy(self, src)``: the values of src, in the type and shape of self."""
    return _cast(low, meta, (args[1],), kwargs)


def _random(low: Builder, meta: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """Words of a stream, numbered in row-major order whatever the layout."""
    seed, stream = args[:2]
    out = low.like(meta)

    def compute(body: Body, point: Sizes) -> Scalar:
        first, second = (low.load(body, seed, (sympy.Integer(k),), seed.sizes) for k in range(2))
        index = element_index(ZERO, contiguous_strides(out.sizes), point)
        return body.add("random", (first.name, second.name, stream, index), "i32")

    return low.indexed(out, compute)


def _bitcast(low: Builder, meta: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    out = low.like(meta)
    if len(args[0].sizes) != len(out.sizes) or args[0].sizes != out.sizes or "bool" in (args[0].dtype, out.dtype):
        raise Declined("it reinterprets elements of another size")
    return low.pointwise(out, (args[0],), lambda x: x.bitcast(out.dtype), "")


RULES: dict[str, Callable[..., Buffer]] = {
    **FORMULAS,
    "aten.where": _where,
    "aten.masked_fill": _masked_fill,
    "aten.clone": _cast,
    "aten._to_copy": _cast,
    "aten.lift_fresh_copy": _cast,
    "aten.contiguous": _cast,
    "aten.copy": _copy,
    "prims.convert_element_type": _cast,
    "prims.device_put": _cast,
    "fuselens.random": _random,
    "aten.view.dtype": _bitcast,
}
