"""Scalar operations as C++ expressions over vector values: one table entry per operation of ``ir.ops``.

An entry receives the emitter (to request prelude parts), the op, and its operands as text, and returns text. Values
live in registers by kind (see ``prelude.REGISTER``): halves as f32, small integers as wrapped i32, u32 and u64 as i32 and i64 of the
same bits (so operations that tell signs apart are not defined on them), booleans as masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from ...ir.contracts.source import Unsupported
from ...ir.loops import ITEMSIZE, Op
from ..operands import Value, rounded
from .vectors.parts import LIBM, REGISTER


class Emitter(Protocol):
    """What a table entry may ask for."""

    wide: bool
    fast: bool  # Isa.fast

    def need(self, *parts: str) -> None: ...
    def vector(self, register: str) -> str: ...


Entry = Callable[[Emitter, Op, Sequence[Value]], str]


def literal(number: float | int | bool, dtype: str) -> str:
    """A C++ literal of the register kind of ``dtype``."""
    kind = REGISTER[dtype]
    if kind == "mask":
        return "-1" if number else "0"
    if kind in ("i32", "i64"):
        value = int(number)
        if dtype in ("u32", "u64") and value >> (ITEMSIZE[dtype] * 8 - 1):
            value -= 1 << ITEMSIZE[dtype] * 8  # the same bits
        if kind == "i64":
            return "(-9223372036854775807L - 1)" if value == -(2**63) else f"{value}L"
        return "(-2147483647 - 1)" if value == -(2**31) else str(value)
    value = float(number)
    suffix = "f" if kind == "f32" else ""
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if kind == "f32":
        value = rounded(value, dtype)
    if math.isinf(value):
        return ("-" if value < 0 else "") + f"__builtin_inf{suffix}()"
    return repr(value) + suffix


def wrap(text: str, dtype: str) -> str:
    """A small integer's arithmetic result brought back into its range, as overflow does in memory."""
    bits = {"i16": 16, "i8": 24}.get(dtype)
    if bits:
        return f"(({text}) << {bits}) >> {bits}"
    most = {"u8": 255, "u16": 65535}.get(dtype)
    return f"({text}) & {most}" if most else text


def _mask(e: Emitter, text: str, register: str) -> str:
    """A comparison of registers of this kind as a boolean of the kernel."""
    if register == "mask" or (register in ("f64", "i64")) == e.wide:
        return text
    return f"to_i64({text})" if e.wide else f"to_i32({text})"


def condition(e: Emitter, text: str, register: str) -> str:
    """A boolean of the kernel as the condition that chooses between registers of this kind."""
    if register == "mask" or (register in ("f64", "i64")) == e.wide:
        return text
    return f"to_i32({text})" if e.wide else f"to_i64({text})"


def _arithmetic(sign: str) -> Entry:
    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        left = v[0].text if v[1].literal else v[0].infix
        return wrap(f"{left} {sign} {v[1].infix}", op.dtype)

    return entry


