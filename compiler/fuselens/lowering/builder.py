"""The graph under construction: buffers, views, pointwise loops, reductions and extern calls.

Rules of ATen operations are functions of a :class:`Builder`; none of them touches the IR's grammar directly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import sympy
import torch
from sympy import Expr

from fuselens.ir.affine import ONE, ZERO, integer_value, product
from fuselens.ir.loops import Axis, Buffer, Extern, Loop, Node, Ref, indirect_names, symbol
from fuselens.lowering.body import Body, Complex, Scalar
from fuselens.lowering.dtypes import LOOP_DTYPES, NAMES, PARTS, compute_dtype, identity
from fuselens.record.report import Decision, Span
from fuselens.torch_private import integer_functions, symint_expression

Sizes = tuple[Expr, ...]


class Declined(Exception):
    """A rule declines an operation: it becomes an extern call, for the reason given."""


class Called(Declined):
    """The same, where ATen's operator serves better than loops."""


class LoweringError(Exception):
    """The graph cannot be expressed in the loop IR at all (FL404: it runs eagerly)."""


@functools.lru_cache(1 << 12)
def _own_symbols(e: Expr) -> Expr:
    """torch's size expression over the IR's own symbols (equal names, other assumptions), in integers: ``ceil(a / b)`` is
    a floor division."""
    e = e.xreplace({s: symbol(s.name) for s in e.free_symbols})  # pyright: ignore
    return e if e.is_Atom else e.replace(_is_rounded_up, _by_floor)  # pyright: ignore


def _is_rounded_up(e: Any) -> bool:
    return type(e).__name__ == "CeilToInt" and type(e.args[0]).__name__ == "IntTrueDiv"


def _by_floor(e: Any) -> Expr:
    over, under = e.args[0].args
    return integer_functions()["FloorDiv"](over + under - 1, under)


def expression(value: Any) -> Expr:
    """A Python int or SymInt as a sympy expression over the IR's symbols."""
    if isinstance(value, int):
        return sympy.Integer(value)
    if isinstance(value, Expr):
        return value
    return _own_symbols(symint_expression(value))


def expressions(values: Sequence[Any]) -> Sizes:
    return tuple(map(expression, values))


@functools.lru_cache(1 << 12)
def contiguous_strides(sizes: Sizes) -> Sizes:
    """Row-major strides. A dimension of size 0 counts as 1, as in torch."""
    out: list[Expr] = []
    step: Expr = ONE
    for size in reversed(sizes):
        out.append(step)
        step = step * (ONE if size == 0 else size)
    return tuple(reversed(out))


@functools.lru_cache(1 << 14)
def element_index(offset: Expr, strides: Sizes, point: Sizes) -> Expr:
    """``offset + sum(stride * point)``."""
    terms = [p * s for p, s in zip(point, strides, strict=True) if p != 0 and s != 0]
    return sympy.Add(offset, *terms) if terms else offset


@dataclass(frozen=True, slots=True)
class Pair(Buffer):
    """A complex tensor as loops see it: where its real and its imaginary parts lie.

    Element number e (counted by ``strides`` and ``offset``, as torch does) has its parts at ``scale * e`` plus the shift in
    each of the two storages of ``parts``. What loops compute lies in two buffers of reals; a pair with a ``storage`` lies in
    memory as torch's complex numbers do. Only one with a name is declared in the graph.
    """

    parts: tuple[tuple[str, Expr], tuple[str, Expr]] = (("", ZERO), ("", ZERO))
    scale: int = 1

    def part(self, k: int) -> Buffer:
        """One of its parts, to load from."""
        storage, shift = self.parts[k]
        strides = tuple(self.scale * s for s in self.strides)
        return Buffer(
            "", PARTS[self.dtype], self.sizes, strides, self.scale * self.offset + shift, storage, self.device
        )


