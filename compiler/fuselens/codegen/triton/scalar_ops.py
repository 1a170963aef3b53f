"""Scalar operations as Triton expressions: one table entry per operation of ``ir.ops``.

Whatever ``tl`` can express is written with it, because ``libdevice`` does not exist under Triton's interpreter; only
the operations in :data:`LIBDEVICE`, and :data:`DIVISIONS` of floating point numbers, need a GPU (or the offline compiler).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from ...ir.contracts.source import Unsupported
from ...ir.loops import Op
from ...torch_private import largest_float8
from ..operands import Value, rounded
from .choices import clusters

TYPES: dict[str, str] = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16", "i64": "tl.int64",
    "i32": "tl.int32", "i16": "tl.int16", "i8": "tl.int8", "u8": "tl.uint8",
    "u16": "tl.uint16", "u32": "tl.uint32", "u64": "tl.uint64", "bool": "tl.int1",
    "f8e4m3": "tl.uint8", "f8e5m2": "tl.uint8",  # their bits, converted in whole numbers: Triton rounds and saturates otherwise
}  # fmt: skip
BITS = {"f64": "i64", "f32": "i32", "i64": "f64", "i32": "f32", "f16": "i16", "bf16": "i16", "i16": "f16"}

# No form in plain tl: these come from libdevice and cannot run under the interpreter.
LIBDEVICE = frozenset(
    "tan asin acos atan atan2 sinh cosh asinh acosh atanh erfc lgamma hypot nextafter pow".split()
)  # fmt: skip
DIVISIONS = frozenset(("fmod", "mod", "floordiv"))  # of floating point numbers: what % gives of these is not exact

FUNCTIONS: dict[str, str] = {
    "f8e4m3_to_f32": """
@triton.jit
def f8e4m3_to_f32(x):
    bits = x.to(tl.int16)
    y = ((bits & 127) << 7 | (bits & 128) << 8).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((bits & 127) == 127, float("nan"), y)
""",
    "f8e5m2_to_f32": """
@triton.jit
def f8e5m2_to_f32(x):
    return (x.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
""",
    "f32_to_f8e4m3": """
@triton.jit
def f32_to_f8e4m3(x, largest: tl.constexpr):
    bits = x.to(tl.int32, bitcast=True)
    a = bits & 0x7FFFFFFF
    small = (a.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000  # the sum is rounded
    y = tl.minimum((a - 0x3C000000 + 0x7FFFF + (a >> 20 & 1)) >> 20, largest)
    y = tl.where(a < 0x3C800000, small, tl.where(a > 0x7F800000, 127, y))
    return (y | (bits >> 24 & 128)).to(tl.uint8)
""",
    "f32_to_f8e5m2": """
@triton.jit
def f32_to_f8e5m2(x):
    bits = x.to(tl.int32, bitcast=True)
    a = bits & 0x7FFFFFFF
    small = (a.to(tl.float32, bitcast=True) + 128.0).to(tl.int32, bitcast=True) - 0x43000000
    y = tl.minimum((a - 0x38000000 + 0xFFFFF + (a >> 21 & 1)) >> 21, 124)
    y = tl.where(a < 0x38800000, small, tl.where(a > 0x7F800000, 127, y))
    return (y | (bits >> 24 & 128)).to(tl.uint8)
""",
    "trunc": """
@triton.jit
def trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))
""",
    "round_even": """
@triton.jit
def round_even(x):
    low = tl.floor(x)
    rest = x - low
    odd = low - 2 * tl.floor(low * 0.5)
    up = (rest > 0.5) | ((rest == 0.5) & (odd != 0))
    y = tl.where(up, low + 1, low)
    return tl.where(y == 0, x * 0.0, y)  # with the sign of x
""",
    "tanh": """
