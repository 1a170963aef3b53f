"""The graph under construction: buffers, views, pointwise loops, reductions and extern calls.

Rules of ATen operations are functions of a :class:`Builder`; none of them touches the IR's grammar directly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from fuselens.ir.affine import ONE, ZERO, integer_value, product
from fuselens.ir.loops import Axis, Buffer, Extern, Loop, Node, Ref, symbol
from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.dtypes import LOOP_DTYPES, NAMES, compute_dtype
from fuselens.report import Decision, Span
from fuselens.torch_private import symint_expression

Sizes = tuple[Expr, ...]


class Unsupported(Exception):
    """A rule declines an operation: it becomes an extern call, for the reason given."""


class LoweringError(Exception):
    """The graph cannot be expressed in the loop IR at all (FL404: it runs eagerly)."""


@functools.lru_cache(1 << 12)
def _own_symbols(e: Expr) -> Expr:
    """torch's size expression over the IR's own symbols (equal names, other assumptions)."""
    return e.xreplace({s: symbol(s.name) for s in e.free_symbols})  # pyright: ignore


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


class Builder:
    """Collects buffers and nodes. ``origin`` and ``spans`` describe the operation being lowered."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Node] = []
        self.decisions: list[Decision] = []
        self.hints: dict[str, int] = {}
        self.origin = ""
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
        return self.declare(Buffer(self.fresh_name(), dtype, sizes, strides, device=device))

    def like(self, meta: torch.Tensor, name: str = "") -> Buffer:
        """A new buffer of the geometry of ``meta`` (a fake tensor)."""
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
        return self.declare(
            Buffer(name or self.fresh_name(), base.dtype, sizes, strides, offset, base.owner, base.device)
        )

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
            raise Unsupported(f"loops do not compute with {buffer.dtype}")
        missing = len(point) - len(buffer.sizes)
        aligned = tuple(
            ZERO if self._broadcasts(own, size) else p
            for p, own, size in zip(point[missing:], buffer.sizes, sizes[missing:], strict=True)
        )
        return body.load(buffer.owner, element_index(buffer.offset, buffer.strides, aligned), buffer.dtype)

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
            raise Unsupported(f"loops do not compute {out.dtype}")
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
        result = body.lift(result, out.dtype)
        body.store(out.owner, element_index(out.offset, out.strides, point), result)
        self.nodes.append(Loop(out.name, axes, (), tuple(body.ops), self.origin, self.spans))
        return out

    def indexed(self, out: Buffer, compute: Callable[[Body, Sizes], Scalar]) -> Buffer:
        """A loop that fills ``out`` with a function of the position (one expression per dimension)."""
        body = Body(self.spans)
        axes, point = self._iteration(out.sizes, out.strides)
        result = compute(body, point).cast(out.dtype)
        body.store(out.owner, element_index(out.offset, out.strides, point), result)
        self.nodes.append(Loop(out.name, axes, (), tuple(body.ops), self.origin, self.spans))
        return out

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
            raise Unsupported(f"loops do not compute {out.dtype}")
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
        values = [self.load(body, s, tuple(point), shape).cast(wanted) for s in sources]
        value = before(*values) if before else values[0]
        if reduction:
            value = body.reduce(kind, value)
        elif kind in ("argmax", "argmin"):
            value = body.const(0, "i64")
        value = after(value) if after else value
        body.store(out.owner, element_index(out.offset, out.strides, out_point), value.cast(out.dtype))
        self.nodes.append(Loop(out.name, axes, reduction, tuple(body.ops), self.origin, self.spans))
        return out

    def scan(
        self, out: Buffer, kind: str, sources: Sequence[Buffer], dim: int, dtype: str,
        before: Callable[..., Scalar] | None = None,
    ) -> Buffer:  # fmt: skip
        """A loop that fills ``out`` with the running folds along ``dim``, computed in ``dtype``, of the only source or of
        ``before(body, position along dim, elements...)``. The sources have the sizes of ``out``."""
        if out.dtype not in LOOP_DTYPES:
            raise Unsupported(f"loops do not compute {out.dtype}")
        body = Body(self.spans)
        sizes = tuple(ONE if d == dim else s for d, s in enumerate(out.sizes))
        axes, point = self._iteration(sizes, out.strides)
        run = (Axis("r0", out.sizes[dim]),) if out.sizes and out.sizes[dim] != 1 else ()
        point = tuple(run[0].symbol if run and d == dim else p for d, p in enumerate(point))
        values = [self.load(body, s, point, out.sizes) for s in sources]
        value = before(body, point[dim] if run else ZERO, *values) if before else values[0]
        value = value.cast(dtype)
        value = body.scan(kind, value) if run else value
        body.store(out.owner, element_index(out.offset, out.strides, point), value.cast(out.dtype))
        self.nodes.append(Loop(out.name, axes, run, tuple(body.ops), self.origin, self.spans))
        return out

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
            self.like(m) if isinstance(m, torch.Tensor) and (used is None or k in used) else None
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
        return tuple(made) if several else made[0]

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