def _divide(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    number = v[1].number
    if e.fast and number and math.isfinite(1 / number):
        return f"{v[0].text} * {literal(1 / number, op.dtype)}"
    return _arithmetic("/")(e, op, v)


def _rsqrt(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    if e.fast and REGISTER[op.dtype] == "f32":
        return _function("rsqrt")(e, op, v)
    e.need(f"sqrt.{REGISTER[op.dtype]}")
    return f"1 / sqrt({v[0].text})"


def _comparison(sign: str, on_masks: str) -> Entry:
    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        register = REGISTER[v[0].dtype]
        if register == "mask":
            return on_masks.format(a=v[0].text, b=v[1].text)
        left = v[0].text if v[1].literal else v[0].infix
        return _mask(e, f"({left} {sign} {v[1].infix})", register)

    return entry


def _function(name: str) -> Entry:
    """A call ``name(…)`` of a prelude part, which exists per register kind."""

    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        e.need(f"{name}.{REGISTER[op.dtype]}")
        return f"{name}({', '.join(x.text for x in v)})"

    return entry


def _extreme(name: str) -> Entry:
    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        if op.dtype == "bool":
            return f"{v[0].text} {'|' if name == 'max' else '&'} {v[1].text}"
        e.need(f"{name}.{REGISTER[op.dtype]}")
        return f"{name}({v[0].text}, {v[1].text})"

    return entry


def _division(name: str) -> Entry:
    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        kind = REGISTER[op.dtype]
        e.need(f"division.{kind}" if kind in ("f32", "f64") else f"int_division.{kind}")
        return wrap(f"{name}({v[0].text}, {v[1].text})", op.dtype)

    return entry


def _bitwise(sign: str) -> Entry:
    return lambda e, op, v: f"{v[0].text} {sign} {v[1].text}"


def _shift(name: str) -> Entry:
    def entry(e: Emitter, op: Op, v: Sequence[Value]) -> str:
        if op.dtype in ("i8", "i16", "u8"):
            bits = {"i8": 8, "u8": 8, "i16": 16}[op.dtype]
            a, b = v[0].text, v[1].text
            outside = f"({b} < 0) | ({b} >= {bits})"
            if name == "shift_left":
                return f"({outside}) ? {a} - {a} : ({wrap(f'{a} << ({b} & {bits - 1})', op.dtype)})"
            return f"({outside}) ? {a} >> {31 if op.dtype != 'u8' else 8} : {a} >> ({b} & {bits - 1})"
        e.need(f"shift.{REGISTER[op.dtype]}")
        return f"{name}({v[0].text}, {v[1].text})"

    return entry


def _sign(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    x, register = v[0].text, REGISTER[op.dtype]
    text = f"({x} < 0) - ({x} > 0)"
    return f"__builtin_convertvector({text}, {e.vector(register)})" if register in ("f32", "f64") else text


def _abs(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    e.need(f"abs.{REGISTER[op.dtype]}")
    return wrap(f"abs({v[0].text})", op.dtype) if op.dtype != "u8" else v[0].text


def _signbit(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    register = REGISTER[v[0].dtype]
    if register in ("f32", "f64"):
        e.need(f"bits.{register}")
        return _mask(e, f"(bits({v[0].text}) < 0)", register)
    return _mask(e, f"({v[0].text} < 0)", register)


def _isinf(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    register = REGISTER[v[0].dtype]
    e.need(f"abs.{register}")
    return _mask(e, f"(abs({v[0].text}) == {literal(math.inf, v[0].dtype)})", register)


def _isnan(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    return _mask(e, f"({v[0].text} != {v[0].text})", REGISTER[v[0].dtype])


def _where(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    return f"{condition(e, v[0].text, REGISTER[op.dtype])} ? {v[1].text} : {v[2].text}"


def _not(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    return f"~{v[0].text} & 255" if op.dtype == "u8" else f"~{v[0].text}"


def _pow(e: Emitter, op: Op, v: Sequence[Value]) -> str:
    register, x = REGISTER[op.dtype], v[0].text
    if register in ("i32", "i64"):
        e.need(f"int_power.{register}")
        return wrap(f"int_pow({x}, {v[1].text})", op.dtype)
    if v[1].number in (1, 2, 3, -1, -2, 0.5, -0.5):  # what torch does for scalar exponents
        if v[1].number in (0.5, -0.5):
            e.need(f"sqrt.{register}")
        forms = {1: "{x}", 2: "{x} * {x}", 3: "{x} * {x} * {x}", -1: "1 / {x}", -2: "1 / ({x} * {x})"}
        forms |= {0.5: "sqrt({x})", -0.5: "1 / sqrt({x})"}
        return forms[v[1].number].format(x=x)
    e.need(f"pow.{register}")
    return f"pow({x}, {v[1].text})"


TABLE: dict[str, Entry] = {
    "add": _arithmetic("+"), "sub": _arithmetic("-"), "mul": _arithmetic("*"), "div": _divide,
    "floordiv": _division("div_floor"), "truncdiv": _division("div_trunc"),
    "mod": _division("mod_floor"), "fmod": _division("mod_trunc"),
    "neg": lambda e, op, v: wrap(f"-{v[0].text}", op.dtype), "abs": _abs, "sign": _sign,
    "fma": _function("fma"),
    "max": _extreme("max"), "min": _extreme("min"), "fmax": _function("fmax"), "fmin": _function("fmin"),
    "eq": _comparison("==", "~({a} ^ {b})"), "ne": _comparison("!=", "{a} ^ {b}"),
    "lt": _comparison("<", "~{a} & {b}"), "le": _comparison("<=", "~{a} | {b}"),
    "gt": _comparison(">", "{a} & ~{b}"), "ge": _comparison(">=", "{a} | ~{b}"),
    "isnan": _isnan, "isinf": _isinf, "signbit": _signbit,
    "and": _bitwise("&"), "or": _bitwise("|"), "xor": _bitwise("^"), "not": _not,
    "shl": _shift("shift_left"), "shr": _shift("shift_right"), "where": _where,
    "floor": _function("floor"), "ceil": _function("ceil"), "trunc": _function("trunc"),
    "round": _function("round_even"), "sqrt": _function("sqrt"),
    "rsqrt": _rsqrt,
    "reciprocal": lambda e, op, v: f"1 / {v[0].text}",
    "pow": _pow, "copysign": _function("copysign"), "sigmoid": _function("sigmoid"),
    **{name: _function(name) for name in LIBM if name not in ("pow", "fmod")},
}  # fmt: skip


def cast(e: Emitter, op: Op, value: Value) -> str:
    """Conversion to ``op.dtype``: float to integer truncates, anything to bool compares with zero."""
    x, source, target = value.text, value.dtype, op.dtype
    a, b = REGISTER[source], REGISTER[target]
    if source == target:
        return x
    if b == "mask":
        return _mask(e, f"({x} != 0)", a)
    if a == "mask":
        ones = {"f32": "(to_i32({x}) & 0x3f800000)", "f64": "(to_i64({x}) & 0x3ff0000000000000L)"}
        plain = {"i32": "-to_i32({x})", "i64": "-to_i64({x})"}
        return plain[b].format(x=x) if b in plain else f"({e.vector(b)}){ones[b].format(x=x)}"
    if source in ("u32", "u64") and a != b:
        x = f"({e.vector(source)}){x}"  # vectors of unsigned lanes convert as such
    if a in ("f32", "f64") and b in ("i32", "i64"):
        whole = f"whole_{target if target in ('u32', 'u64') else b}"
        e.need(f"{whole}.{a}")
        x = f"{whole}({x})"
    elif a != b:
        x = f"__builtin_convertvector({x}, {e.vector(b)})"
    if target in ("f16", "bf16"):
        e.need(f"round_{target}")
        return f"round_{target}({x})"
    kept = {"u8": ("i16", "u16"), "i8": ("i16",)}.get(source, ())
    return wrap(x, target) if b == "i32" and target not in kept else x


def bitcast(e: Emitter, op: Op, value: Value) -> str:
    a, b = REGISTER[value.dtype], REGISTER[op.dtype]
    if {value.dtype, op.dtype} <= {"f32", "i32"} or {value.dtype, op.dtype} <= {"f64", "i64"}:
        return f"({e.vector(b)}){value.text}"
    raise Unsupported(f"bitcast from {value.dtype} to {op.dtype} ({a} to {b})")
