"""Convolutions as products of matrices: the image seen with the dimensions of its windows, of which no copy is made.

The element that tap ``t`` of window ``w`` takes is ``w * stride + t * step - before`` along each dimension. So windows are a strided
view of the image, except at its borders, beyond which elements are 0.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from fuselens.ir.affine import ONE, ZERO, within
from fuselens.ir.loops import Buffer, Extern, Graph, Op, Ref


@dataclass(frozen=True, slots=True)
class Border:
    """Where windows may leave an image. ``window`` and ``tap`` are dimensions of its view; elements are ``reach`` apart."""

    window: int
    tap: int
    stride: int
    step: int
    before: int
    size: Expr
    reach: Expr

    def place(self, point: tuple[Expr, ...]) -> Expr:
        return sympy.expand(point[self.window] * self.stride + point[self.tap] * self.step - self.before)

    def leaves(self, tap: int, windows: Expr) -> tuple[bool, bool]:
        """Whether ``tap`` of so many windows may be before the first element, and beyond the last."""
        start = tap * self.step - self.before
        known = windows.is_Integer and self.size.is_Integer
        return start < 0, not known or int(windows - 1) * self.stride + start >= int(self.size)


@dataclass(frozen=True, slots=True)
class Operands:
    """What is multiplied, by dimensions: batches (of one), rows and what is summed; batches, what is summed and columns."""

    factors: tuple[Buffer, Buffer]
    added: Buffer | None
    out: Buffer
    batch: Expr
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]
    summed: tuple[Expr, ...]
    borders: tuple[tuple[Border, ...], tuple[Border, ...]] = ((), ())


@dataclass(frozen=True, slots=True)
class Convolution:
    """The arguments of a call that convolves images."""

    image: Buffer
    weight: Buffer
    bias: Buffer | None
    out: Buffer
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def plain(self) -> bool:
        """Whether windows are the points of the image."""
        ones = all(n == 1 for n in (*self.stride, *self.weight.sizes[2:]))
        return ones and not any(self.padding)


def convolution(graph: Graph, call: Extern) -> Convolution | None:
    if call.target != "aten.convolution.default" or call.outputs != (call.name,) or graph.buffers[call.name].storage:
        return None
    if call.kwargs or len(call.args) != 9:
        return None
    image, weight, bias, *rest = call.args
    stride, padding, dilation, turned, _, groups = rest
    if not all(isinstance(a, Ref) for a in (image, weight)) or not (bias is None or isinstance(bias, Ref)):
        return None
    x, w = graph.buffers[image.name], graph.buffers[weight.name]
    rank = len(x.sizes) - 2
    windows = [_numbers(v, rank) for v in (stride, padding, dilation)]
    if turned or rank < 1 or len(w.sizes) != len(x.sizes) or not all(windows) or not _is_number(groups):
        return None
    held = None if bias is None else graph.buffers[bias.name]
    stride, padding, dilation = windows
    return Convolution(x, w, held, graph.buffers[call.name], stride, padding, dilation, int(groups))


def windows_of(c: Convolution) -> tuple[Buffer, tuple[Border, ...]]:
    """The image with the dimensions batch, windows, taps and channels, and where windows leave it."""
    x, rank = c.image, len(c.stride)
    sizes, reach = x.sizes[2:], x.strides[2:]
    borders = tuple(
        Border(1 + d, 1 + rank + d, c.stride[d], c.dilation[d], c.padding[d], sizes[d], reach[d])
        for d in range(rank)
        if c.padding[d]
    )
    start = sympy.Add(x.offset, *(-p * r for p, r in zip(c.padding, reach, strict=True)))
    view = dataclasses.replace(
        x,
        sizes=(x.sizes[0], *c.out.sizes[2:], *c.weight.sizes[2:], x.sizes[1]),
        strides=(
            x.strides[0],
            *(r * n for r, n in zip(reach, c.stride, strict=True)),
            *(r * n for r, n in zip(reach, c.dilation, strict=True)),
            x.strides[1],
        ),
        offset=start,
    )
    return view, borders


def as_product(c: Convolution) -> Operands | None:
    """Of windows and the weight where channels lie together, else of the weight and windows: columns are along memory."""
    if c.groups != 1:
        return None
    rank = len(c.stride)
    x, borders = windows_of(c)
    w, out = c.weight, c.out
    points, taps = x.sizes[: 1 + rank], x.sizes[1 + rank :]
    spread = tuple(out.strides[d] for d in (0, *range(2, 2 + rank)))
    if out.strides[1] == 1:
        weight = seen(w, (*taps, w.sizes[0]), (*w.strides[2:], w.strides[1], w.strides[0]))
        made = seen(out, (*points, w.sizes[0]), (*spread, ONE))
        return Operands((x, weight), c.bias, made, ONE, points, (w.sizes[0],), taps, (borders, ()))
    count = len(taps)
    turned = seen(x, (*taps, *points), (*x.strides[1 + rank :], *x.strides[: 1 + rank]))
    moved = tuple(dataclasses.replace(b, window=b.window + count, tap=b.tap - 1 - rank) for b in borders)
    weight = seen(w, (w.sizes[0], *taps), (w.strides[0], *w.strides[2:], w.strides[1]))
    added = c.bias and seen(c.bias, (w.sizes[0], *(ONE for _ in points)), (c.bias.strides[0], *(ZERO for _ in points)))
    made = seen(out, (w.sizes[0], *points), (out.strides[1], *spread))
    return Operands((weight, turned), added, made, ONE, (w.sizes[0],), points, taps, ((), moved))


def element(buffer: Buffer, borders: tuple[Border, ...], point: tuple[Expr, ...], name: str, spans: Any) -> list[Op]:
    """The ops that give ``name``, the element of an operand at ``point`` in single precision; 0 beyond borders."""
    index = buffer.index(point)
    ops: list[Op] = []
    inside = ""
    for k, border in enumerate(borders):
        place = border.place(point)
        index = index + (within(place, border.size - 1) - place) * border.reach

        def op(label: str, kind: str, *args: Any, dtype: str = "i32", k: int = k) -> str:
            ops.append(Op(f"{name}_{label}{k}", kind, args, dtype, spans))
            return ops[-1].name

        at = op("at", "cast", op("place", "index", place, dtype="i64"))
        low = op("low", "ge", at, op("zero", "const", 0), dtype="bool")
        end = op("end", "cast", op("size", "index", border.size, dtype="i64"))
        held = op("held", "and", low, op("high", "lt", at, end, dtype="bool"), dtype="bool")
        inside = op("inside", "and", inside, held, dtype="bool") if inside else held
    ops.append(Op(f"{name}_element", "load", (buffer.owner, sympy.expand(index)), buffer.dtype, spans))
    if not inside:
        return [*ops, Op(name, "cast", (f"{name}_element",), "f32", spans)]
    return [
        *ops,
        Op(f"{name}_wide", "cast", (f"{name}_element",), "f32", spans),
        Op(f"{name}_nothing", "const", (0.0,), "f32", spans),
        Op(name, "where", (inside, f"{name}_wide", f"{name}_nothing"), "f32", spans),
    ]


def seen(buffer: Buffer, sizes: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Buffer:
    return dataclasses.replace(buffer, sizes=sizes, strides=strides)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, Expr) and bool(value.is_Integer))


def _numbers(value: Any, rank: int) -> tuple[int, ...]:
    """A list argument of a call as numbers, one for each dimension; none where it is something else."""
    values = value if isinstance(value, tuple) else (value,)
    if not all(map(_is_number, values)) or len(values) not in (1, rank):
        return ()
    return tuple(map(int, values)) * (rank if len(values) == 1 else 1)
