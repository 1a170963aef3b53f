"""Operations on complex values as formulas of their real and imaginary parts, by the names of ``ir.ops``.

They follow ATen's kernels: products as they are written, quotients by Smith's way.
Results are exact where a formula with ``hypot``, ``expm1`` or ``copysign`` makes them so cheaply.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuselens.lowering.body import Complex, Scalar


def _abs(z: Complex) -> Scalar:
    return z.re.apply("hypot", z.im)


def _mul(a: Complex, b: Complex) -> Complex:
    return a.of(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def _div(a: Complex, b: Complex) -> Complex:
    """Smith's quotient: by the ratio of the divisor's parts, the smaller one over the larger."""
    x, y = b.re.apply("abs"), b.im.apply("abs")
    flat = x >= y
    large, small = flat.where(b.re, b.im), flat.where(b.im, b.re)
    ratio = small / large
    whole = large + small * ratio  # of which the reciprocal may be no number
    near, far = flat.where(a.re, a.im), flat.where(a.im, a.re)
    across = far - near * ratio
    re, im = (near + far * ratio) / whole, flat.where(across, -across) / whole
    nothing = x.eq(0.0) & y.eq(0.0)
    return a.of(nothing.where(a.re / x, re), nothing.where(a.im / y, im))


def _reciprocal(z: Complex) -> Complex:
    one: Any = z.body.const(1, z.dtype)
    return _div(one, z)


def _sgn(z: Complex) -> Complex:
    size = _abs(z)
    zero = size.eq(0.0)
    return z.of(zero.where(0.0, z.re / size), zero.where(0.0, z.im / size))


def _angle(z: Complex) -> Scalar:
    return z.im.apply("atan2", z.re)


def _exp(z: Complex) -> Complex:
    """A real number stays one, also where e to it is infinite."""
    size = z.re.apply("exp")
    return z.of(size * z.im.apply("cos"), z.im.eq(0.0).where(z.im, size * z.im.apply("sin")))


def _expm1(z: Complex) -> Complex:
    half = (z.im * 0.5).apply("sin")
    return z.of(
        z.re.apply("expm1") * z.im.apply("cos") - 2.0 * half * half, z.re.apply("exp") * z.im.apply("sin")
    )  # fmt: skip


def _log(z: Complex) -> Complex:
    return z.of(_abs(z).apply("log"), _angle(z))


def _log1p(z: Complex) -> Complex:
    x, y = z.re, z.im
    small = 0.5 * (x * (x + 2.0) + y * y).apply("log1p")
    return z.of((_abs(z) < 0.5).where(small, (x + 1.0).apply("hypot", y).apply("log")), y.apply("atan2", x + 1.0))


def _scaled(function: Callable[[Complex], Complex], before: float, after: float) -> Callable[[Complex], Complex]:
    def compute(z: Complex) -> Complex:
        made = function(z.of(z.re * before, z.im * before))
        return z.of(made.re * after, made.im * after)

    return compute


def _sqrt(z: Complex) -> Any:
    """In double precision, or with eighths, so that nothing overflows on the way; an infinite imaginary part wins."""
    if z.re.dtype == "f32":
        x, y = (v.apply("abs").cast("f64") for v in (z.re, z.im))
        size = x.apply("isinf").where(x, (x * x + y * y).apply("sqrt"))
        root = ((x + size) * 0.5).apply("sqrt").cast("f32")
    else:
        x, y = z.re.apply("abs") * 0.125, z.im.apply("abs") * 0.125
        root = 2.0 * (x + x.apply("hypot", y)).apply("sqrt")
    a, b = z.re.apply("abs"), z.im.apply("abs")
    other = root.eq(0.0).where(0.0, b * 0.5 / root)
    other = a.apply("isinf").where(z.im.apply("isnan").where(z.im, 0.0), other)
    other = b.apply("isinf").where(b, other)
    right = z.re.apply("signbit")
    return z.of(right.where(other, root), right.where(root, other).apply("copysign", z.im))


def _rsqrt(z: Complex) -> Complex:
    return _reciprocal(_sqrt(z))


def _times(x: Scalar, y: Scalar) -> Scalar:
    """A product that is 0 where the first factor is, whatever the second."""
    return x.eq(0.0).where(x, x * y)


def _sinh(z: Complex) -> Complex:
    return z.of(
        _times(z.re.apply("sinh"), z.im.apply("cos")), _times(z.im.apply("sin"), z.re.apply("cosh"))
    )  # fmt: skip


def _cosh(z: Complex) -> Complex:
    return z.of(
        z.re.apply("cosh") * z.im.apply("cos"), _times(z.im.apply("sin"), z.re.apply("sinh"))
    )  # fmt: skip


def _tanh(z: Complex) -> Complex:
    """By the tangent of the imaginary part; far out, what is left of it."""
    limit = {"f32": 10.0, "f64": 20.0}[z.re.dtype]
    far = z.re.apply("abs") > limit
    sine, cosine = z.im.apply("sin"), z.im.apply("cos")
    tangent, s = sine / cosine, far.where(0.0, z.re).apply("sinh")
    beta = 1.0 + tangent * tangent
    size = 1.0 + beta * s * s
    rest = 4.0 * sine * cosine * (-2.0 * z.re.apply("abs")).apply("exp")
    return z.of(
        far.where(z.body.const(1, z.re.dtype).apply("copysign", z.re), beta * (1.0 + s * s).apply("sqrt") * s / size),
        far.where(z.re.apply("isinf").where(0.0, rest), tangent / size),
    )


def _turned(function: Callable[[Complex], Complex]) -> Callable[[Complex], Complex]:
    """``-i f(i z)``: sin from sinh, tan from tanh."""

    def compute(z: Complex) -> Complex:
        made = function(z.of(-z.im, z.re))
        return z.of(made.im, -made.re)

    return compute


def _roots(z: Complex) -> tuple[Complex, Complex]:
    """The square roots of 1 - z and 1 + z, of which Kahan's inverse functions are made."""
    return _sqrt(z.of(1.0 - z.re, -z.im)), _sqrt(z.of(1.0 + z.re, z.im))


