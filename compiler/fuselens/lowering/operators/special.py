"""Special functions as formulas over the scalar vocabulary: those that programs meet in densities and their derivatives.

The rest (Bessel functions, orthogonal polynomials, incomplete gammas) are ATen's, a scalar at a time: ``SCALAR``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from fuselens.lowering.body import Scalar
from fuselens.lowering.builder import Builder, Declined
from fuselens.lowering.dtypes import FLOATS, NAMES, compute_dtype
from fuselens.lowering.operators.pointwise import Formula

# Bernoulli numbers B(2k) / 2k: ψ(x) ~ log x - 1/2x - Σ of them over x^2k
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_SHIFTS = 10  # from here on the asymptotic series is exact in double precision


def _polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """``Σ coefficients[k] x^k``, by Horner's rule."""
    total = x.body.const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _digamma(x: Scalar) -> Scalar:
    """ψ: shifted to where its series holds, reflected below 0; ∓∞ at ±0, NaN at the negative integers."""
    negative = x < 0.0
    y = negative.where(1.0 - x, x)
    total = y.body.const(0.0, y.dtype)
    for _ in range(_SHIFTS):
        small = y < float(_SHIFTS)
        total = small.where(total - 1.0 / y, total)
        y = small.where(y + 1.0, y)
    z = 1.0 / (y * y)
    total = total + y.apply("log") - 0.5 / y - z * _polynomial(z, _DIGAMMA)
    fraction = x - x.apply("round")
    reflected = total - math.pi / (fraction * math.pi).apply("tan")
    reflected = fraction.eq(0.0).where(math.nan, reflected)
    infinite = x.body.const(math.inf, x.dtype).apply("copysign", -x)
    return x.eq(0.0).where(infinite, negative.where(reflected, total))


def _trigamma(x: Scalar) -> Scalar:
    """ψ' as ATen computes it: six shifts and the series' first terms, so in double precision it is as far off."""
    low = x < 0.5
    sine = (x * math.pi).apply("sin")  # as ATen rounds it, so that the poles are as far away
    y = low.where(1.0 - x, x)
    total = low.where(-(math.pi * math.pi) / (sine * sine), 0.0)
    for _ in range(6):
        total = total + 1.0 / (y * y)
        y = y + 1.0
    z = 1.0 / (y * y)
    total = total + (1.0 + 1.0 / (2.0 * y) + z * (1 / 6 - z * (1 / 30 - z * (1 / 42)))) / y
    return low.where(-total, total)


def _polygamma(order: int, x: Scalar) -> Scalar:
    if order not in (0, 1):
        raise Declined(SCALAR)
    return _trigamma(x) if order else _digamma(x)


# first approximations of the inverse error function, numerators and denominators: around 0, and near ±1 in √-log((1-y)/2)
_CENTRE = (0.886226899, -1.645349621, 0.914624893, -0.140543331), (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801)  # fmt: skip
_TAIL = (-1.970840454, -1.624906493, 3.429567803, 1.641345311), (1.0, 3.543889200, 1.637067800)


def _erfinv(y: Scalar) -> Scalar:
    """A rational approximation, and two of Newton's steps; ±∞ at ±1, NaN beyond."""
    size = y.apply("abs")
    centre = y * y
    tail = (-((1.0 - size) / 2.0).apply("log")).apply("sqrt")
    inner = y * _polynomial(centre, _CENTRE[0]) / _polynomial(centre, _CENTRE[1])
    outer = _polynomial(tail, _TAIL[0]).apply("copysign", y) / _polynomial(tail, _TAIL[1])
    x = (size <= 0.7).where(inner, outer)
    for _ in range(2):
        x = x - (x.apply("erf") - y) / ((-(x * x)).apply("exp") * (2.0 / math.sqrt(math.pi)))
    x = size.eq(1.0).where(y.body.const(math.inf, y.dtype).apply("copysign", y), x)
    return (size > 1.0).where(math.nan, x)


def _ldexp(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x * 2**n``; ATen computes the power in the type of ``n``, float32 for integers."""
    x, n = args
    dtype = compute_dtype(NAMES.get(meta.dtype, ""))
    if n.dtype.startswith("c") or dtype not in FLOATS:
        raise Declined("loops do not compute with complex numbers")

    def compute(value: Scalar, exponent: Scalar) -> Scalar:
        exponent = exponent if exponent.dtype == "f64" else exponent.cast("f32")
        return value.cast(dtype) * exponent.apply("exp2").cast(dtype)

    return low.pointwise(low.like(meta), [x, n], compute, "")


def _angle(x: Scalar) -> Scalar:
    """Of a real number: 0 or π, NaN where it is one."""
    return x.apply("isnan").where(x, (x < 0.0).where(math.pi, x.body.const(0.0, x.dtype)))


SCALAR = "a special function, which ATen computes a scalar at a time"
_POLYNOMIALS = "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w".split()
ATEN = tuple(
    f"aten.{name}"
    for name in (
        *"polygamma i0 special_i0e special_i1 special_i1e igamma igammac special_erfcx special_ndtri special_zeta".split(),
        *"special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1".split(),
        *(f"special_{kind}bessel_{n}" for kind in ("modified_", "scaled_modified_") for n in ("i0", "i1", "k0", "k1")),
        "special_spherical_bessel_j0",
        *(f"special_{shifted}{p}" for shifted in ("", "shifted_") for p in _POLYNOMIALS),
        *(f"special_{p}" for p in ("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l")),
        "special_legendre_polynomial_p",
    )
)
RULES: dict[str, Callable[..., Any]] = {
    "aten.digamma": Formula(_digamma),
    "aten.polygamma": Formula(_polygamma),
    "aten.erfinv": Formula(_erfinv),
    "aten.ldexp.Tensor": _ldexp,
    "aten.angle": Formula(_angle),
}