class Builder:
    """Collects buffers and nodes. ``origin`` and ``spans`` describe the operation being lowered."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Node] = []
        self.decisions: list[Decision] = []
        self.hints: dict[str, int] = {}
        self.filled: set[str] = set()  # buffers of parts after which a loop is named
        self.halves: dict[str, Pair] = {}  # buffers of parts side by side, and what pairs they are made of
        self.whole_halves: dict[
            Buffer, tuple[Buffer, Sizes, Sizes, Expr]
        ] = {}  # one of the parts: where it lies among them
        self.memory: dict[Any, Buffer] = {}  # complex buffers that hold what was computed as two parts
        self.origin = ""
        self.used: set[int] = set()  # which of the operation's several results are read
        self.spans: tuple[Span, ...] = ()
        self._count = 0

    # --- buffers -----------------------------------------------------------------------------------------------

    def declare(self, buffer: Buffer) -> Buffer:
        self.buffers[buffer.name] = buffer
        return buffer

    def fresh_name(self) -> str:
        name = f"buf{self._count}"
        while name in self.buffers:
            self._count += 1
            name = f"buf{self._count}"
        self._count += 1
        return name

    def fresh(self, sizes: Sizes, strides: Sizes, dtype: str, device: str) -> Buffer:
        if dtype in PARTS:
            re, im = (self.fresh(sizes, strides, PARTS[dtype], device).name for _ in range(2))
            return Pair("", dtype, sizes, strides, device=device, parts=((re, ZERO), (im, ZERO)))
        return self.declare(Buffer(self.fresh_name(), dtype, sizes, strides, device=device))

    def like(self, meta: torch.Tensor) -> Buffer:
        """A new buffer of the geometry of ``meta`` (a fake tensor) for loops to fill."""
        dtype, device = NAMES.get(meta.dtype, ""), self.device or str(meta.device)
        return (
            self.fresh(expressions(meta.shape), expressions(meta.stride()), dtype, device)
            if dtype in PARTS
            else self.declared(meta)
        )

    def declared(self, meta: torch.Tensor, name: str = "") -> Buffer:
        """A new buffer of the geometry of ``meta``, as torch lays it out in memory."""
        dtype = NAMES.get(meta.dtype)
        if dtype is None:
            raise LoweringError(f"{self.origin} makes a tensor of {meta.dtype}, which the loop IR has no name for")
        device = self.device or str(meta.device)
        return self.declare(Buffer(name or self.fresh_name(), dtype, expressions(meta.shape),
                                   expressions(meta.stride()), device=device))  # fmt: skip

    def view(self, base: Buffer, sizes: Sizes, strides: Sizes, offset: Expr, name: str = "") -> Buffer:
        """A buffer that shares the memory of ``base``; ``base`` itself when nothing differs."""
        if (sizes, strides, offset) == (base.sizes, base.strides, base.offset) and not name:
            return base
        if isinstance(base, Pair):
            storage = base.storage or base.name
            return replace(base, name="", sizes=sizes, strides=strides, offset=offset, storage=storage)
        if not base.name:
            return replace(base, sizes=sizes, strides=strides, offset=offset)
        return self.declare(
            Buffer(name or self.fresh_name(), base.dtype, sizes, strides, offset, base.owner, base.device)
        )

    # --- complex buffers ---

    def pair(self, buffer: Buffer) -> Buffer:
        """What rules are given for a declared buffer: the pair of its parts, where it is complex."""
        if buffer.dtype not in PARTS or isinstance(buffer, Pair):
            return buffer
        values = {f.name: getattr(buffer, f.name) for f in fields(Buffer)}
        return Pair(**values, parts=((buffer.owner, ZERO), (buffer.owner, ONE)), scale=2)

    def whole(self, buffer: Buffer) -> Buffer:
        """A declared buffer with these elements, to be named in the graph: in memory as torch's, copied where need be."""
        if buffer.name:
            return buffer
        if not isinstance(buffer, Pair):  # a part of complex numbers
            storage = self.buffers[buffer.storage]
            if storage.dtype == buffer.dtype:
                return self.view(storage, buffer.sizes, buffer.strides, buffer.offset)
            made = self.temporary(buffer.sizes, buffer.dtype, buffer.device)
            return self.pointwise(made, [buffer], lambda v: v, "")
        if buffer.storage:
            return self.view(self.buffers[buffer.storage], buffer.sizes, buffer.strides, buffer.offset)
        if buffer.scale == 2:  # reals that are seen as complex numbers
            return self._in_memory(buffer, contiguous_strides(buffer.sizes))
        made = self.memory.get(buffer.parts)
        if made is None:
            first = self.buffers[buffer.parts[0][0]]
            base = replace(buffer, sizes=first.sizes, strides=first.strides, offset=ZERO)
            made = self.memory[buffer.parts] = self._in_memory(base, first.strides)
        return self.view(made, buffer.sizes, buffer.strides, buffer.offset)

    def _in_memory(self, pair: Pair, strides: Sizes) -> Buffer:
        """A copy of the pair as torch lays it out."""
        made = self.declare(Buffer(self.fresh_name(), pair.dtype, pair.sizes, strides, device=pair.device))
        self.pointwise(self.pair(made), [pair], lambda v: v)
        return made

    def targets(self, pair: Pair) -> tuple[Buffer, ...]:
        """Its parts, to be written: each by a loop that has a name of its own."""
        found = []
        for k in range(2):
            part = pair.part(k)
            own = self.buffers[part.storage]
            same = (own.sizes, own.strides, own.offset) == (part.sizes, part.strides, part.offset)
            if own.dtype == part.dtype and same and own.name not in self.filled:
                self.filled.add(own.name)
                found.append(own)
            elif own.dtype == part.dtype:
                found.append(self.declare(replace(part, name=self.fresh_name())))
            else:
                name = self.fresh_name()
                self.declare(Buffer(name, pair.dtype, pair.sizes, pair.strides, pair.offset, part.storage, pair.device))
                found.append(replace(part, name=name))
        return tuple(found)

    def hint(self, e: Expr) -> int:
        """The example value of a size expression."""
        try:
            return integer_value(e, self.hints)
        except KeyError as missing:
            raise LoweringError(f"the size symbol {missing.args[0]} is no dimension of an input") from None

    # --- loops -------------------------------------------------------------------------------------------------

    def _iteration(self, sizes: Sizes, strides: Sizes, prefix: str = "i") -> tuple[tuple[Axis, ...], Sizes]:
        """Axes over the dimensions that vary, largest stride outermost, and the point as one expression a dimension."""
        dims = [d for d, size in enumerate(sizes) if size != 1]
        if len(dims) > 1:
            dims.sort(key=lambda d: -self.hint(strides[d]))
        axes = tuple(Axis(f"{prefix}{k}", sizes[d]) for k, d in enumerate(dims))
        point: list[Expr] = [ZERO] * len(sizes)
        for axis, d in zip(axes, dims, strict=True):
            point[d] = axis.symbol
        return axes, tuple(point)

    def load(self, body: Body, buffer: Buffer, point: Sizes, sizes: Sizes) -> Scalar:
        """The element of ``buffer`` at the logical ``point`` of a space of ``sizes``, broadcast from the right."""
        if buffer.dtype not in LOOP_DTYPES:
            raise Declined(f"loops do not compute with {buffer.dtype}")
        missing = len(point) - len(buffer.sizes)
        aligned = tuple(
            ZERO if self._broadcasts(own, size) else p
            for p, own, size in zip(point[missing:], buffer.sizes, sizes[missing:], strict=True)
        )
        return self.element(body, buffer, aligned)

    def element(self, body: Body, buffer: Buffer, point: Sizes) -> Scalar:
        """The element of ``buffer`` at a point of its own."""
        if isinstance(buffer, Pair):
            return Complex(*(self.element(body, buffer.part(k), point) for k in range(2)))
        return body.load(buffer.owner, element_index(buffer.offset, buffer.strides, point), buffer.dtype)

    def loop(
        self, out: Buffer, axes: tuple[Axis, ...], reduction: tuple[Axis, ...], value: Scalar, point: Sizes, *update: str
    ) -> Buffer:  # fmt: skip
        """Adds the loop that stores ``value`` at ``point`` of ``out``: two loops for the parts of complex numbers."""
        value = value.cast(out.dtype)
        stores = [(out, value.body, value)]
        if isinstance(out, Pair) and isinstance(value, Complex):
            targets = zip(self.targets(out), (value.re, value.im), strict=True)
            stores = [
                (target, part.body.only(part, *indirect_names(element_index(ZERO, target.strides, point))), part)
                for target, part in targets
            ]
        for target, body, stored in stores:
            body.store(target.owner, element_index(target.offset, target.strides, point), stored, *update)
            self.nodes.append(Loop(target.name, axes, reduction, tuple(body.ops), self.origin, self.spans))
        return out

    def _broadcasts(self, own: Expr, size: Expr) -> bool:
        """Whether a dimension repeats its one element. Tracing may have found (and guarded) that an expression is 1."""
        return own == 1 or (own != size and not isinstance(own, sympy.Integer) and self.hint(own) == 1)

    def pointwise(
        self,
        out: Buffer,
        operands: Sequence[Any],
        compute: Callable[..., Any],
        dtype: str | None = None,
    ) -> Buffer:
        """A loop that fills ``out`` with ``compute`` of the operands.

        Buffers among ``operands`` arrive as scalars, cast to ``dtype`` (by default the type that ``out`` computes in;
        "" leaves each its own), the rest arrives as it is.
        """
        if out.dtype not in LOOP_DTYPES:
            raise Declined(f"loops do not compute {out.dtype}")
        wanted = compute_dtype(out.dtype) if dtype is None else dtype
        body = Body(self.spans)
        axes, point = self._iteration(out.sizes, out.strides)
        values = []
        for operand in operands:
            if isinstance(operand, Buffer):
                operand = self.load(body, operand, point, out.sizes)
                operand = operand.cast(wanted) if wanted else operand
            values.append(operand)
        result = compute(*values)
        return self.loop(out, axes, (), body.lift(result, out.dtype), point)

    def indexed(self, out: Buffer, compute: Callable[[Body, Sizes], Scalar]) -> Buffer:
        """A loop that fills ``out`` with a function of the position (one expression per dimension)."""
        if out.dtype not in LOOP_DTYPES:
            raise Declined(f"loops do not compute {out.dtype}")
        body = Body(self.spans)
        axes, point = self._iteration(out.sizes, out.strides)
        return self.loop(out, axes, (), compute(body, point), point)

    def reduce(
        self,
        out: Buffer,
        kind: str,
        sources: Sequence[Buffer],
        dims: Sequence[int],
        *,
        keep: bool = False,
        dtype: str | None = None,
        before: Callable[..., Scalar] | None = None,
        after: Callable[[Scalar], Scalar] | None = None,
    ) -> Buffer:
        """A loop that folds the first source (others broadcast to it) over ``dims`` into ``out``.

        ``before`` maps the sources' elements, cast to ``dtype``, to what is folded; ``after`` maps the result. With
        ``keep`` the folded dimensions stay in ``out`` with size 1.
        """
        if out.dtype not in LOOP_DTYPES:
            raise Declined(f"loops do not compute {out.dtype}")
        shape, folded = sources[0].sizes, set(dims)
        kept = [d for d in range(len(shape)) if d not in folded]
        body = Body(self.spans)
        axes, out_point = self._iteration(out.sizes, out.strides)
        point: list[Expr] = [ZERO] * len(shape)
        for position, d in enumerate(range(len(shape)) if keep else kept):
            if d not in folded:
                point[d] = out_point[position]
        varying = [d for d in dims if shape[d] != 1]
        if kind not in ("argmax", "argmin") and len(varying) > 1:
            varying.sort(key=lambda d: -self.hint(sources[0].strides[d]))
        elif len(varying) > 1:
            varying.sort()  # their result is the flat index over the folded dimensions in logical order
        reduction = tuple(Axis(f"r{k}", shape[d]) for k, d in enumerate(varying))
        for axis, d in zip(reduction, varying, strict=True):
            point[d] = axis.symbol
        wanted = compute_dtype(out.dtype) if dtype is None else dtype
        if wanted == "bool":
            kind = {"max": "any", "min": "all"}.get(kind, kind)
        nothing = any(axis.size == 0 for axis in reduction)  # then no source has an element to load
        elements = Body(self.spans) if nothing else body
        values = [self.load(elements, s, tuple(point), shape).cast(wanted) for s in sources]
        value = before(*values) if before else values[0]
        if nothing:
            value, reduction = body.const(identity(kind, value.dtype), value.dtype), ()
        elif reduction:
            value = body.reduce(kind, value)
        elif kind in ("argmax", "argmin"):
            value = body.const(0, "i64")
        value = after(value) if after else value
        return self.loop(out, axes, reduction, value, out_point)

    def scan(
        self, out: Buffer, kind: str, sources: Sequence[Buffer], dim: int, dtype: str,
        before: Callable[..., Scalar] | None = None,
    ) -> Buffer:  # fmt: skip
        """A loop that fills ``out`` with the running folds along ``dim``, computed in ``dtype``, of the only source or of
        ``before(body, position along dim, elements...)``. The sources have the sizes of ``out``."""
        if out.dtype not in LOOP_DTYPES:
            raise Declined(f"loops do not compute {out.dtype}")
        body = Body(self.spans)
        sizes = tuple(ONE if d == dim else s for d, s in enumerate(out.sizes))
        axes, point = self._iteration(sizes, out.strides)
        run = (Axis("r0", out.sizes[dim]),) if out.sizes and out.sizes[dim] != 1 else ()
        point = tuple(run[0].symbol if run and d == dim else p for d, p in enumerate(point))
        values = [self.load(body, s, point, out.sizes) for s in sources]
        value = before(body, point[dim] if run else ZERO, *values) if before else values[0]
        value = value.cast(dtype)
        value = body.scan(kind, value) if run else value
        return self.loop(out, axes, run, value, point)

    def temporary(self, sizes: Sizes, dtype: str, device: str) -> Buffer:
        """A contiguous intermediate of a composite rule."""
        return self.fresh(sizes, contiguous_strides(sizes), dtype, device)

    # --- extern calls ------------------------------------------------------------------------------------------

    def extern(self, target: Any, args: Any, kwargs: dict[str, Any], result: Any, reason: str, **more: Any) -> Any:
        """A call of an ATen operator whose results have the geometry of ``result`` (fake tensors, as returned)."""
        several = isinstance(result, (tuple, list))
        metas = list(result) if several else [result]
        used = more.get("used")
        made: list[Buffer | None] = [
            self.declared(m) if isinstance(m, torch.Tensor) and (used is None or k in used) else None
            for k, m in enumerate(metas)
        ]
        outputs = tuple(b.name if b else "" for b in made)
        name = self.fresh_name() if several or not outputs[0] else outputs[0]
        self.nodes.append(
            Extern(
                name, str(target), _arguments(args), tuple((k, _argument(v)) for k, v in kwargs.items()), outputs,
                more.get("mutates", ()), reason, self.origin, self.spans,
            )
        )  # fmt: skip
        pairs = [b and self.pair(b) for b in made]
        return tuple(pairs) if several else pairs[0]

    def decide(self, verdict: str, subject: str, reason: str, **data: Any) -> None:
        span = self.spans[0] if self.spans else None
        self.decisions.append(Decision("FL401", verdict, subject, reason, span, data))


def _arguments(values: Any) -> tuple[Any, ...]:
    return tuple(_argument(v) for v in values)


def _argument(value: Any) -> Any:
    """An argument of an extern call in the IR's terms."""
    if isinstance(value, Buffer):
        return Ref(value.name)
    if isinstance(value, (tuple, list)):
        return _arguments(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return _argument(expression(value))
    if isinstance(value, sympy.Integer):
        return int(value)
    return value


def numel(sizes: Sizes) -> Expr:
    return product(sizes)