def _asin(z: Complex) -> Complex:
    less, more = _roots(z)
    return z.of(
        z.re.apply("atan2", less.re * more.re - less.im * more.im),
        (less.re * more.im - less.im * more.re).apply("asinh"),
    )


def _acos(z: Complex) -> Complex:
    less, more = _roots(z)
    return z.of(2.0 * less.re.apply("atan2", more.re), (more.re * less.im - more.im * less.re).apply("asinh"))


def _acosh(z: Complex) -> Complex:
    less, more = _sqrt(z.of(z.re - 1.0, z.im)), _sqrt(z.of(z.re + 1.0, z.im))
    return z.of((less.re * more.re + less.im * more.im).apply("asinh"), 2.0 * less.im.apply("atan2", more.re))


def _atanh(z: Complex) -> Complex:
    x, y, rest = z.re, z.im, 1.0 - z.re
    return z.of(
        0.25 * (4.0 * x / (rest * rest + y * y)).apply("log1p"),
        0.5 * (2.0 * y).apply("atan2", rest * (1.0 + x) - y * y),
    )


def _sigmoid(z: Complex) -> Complex:
    one: Any = z.body.const(1, z.dtype)
    minus: Any = -z
    return _div(one, one + _exp(minus))


def _pow(base: Complex, exponent: Complex) -> Scalar:
    """e to ``exponent * log(base)``; of the base 0, what limits give."""
    log = _log(base)
    zero = base.re.eq(0.0) & base.im.eq(0.0)
    power = _exp(_mul(exponent, log))
    nothing = exponent.re.eq(0.0) & exponent.im.eq(0.0)
    return zero.where(nothing.where(base.body.const(1, base.dtype), base.body.const(0, base.dtype)), power)


FORMULAS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a.of(a.re + b.re, a.im + b.im),
    "sub": lambda a, b: a.of(a.re - b.re, a.im - b.im),
    "mul": _mul,
    "div": _div,
    "neg": lambda z: z.of(-z.re, -z.im),
    "abs": _abs,
    "sign": _sgn,
    "angle": _angle,
    "conj": lambda z: z.of(z.re, -z.im),
    "eq": lambda a, b: a.re.eq(b.re) & a.im.eq(b.im),
    "ne": lambda a, b: a.re.ne(b.re) | a.im.ne(b.im),
    "isnan": lambda z: z.re.apply("isnan") | z.im.apply("isnan"),
    "isinf": lambda z: z.re.apply("isinf") | z.im.apply("isinf"),
    "reciprocal": _reciprocal,
    "exp": _exp,
    "exp2": _scaled(_exp, math.log(2), 1.0),
    "expm1": _expm1,
    "log": _log,
    "log2": _scaled(_log, 1.0, 1 / math.log(2)),
    "log10": _scaled(_log, 1.0, 1 / math.log(10)),
    "log1p": _log1p,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "sin": _turned(_sinh),
    "cos": lambda z: _cosh(z.of(-z.im, z.re)),
    "tan": _turned(_tanh),
    "asin": _asin,
    "acos": _acos,
    "asinh": _turned(_asin),
    "acosh": _acosh,
    "atanh": _atanh,
    "atan": _turned(_atanh),
    "sigmoid": _sigmoid,
    "pow": _pow,
}
