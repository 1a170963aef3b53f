"""An fx graph as one Python function without a single lookup by name: what runs a graph operator by operator.

``fx.GraphModule.forward`` finds ``torch._C._nn.linear`` through three attributes on each call and takes its inputs as
arguments; here every callee and constant is a global of the function and the inputs stay in the tuple that the guards
gather (a frame with a thousand variables does not fit CPython's stack chunk, which then is mapped anew for each call).
A variable that is not needed any more is used again or set to None, so memory is freed as it is there.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

from torch import fx

from .printable import is_keyword_argument

_BINARY = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.matmul: "@", operator.and_: "&", operator.or_: "|",
    operator.xor: "^", operator.lshift: "<<", operator.rshift: ">>", operator.eq: "==", operator.ne: "!=",
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
_UNARY = {operator.neg: "-", operator.pos: "+", operator.invert: "~"}


class _Writer:
    """Writes the lines of one graph; ``space`` are the globals that they need."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.space: dict[str, Any] = {"__builtins__": builtins}  # torch imports modules as the frame below it would
        self.names: dict[fx.Node, str] = {}
        self._bound: dict[int, str] = {}

    def bind(self, value: Any) -> str:
        """The name of a global that is this object."""
        name = self._bound.get(id(value))
        if name is None:
            name = self._bound[id(value)] = f"c{len(self._bound)}"
            self.space[name] = value
        return name

    def text(self, value: Any) -> str:
        """An expression for an argument."""
        if isinstance(value, fx.Node):
            return self.names[value]
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return repr(value)
        if (kind is int and abs(value) < 2**64) or (kind is float and math.isfinite(value)):
            return repr(value) if value >= 0 and math.copysign(1, value) > 0 else f"({value!r})"
        if kind is slice:
            return f"slice({self.text(value.start)}, {self.text(value.stop)}, {self.text(value.step)})"
        if isinstance(value, tuple):
            items = "".join(f"{self.text(v)}, " for v in value)
            if kind is tuple:
                return f"({items})"
            return f"{self.bind(kind)}({items})" if hasattr(kind, "_fields") else f"{self.bind(kind)}(({items}))"
        if isinstance(value, list):
            return f"[{', '.join(map(self.text, value))}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.text(k)}: {self.text(v)}' for k, v in value.items())}}}"
        return self.bind(value)

    def expression(self, node: fx.Node) -> str:
        if node.op == "get_attr":
            return self.bind(operator.attrgetter(str(node.target))(self.module))
        args = [self.text(a) for a in node.args]
        if node.op == "call_function" and not node.kwargs:
            if len(args) == 2 and node.target in _BINARY:
                return f"{args[0]} {_BINARY[node.target]} {args[1]}"
            if len(args) == 2 and node.target is operator.getitem:
                return f"{args[0]}[{args[1]}]"
            if len(args) == 1 and node.target in _UNARY:
                return f"{_UNARY[node.target]}{args[0]}"
        args += [
            f"{k}={self.text(v)}" if is_keyword_argument(k) else f"**{{{k!r}: {self.text(v)}}}"
            for k, v in node.kwargs.items()
        ]
        if node.op == "call_method":
            return f"{args[0]}.{node.target}({', '.join(args[1:])})"
        callee = self.module.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        return f"{self.bind(callee)}({', '.join(args)})"


def straight_line(module: fx.GraphModule) -> Callable[[tuple[Any, ...]], Any]:
    """The graph's function from the tuple of its inputs to its outputs."""
    writer = _Writer(module)
    nodes = list(module.graph.nodes)
    last_use: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(nodes):
        dying = [n for n in dict.fromkeys(node.all_input_nodes) if n not in seen]
        seen.update(dying)
        last_use[node] = dying
    lines: list[str] = []
    inputs = count = 0
    for node in nodes:
        if node.op == "output":
            lines.append(f"return {writer.text(node.args[0])}")
            break
        if node.op == "placeholder":
            writer.names[node] = f"inputs[{inputs}]"
            inputs += 1
            continue
        expression = writer.expression(node)
        free = [writer.names[n] for n in last_use[node] if n.op != "placeholder"]
        if not node.users and not free:
            lines.append(expression)
            continue
        if free:
            name, *others = free
        else:
            name, others = f"v{count}", []
            count += 1
        lines.append(f"{name} = {expression}")
        if not node.users:
            others.append(name)
        if others:
            lines.append(f"{' = '.join(others)} = None")
        writer.names[node] = name
    body = "".join(f"    {line}\n" for line in lines)
    exec(compile(f"def graph(inputs):\n{body}", "<graph>", "exec"), writer.space)
    return writer.space["graph"]
