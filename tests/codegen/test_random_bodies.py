"""Random kernels: random shapes, strides, broadcasts and bodies, against the oracle, vectors against single lanes."""

from __future__ import annotations

import dataclasses

import sympy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuselens.ir.loops import Axis, Buffer, Graph, Kernel, Op, Phase, symbol
from fuselens.ir.ops import OPS

from .graphs import DTYPES, ISA, agrees_with_evaluator

# Operations whose results torch and we agree on to a few ulp for any finite argument, so that errors cannot grow.
UNARY = ["neg", "abs", "sign", "floor", "ceil", "trunc", "round", "tanh", "sigmoid", "sin", "cos", "erf", "atan"]
BINARY = ["add", "sub", "mul", "max", "min", "fmax", "copysign"]
COMPARE = ["lt", "le", "gt", "ge", "eq", "ne"]
REDUCE = ["sum", "max", "min", "argmax"]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    rank = draw(st.integers(1, 3))
    sizes = [draw(st.sampled_from([1, 2, 3, 5, 8, 9, 17, 33])) for _ in range(rank)]
    symbolic = draw(st.booleans())
    axes = [Axis(f"i{k}", symbol(f"s{k}") if symbolic else sympy.Integer(n)) for k, n in enumerate(sizes)]
    dtype = draw(st.sampled_from(["f32", "f32", "f64", "i64", "i32"]))
    buffers: dict[str, Buffer] = {}
    inputs: list[str] = []
    for k in range(draw(st.integers(1, 3))):
        name = f"arg{k}"
        shape = [a.size if k == 0 or draw(st.booleans()) else sympy.Integer(1) for a in axes]
        order = draw(st.permutations(range(rank)))
        strides: dict[int, sympy.Expr] = {}
        step: sympy.Expr = sympy.Integer(1)
        for d in reversed(order):
            strides[d] = step
            step = step * shape[d]
        buffers[name] = Buffer(name, dtype, tuple(shape), tuple(strides[d] for d in range(rank)))
        inputs.append(name)
    folded = draw(st.integers(0, rank))  # the last axes, or (reversed) the first ones, are reduced
    reverse = draw(st.booleans())
    inner = (axes[:folded] if reverse else axes[rank - folded :]) if folded else []
    outer = [a for a in axes if a not in inner]
    body: list[Op] = []
    for k, name in enumerate(inputs):
        b = buffers[name]
        pairs = zip(axes, b.sizes, strict=True)
        point = tuple(a.symbol if s != 1 or a.size == 1 else sympy.Integer(0) for a, s in pairs)
        body.append(Op(f"x{k}", "load", (name, b.index(point)), dtype))
    names = [o.name for o in body]
    floating = dtype in ("f32", "f64")
    for k in range(draw(st.integers(1, 6))):
        name = f"t{k}"
        choice = draw(st.integers(0, 3))
        a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        if choice == 0:
            op = draw(st.sampled_from([o for o in UNARY if floating or "i" in OPS[o].kinds]))
            body.append(Op(name, op, (a,), dtype))
        elif choice == 1:
            op = draw(st.sampled_from([o for o in BINARY if floating or "i" in OPS[o].kinds]))
            body.append(Op(name, op, (a, b), dtype))
        elif choice == 2:
            number = draw(st.sampled_from([0.5, -1.25, 3.0])) if floating else draw(st.integers(-3, 3))
            body += [Op(f"k{k}", "const", (number,), dtype), Op(name, "mul", (a, f"k{k}"), dtype)]
        else:
            c = draw(st.sampled_from(names))
            body.append(Op(f"c{k}", draw(st.sampled_from(COMPARE)), (a, b), "bool"))
            body.append(Op(name, "where", (f"c{k}", a, c), dtype))
        names.append(name)
    result = names[-1]
    phases: list[Phase] = []
    written = "out"
    if inner:
        kind = draw(st.sampled_from(REDUCE))
        out_dtype = "i64" if kind == "argmax" else dtype
        if kind == "argmax":  # ties and rounding decide: only exact values
            result = "x0"
        body.append(Op("folded", "reduce", (kind, result), out_dtype))
        out = _dense(written, out_dtype, outer)
        store = Op("store0", "store", (written, out.index(tuple(a.symbol for a in outer)), "folded"), out_dtype)
        phases = [Phase(tuple(inner), tuple(body)), Phase((), (store,))]
    else:
        out = _dense(written, dtype, outer)
        body.append(Op("store0", "store", (written, out.index(tuple(a.symbol for a in outer)), result), dtype))
        phases = [Phase((), tuple(body))]
    buffers[written] = out
    symbols = {f"s{k}": (0, k) for k in range(rank)} if symbolic else {}
    hints = {f"s{k}": n for k, n in enumerate(sizes)} if symbolic else {}
    kernel = Kernel("kernel0", tuple(outer), tuple(phases), (), ("aten.random",))
    return Graph("random", tuple(inputs), buffers, (kernel,), (written,), symbols, hints)


def _dense(name: str, dtype: str, axes: list[Axis]) -> Buffer:
    strides: list[sympy.Expr] = []
    step: sympy.Expr = sympy.Integer(1)
    for axis in reversed(axes):
        strides.insert(0, step)
        step = step * axis.size
    return Buffer(name, dtype, tuple(a.size for a in axes), tuple(strides))


def arguments(graph: Graph, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = []
    for name in graph.inputs:
        buffer = graph.buffers[name]
        sizes = [graph.hint(s) for s in buffer.sizes]
        strides = [graph.hint(s) for s in buffer.strides]
        count = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        if buffer.dtype in ("f32", "f64"):
            flat = torch.randn(count, generator=generator, dtype=DTYPES[buffer.dtype]) * 2
        else:
            flat = torch.randint(-9, 9, (count,), generator=generator).to(DTYPES[buffer.dtype])
        out.append(flat.as_strided(sizes, strides))
    return out


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 1000))
def test_random_kernels_agree_with_the_oracle(graph: Graph, seed: int) -> None:
    inputs = arguments(graph, seed)
    tolerance = 1e-4 if graph.buffers["arg0"].dtype == "f32" else 1e-9
    agrees_with_evaluator(graph, inputs, ISA, tolerance, tolerance)


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 1000))
def test_one_lane_agrees_with_the_oracle(graph: Graph, seed: int) -> None:
    inputs = arguments(graph, seed)
    tolerance = 1e-4 if graph.buffers["arg0"].dtype == "f32" else 1e-9
    agrees_with_evaluator(dataclasses.replace(graph, name="lanes"), inputs, "scalar", tolerance, tolerance)