@triton.jit
def tanh(x):
    a = tl.abs(x)
    u = a * a
    near = a + a * u * (-0.333332837 + u * (0.133314863 + u * (-0.0537431724 + u * (0.0206497088 - u * 0.00571620278))))
    y = tl.where(a < 0.625, near, 1 - 2 / (tl.exp2(2.885390081777927 * a) + 1))
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return (y.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
""",
    "tanh_f64": """
@triton.jit
def tanh_f64(x):
    a = tl.abs(x)
    e = expm1(-2 * a)
    y = -e / (2 + e)
    return tl.where(x == 0, x, tl.where(x < 0, -y, y))
""",
    "log1p": """
@triton.jit
def log1p(x):
    u = 1 + x
    if x.dtype == tl.float64:
        lost = x - (u - 1)  # what rounding 1 + x dropped
        y = tl.log(u) + lost / u
        y = tl.where((u == float("inf")) | (u <= 0), tl.log(u), y)
    else:
        # 1 + x = 2**k (1 + f) with f in [-1/4, 1/2), where a polynomial is log(1 + f) to a tenth of its last bit
        k = (u.to(tl.int32, bitcast=True) - 0x3F400000) & -0x800000
        scale = (0x40800000 - k).to(tl.float32, bitcast=True)
        f = (x.to(tl.int32, bitcast=True) - k).to(tl.float32, bitcast=True) + (scale * 0.25 - 1)
        y = ((((-0.0449095813 * f + 0.104483287) * f - 0.131622319) * f + 0.144820619) * f - 0.166477672) * f + 0.199906067
        y = ((y * f - 0.250000546) * f + 0.333334544) * f - 0.5
        y = k.to(tl.float32) * 8.262958294867817e-08 + (y * f * f + f)
        y = tl.where(u < float("inf"), y, x)
        y = tl.where(u > 0, y, tl.where(u == 0, float("-inf"), float("nan")))
    return tl.where(x == 0, x, y)
""",
    "expm1": """
@triton.jit
def expm1(x):
    if x.dtype == tl.float64:
        # (e - 1) x / log(e) cancels the rounding error of e = exp(x) (Kahan)
        e = tl.exp(x)
        y = (e - 1) * (x / tl.log(e))
        y = tl.where(tl.abs(x) > 30, e - 1, y)
        y = tl.where(e == 1, x, y)
    else:
        # x = k log(2) + f; a polynomial is (exp(f) - 1 - f) / f**2; the low bits of k + 1.5 * 2**23 are those of k
        near = tl.minimum(tl.maximum(x, -30.0), 89.0)
        shifted = near * 1.4426950408889634 + 12582912.0
        k = shifted - 12582912.0
        f = near - k * 0.693145752
        f = f - k * 1.42860677e-06
        y = (((0.000198458778 * f + 0.00139406248) * f + 0.00833338936) * f + 0.0416663609) * f + 0.166666664
        y = (y * f + 0.5) * f * f + f
        half = ((shifted.to(tl.int32, bitcast=True) << 23) + 0x3F000000).to(tl.float32, bitcast=True)
        y = 2 * (y * half + (half - 0.5))
        y = tl.where(tl.abs(x) > 0, y, x)  # zeros keep their sign
    return y
""",
    "copysign": """
@triton.jit
def copysign(x, y, BITS: tl.constexpr, SIGN: tl.constexpr):
    sign = y.to(BITS, bitcast=True) & SIGN
    return ((x.to(BITS, bitcast=True) & ~SIGN) | sign).to(x.dtype, bitcast=True)
""",
    "mod_floor": """
@triton.jit
def mod_floor(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    "div_floor": """
@triton.jit
def div_floor(a, b):  # integers
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)
""",
    "mod_floor_float": """
@triton.jit
def mod_floor_float(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    "div_floor_float": """
@triton.jit
def div_floor_float(a, b):
    r = libdevice.fmod(a, b)
    q = (a - r) / b  # which is whole but for its rounding
    q = tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)
    f = tl.floor(q)
    f = tl.where(q - f > 0.5, f + 1, f)
    f = tl.where(q == 0, a / b * 0.0, f)  # with the sign of the quotient
    return tl.where(b == 0, a / b, f)
""",
    "floor_div": """
@triton.jit
def floor_div(a, b):  # of index expressions that may be negative
    q = a // b
    return q - ((a % b != 0) & ((a < 0) != (b < 0)))
""",
    "floor_mod": """
@triton.jit
def floor_mod(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    "int_pow": """
@triton.jit
def int_pow(a, b):
    r = tl.where(b < 0, tl.where(a == 1, 1, tl.where(a == -1, 1 - 2 * (b & 1), 0)), 1).to(a.dtype)
    n = tl.where(b < 0, 0, b)
    for _ in range(63):
        r = tl.where((n & 1) != 0, r * a, r)
        a = a * a
        n = n >> 1
    return r
""",
    "fold_max": """
@triton.jit
def fold_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "fold_min": """
@triton.jit
def fold_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "random_word": """
@triton.jit
def random_word(k0, k1, stream: tl.constexpr, index):
    block = index.to(tl.int64) >> 2
    c0, c1 = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    k0, k1 = k0.to(tl.uint32, bitcast=True), k1.to(tl.uint32, bitcast=True)
    w0, w1, w2, w3 = tl.philox_impl(c0, c1, c0 * 0 + stream, c0 * 0, k0, k1)
    place = index & 3
    word = tl.where(place < 2, tl.where(place == 0, w0, w1), tl.where(place == 2, w2, w3))
    return word.to(tl.int32, bitcast=True)
""",
    "fold_prod": """
@triton.jit
def fold_prod(a, b):
    return a * b
""",
    "scan_sum": """
@triton.jit
def scan_sum(a, b):
    return a + b
""",
    "scan_logsumexp": """
@triton.jit
def scan_logsumexp(a, b):
    high = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    far = tl.where(a == b, 0.0, -tl.abs(a - b))
    return high + log1p(tl.exp(far))
""",
}
FUNCTIONS |= clusters.FUNCTIONS
FUNCTION_NEEDS = {"tanh_f64": ("expm1",), "scan_logsumexp": ("log1p",)} | clusters.NEEDS


class Emitter(Protocol):
    def need(self, *functions: str) -> None: ...


Entry = Callable[[Emitter, Op, Sequence[Value]], str]


def literal(number: float | int | bool, dtype: str) -> str:
    """A Python literal of ``dtype``."""
    if dtype == "bool":
        return "True" if number else "False"
    if dtype[0] in "iu":
        return str(int(number))
    value = float(number)
    value = rounded(value, dtype) if dtype != "f64" else value
    if math.isnan(value) or math.isinf(value):
        return f'float("{value}")'
    return repr(value)


def _infix(sign: str) -> Entry:
    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        left = v[0].text if v[1].literal else v[0].infix
        return f"{left} {sign} {v[1].infix}"

    return entry


def _call(function: str) -> Entry:
    return lambda e, op, v: f"{function}({', '.join(x.text for x in v)})"


def _own(name: str) -> Entry:
    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        e.need(name)
        return f"{name}({', '.join(x.text for x in v)})"

    return entry


def _libdevice(name: str) -> Entry:
    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        e.need("libdevice")
        return f"libdevice.{name}({', '.join(x.text for x in v)})"

    return entry


def _other_than_nan(sign: str) -> Entry:
    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        a, b = v[0].text, v[1].text
        return f"tl.where(({a} {sign} {b}) | ({b} != {b}), {a}, {b})"

    return entry


def _extreme(name: str) -> Entry:
    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        if op.dtype == "bool":
            return f"{v[0].text} {'|' if name == 'maximum' else '&'} {v[1].text}"
        if op.dtype in ("f32", "f64"):
            return f"tl.{name}({v[0].text}, {v[1].text}, propagate_nan=tl.PropagateNan.ALL)"
        return f"tl.{name}({v[0].text}, {v[1].text})"

    return entry


def _neg(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    # Triton's own minus is 0 - x, which is +0 for both zeros
    return f"{v[0].text} * -1.0" if op.dtype[0] in "fb" else f"-{v[0].text}"


def _sign(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    x, t = v[0].text, TYPES[op.dtype]
    return f"({x} > 0).to({t}) - ({x} < 0).to({t})"


def _signbit(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    if v[0].dtype in ("f32", "f64"):
        return f"{v[0].text}.to({TYPES[BITS[v[0].dtype]]}, bitcast=True) < 0"
    return f"{v[0].text} < 0"


def _copysign(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    e.need("copysign")
    sign = "-2147483648" if op.dtype == "f32" else "-9223372036854775808"
    return f"copysign({v[0].text}, {v[1].text}, {TYPES[BITS[op.dtype]]}, {sign})"


def _pow(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    x = v[0].text
    if op.dtype[0] in "iu":
        e.need("int_pow")
        return f"int_pow({x}, {v[1].text})"
    forms = {1: "{x}", 2: "{x} * {x}", 3: "{x} * {x} * {x}", -1: "1 / {x}", -2: "1 / ({x} * {x})"}
    forms |= {0.5: "tl.sqrt({x})", -0.5: "1 / tl.sqrt({x})"}
    if v[1].number in forms:
        return forms[v[1].number].format(x=x)
    return _libdevice("pow")(e, op, v)


def _shift(sign: str) -> Entry:
    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        bits = {"i64": 64, "i32": 32, "i16": 16, "i8": 8, "u8": 8}[op.dtype]
        a, b = v[0].text, v[1].text
        outside = f"({b} < 0) | ({b} >= {bits})"
        if sign == "<<":
            return f"tl.where({outside}, {a} - {a}, {a} << ({b} & {bits - 1}))"
        rest = f"{a} - {a}" if op.dtype == "u8" else f"{a} >> {bits - 1}"
        return f"tl.where({outside}, {rest}, {a} >> ({b} & {bits - 1}))"

    return entry


def _fmod(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    return _libdevice("fmod")(e, op, v) if op.dtype[0] == "f" else _infix("%")(e, op, v)


def _divided(name: str) -> Entry:
    """A function of whole numbers, or its form for others, which needs ``fmod``."""

    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        if op.dtype[0] != "f":
            return _own(name)(e, op, v)
        e.need("libdevice")
        return _own(f"{name}_float")(e, op, v)

    return entry


def _div(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    """Rounded correctly, which Triton's own division of f32 is not. By a number eager multiplies with its inverse."""
    number = v[1].number
    if number is not None:
        divisor = float(number) if op.dtype == "f64" else rounded(float(number), op.dtype)
        return f"{v[0].infix} * {literal(1 / divisor if divisor else math.copysign(math.inf, divisor), op.dtype)}"
    return f"tl.div_rn({v[0].text}, {v[1].text})" if op.dtype == "f32" else _infix("/")(e, op, v)


def _truncdiv(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    if op.dtype[0] == "f":
        e.need("trunc")
        return f"trunc({_div(e, op, v)})"
    return f"{v[0].text} // {v[1].text}"


def _tanh(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    return _own("tanh_f64" if op.dtype == "f64" else "tanh")(e, op, v)


def _fma(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    return f"tl.fma({v[0].text}, {v[1].text}, {v[2].text})"


TABLE: dict[str, Entry] = {
    "add": _infix("+"), "sub": _infix("-"), "mul": _infix("*"), "div": _div,
    "floordiv": _divided("div_floor"), "truncdiv": _truncdiv, "mod": _divided("mod_floor"), "fmod": _fmod,
    "neg": _neg, "abs": _call("tl.abs"), "sign": _sign, "fma": _fma,
    "max": _extreme("maximum"), "min": _extreme("minimum"),
    "fmax": _other_than_nan(">"), "fmin": _other_than_nan("<"),
    "eq": _infix("=="), "ne": _infix("!="), "lt": _infix("<"), "le": _infix("<="), "gt": _infix(">"), "ge": _infix(">="),
    "isnan": lambda e, op, v: f"{v[0].text} != {v[0].text}",
    "isinf": lambda e, op, v: f'tl.abs({v[0].text}) == float("inf")', "signbit": _signbit,
    "and": _infix("&"), "or": _infix("|"), "xor": _infix("^"),
    "not": lambda e, op, v: f"{v[0].text} == 0" if op.dtype == "bool" else f"~{v[0].text}",
    "shl": _shift("<<"), "shr": _shift(">>"), "where": _call("tl.where"),
    "floor": _call("tl.floor"), "ceil": _call("tl.ceil"), "trunc": _own("trunc"), "round": _own("round_even"),
    "sqrt": lambda e, op, v: f"tl.sqrt_rn({v[0].text})" if op.dtype == "f32" else f"tl.sqrt({v[0].text})",
    "rsqrt": _call("tl.rsqrt"), "reciprocal": lambda e, op, v: f"tl.div_rn(1.0, {v[0].text})" if op.dtype == "f32" else f"1 / {v[0].text}", "pow": _pow,
    "exp": _call("tl.exp"), "exp2": _call("tl.exp2"), "expm1": _own("expm1"), "log": _call("tl.log"),
    "log2": _call("tl.log2"), "log10": lambda e, op, v: f"tl.log({v[0].text}) * 0.4342944819032518",
    "log1p": _own("log1p"), "sin": _call("tl.sin"), "cos": _call("tl.cos"), "tanh": _tanh,
    "sigmoid": lambda e, op, v: f"1 / (1 + tl.exp(-{v[0].text}))", "erf": _call("tl.erf"), "copysign": _copysign,
    **{name: _libdevice(name) for name in LIBDEVICE - {"pow"}},
}  # fmt: skip


def cast(e: Emitter, op: Op, value: Value) -> str:
    if value.dtype == op.dtype:
        return value.text
    if value.dtype.startswith("f8"):
        e.need(f"{value.dtype}_to_f32")
        wide = Value(f"{value.dtype}_to_f32({value.text})", "f32")
        return cast(e, op, wide)
    if op.dtype.startswith("f8"):
        e.need(f"f32_to_{op.dtype}")
        narrow = value.text if value.dtype == "f32" else f"{value.text}.to(tl.float32)"
        return f"f32_to_{op.dtype}({narrow}{f', {largest_float8()}' if op.dtype == 'f8e4m3' else ''})"
    if op.dtype == "bool":
        return f"{value.text} != 0"
    if op.dtype not in TYPES:
        raise Unsupported(f"cast to {op.dtype}")
    between = ""  # as torch
    if value.dtype in ("f32", "f64", "f16", "bf16") and op.dtype in ("i8", "i16", "u8"):
        between = ".to(tl.int64)" if op.dtype == "u8" else ".to(tl.int32)"
    elif value.dtype in ("f64", "i64", "i32", "u64", "u32") and op.dtype in ("f16", "bf16"):
        between = ".to(tl.float32)"
    return f"{value.text}{between}.to({TYPES[op.dtype]})"


def bitcast(e: Emitter, op: Op, value: Value) -> str:
    return f"{value.text}.to({TYPES[op.dtype]}, bitcast=True)"
