"""Existing objects that become inputs of the graph: tensors, numbers that vary, generators of random numbers.

Each has a fake, or a symbol, that stands for it while tracing, and a guard on what the graph relies on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import torch
from torch import fx

from ... import torch_private
from ..breaks import Break
from ..hook import _hook, tensor_layout
from ..values.algebra import ObjectValue, SymbolValue, TensorValue
from . import sources as src
from .sources import Source
from .symbols import SizesChanged

if TYPE_CHECKING:
    from .tracer import Tracer


def tensor(tracer: Tracer, obj: torch.Tensor, source: Source, varying: Collection[int] | None = None) -> TensorValue:
    """An input for the tensor at ``source``; its sizes that vary are symbols. With ``varying`` those dimensions vary from the
    start, and no others do."""
    if not torch_private.is_plain(obj):
        raise Break(
            "FL105", what=f"`{source}` is a {type(obj).__name__} that is not a plain strided tensor",
            why="tensor subclasses and special layouts are not traced",
        )  # fmt: skip
    variation = tracer.variation
    if variation is None or (varying is not None and tracer.config.dynamic is False):
        dims: dict[int, bool] = {}
    elif varying is None:
        dims = variation.dims(source, obj, tracer.config.dynamic)
    else:
        dims = {d: True for d in varying if obj.shape[d] > 1}
    promised = varying is None and variation is not None and torch_private.size_marks(obj) is not None
    if tracer.sizes is None and (dims or promised):
        raise SizesChanged
    _guard_marks(tracer, obj, source)
    spec = tensor_layout.spec(obj, frozenset(dims))
    tracer.guard(source, _hook.TENSOR, spec, name="TENSOR", text=_text(obj, source, dims))
    return _added(tracer, obj, source, dims, promised)


def _text(obj: torch.Tensor, source: Source, dims: Mapping[int, bool]) -> str:
    """What the guard on a tensor compares."""
    shape = ", ".join("*" if d in dims else str(s) for d, s in enumerate(obj.shape))
    dtype = str(obj.dtype).removeprefix("torch.")
    text = f"{source}: {dtype}[{shape}] on {obj.device}"
    text += "" if dims else f", strides {tuple(obj.stride())}"
    return text + (", requires grad" if obj.requires_grad else "")


def _added(tracer: Tracer, obj: torch.Tensor, source: Source, dims: Mapping[int, bool], promised: bool) -> TensorValue:
    """A placeholder for ``obj``, its sizes ``dims`` symbolic. ``promised``: what the program says about them must hold."""
    if tracer.sizes is not None and (dims or promised):
        fake = tracer.sizes.fake(tracer.fake_mode, obj, dims, source, tracer.span, promised=promised)
    else:
        fake = torch_private.fake_static(tracer.fake_mode, obj)
    tracer.graphs.layouts[id(fake)] = fake.shape, fake.stride()
    return TensorValue(tracer.graphs.placeholder(obj, source, fake, tracer.span), source, type(obj))


class _SameMarks:
    """A guard on what the program says about the sizes of a tensor."""

    __slots__ = ("marks",)
    otherwise = "its sizes are marked otherwise"

    def __init__(self, marks: torch_private.SizeMarks) -> None:
        self.marks = marks

    def __call__(self, tensor: torch.Tensor) -> bool:
        return torch_private.size_marks(tensor) in (None, self.marks)


def _guard_marks(tracer: Tracer, obj: torch.Tensor, source: Source) -> None:
    """What the program says about an argument's sizes is what it said when this was traced."""
    if not source.is_argument:
        return
    marks = torch_private.size_marks(obj)
    if marks is None:
        text = f"the sizes of {source} are not marked"
        for mark in torch_private.MARKS:
            tracer.guard(src.instance_dict(source), _hook.MISSING, mark, name="MISSING", text=text)
    else:
        text = f"the sizes of {source} are marked as they were, or not at all"
        tracer.guard(source, _hook.CALL, _SameMarks(marks), name="MARKS", text=text)


def symbol(tracer: Tracer, value: float, source: Source) -> SymbolValue:
    """An input for the integer or float at ``source``."""
    known = tracer.objects.symbols.get(source)
    if known is not None:
        return known
    sizes = tracer.sizes
    if sizes is None:
        raise SizesChanged
    tracer.guard_type(source, type(value))
    made = sizes.integer(value, source, tracer.span) if isinstance(value, int) else sizes.float(value, source)
    node = tracer.graphs.placeholder(value, source, made, tracer.span)
    found = tracer.objects.symbols[source] = SymbolValue(node, source)
    return found


def check_draws(tracer: Tracer, what: str) -> None:
    """Breaks where that costs less than a graph that runs operator by operator, because it draws from generators."""
    if (tracer.config.backend == "fuselens" and not tracer.config.fullgraph) or tracer.graphs.nested:
        raise Break("FL115", what=what)


def generator(tracer: Tracer, value: ObjectValue) -> fx.Node:
    """The input for an existing generator of random numbers; ``meta["val"]`` stands for it."""
    assert value.source is not None
    check_draws(tracer, value.describe())
    generators = tracer.graphs.generators
    found = generators.get(id(value))
    if found is None:
        fake = torch.Generator(value.value.device)
        found = tracer.graphs.placeholder(value.value, value.source, fake, tracer.span)
        generators[id(value)] = found
    return found


_BEGINS = {True: torch_private.begins_evenly, False: torch_private.begins_oddly}


def guard_pairs(tracer: Tracer, value: TensorValue, what: str) -> None:
    """Pairs of numbers are complex ones from an even element of their memory on, eager says. Fake tensors do not know where in its
    memory an input begins."""
    fake, key = value.fake, torch_private.storage_key
    known = (v for v in tracer.objects.known.values() if isinstance(v, TensorValue) and v.source is not None)
    for owner in (v for v in known if key(v.fake) == key(fake) and v.fake.dtype == fake.dtype):
        assert owner.source is not None
        even = torch_private.begins_evenly(tracer.graphs.real(owner))
        text = f"{owner.source}.storage_offset() is {'even' if even else 'odd'}"
        tracer.guard(owner.source, _hook.CALL, _BEGINS[even], name="OFFSET", text=text)
        if (fake.storage_offset() - owner.fake.storage_offset() + (not even)) % 2:
            raise Break("FL107", what=what, why="it begins at an odd element of its memory")
