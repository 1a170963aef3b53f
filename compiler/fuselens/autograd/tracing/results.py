"""The results of the joint graph: a list that grows while what mutates inputs, outputs, and sizes of them are described."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from fuselens import torch_private

from ...ir.contracts.signature import Extent, Result
from ..recorder import OperatorRecorder
from .layouts import fresh_like, has_gaps, offset_of
from .views import storage_root

aten = torch.ops.aten


class Results:
    """``nodes`` in order; ``wrappers`` are the tensors that autograd knows of some, ``integers`` the nodes that are sizes, both by
    position."""

    def __init__(self, recorder: OperatorRecorder) -> None:
        self.recorder = recorder
        self.nodes: list[Any] = []
        self.wrappers: dict[int, torch.Tensor] = {}
        self.integers: dict[int, Any] = {}
        self._taken: set[fx.Node] = set()  # storage roots that a result owns

    def tensors(self) -> Iterator[tuple[int, fx.Node]]:
        """The results that are no sizes, by position."""
        return ((i, n) for i, n in enumerate(self.nodes) if i not in self.integers)

    def extent(self, value: Any) -> Extent:
        """A size as a constant, or as a result that computes it."""
        if not torch_private.is_symbolic_number(value):
            return value
        node = self.recorder.number(value)
        if not isinstance(node, fx.Node):
            return node
        for position, known in self.integers.items():
            if known is node:
                return Result(position)
        self.nodes.append(node)
        self.integers[len(self.nodes) - 1] = node
        return Result(len(self.nodes) - 1)

    def add(self, node: fx.Node, wrapper: torch.Tensor | None, *, owned: bool = False, captured: Any = None) -> int:
        """A new result. ``owned``: the caller keeps the tensor, so it must not share memory with anything else; it begins
        in its memory where the ``captured`` one does."""
        if owned:
            root = storage_root(node)
            if root in self._taken or root.op in ("placeholder", "get_attr"):
                node = self._copied(node, offset_of(captured))
            self._taken.add(storage_root(node))
        self.nodes.append(node)
        if wrapper is not None:
            self.wrappers[len(self.nodes) - 1] = wrapper
        return len(self.nodes) - 1

    def _copied(self, node: fx.Node, offset: Any) -> fx.Node:
        """A copy of a value in memory of its own. Of one with gaps or repetitions, and of one that begins at another
        ``offset`` of its memory than the first, it is a view of the copy of what it is a view of."""
        chain: list[fx.Node] = []
        end = offset_of(node.meta["val"])
        while node is not storage_root(node):
            begin = offset_of(node.meta["val"])
            far = begin is None or (offset is not None and str(end - begin) != str(offset))
            if not far and not has_gaps(node.meta["val"]):
                break
            chain.append(node)
            node = node.args[0]  # type: ignore[assignment]
        copy = self._copied_memory(node) if has_gaps(node.meta["val"]) else self._copied_value(node)
        env, moved = {node: copy}, offset_of(node.meta["val"])
        for view in reversed(chain):
            env[view] = self._replayed(view, env[view.args[0]], moved)  # type: ignore[index]
        return env[chain[0]] if chain else copy

    def _replayed(self, view: fx.Node, base: fx.Node, moved: Any) -> fx.Node:
        """A view of ``base``, whose memory begins ``moved`` elements after that of what ``view`` is a view of."""
        rest = list(view.args[1:])
        if view.target is aten.as_strided.default and len(rest) > 2 and rest[2] is not None:
            begin: Any = rest[2].meta["val"] if isinstance(rest[2], fx.Node) else rest[2]
            rest[2] = self.recorder.argument(begin - moved)
        made = self.recorder.graph.call_function(view.target, (base, *rest), view.kwargs)  # type: ignore[arg-type]
        with torch_private.without_functionalization(), self.recorder.pause():
            args, kwargs = fx.map_arg((made.args, made.kwargs), lambda n: n.meta["val"])
            made.meta.update(view.meta, val=view.target(*args, **kwargs))  # type: ignore[operator]
        return made

    def _copied_value(self, node: fx.Node) -> fx.Node:
        copy = self.recorder.graph.call_function(aten.clone.default, (node,))
        with torch_private.without_functionalization():
            copy.meta.update({**self.recorder.meta, **node.meta}, val=fresh_like(self.recorder, node.meta["val"]))
        return copy

    def _copied_memory(self, node: fx.Node) -> fx.Node:
        """A value with gaps or repetitions in a copy of all the memory that it spans."""
        value = node.meta["val"]
        span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))

        def view(base: fx.Node, sizes: Any, strides: Any, offset: int) -> fx.Node:
            made = self.recorder.graph.call_function(
                aten.as_strided.default, (base, list(sizes), list(strides), offset)
            )
            with torch_private.without_functionalization(), self.recorder.pause():
                made.meta.update(node.meta, val=base.meta["val"].as_strided(sizes, strides, offset))
            return made

        flat = self._copied_value(view(node, (span,), (1,), value.storage_offset()))
        return view(flat, value.shape, value.stride(), 0)
