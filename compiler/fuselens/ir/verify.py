"""The specification of the loop IR as code. :func:`verify` raises :class:`IRError` naming the node and the rule.

Rules, in the order they are checked:

buffers
    Every buffer is keyed by its name; a view lies in a declared storage of its dtype, which is no view itself. Size
    symbols are declared in ``Graph.symbols``.
order
    A node reads only inputs, constants and what earlier nodes wrote; every output and new value of an input exists and
    was written. Each node name is unique; a loop writes the storage of the buffer it is named after. A constant in a
    library's own layout is an operand of calls alone.
ssa
    Op names are unique within a node and defined before use. In a kernel a phase uses results of its own ops (but not
    of its own reduces) and, from earlier phases, only results of reduces and of ops in phases without axes.
dtypes
    ``ir.ops`` gives arity, operand and result dtypes. Half-precision floats are loaded, stored, cast and nothing else.
bounds
    An affine index stays inside its storage at the example sizes; positions that ``bounds`` limits count as axes.
stores
    No axis of the iteration space is missing from an affine store index (two points would write one element). An
    update changes what was written; no two points of the outer axes change one element.
races
    A kernel that loads a storage it stores to does so at the same index, or in a region that is disjoint.
reuse
    A buffer takes over the memory of an earlier, large enough, dead intermediate of the same device; in place only
    where a kernel reads and writes the same index. An output takes over all of that of another tensor: one that an
    operator has made, or any of a GPU. An input's memory is taken over by its new value alone, which has
    the input's layout and is no output; that of a donated input, which is no output either, as an intermediate's.
spans
    If a node has spans then so have its ops.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping

import sympy
from sympy import Expr

from fuselens.ir.affine import Affine, bounds, extremes, integer_value, linear, substitute, symbol_names
from fuselens.ir.loops import (
    ITEMSIZE,
    Axis,
    Buffer,
    Extern,
    Graph,
    Kernel,
    Loop,
    Node,
    Op,
    Phase,
    element,
    extern_reads,
    indirect_names,
    phases_of,
    symbol,
)
from fuselens.ir.ops import OPS, REDUCTIONS, SCANS, UPDATES
from fuselens.ir.text import show_expression, show_op

_FLOATS = frozenset({"f64", "f32"})
_HALVES = frozenset({"f16", "bf16"})
_KINDS: dict[str, str] = {
    **dict.fromkeys(_FLOATS, "f"), **dict.fromkeys(("i64", "i32", "i16", "i8", "u8"), "i"),
    **dict.fromkeys(("u16", "u32", "u64"), "u"), "bool": "b",
}  # fmt: skip


class IRError(Exception):
    """A graph breaks a rule of the loop IR."""

    def __init__(self, node: str, rule: str, message: str) -> None:
        super().__init__(f"{node}: [{rule}] {message}")
        self.node = node
        self.rule = rule


def _kind(dtype: str) -> str:
    return _KINDS.get(dtype, "-")


# --- buffers ---------------------------------------------------------------------------------------------------


def _check_buffers(graph: Graph) -> None:
    for key, buffer in graph.buffers.items():
        if key != buffer.name:
            raise IRError(buffer.name, "buffers", f"is keyed as {key}")
        if len(buffer.sizes) != len(buffer.strides):
            raise IRError(buffer.name, "buffers", "sizes and strides differ in rank")
        if buffer.dtype not in ITEMSIZE:
            raise IRError(buffer.name, "buffers", f"unknown dtype {buffer.dtype}")
        if buffer.storage:
            owner = graph.buffers.get(buffer.storage)
            if owner is None or owner.storage:
                raise IRError(buffer.name, "buffers", f"its storage {buffer.storage} is not an owning buffer")
            if owner.dtype != buffer.dtype:
                raise IRError(buffer.name, "buffers", f"{buffer.dtype} view of {owner.dtype} storage {owner.name}")
        for e in (*buffer.sizes, *buffer.strides, buffer.offset):
            for name in symbol_names(e):
                if name not in graph.symbols:
                    raise IRError(buffer.name, "buffers", f"size symbol {name} is not declared")
    for name in graph.constants:
        if name not in graph.buffers:
            raise IRError(name, "buffers", "is not declared")


# --- order -----------------------------------------------------------------------------------------------------


def _check_order(graph: Graph) -> None:
    written = {*graph.inputs, *graph.constants}
    packed = {n for n, value in graph.constants.items() if getattr(value, "is_mkldnn", False)}
    seen: set[str] = set()
    for node in graph.nodes:
        if node.name in seen:
            raise IRError(node.name, "order", "is defined twice")
        seen.add(node.name)
        if isinstance(node, Extern):
            for name in extern_reads(node):
                if name in node.mutates:  # it has what was in memory before, if anything
                    written.add(_owner(graph, node.name, name))
                if _owner(graph, node.name, name) not in written:
                    raise IRError(node.name, "order", f"reads {name} before it is written")
            written.update(_owner(graph, node.name, n) for n in node.outputs if n)
        else:
            if isinstance(node, Loop):
                _check_target(graph, node)
            written |= _stored_in_order(graph, node, written, packed)
    for output in graph.results():
        if _owner(graph, "return", output) not in written:
            raise IRError("return", "order", f"{output} is never written")
    for name, value in graph.writes.items():
        _check_write(graph, name, value)


def _owner(graph: Graph, node: str, name: str) -> str:
    if name not in graph.buffers:
        raise IRError(node, "order", f"buffer {name} is not declared")
    return graph.buffers[name].owner


def _check_target(graph: Graph, loop: Loop) -> None:
    target = _owner(graph, loop.name, loop.name)
    if not any(o.op == "store" and o.args[0] == target for o in loop.body):
        raise IRError(loop.name, "order", f"never stores to {target}, the storage of {loop.name}")


def _stored_in_order(graph: Graph, node: Loop | Kernel, written: set[str], packed: set[str]) -> set[str]:
    """The storages that ``node`` writes, each access of which is in order."""
    own: set[str] = set()
    for op in itertools.chain.from_iterable(p.body for p in phases_of(node)):
        if op.op not in ("load", "store"):
            continue
        storage = op.args[0]
        if storage not in graph.buffers or graph.buffers[storage].storage:
            raise IRError(node.name, "order", f"{op.op} of {storage}, which is not an owning buffer")
        if storage in packed:
            raise IRError(node.name, "order", f"{op.op} of {storage}, which has a layout of a library's own")
        if op.update and storage not in written and graph.reuse.get(storage) not in written:
            raise IRError(node.name, "order", f"updates {storage} before it is written")
        if op.op == "store":
            own.add(storage)
        elif storage not in written and storage not in own:
            raise IRError(node.name, "order", f"loads {storage} before it is written")
    return own


def _check_write(graph: Graph, name: str, value: str) -> None:
    """That ``value`` may become the value of the input ``name``."""
    if name not in graph.inputs or _owner(graph, "write", name) != name:
        raise IRError("write", "order", f"{name} is no tensor among the inputs")
    if _owner(graph, "write", value) in graph.writes:
        raise IRError("write", "order", f"the new value of {name} lies in an input that is overwritten")
    a, b = graph.buffers[name], graph.buffers[value]
    if (a.dtype, a.sizes) != (b.dtype, b.sizes):
        raise IRError("write", "order", f"{value} has another dtype or other sizes than {name}")


# --- ssa and dtypes --------------------------------------------------------------------------------------------


def _check_ssa(node: Loop | Kernel, phases: tuple[Phase, ...]) -> None:
    seen: dict[str, str] = {}
    crossing: set[str] = set()
    outer = {a.name for a in node.axes}
    repeated = isinstance(node, Loop)  # phases_of repeats constants of a loop
    for phase in phases:
        axes = outer | {a.name for a in phase.axes}
        if len(axes) != len(node.axes) + len(phase.axes):
            raise IRError(node.name, "ssa", "two axes have the same name")
        local: set[str] = set()
        folded: set[str] = set()
        for op in phase.body:
            if op.name in seen and not repeated:
                raise IRError(node.name, "ssa", f"{op.name} is defined twice")
            for name in op.operands():
                if name in folded:
                    raise IRError(node.name, "ssa", f"{op.name} uses {name}, a reduce of its own phase")
                if name not in local and name not in crossing:
                    why = f"{name} stays inside its phase" if name in seen else f"{name} is not defined before it"
                    raise IRError(node.name, "ssa", f"{op.name} = {show_op(op)}: {why}")
            for arg in op.args:
                if isinstance(arg, Expr):
                    loose = {n for n in symbol_names(arg) if n[0] in "ir" and n[1:].isdigit()} - axes
                    if loose:
                        raise IRError(node.name, "ssa", f"{op.name} uses axis {min(loose)} of another phase")
            if op.op in ("reduce", "scan") and not phase.axes:
                raise IRError(node.name, "ssa", f"{op.name} {op.op}s in a phase without axes")
            (folded if op.op == "reduce" else local).add(op.name)
            seen[op.name] = op.dtype
        crossing |= folded | (set() if phase.axes else local)


def _check_dtypes(graph: Graph, node: Loop | Kernel, phases: tuple[Phase, ...]) -> None:
    dtypes: dict[str, str] = {}
    for op in itertools.chain.from_iterable(p.body for p in phases):
        problem = _dtype_problem(graph, op, dtypes)
        if problem:
            raise IRError(node.name, "dtypes", f"{show_op(op)}: {problem}")
        dtypes[op.name] = op.dtype


def _dtype_problem(graph: Graph, op: Op, dtypes: dict[str, str]) -> str:
    special = _SPECIAL_DTYPES.get(op.op)
    if special:
        return special(graph, op, dtypes)
    spec = OPS.get(op.op)
    if spec is None:
        return f"unknown op {op.op}"
    if len(op.args) != spec.arity:
        return f"takes {spec.arity} operands"
    given = [dtypes[a] for a in op.args]
    if any(d in _HALVES for d in given):
        return "arithmetic on half precision"
    if spec.rule == "where":
        return "" if given[0] == "bool" and given[1] == given[2] == op.dtype else f"operands are {given}"
    if len(set(given)) > 1:
        return f"operands are {given}"
    if _kind(given[0]) not in spec.kinds:
        return f"not defined on {given[0]}"
    expected = "bool" if spec.rule == "bool" else given[0]
    return "" if op.dtype == expected else f"gives {expected}"


def _load_dtype(graph: Graph, op: Op, dtypes: dict[str, str]) -> str:
    expected = element(graph.buffers[op.args[0]].dtype)
    if op.dtype != expected:
        return f"storage is {expected}"
    return next((f"index uses {n}, which is {dtypes[n]}" for n in indirect_names(op.args[1]) if dtypes[n] != "i64"), "")


def _store_dtype(graph: Graph, op: Op, dtypes: dict[str, str]) -> str:
    expected = element(graph.buffers[op.args[0]].dtype)
    given = dtypes[op.args[2]]
    if op.update:
        kind = "h" if expected in _HALVES else _kind(expected)
        if kind not in UPDATES.get(op.update, ""):
            return f"no update {op.update!r} of {expected}"
    return "" if given == expected == op.dtype else f"stores {given} as {op.dtype} to {expected}"


def _reduce_dtype(_graph: Graph, op: Op, dtypes: dict[str, str]) -> str:
    rule = REDUCTIONS.get(op.args[0])
    if rule is None:
        return f"unknown reduction {op.args[0]}"
    given = dtypes[op.args[1]]
    if given in _HALVES:
        return "arithmetic on half precision"
    if _kind(given) == "u" or (op.args[0] == "sumexp" and given not in _FLOATS):
        return f"not defined on {given}"
    expected = given if rule == "same" else rule
    return "" if op.dtype == expected else f"gives {expected}"


def _scan_dtype(_graph: Graph, op: Op, dtypes: dict[str, str]) -> str:
    kind, given = op.args[0], dtypes[op.args[1]]
    if kind not in SCANS:
        return f"unknown scan {kind}"
    if given in _HALVES:
        return "arithmetic on half precision"
    if _kind(given) in "bu" or (kind == "logsumexp" and given not in _FLOATS):
        return f"not defined on {given}"
    return "" if op.dtype == given else f"gives {given}"


_SPECIAL_DTYPES: dict[str, Callable[[Graph, Op, dict[str, str]], str]] = {
    "load": _load_dtype,
    "store": _store_dtype,
    "reduce": _reduce_dtype,
    "scan": _scan_dtype,
    "const": lambda _g, op, _d: "" if op.dtype in ITEMSIZE else "unknown dtype",
    "index": lambda _g, op, _d: "" if op.dtype in ("i64", "i32") else "an index is i64 or i32",
    "random": lambda _g, op, d: "" if {op.dtype, d[op.args[0]], d[op.args[1]]} == {"i32"} else "keys and words are i32",
    "bounds": lambda _g, op, d: "" if {op.dtype, d[op.args[0]]} == {"i64"} else "a position is i64",
    "cast": lambda _g, op, _d: "" if len(op.args) == 1 and op.dtype in ITEMSIZE else "takes one operand",
    "bitcast": lambda _g, op, d: "" if ITEMSIZE[d[op.args[0]]] == ITEMSIZE[op.dtype] else "sizes differ",
}

# --- memory ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class _Access:
    op: Op
    order: int  # place in the kernel's bodies
    index: Expr  # with the phase's axes renamed by position, so that phases compare
    bounds: tuple[int, int] | None


def _extent(graph: Graph, buffer: Buffer) -> int:
    sizes = [integer_value(s, graph.hints) for s in buffer.sizes]
    if 0 in sizes:
        return 0
    reach = sum((n - 1) * integer_value(s, graph.hints) for n, s in zip(sizes, buffer.strides, strict=True))
    return 1 + reach + integer_value(buffer.offset, graph.hints)


def _accesses(graph: Graph, node: Loop | Kernel, phases: tuple[Phase, ...]) -> Iterator[_Access]:
    outer = {a.name: integer_value(a.size, graph.hints) for a in node.axes}
    order = 0
    for phase in phases:
        sizes = outer | {a.name: integer_value(a.size, graph.hints) for a in phase.axes}
        rename = {a.name: symbol(f"_r{k}") for k, a in enumerate(phase.axes) if isinstance(node, Kernel)}
        limits = {
            "%" + o.name: integer_value(o.args[1], graph.hints) for p in phases for o in p.body if o.op == "bounds"
        }
        reach = sizes | limits
        within = frozenset(reach)
        if 0 in reach.values():
            continue
        for op in phase.body:
            order += 1
            if op.op not in ("load", "store"):
                continue
            form = linear(op.args[1], within)
            extremes = bounds(form, reach, graph.hints) if form else None
            _check_bounds(graph, node, op, extremes)
            if op.update:
                _check_update(graph, node, op, form, reach, outer)
            elif op.op == "store" and form is not None and not indirect_names(op.args[1]):
                used = {a for a, _ in form.terms}
                idle = [a for a, n in sizes.items() if n > 1 and a not in used]
                if idle:
                    raise IRError(node.name, "stores", f"{show_op(op)}: every point of {idle[0]} writes one element")
            yield _Access(op, order, substitute(op.args[1], rename), extremes)


def _check_update(
    graph: Graph, node: Node, op: Op, form: Affine | None, reach: dict[str, int], outer: dict[str, int]
) -> None:
    """Outer axes are digits of the index of their own, so that their points change different elements."""
    parallel = [a for a, n in outer.items() if n > 1]
    if not parallel:
        return
    below = 0
    if form is None and (form := linear(op.args[1], frozenset(outer))) is not None:  # the rest is the lowest digit
        try:
            low, below = extremes(form.constant, reach, graph.hints)
        except KeyError:
            form = None
        else:
            below -= low
    digits = {a: abs(integer_value(c, graph.hints)) for a, c in form.terms if reach[a] > 1} if form else {}
    for axis, stride in sorted(digits.items(), key=lambda d: d[1]):
        if stride <= below:
            digits = {}
            break
        below += stride * (reach[axis] - 1)
    idle = [a for a in parallel if a not in digits]
    if idle:
        raise IRError(node.name, "stores", f"{show_op(op)}: points of {idle[0]} may update one element")


def _check_bounds(graph: Graph, node: Node, op: Op, extremes: tuple[int, int] | None) -> None:
    if extremes is None:
        return
    buffer = graph.buffers[op.args[0]]
    count = _extent(graph, buffer) * ITEMSIZE[buffer.dtype] // ITEMSIZE[element(buffer.dtype)]
    if extremes[0] < 0 or extremes[1] >= count:
        raise IRError(node.name, "bounds", f"{op.op} {op.args[0]}[{show_expression(op.args[1])}] reaches "
                                           f"{extremes[0]}..{extremes[1]} of {count} elements")  # fmt: skip


def _check_memory(graph: Graph, node: Loop | Kernel, phases: tuple[Phase, ...]) -> None:
    loads: dict[str, list[_Access]] = {}
    stores: dict[str, list[_Access]] = {}
    for access in _accesses(graph, node, phases):
        group = loads if access.op.op == "load" else stores
        group.setdefault(_root(graph, access.op.args[0]), []).append(access)
    for storage, writes in stores.items():
        for read in loads.get(storage, ()):
            if not any(_same_region(read, w) for w in writes) or any(
                not _same_region(read, w) and not _disjoint(read, w) for w in writes
            ):
                raise IRError(node.name, "races", f"{show_op(read.op)} reads what {show_op(writes[0].op)} may write")
            early = next((w for w in writes if w.op.args[0] != read.op.args[0] and w.order < read.order), None)
            if early is not None:
                raise IRError(node.name, "races", f"{show_op(read.op)} comes after {show_op(early.op)} in its memory")


def _root(graph: Graph, storage: str) -> str:
    while storage in graph.reuse:
        storage = graph.reuse[storage]
    return storage


def _same_region(read: _Access, write: _Access) -> bool:
    return read.index == write.index


def _disjoint(a: _Access, b: _Access) -> bool:
    return a.bounds is not None and b.bounds is not None and (a.bounds[1] < b.bounds[0] or b.bounds[1] < a.bounds[0])


# --- reuse -----------------------------------------------------------------------------------------------------


def _check_reuse(graph: Graph) -> None:
    if not graph.reuse:
        return
    fixed = {*graph.inputs, *graph.constants}
    results = {graph.buffers[o].owner for o in graph.results()}
    fixed |= results
    returned = {graph.buffers[o].owner for o in graph.outputs if isinstance(o, str)}
    first, last = lifetimes(graph)
    makers = {s: graph.nodes[k] for s, k in first.items()}
    for new, old in graph.reuse.items():
        a, b = graph.buffers[new], graph.buffers[old]
        if a.storage or b.storage:
            raise IRError(new, "reuse", "a view cannot take over memory")
        if graph.writes.get(old) == new and new not in returned:
            if (a.sizes, a.strides, a.offset) != (b.sizes, b.strides, b.offset):
                raise IRError(new, "reuse", f"is laid out otherwise than {old}, whose new value it is")
        elif new in results and old not in fixed:
            if _extent(graph, a) * ITEMSIZE[a.dtype] < _extent(graph, b) * ITEMSIZE[b.dtype]:
                raise IRError(new, "reuse", f"an output has memory of its own size, less than {old} has")
            if not lies_in_tensor(graph, old, graph.reuse, makers):
                raise IRError(new, "reuse", f"an output is a tensor, which {old} is not")
        elif new in fixed or (old in fixed and (old not in graph.donated or old in results)):
            raise IRError(new, "reuse", f"inputs, constants and outputs keep their memory ({old})")
        if a.device != b.device or _extent(graph, a) * ITEMSIZE[a.dtype] > _extent(graph, b) * ITEMSIZE[b.dtype]:
            raise IRError(new, "reuse", f"does not fit into {old}")
        touched = last.get(old, -1)
        if first[new] < touched or (first[new] == touched and isinstance(graph.nodes[first[new]], Extern)):
            raise IRError(new, "reuse", f"{old} is still read when {new} is written")
    takers = list(graph.reuse.values())
    if len(set(takers)) != len(takers):
        raise IRError("reuse", "reuse", "two buffers take over the same memory directly")


def lies_in_tensor(graph: Graph, storage: str, reuse: Mapping[str, str], makers: Mapping[str, Node]) -> bool:
    """Whether a storage lies in a tensor, rather than in memory that a host program on a CPU takes for itself. ``makers`` are the
    nodes that write a storage first."""
    while storage in reuse:
        storage = reuse[storage]
    return isinstance(makers.get(storage), Extern) or graph.buffers[storage].device != "cpu"


def lifetimes(graph: Graph) -> tuple[dict[str, int], dict[str, int]]:
    """For each storage the position of the first node that writes it and the last that touches it."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Extern):
            writes = [graph.buffers[n].owner for n in (*node.outputs, *node.mutates) if n]
            touched = [*writes, *(graph.buffers[n].owner for n in extern_reads(node))]
        else:
            ops = [o for p in phases_of(node) for o in p.body]
            writes = [o.args[0] for o in ops if o.op == "store"]
            touched = [*writes, *(o.args[0] for o in ops if o.op == "load")]
        for storage in writes:
            first.setdefault(storage, position)
        for storage in touched:
            last[storage] = position
    return first, last


