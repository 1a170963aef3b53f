"""The loop IR: buffers, loops, extern calls and fused kernels. The whole of it is this grammar.

::

    Graph   := inputs constants buffers nodes outputs          a straight-line program over buffers
    Node    := Loop | Extern | Attention                       before fusion
             | Kernel | Extern | Attention                     after fusion
    Loop    := axes reduction body                             one ATen operation, writing one buffer
    Kernel  := axes phases                                     fused loops: for each point of axes, each phase in turn
    Phase   := axes body                                       the axes it adds to the kernel's, and what it computes
    Attention := query key value axes body result sink splits       an Extern that is a kernel of ours
    Op      := name op args dtype                              one scalar operation, in SSA form
    Buffer  := name dtype sizes strides offset [storage]       a strided region; ``storage`` names what it is a view of

Everything is frozen plain data. Index expressions are sympy expressions over axis symbols, size symbols and (for
gathers) the names of earlier integer ops; they count elements from the start of the *storage* that the buffer lies
in, so a view needs no node of its own. A storage of complex numbers is one of reals to loops, twice as long: the real
part of element k is number 2k, the imaginary part 2k + 1 (:func:`element`). Sizes are sympy expressions too:
integers, or symbols of ``Graph.symbols``.

A body is evaluated once for each point of the iteration space. ``reduce`` ops fold over the axes that the phase adds
(over the reduction axes, in a Loop), ``scan`` ops run along them: they have a value at every point. In a Loop, ops
that depend on a reduce run once per point of ``axes``, after it.
In a Kernel, a phase never uses the result of a reduce of its own: later phases do, by name. So what crosses phases is
what has one value per point of the kernel's axes: results of reduces, and of ops in phases without axes of their own.
Everything else lives inside its phase. What the arguments of each op are is said once, in :class:`Op`: passes ask an op for its
operands, its index and itself in other terms. The writers of C++, of Triton and of text, and the evaluator, take each op apart in
a table or a ladder of their own: they need different things of it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import sympy
from sympy import Expr

from ..record.report import Decision, Span
from .card import H100, Card

DType = Literal[
    "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool", "c64", "c128", "u16", "u32", "u64", "f8e4m3", "f8e5m2", "c32",
]  # fmt: skip
ITEMSIZE: dict[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1,
    "c64": 8, "c128": 16, "u16": 2, "u32": 4, "u64": 8, "f8e4m3": 1, "f8e5m2": 1, "c32": 4,
}  # fmt: skip
PARTS: dict[str, str] = {"c64": "f32", "c128": "f64"}
"""Complex types, and those of their parts."""
ReduceKind = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "sumexp"]
ScanKind = Literal["sum", "prod", "max", "min", "logsumexp"]


def element(dtype: str) -> str:
    """What loops load from a storage of ``dtype``, and store to it."""
    return PARTS.get(dtype, dtype)


@functools.cache  # sympy takes 10 µs to make one, and passes ask for the same few thousands of times
def symbol(name: str) -> sympy.Symbol:
    """A loop axis or size symbol: an integer, not negative. Equal names are equal symbols."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


