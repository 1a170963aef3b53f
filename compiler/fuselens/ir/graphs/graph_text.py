"""torch.fx graphs as readable Python, with the user line that each line came from."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ...record.report import Line, Span
from ..dtypes import short_name

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and_": "&", "or_": "|", "xor": "^", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">=",
    "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_AUGMENTED = {"iadd": "+=", "isub": "-=", "imul": "*=", "itruediv": "/=", "ipow": "**=", "imatmul": "@="}


def show(graph: fx.Graph, name: str) -> tuple[str, tuple[Line, ...]]:
    """``graph`` as the text of a function called ``name``, and its line map; then the functions that its nodes run."""
    lines: list[str] = []
    spans: list[Line] = []
    _show(graph, name, lines, spans)
    return "\n".join(lines) + "\n", tuple(spans)


def _show(graph: fx.Graph, name: str, lines: list[str], spans: list[Line]) -> None:
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    lines.append(f"def {name}(")
    for node in placeholders:
        source = node.meta.get("source")
        lines.append(f"    {node.name}: {kind_of(node.meta.get('val'))},{_comment(source)}")
        _remember(spans, len(lines), node)
    lines.append("):")
    section = None
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        backward = bool(node.meta.get("backward"))
        if backward != section and section is not None and backward and node.op != "output":
            lines.append("    # backward")
        section = backward
        if node.op == "output":
            lines.append(f"    {statement(node)}")
        else:
            span: Span | None = node.meta.get("span")
            where = f"line {span.line}" if span else ""
            if backward and span:
                where = f"backward of line {span.line}"
            lines.append(f"    {statement(node)}{_comment(where)}")
        _remember(spans, len(lines), node)
    for node in graph.nodes:
        for i, body in enumerate(getattr(node.target, "bodies", ())):
            lines += ["", ""]
            _show(body.graph, f"{name}.{node.name}.body{i}", lines, spans)


def _comment(text: str | None) -> str:
    return f"  # {text}" if text else ""


def _remember(spans: list[Line], line: int, node: fx.Node) -> None:
    span = node.meta.get("span")
    if isinstance(span, Span):
        spans.append(Line(line, (span,)))


def kind_of(value: Any) -> str:
    """``f32[4, n]`` for a tensor's metadata."""
    if isinstance(value, torch.Tensor):
        device = "" if value.device.type == "cpu" else f" {value.device}"
        return f"{short_name(value.dtype)}[{', '.join(map(str, value.shape))}]{device}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(kind_of(v) for v in value) + ")"
    return type(value).__name__.replace("Sym", "").lower() if value is not None else "None"


def statement(node: fx.Node) -> str:
    """A node that is no input, as a statement of Python."""
    target, args = node.target, node.args
    if node.op == "output":
        return f"return {_argument(args[0])}"
    kind = kind_of(node.meta.get("val"))
    if node.op == "call_function":
        name = getattr(target, "__name__", str(target))
        if target in (operator.getitem,) and len(args) == 2:
            return f"{node.name}: {kind} = {_argument(args[0])}[{_argument(args[1])}]"
        if getattr(operator, name, None) is target and len(args) == 2:
            if name in _INFIX:
                return f"{node.name}: {kind} = {_argument(args[0])} {_INFIX[name]} {_argument(args[1])}"
            if name in _AUGMENTED:
                return f"{node.name}: {kind} = ({_argument(args[0])} {_AUGMENTED[name]} {_argument(args[1])})"
        return f"{node.name}: {kind} = {_callable(target)}({_arguments(args, node.kwargs)})"
    if node.op == "call_method":
        return f"{node.name}: {kind} = {_argument(args[0])}.{target}({_arguments(args[1:], node.kwargs)})"
    return f"{node.name}: {kind} = self.{target}"


def _callable(target: Any) -> str:
    if type(target).__name__ == "OpOverload":
        return str(target)
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", str(target))
    if module in ("torch.nn.functional", "torch._jit_internal", "torch._C._nn"):
        return f"F.{name}"
    if hasattr(target, "bodies"):
        return name
    if module.startswith("torch._C") or module in ("torch", "torch.functional") or not module:
        return f"torch.{name.lstrip('_') if name == '_set_grad_enabled' else name}"
    return f"{module}.{name}" if module != "builtins" else name


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return ", ".join([*map(_argument, args), *(f"{k}={_argument(v)}" for k, v in kwargs.items())])


def _argument(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_argument, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(_argument, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_argument(v)}" for k, v in value.items()) + "}"
    if isinstance(value, slice):
        parts = ["" if p is None else _argument(p) for p in (value.start, value.stop)]
        return ":".join(parts) + (f":{_argument(value.step)}" if value.step is not None else "")
    if type(value) is int and abs(value) >= 2**64:
        return hex(value)  # Python refuses to write very long ones in decimal
    return repr(value)
