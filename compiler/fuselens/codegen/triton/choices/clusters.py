"""Programs that share a row: a cluster of them, which the card starts together, each with a part of the columns in registers.

Each folds its own part and puts the result in its shared memory; after a barrier of the cluster every program reads those of
all, in the order of the parts, so that all of them compute the same. A long row is read once this way, without scratch memory
and without counters that would have to be zero. Needs thread block clusters (sm_90); 8 programs are what every such card takes.
"""

from __future__ import annotations

import sympy

from ....ir.loops import Graph, Kernel, Op, indirect_names
from ...nest import numbered

SIZES = (2, 4, 8)  # programs of a cluster
_FOLDED = {"f32", "f64", "i32", "i64", "bool"}
_FOLDS = {
    "sum": "({} + {})", "prod": "({} * {})", "max": "fold_max({}, {})", "min": "fold_min({}, {})",
    "any": "tl.maximum({}, {})", "all": "tl.minimum({}, {})",
}  # fmt: skip


def may_share(kernel: Kernel, graph: Graph) -> bool:
    """Whether programs can compute a row together: none may need elements that another one writes, or write them twice with
    another effect than once."""
    dtypes = {op.name: op.dtype for op in kernel.ops()}
    folded = [dtypes[op.args[1]] for op in kernel.ops() if op.op == "reduce"]
    plain = all(op.op != "scan" and not (op.op == "store" and op.update) for op in kernel.ops())
    return plain and bool(folded) and _FOLDED.issuperset(folded) and _own_columns(kernel, graph)


def _own_columns(kernel: Kernel, graph: Graph) -> bool:
    """Whether what is read of what is written is the column itself, which the same program holds."""
    written = {graph.root(n) for n in kernel.writes()}
    places: dict[str, set[object]] = {name: set() for name in written}
    read: set[str] = set()
    for phase in kernel.phases:
        columns = {a.symbol for a in phase.axes}
        sizes = tuple(a.size for a in phase.axes)
        for op in phase.body:
            if op.op in ("load", "store") and (root := graph.root(op.args[0])) in written:
                index = sympy.sympify(op.args[1])
                apart = bool(columns) and columns <= index.free_symbols and not indirect_names(index)
                places[root].add((sizes, numbered(index, phase)) if apart else op)
                read |= {root} if op.op == "load" else set()
    return all(len(places[root]) == 1 and not any(isinstance(p, Op) for p in places[root]) for root in read)


def _everyones(programs: int, bits: int) -> str:
    """PTX: the number in the last operand of each of the cluster's programs."""
    address = [
        f"mapa.shared::cluster.u32 place, mine, {k}; ld.shared::cluster.b{bits} ${k}, [place];" for k in range(programs)
    ]
    return " ".join((
        "{", ".reg .b32 mine, place;", f".shared .align 8 .b{bits} part;", "mov.u32 mine, part;",
        f"st.shared.b{bits} [mine], ${programs};",
        "barrier.cluster.arrive.release;", "barrier.cluster.wait.acquire;", *address, "}",
    ))  # fmt: skip


def _gather(programs: int) -> str:
    """A function that returns the number of each of the cluster's programs."""
    lines = ["", "@triton.jit", f"def of_{programs}_programs(x):"]
    for bits, letter in ((64, "l"), (32, "r")):
        asm, constraints = _everyones(programs, bits), ",".join([f"={letter}"] * programs + [letter])
        word = f"tl.int{bits}"
        if bits == 64:
            lines.append("    if x.dtype.primitive_bitwidth == 64:")
        else:
            lines.append("    else:")
        lines += [
            "        words = tl.inline_asm_elementwise(",
            f'            "{asm}",',
            f'            "{constraints}", [x.to({word}, bitcast=True)], dtype=({", ".join([word] * programs)}), is_pure=False, pack=1,',
            "        )",
        ]
    numbers = ", ".join(f"words[{k}].to(x.dtype, bitcast=True)" for k in range(programs))
    return "\n".join((*lines, f"    return {numbers}", ""))


def _fold(kind: str, programs: int) -> str:
    """A function that folds the numbers of a cluster's programs."""
    terms = [f"x{k}" for k in range(programs)]
    lines = ["", "@triton.jit", f"def {kind}_of_{programs}(x):", f"    {', '.join(terms)} = of_{programs}_programs(x)"]
    while len(terms) > 1:
        terms = [_FOLDS[kind].format(a, b) for a, b in zip(terms[::2], terms[1::2], strict=True)]
    return "\n".join((*lines, f"    return tl.broadcast_to({terms[0]}, [1, 1])", ""))


_LEAVE = """
@triton.jit
def leave_cluster():
    # a program's shared memory is there until all others have read it
    tl.inline_asm_elementwise("barrier.cluster.arrive.release; barrier.cluster.wait.acquire; mov.u32 $0, $1;", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=False, pack=1)
"""

FUNCTIONS = (
    {f"of_{n}_programs": _gather(n) for n in SIZES}
    | {f"{kind}_of_{n}": _fold(kind, n) for kind in _FOLDS for n in SIZES}
    | {"leave_cluster": _LEAVE}
)
NEEDS = {
    f"{kind}_of_{n}": (f"of_{n}_programs", *((f"fold_{kind}",) if kind in ("max", "min") else ()))
    for kind in _FOLDS for n in SIZES
}  # fmt: skip
