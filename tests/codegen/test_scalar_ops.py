"""Every scalar operation of the loop IR, on special and random values, against torch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from fuselens.ir.loops import Axis, Buffer, Graph, Kernel, Op, Phase, symbol
from fuselens.ir.ops import OPS, torch_meaning

from .graphs import DTYPES, ISA, compiled

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e-30,
          1e30, -1e30, 0.1, 0.7, 20.0, -20.0, 88.8, -103.5, 1e-4, 16777217.0, 0.999, 3.14159265, -7.25]  # fmt: skip
INTEGERS = [0, 1, -1, 2, -2, 3, 5, -5, 7, 100, -100, 127, -128]
ULPS = {"f32": 2**-23, "f64": 2**-52}
SIGNED_ZERO = frozenset("neg abs copysign floor ceil trunc round sqrt tanh sin erf expm1 log1p".split())
LOOSE = {"lgamma": 8, "pow": 2, "floordiv": 1, "tan": 3, "asinh": 3, "acosh": 3, "atanh": 3, "sinh": 3, "cosh": 3}


def values(dtype: str) -> list[float] | list[int]:
    if dtype in ("f32", "f64"):
        return FLOATS
    if dtype == "bool":
        return [0, 1]
    extra = {"i64": [2**63 - 1, -(2**63)], "i32": [2**31 - 1, -(2**31)], "i16": [32767, -32768]}.get(dtype, [])
    return [v % 256 for v in INTEGERS] if dtype == "u8" else [*INTEGERS, *extra]


def operands(dtype: str, arity: int) -> list[torch.Tensor]:
    """All pairs of special values (the third operand cycles), then random ones."""
    pool = values(dtype)
    rows = list(itertools.product(pool, repeat=min(arity, 2)))
    columns = [torch.tensor([r[k] for r in rows]).to(DTYPES[dtype]) for k in range(min(arity, 2))]
    if arity == 3:
        columns.append(torch.tensor([pool[k % len(pool)] for k in range(len(rows))]).to(DTYPES[dtype]))
    generator = torch.Generator().manual_seed(7)
    if dtype in ("f32", "f64"):
        more = [torch.randn(203, generator=generator, dtype=DTYPES[dtype]) * 3 for _ in range(arity)]
    elif dtype == "bool":
        more = [torch.rand(203, generator=generator) < 0.5 for _ in range(arity)]
    else:
        low = 0 if dtype == "u8" else -100
        more = [torch.randint(low, 100, (203,), generator=generator).to(DTYPES[dtype]) for _ in range(arity)]
    return [torch.cat(p) for p in zip(columns, more, strict=True)]


def cases() -> list[tuple[str, str]]:
    out = []
    for spec in OPS.values():
        dtypes = ["f32", "f64"] if "f" in spec.kinds else []
        dtypes += ["i64", "i32", "i16", "i8", "u8"] if "i" in spec.kinds else []
        dtypes += ["bool"] if "b" in spec.kinds else []
        if spec.name == "where":
            dtypes = list(ULPS) + ["i64", "i32", "i8", "u8", "bool"]
        if spec.name in ("eq", "ne", "lt", "le", "gt", "ge"):
            dtypes = ["f32", "f64", "i64", "i32", "i8", "u8", "bool"]
        out += [(spec.name, d) for d in dtypes]
    return out


def all_ops_graph(dtype: str, names: list[str]) -> tuple[Graph, list[str]]:
    """One kernel per operation on this dtype, all in one translation unit: building them one by one takes minutes."""
    n, i = symbol("s0"), symbol("i0")
    buffers = {f"arg{k}": Buffer(f"arg{k}", dtype, (n,), (symbol("s0") * 0 + 1,)) for k in range(3)}
    kernels, outputs = [], []
    for name in names:
        spec = OPS[name]
        result = "bool" if spec.rule == "bool" else dtype
        args = [f"x{k}" for k in range(spec.arity)]
        body = [Op(f"x{k}", "load", (f"arg{k}", i), dtype) for k in range(spec.arity)]
        if name == "where":
            body.append(Op("c", "gt", ("x0", "x1"), "bool") if dtype != "bool" else Op("c", "or", ("x0", "x0"), "bool"))
            args = ["c", "x1", "x2"]
        body += [Op("y", name, tuple(args), result), Op("store0", "store", (f"out_{name}", i, "y"), result)]
        buffers[f"out_{name}"] = Buffer(f"out_{name}", result, (n,), (symbol("s0") * 0 + 1,))
        kernels.append(Kernel(f"kernel_{name}", (Axis("i0", n),), (Phase((), tuple(body)),)))
        outputs.append(f"out_{name}")
    graph = Graph(
        f"all_{dtype}", ("arg0", "arg1", "arg2"), buffers, tuple(kernels), tuple(outputs), {"s0": (0, 0)}, {"s0": 64}
    )
    return graph, outputs


@pytest.mark.parametrize("isa", [ISA, "scalar"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32", "i16", "i8", "u8", "bool"])
def test_every_operation_agrees_with_torch(dtype: str, isa: str) -> None:
    names = [n for n, d in cases() if d == dtype]
    integer_divisions = [n for n in names if n in ("floordiv", "truncdiv", "mod", "fmod", "pow") and dtype[0] in "iu"]
    graph, _ = all_ops_graph(dtype, names)
    columns = operands(dtype, 3)
    if integer_divisions:
        keep = (columns[1] > 0) & (columns[1] < 64) | (columns[1] < 0) & (columns[0] > -100)
        columns = [c[keep] for c in columns]
    if isa == "scalar" and dtype in ("i16", "u8"):
        pytest.skip("as the other small integers")
    found = compiled(graph, isa).call(tuple(columns))
    meaning = torch_meaning()
    wrong = []
    for name, result in zip(names, found, strict=True):
        arguments = columns[: OPS[name].arity]
        if name == "where":
            condition = columns[0] > columns[1] if dtype != "bool" else columns[0]
            arguments = [condition, columns[1], columns[2]]
        if name == "pow" and dtype[0] in "iu":
            arguments = [arguments[0], arguments[1].abs()]
            result = result.where(columns[1] >= 0, arguments[0].pow(arguments[1]))
        expected = meaning[name](*arguments)
        problem = difference(name, dtype, result, expected, arguments)
        if problem:
            wrong.append(problem)
    assert not wrong, "\n".join(wrong)


def difference(
    name: str, dtype: str, found: torch.Tensor, expected: torch.Tensor, arguments: list[torch.Tensor]
) -> str:
    """What differs beyond a few units in the last place; '' when nothing does."""
    if found.dtype != expected.dtype:
        return f"{name}: {found.dtype} instead of {expected.dtype}"
    if dtype not in ULPS or not expected.is_floating_point():
        bad = found != expected
    else:
        # torch's own f32 results are a few ulp off for some functions: allow its error and ours
        limit = (LOOSE.get(name, 0) + 4) * ULPS[dtype]
        scale = expected.abs()
        if name == "fma":  # what is left of a cancellation depends on whether the product was rounded
            scale = (arguments[0] * arguments[1]).abs() + arguments[2].abs()
        close = (found - expected).abs() <= limit * scale + 1e-44
        same = (found == expected) | (found.isnan() & expected.isnan())
        bad = ~(close | same)
        if name in SIGNED_ZERO:
            bad |= (found == 0) & (expected == 0) & (found.signbit() != expected.signbit())
        if name in ("mod", "fmod"):  # torch's own is wrong where a quotient overflows (1 % 1e-40 is nan there)
            bad &= (arguments[0] / arguments[1]).abs() < 1e30
    if not bad.any():
        return ""
    k = int(bad.nonzero()[0])
    call = f"{name}({', '.join(str(a[k].item()) for a in arguments)})"
    return f"{call} = {found[k].item()}, torch: {expected[k].item()} ({int(bad.sum())} differ)"


def test_integer_division_by_zero_raises_what_eager_raises() -> None:
    graph, _ = all_ops_graph("i64", ["floordiv", "mod"])
    built = compiled(graph)
    a, b = torch.arange(20), torch.ones(20, dtype=torch.int64)
    built.call((a, b, b))
    b[13] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        built.call((a, b, b))
    built.call((a, b + 1, b))  # the flag was reset


def test_tails_hold_no_zero_divisors() -> None:
    """Lanes beyond the end repeat real elements, so that they cannot divide by zero."""
    graph, _ = all_ops_graph("i32", ["truncdiv"])
    for n in range(1, 18):
        compiled(graph).call((torch.full((n,), 9, dtype=torch.int32),) * 3)
