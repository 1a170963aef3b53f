"""Inputs of which a few elements change: the kernel that copies them for that becomes one that checks the positions."""

from __future__ import annotations

from sympy import Expr

from fuselens.ir.affine import symbol_names
from fuselens.ir.loops import Kernel, Phase, may_fail


def copies_whole(kernel: Kernel, source: str, target: str) -> bool:
    """Whether the kernel does nothing but copy one storage to another, element by element."""
    ops = tuple(kernel.ops())
    if len(ops) != 2 or ops[0].op != "load" or ops[1].op != "store" or ops[1].update:
        return False
    return ops[0].args == (source, ops[1].args[1]) and ops[1].args[0] == target and ops[1].args[2] == ops[0].name


def only_updates(kernel: Kernel, storage: str) -> bool:
    """Whether the kernel may fail by positions alone, and changes no more of a storage than those."""
    stores = [o for o in kernel.ops() if o.op == "store" and o.args[0] == storage]
    others = tuple(o for o in kernel.ops() if o.op != "bounds")
    return all(o.update for o in stores) and may_fail(kernel.ops()) and not may_fail(others)


def checks_of(kernel: Kernel, name: str) -> Kernel:
    """A kernel that looks at the same positions and writes nothing."""
    needed: set[str] = set()
    bodies = []
    for phase in reversed(kernel.phases):
        kept = []
        for op in reversed(phase.body):
            if op.op == "bounds" or op.name in needed:
                needed.update(op.operands())
                kept.append(op)
        bodies.append(tuple(kept[::-1]))
    pairs = zip(kernel.phases, reversed(bodies), strict=True)
    used = {s for body in bodies for op in body for a in op.args if isinstance(a, Expr) for s in symbol_names(a)}
    phases = tuple(Phase(tuple(a for a in p.axes if a.name in used), body) for p, body in pairs if body)
    axes = tuple(a for a in kernel.axes if a.name in used)
    return Kernel(name, axes, phases, (), kernel.origins, kernel.spans)


def computation(kernel: Kernel) -> tuple[object, ...]:
    """What the kernel computes: equal for kernels that differ in the names of values, or in where they come from."""
    number = {op.name: k for k, op in enumerate(kernel.ops())}
    phases = (
        (p.axes, *((o.op, o.dtype, *(number.get(a, a) if isinstance(a, str) else a for a in o.args)) for o in p.body))
        for p in kernel.phases
    )
    return (kernel.axes, *phases)