@dataclass(frozen=True, slots=True)
class Axis:
    """An iteration variable that runs from 0 to ``size`` - 1."""

    name: str
    size: Expr

    @property
    def symbol(self) -> sympy.Symbol:
        return symbol(self.name)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A strided tensor in memory.

    ``storage`` is the name of the buffer that owns the memory ("" when it owns it itself); ``offset`` counts elements
    from the start of that storage. Index expressions of loads and stores already include strides and offset.
    """

    name: str
    dtype: str
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr = sympy.S.Zero
    storage: str = ""
    device: str = "cpu"

    @property
    def owner(self) -> str:
        return self.storage or self.name

    def numel(self) -> Expr:
        total: Expr = sympy.Integer(1)
        for size in self.sizes:
            total = total * size
        return total

    def end(self) -> Expr:
        """The number of elements of the storage up to the last one of the tensor."""
        last = sympy.Add(*((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True)))
        return self.offset + last + 1

    def index(self, point: tuple[Expr, ...]) -> Expr:
        """The element index, within the storage, of the logical position ``point`` (one expression per dimension)."""
        total = self.offset
        for p, s in zip(point, self.strides, strict=True):
            total = total + p * s
        return total


@dataclass(frozen=True, slots=True)
class Op:
    """One scalar operation. ``args`` are names of earlier ops (str), sympy expressions, numbers or keywords.

    The forms that are not plain arithmetic (the table of arithmetic is ``ir.ops``):

    ==========  =============================  ============================================================
    load        (storage, index)               element ``index`` of storage; ``index`` may use earlier op names
    store       (storage, index, value)        no result; ``name`` is still unique
    store       (storage, index, value, kind)  ``kind`` of the element and the value; see below
    reduce      (kind, value)                  fold over the phase's axes; argmax/argmin give the flat index
    scan        (kind, value)                  fold of the phase's points so far, this one included, in row-major order
    const       (number,)                      a literal of ``dtype``
    index       (expression,)                  the value of an index expression as ``dtype`` (i64, or i32 where it fits)
    random      (key, key, stream, index)      word ``index`` of a stream of random numbers (``ir.philox``), i32
    bounds      (value, size, wrap)            the i64 value as a position below ``size``; see below
    cast        (value,)                       convert to ``dtype`` (float to integer truncates, to bool is != 0)
    bitcast     (value,)                       reinterpret
    ==========  =============================  ============================================================

    ``bounds`` counts negative values from the end where ``wrap`` is True. A value that is still out of range is
    reported (the call of the graph raises) and gives position 0, so that kernels touch no memory that is not theirs.

    A store with a ``kind`` (a key of ``ir.ops.UPDATES``) changes an element that was written before: several points
    may name one element. Points of the phase's axes (the reduction axes of a Loop) come in row-major order, each after
    the one before; points of the kernel's axes run in parallel, so no two of them name one element.
    """

    name: str
    op: str
    args: tuple[Any, ...]
    dtype: str
    spans: tuple[Span, ...] = ()

    @property
    def update(self) -> str:
        """The kind of a store that changes an element; "" for all else."""
        return self.args[3] if self.op == "store" and len(self.args) > 3 else ""

    @property
    def index(self) -> Any:
        """The index expression of an op that has one, else None."""
        index, _ = _READS.get(self.op, (None, ()))
        return None if index is None else self.args[index]

    def operands(self) -> tuple[str, ...]:
        """Names of the ops this one reads, those inside index expressions first."""
        reads = _READS.get(self.op)
        if reads is None:
            return tuple(a for a in self.args if isinstance(a, str))
        index, values = reads
        names = tuple([self.args[k] for k in values])
        return names if index is None else (*indirect_names(self.args[index]), *names)

    def mapped(
        self, *, value: Callable[[str], str] | None = None, index: Callable[[Expr], Expr] | None = None,
        storage: Callable[[str], str] | None = None,
    ) -> Op:  # fmt: skip
        """The op in other terms: ``value`` gives the new names of ops, its own among them, ``index`` the new form of index and
        size expressions, ``storage`` the new names of storages. What ``index`` brings into an expression is not renamed."""
        form = _FORMS.get(self.op)
        args: list[Any] = []
        for k, arg in enumerate(self.args):
            role = "value" if form is None else form[k]
            if isinstance(arg, Expr) and role in ("index", "size"):
                arg = arg if value is None else _with_values(arg, value)
                arg = arg if index is None else index(arg)
            elif isinstance(arg, str):
                rename = value if role == "value" else storage if role == "storage" else None
                arg = arg if rename is None else rename(arg)
            args.append(arg)
        return Op(self.name if value is None else value(self.name), self.op, tuple(args), self.dtype, self.spans)

    def renamed(self, names: Mapping[str, str]) -> Op:
        """The op with other names for those of the values that ``names`` has, its own among them."""
        return self.mapped(value=lambda n: names.get(n, n)) if names else self


_FORMS: dict[str, tuple[str, ...]] = {
    "load": ("storage", "index"),
    "store": ("storage", "index", "value", "kind"),
    "reduce": ("kind", "value"),
    "scan": ("kind", "value"),
    "const": ("number",),
    "index": ("index",),
    "random": ("value", "value", "stream", "index"),
    "bounds": ("value", "size", "wrap"),
}
"""What each argument is. Those of arithmetic, which is not here, are values."""
_READS = {
    op: (form.index("index") if "index" in form else None, tuple(k for k, role in enumerate(form) if role == "value"))
    for op, form in _FORMS.items()
}
"""Where operands are: in the index expression at a place, and at some others."""


def _with_values(index: Expr, value: Callable[[str], str]) -> Expr:
    """``index`` with other names for the values in it."""
    changed = {value_symbol(n): value_symbol(new) for n in indirect_names(index) if (new := value(n)) != n}
    return index.xreplace(changed) if changed else index  # pyright: ignore


@functools.lru_cache(1 << 14)
def value_symbol(name: str) -> sympy.Symbol:
    """The symbol by which an index expression uses the value of the integer op ``name`` (a gather). It is ``%name``."""
    return sympy.Symbol("%" + name, integer=True)


@functools.lru_cache(1 << 15)
def indirect_names(index: Any) -> tuple[str, ...]:
    """Names of the ops whose values the index expression uses."""
    if not isinstance(index, Expr):
        return ()
    return tuple(sorted(n[1:] for n in map(str, index.free_symbols) if n.startswith("%")))


@dataclass(frozen=True, slots=True)
class Loop:
    """One operation as a loop nest over ``axes`` (and ``reduction`` axes inside them), writing buffer ``name``."""

    name: str
    axes: tuple[Axis, ...]
    reduction: tuple[Axis, ...]
    body: tuple[Op, ...]
    origin: str = ""  # the ATen operation, for people
    spans: tuple[Span, ...] = ()

    @property
    def kind(self) -> str:
        return "scan" if _scans(self.body) else "reduction" if self.reduction else "pointwise"


@dataclass(frozen=True, slots=True)
class Extern:
    """A call of an ATen operator. ``args``/``kwargs`` nest tuples of :class:`Ref`, sympy expressions and constants.

    ``outputs`` are the buffers it makes, in the order of the operator's returns ("" for a return that nobody uses). A
    call that returns one tensor, and no list of one, has its name.
    ``mutates`` names argument buffers that the operator writes into.
    """

    name: str
    target: str  # e.g. "aten.addmm.default"
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[str, ...]
    mutates: tuple[str, ...] = ()
    reason: str = ""  # why it is not loops
    origin: str = ""
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Attention(Extern):
    """A softmax over keys of what ``body`` makes of ``query @ key.T``, times values, by one kernel that stores no scores.

    ``args`` begin with query [batch, heads, rows, width], key [batch, groups, keys, width] and value [batch, groups,
    keys, its width]; as many consecutive heads as there are for a group share its keys. What the body loads from follows.
    ``axes`` are batch, head, row and key. At each of their points the ops of ``body`` compute ``result`` (f32) from the
    product, which they know as ``score``: minus infinity where a row does not see a key. A row that sees none is 0, or NaN
    where ``nan`` says so. Where it is named, ``sink`` is one more score of each row, of no value. ``product`` is a buffer
    of the scores as the graph has them, from which the body's loads may be made: fusion puts ``score`` in its place.

    With ``splits`` the keys are cut into so many ranges of ``span`` keys, and the outputs hold, for each: the sum of the
    values with weights ``exp(result - top)`` [batch, heads, rows, splits, width], ``top`` and the sum of the weights.
    """

    axes: tuple[Axis, ...] = ()
    body: tuple[Op, ...] = ()
    result: str = "score"
    splits: int = 1
    nan: bool = False
    sink: str = ""
    product: str = ""

    def operands(self) -> tuple[str, str, str]:
        """Query, key and value."""
        query, key, value = (a.name for a in self.args[:3])
        return query, key, value

    @property
    def span(self) -> Expr:
        """How many keys are of one split."""
        keys = self.axes[3].size
        return (
            sympy.Integer(-(-int(keys) // self.splits)) if keys.is_Integer else (keys + self.splits - 1) // self.splits
        )

    def with_body(self, body: tuple[Op, ...], result: str, sink: str = "") -> Attention:
        storages = dict.fromkeys(o.args[0] for o in body if o.op == "load")
        args = (*self.args[:3], *map(Ref, storages))
        return dataclasses.replace(self, args=args, body=body, result=result, sink=sink)


@dataclass(frozen=True, slots=True)
class Ref:
    """A buffer as an argument of an extern call."""

    name: str


@dataclass(frozen=True, slots=True)
class Phase:
    """One traversal of ``axes`` (none: once) inside a kernel's axes. Stores and reductions happen in body order."""

    axes: tuple[Axis, ...]
    body: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Fused loops: for each point of ``axes`` (in parallel), every phase in turn."""

    name: str
    axes: tuple[Axis, ...]
    phases: tuple[Phase, ...]
    loops: tuple[str, ...] = ()  # names of the loops it was made from
    origins: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()

    @property
    def kind(self) -> str:
        folds = any(o.op == "reduce" for o in self.ops())
        return "reduction" if folds else "scan" if _scans(self.ops()) else "pointwise"

    def ops(self) -> Iterator[Op]:
        for phase in self.phases:
            yield from phase.body

    def all_axes(self) -> tuple[Axis, ...]:
        """Its own, then those of its phases."""
        return (*self.axes, *(a for p in self.phases for a in p.axes))

    def reads(self) -> tuple[str, ...]:
        """Storages it loads from, in first-use order, without repetition."""
        return tuple(dict.fromkeys(o.args[0] for o in self.ops() if o.op == "load"))

    def writes(self) -> tuple[str, ...]:
        """Storages it stores to, in first-use order, without repetition."""
        return tuple(dict.fromkeys(o.args[0] for o in self.ops() if o.op == "store"))

    def size_symbols(self) -> tuple[str, ...]:
        """Names of size symbols that its axes and index expressions use, sorted: integer arguments of the kernel."""
        axes = self.all_axes()
        bound = {a.name for a in axes}
        found: set[str] = set()
        for axis in axes:
            found |= _names(axis.size)
        for op in self.ops():
            for arg in op.args:
                if isinstance(arg, Expr):
                    found |= {n for n in _names(arg) if not n.startswith("%")}
        return tuple(sorted(found - bound))


def most_places(ops: Iterable[Op]) -> int:
    """How many places of one storage these ops load, at most: those of a window."""
    return max(Counter(storage for storage, _ in {o.args[:2] for o in ops if o.op == "load"}).values(), default=0)


def _names(expression: Any) -> set[str]:
    return {symbol.name for symbol in expression.free_symbols}


def _scans(ops: Iterable[Op]) -> bool:
    return any(o.op == "scan" for o in ops)


Node = Loop | Extern | Kernel  # an Attention is an Extern


@dataclass(frozen=True, slots=True)
class Graph:
    """A program over buffers.

    ``inputs`` are buffer names in call order; ``outputs`` are buffer names, or None, or sympy expressions (integers).
    ``symbols`` maps each size symbol to where a call reads it: (input position, dimension). ``writes`` maps inputs to
    the buffers that hold their new values at the end. ``reuse`` (after ordering) maps a buffer to the earlier buffer
    whose memory it takes over; a new value that takes over its input's memory is written in place. ``donated`` are inputs
    whose memory the call may use for its own values once they are read. ``titles`` is what the program calls what loops do.
    """

    name: str
    inputs: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    nodes: tuple[Node, ...]
    outputs: tuple[Any, ...]
    symbols: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    hints: Mapping[str, int] = field(default_factory=dict)  # example value of each size symbol
    constants: Mapping[str, Any] = field(default_factory=dict)  # buffer name → tensor, for graph constants
    writes: Mapping[str, str] = field(default_factory=dict)
    reuse: Mapping[str, str] = field(default_factory=dict)
    donated: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    titles: Mapping[str, str] = field(default_factory=dict, compare=False)  # loop → captured operation
    card: Card = field(default=H100, compare=False)  # what it runs on, if it is for a GPU

    def replace(self, **changes: Any) -> Graph:
        return dataclasses.replace(self, **changes)

    def with_calls_replaced(self, made: Mapping[str, Node]) -> Graph:
        """The graph with these nodes in the place of the calls of these names."""
        return self.replace(nodes=tuple(made.get(n.name, n) if isinstance(n, Extern) else n for n in self.nodes))

    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(n for n in self.nodes if isinstance(n, Kernel))

    def externs(self) -> tuple[Extern, ...]:
        """Calls of operators."""
        return tuple(n for n in self.nodes if isinstance(n, Extern) and not isinstance(n, Attention))

    def attentions(self) -> tuple[Attention, ...]:
        return tuple(n for n in self.nodes if isinstance(n, Attention))

    def results(self) -> tuple[str, ...]:
        """Buffers that must hold their values at the end: outputs, and new values of inputs."""
        return (*(o for o in self.outputs if isinstance(o, str)), *self.writes.values())

    def order_matters(self) -> bool:
        """Whether elements are changed by points that come in an order: where they run in parallel, results would vary."""
        return any(op.update not in ("", "max", "min") for kernel in self.kernels() for op in kernel.ops())

    def overwritten(self) -> tuple[str, ...]:
        """Donated inputs whose memory is taken over, in the order of the inputs."""
        taken = set(self.reuse.values())
        return tuple(n for n in self.inputs if n in self.donated and n in taken)

    def owners(self, buffer: str) -> tuple[str, ...]:
        """The storages in whose memory a buffer lies: its own, then those that it takes over, directly and through others."""
        found = {self.buffers[buffer].owner: None}
        while (last := next(reversed(found))) in self.reuse:
            owner = self.buffers[self.reuse[last]].owner
            if owner in found:
                break
            found[owner] = None
        return tuple(found)

    def root(self, buffer: str) -> str:
        """The storage in whose memory a buffer lies, through views and takeovers."""
        return self.owners(buffer)[-1]

    def roots(self) -> dict[str, str]:
        """The root of each buffer; chains of takeovers grow with the graph, so each is walked once."""
        found: dict[str, str] = {}
        for buffer in self.buffers.values():
            chain: dict[str, None] = {}
            owner = buffer.owner
            while owner not in found and owner not in chain and owner in self.reuse:
                chain[owner] = None
                owner = self.buffers[self.reuse[owner]].owner
            circular = owner in chain
            for each in chain:
                found[each] = self.root(each) if circular else found.get(owner, owner)
        return {name: found.get(b.owner, b.owner) for name, b in self.buffers.items()}

    def hint(self, expression: Expr | int) -> int:
        """The example value of a size expression."""
        if isinstance(expression, int):
            return expression
        if expression.is_Integer:
            return int(expression)
        return int(expression.subs({symbol(k): v for k, v in self.hints.items()}))


def extern_reads(node: Extern) -> tuple[str, ...]:
    """Buffers that an extern call takes as arguments, in order, without repetition."""
    found: dict[str, None] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Ref):
            found[value.name] = None
        elif isinstance(value, tuple):
            for v in value:
                visit(v)

    visit(node.args)
    visit(tuple(v for _, v in node.kwargs))
    return tuple(found)


_DIVISIONS = frozenset({"floordiv", "truncdiv", "mod", "fmod"})


def may_fail(body: Iterable[Op]) -> bool:
    """Whether the ops may refuse the values that they are given: positions out of range, integers divided by zero."""
    return any(o.op == "bounds" or (o.op in _DIVISIONS and o.dtype not in ("f32", "f64")) for o in body)


def phases_of(node: Loop | Kernel) -> tuple[Phase, ...]:
    """The phases of a kernel, or those a loop amounts to: its fold, then what depends on a reduce, once per point.

    Constants and index values that both halves use are repeated in the second, under the same names: only what has
    one value per point of the node's axes crosses phases.
    """
    if isinstance(node, Kernel):
        return node.phases
    if not node.reduction:
        return (Phase((), node.body),)
    by_name = {o.name: o for o in node.body}
    after: set[str] = set()
    for op in node.body:
        if any(d in after or by_name[d].op == "reduce" for d in op.operands()):
            after.add(op.name)
    wanted: list[str] = [d for n in after for d in by_name[n].operands()]
    repeated: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in after and name not in repeated and by_name[name].op != "reduce":
            repeated.add(name)
            wanted.extend(by_name[name].operands())
    first = tuple(o for o in node.body if o.name not in after)
    second = tuple(o for o in node.body if o.name in after or o.name in repeated)
    return (Phase(node.reduction, first), Phase((), second)) if second else (Phase(node.reduction, first),)
