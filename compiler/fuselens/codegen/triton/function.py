"""A kernel as one ``@triton.jit`` function: its head, and what a caller has to know."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...ir.contracts.source import KernelInfo, Writer
from ...ir.loops import Kernel, element
from .choices.blocks import Launch
from .operations import Operations


def function(body: Operations, launch: Launch, info: KernelInfo) -> tuple[Writer, KernelInfo]:
    """The text of a function, and ``info`` with how it is launched."""
    out, names = Writer("#", "    "), body.names
    constants = [f"{n}: tl.constexpr = {v}" for n, v in launch.constants.items()]
    parameters = ", ".join([*(names[n] for n in (*info.arguments, *info.sizes)), *constants])
    jit = "@triton.jit(debug=True)" if body.needs.checked else "@triton.jit"  # debug: assertions hold
    out.put(jit, info.spans, note=False)
    out.put(f"def {info.name}({parameters}):", info.spans, note=False)
    out.put(f'    """{", ".join(dict.fromkeys(info.operations)) or info.kind}"""')
    if body.needs.divided:
        out.put("    zero = tl.program_id(1)  # which it is in every program", note=False)
    for name in (names[s] for s in info.sizes if body.wide):  # each may have 32 bits, not their products
        out.put(f"    {name} = {name}.to(tl.int64)", note=False)
    spans = {l.line: l.spans for l in body.out.lines()}
    for number, line in enumerate(body.out.text().rstrip("\n").split("\n")[1:], 2):
        out.put(line, spans.get(number, ()), note=False)
    buffers = body.graph.buffers
    signature = {names[n]: "*" + _pointee(element(buffers[n].dtype)) for n in info.arguments}
    signature |= {names[s]: "i64" for s in info.sizes}
    exact = "libdevice" in body.needs.functions
    how: dict[str, Any] = {
        "grid": launch.grid, "options": _options(launch, exact or _cancels(body.kernel)), "blocks": dict(launch.constants),
        "signature": signature, "device": buffers[info.arguments[0]].device if info.arguments else "cuda",
        **({"cluster": launch.cluster} if launch.cluster > 1 else {}),
        "interpretable": not exact,
    }  # fmt: skip
    arguments = (*info.arguments, launch.descriptors) if launch.descriptors else info.arguments
    return out, dataclasses.replace(info, arguments=arguments, launch=how)


def _cancels(kernel: Kernel) -> bool:
    """Whether it has the exponential of a product less something, as a softmax has: of the largest product it has to be one, however
    large that is. A product and a difference in one operation leave what rounding took from the product."""
    made = {op.name: op for op in kernel.ops()}
    for op in kernel.ops():
        less = made.get(str(op.args[0])) if op.op in ("exp", "exp2") else None
        if less is not None and less.op == "sub" and any(a in made and made[a].op == "mul" for a in less.args):
            return True
    return False


def _options(launch: Launch, exact: bool) -> dict[str, Any]:
    """What Triton's compiler is told. Denormals are kept, as eager keeps them. Functions of libdevice compute in pairs of
    numbers, which fusing a product with a sum would make inexact: 3.0 ** 1.0 would be less than 3. Elsewhere they are fused,
    which has to be said: what Triton does by itself changes with its version."""
    stages = {"num_stages": launch.stages} if launch.stages else {}
    registers = {"maxnreg": launch.registers} if launch.registers else {}
    return (
        {"num_warps": launch.warps} | stages | registers | {"enable_fp_fusion": not exact, "enable_reflect_ftz": False}
    )


def _pointee(dtype: str) -> str:
    names = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bool": "i1", "f8e4m3": "u8", "f8e5m2": "u8"}
    return names.get(dtype, dtype)