# --- spans -----------------------------------------------------------------------------------------------------


def _check_spans(node: Loop | Kernel, phases: tuple[Phase, ...]) -> None:
    if not node.spans:
        return
    for op in itertools.chain.from_iterable(p.body for p in phases):
        if not op.spans and op.op not in ("const", "index"):
            raise IRError(node.name, "spans", f"{show_op(op)} lost its span")


def _check_symbols(graph: Graph, node: Loop | Kernel, phases: tuple[Phase, ...]) -> None:
    def check(axis: Axis) -> None:
        if isinstance(axis.size, sympy.Expr):
            for name in symbol_names(axis.size):
                if name not in graph.symbols:
                    raise IRError(node.name, "buffers", f"size symbol {name} of axis {axis.name} is not declared")

    for axis in (*node.axes, *(a for p in phases for a in p.axes)):
        check(axis)


def verify(graph: Graph) -> None:
    """Raises :class:`IRError` when ``graph`` breaks a rule (see the module's docstring)."""
    _check_buffers(graph)
    _check_order(graph)
    for node in graph.nodes:
        if isinstance(node, Extern):
            continue
        phases = phases_of(node)
        _check_ssa(node, phases)
        _check_symbols(graph, node, phases)
        _check_dtypes(graph, node, phases)
        _check_memory(graph, node, phases)
        _check_spans(node, phases)
    _check_reuse(graph)
