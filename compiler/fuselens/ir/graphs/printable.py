"""Graphs whose Python code means what their nodes say.

``fx`` writes arguments by ``repr`` and operators without parentheses. What does not come back as it was (classes,
enumerations, ``complex(-0.0, nan)``, ``(-2) ** x``) becomes a constant: an attribute of the module.
"""

from __future__ import annotations

import keyword
import math
import operator
from collections.abc import Sequence
from types import EllipsisType, NoneType
from typing import Any

import torch
from torch import fx

_BY_REPR = (
    NoneType, bool, str, bytes, EllipsisType, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def graph_module(graph: fx.Graph) -> fx.GraphModule:
    """A module that runs ``graph``, in which constants may take the place of arguments."""
    root = torch.nn.Module()
    for node in list(graph.nodes):
        _write_out(node, root)
    return fx.GraphModule(root, graph)


def is_keyword_argument(name: str) -> bool:
    """Whether ``f(name=…)`` can be written."""
    return name.isidentifier() and not keyword.iskeyword(name)


def call_with_names(function: Any, names: Sequence[str], args: Sequence[Any], values: Sequence[Any]) -> Any:
    """Calls with keyword arguments whose names are none in Python's grammar, as ``uniform_(from=…)``."""
    return function(*args, **dict(zip(names, values, strict=True)))


def _write_out(node: fx.Node, root: torch.nn.Module) -> None:
    if not node.op.startswith("call_"):
        return
    made = _Made(node, root)
    node.args = tuple(map(made.argument, node.args))
    node.kwargs = {name: made.argument(value) for name, value in node.kwargs.items()}
    if node.target in (operator.pow, operator.ipow) and _is_negative(node.args[0]):
        node.update_arg(0, made.constant(node.args[0]))
    if node.op != "call_module" and not all(map(is_keyword_argument, node.kwargs)):
        function = getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target
        given = made.constant(function), tuple(node.kwargs), node.args, tuple(node.kwargs.values())
        node.op, node.target, node.args, node.kwargs = "call_function", call_with_names, given, {}


class _Made:
    """Makes nodes for what cannot be written in a node's arguments, before that node."""

    def __init__(self, node: fx.Node, root: torch.nn.Module) -> None:
        self.node, self.graph, self.root = node, node.graph, root

    def constant(self, value: Any) -> fx.Node:
        name = f"constant{len(self.root.__dict__)}"
        self.root.__dict__[name] = value
        return self._insert("get_attr", name, (), value)

    def argument(self, value: Any) -> Any:
        """What can be written for ``value``."""
        kind = type(value)
        if isinstance(value, fx.Node) or _comes_back(value):
            return value
        if kind is slice:
            return slice(*(self.argument(v) for v in (value.start, value.stop, value.step)))
        if isinstance(value, dict):
            if not all(map(_comes_back, value)):
                return self._called(dict, [(self.argument(k), self.argument(v)) for k, v in value.items()])
            return {k: self.argument(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.argument(v) for v in value]
        if isinstance(value, tuple):
            items = tuple(self.argument(v) for v in value)
            if kind is tuple:
                return items
            return self._called(kind, *items) if hasattr(kind, "_fields") else self._called(kind, items)
        return self.constant(value)

    def _called(self, kind: type, *args: Any) -> fx.Node:
        return self._insert("call_function", call_with_names, (self.constant(kind), (), args, ()), None)

    def _insert(self, op: str, target: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
        with self.graph.inserting_before(self.node):
            made = self.graph.create_node(op, target, args)
        made.meta.update(val=value, span=self.node.meta.get("span"))
        return made


def _comes_back(value: Any) -> bool:
    """Whether ``eval(repr(value))``, with the names that fx knows, is the same again."""
    kind = type(value)
    if kind is int:
        return abs(value) < 2**64  # Python refuses to write very long ones
    if kind is float:
        return not math.isnan(value) or math.copysign(1, value) > 0
    if kind is complex:
        parts = value.real, value.imag
        return all(math.isfinite(p) and math.copysign(1, p) > 0 for p in parts) and parts[1] != 0
    return kind in _BY_REPR


def _is_negative(value: Any) -> bool:
    return isinstance(value, (int, float)) and (value < 0 or math.copysign(1, value) < 0)
