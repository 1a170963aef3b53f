"""The table of scalar operations of a loop body: arity, result dtype rule and meaning (as torch functions).

Arithmetic happens in the op's own ``dtype``; lowering inserts ``cast`` ops, so operands of an arithmetic op have the
op's dtype already (comparisons: operands share a dtype, the result is bool; ``where``: a bool and two of the dtype).
Half-precision arithmetic is done in f32 by inserted casts, so f16 and bf16 only appear in load, store, cast and const.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Rule = Literal["same", "bool", "where"]


@dataclass(frozen=True, slots=True)
class Spec:
    """An operation: number of operands, how the result's dtype follows, on which kinds it is defined."""

    name: str
    arity: int
    rule: Rule = "same"
    kinds: str = "fib"  # f floating, i integer, b bool, u wide unsigned integer (u16, u32, u64)


def _table(*specs: Spec) -> dict[str, Spec]:
    return {s.name: s for s in specs}


OPS: dict[str, Spec] = _table(
    # arithmetic
    Spec("add", 2, kinds="fi"), Spec("sub", 2, kinds="fi"), Spec("mul", 2, kinds="fiu"),
    Spec("div", 2, kinds="f"),  # true division
    Spec("floordiv", 2, kinds="fi"),  # rounds toward minus infinity
    Spec("truncdiv", 2, kinds="fi"),  # rounds toward zero
    Spec("mod", 2, kinds="fi"),  # sign of the divisor (Python, torch.remainder)
    Spec("fmod", 2, kinds="fi"),  # sign of the dividend (C)
    Spec("neg", 1, kinds="fi"), Spec("abs", 1, kinds="fi"), Spec("sign", 1, kinds="fi"),
    Spec("fma", 3, kinds="f"),
    Spec("max", 2, kinds="fib"), Spec("min", 2, kinds="fib"),  # NaN if either is (torch.maximum)
    Spec("fmax", 2, kinds="f"), Spec("fmin", 2, kinds="f"),  # NaN only if both are
    # comparisons
    Spec("eq", 2, "bool", "fibu"), Spec("ne", 2, "bool", "fibu"), Spec("lt", 2, "bool"), Spec("le", 2, "bool"),
    Spec("gt", 2, "bool"), Spec("ge", 2, "bool"),
    Spec("isnan", 1, "bool", "f"), Spec("isinf", 1, "bool", "f"), Spec("signbit", 1, "bool", "fi"),
    # logic and bits (bool: logical)
    Spec("and", 2, kinds="ibu"), Spec("or", 2, kinds="ibu"), Spec("xor", 2, kinds="ibu"), Spec("not", 1, kinds="ib"),
    Spec("shl", 2, kinds="i"), Spec("shr", 2, kinds="i"),
    Spec("where", 3, "where"),
    # rounding
    Spec("floor", 1, kinds="f"), Spec("ceil", 1, kinds="f"), Spec("trunc", 1, kinds="f"),
    Spec("round", 1, kinds="f"),  # half to even
    # roots and powers
    Spec("sqrt", 1, kinds="f"), Spec("rsqrt", 1, kinds="f"), Spec("reciprocal", 1, kinds="f"),
    Spec("pow", 2, kinds="fi"), Spec("exp", 1, kinds="f"), Spec("exp2", 1, kinds="f"), Spec("expm1", 1, kinds="f"),
    Spec("log", 1, kinds="f"), Spec("log2", 1, kinds="f"), Spec("log10", 1, kinds="f"), Spec("log1p", 1, kinds="f"),
    # trigonometric and hyperbolic
    Spec("sin", 1, kinds="f"), Spec("cos", 1, kinds="f"), Spec("tan", 1, kinds="f"),
    Spec("asin", 1, kinds="f"), Spec("acos", 1, kinds="f"), Spec("atan", 1, kinds="f"), Spec("atan2", 2, kinds="f"),
    Spec("sinh", 1, kinds="f"), Spec("cosh", 1, kinds="f"), Spec("tanh", 1, kinds="f"),
    Spec("asinh", 1, kinds="f"), Spec("acosh", 1, kinds="f"), Spec("atanh", 1, kinds="f"),
    # special
    Spec("sigmoid", 1, kinds="f"), Spec("erf", 1, kinds="f"), Spec("erfc", 1, kinds="f"),
    Spec("lgamma", 1, kinds="f"), Spec("hypot", 2, kinds="f"), Spec("copysign", 2, kinds="f"),
    Spec("nextafter", 2, kinds="f"),
)  # fmt: skip

REDUCTIONS: dict[str, str] = {
    # kind: result dtype rule ("same" or "i64"); NaN propagates through max, min, argmax and argmin as in torch;
    # ties of argmax/argmin go to the lowest index; sumexp is the sum of exp(x - max(x)) of floats
    "sum": "same", "prod": "same", "max": "same", "min": "same", "any": "same", "all": "same",
    "argmax": "i64", "argmin": "i64", "sumexp": "same",
}  # fmt: skip

SCANS = ("sum", "prod", "max", "min", "logsumexp")  # of one dtype; NaN propagates; logsumexp is log(sum(exp)) of floats


UPDATES: dict[str, str] = {
    # what a store makes of an element and a value: on which kinds of dtypes (h: half precision, rounded at each store)
    "last": "fibhu", "sum": "fih", "prod": "fih", "max": "fibh", "min": "fibh",
}  # fmt: skip


def torch_meaning() -> dict[str, Callable[..., Any]]:
    """Each op as a function of torch tensors: the reference that the evaluator and the tests use."""
    import torch

    return {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.true_divide,
        "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
        "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "mod": torch.remainder, "fmod": torch.fmod, "neg": torch.neg, "abs": torch.abs, "sign": torch.sign,
        "fma": lambda a, b, c: torch.addcmul(c, a, b), "max": torch.maximum, "min": torch.minimum,
        "fmax": torch.fmax, "fmin": torch.fmin,
        "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
        "isnan": torch.isnan, "isinf": torch.isinf, "signbit": torch.signbit,
        "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor, "not": torch.bitwise_not,
        "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift, "where": torch.where,
        "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round,
        "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "pow": torch.pow,
        "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2,
        "log10": torch.log10, "log1p": torch.log1p, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
        "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "atan2": torch.atan2, "sinh": torch.sinh,
        "cosh": torch.cosh, "tanh": torch.tanh, "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh,
        "sigmoid": torch.sigmoid, "erf": torch.erf, "erfc": torch.erfc, "lgamma": torch.lgamma,
        "hypot": torch.hypot, "copysign": torch.copysign, "nextafter": torch.nextafter,
    }  # fmt: skip
