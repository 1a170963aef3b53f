"""Simplifications of the ATen graph before it is lowered: fewer nodes, the same values and the same aliasing.

In one walk: in-place operators on temporaries become functional, scalar arithmetic on constant fills is folded, nodes
that do nothing are bypassed, equal nodes are computed once; what nobody uses is removed at the end. Each rule is a
function of a node that returns what replaces it. Random operators and operators that mutate are left alone, and no
rewrite makes two of the caller's results (or a result and an input) share memory that did not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from fuselens import torch_private
from fuselens.torch_private import OpOverload

aten = torch.ops.aten

_COPIES = frozenset({"aten.clone", "aten._to_copy", "prims.convert_element_type"})
_FOLDED = frozenset(
    {"aten.add", "aten.sub", "aten.rsub", "aten.mul", "aten.div", "aten.neg", "aten.reciprocal", "aten.sqrt",
     "aten.rsqrt", "aten.pow", "aten.exp", "aten.log", "aten.eq", "aten.ne", "aten.lt", "aten.le", "aten.gt", "aten.ge",
     "aten.logical_not", "aten.bitwise_not", "aten._to_copy", "prims.convert_element_type"}
)  # fmt: skip
_FILLS = {
    "aten.full": lambda args: args[1],
    "aten.full_like": lambda args: args[1],
    "aten.zeros": lambda _: 0,
    "aten.zeros_like": lambda _: 0,
    "aten.ones": lambda _: 1,
    "aten.ones_like": lambda _: 1,
    "aten.scalar_tensor": lambda args: args[0],
}
# x op c that is x, bit for bit (x + 0.0 is not: it turns -0.0 into 0.0)
_NEUTRAL: dict[str, float] = {"aten.mul": 1, "aten.div": 1, "aten.sub": 0, "aten.pow": 1}


def simplify(gm: fx.GraphModule) -> fx.GraphModule:
    """``gm`` with its graph simplified in place. Nodes keep ``meta`` (value and span); new ones inherit it."""
    walk = _Walk(gm)
    walk.run()
    gm.graph.eliminate_dead_code(lambda node: node.is_impure() or _checks(node.target))
    gm.recompile()
    return gm


class _Walk:
    def __init__(self, gm: fx.GraphModule) -> None:
        self.graph = gm.graph
        self.roots: dict[fx.Node, fx.Node] = {}  # the node whose memory a view lies in
        self.viewed: set[fx.Node] = set()  # nodes that some view lies in
        self.known: dict[Any, fx.Node] = {}
        self.fills: dict[fx.Node, Any] = {}
        self.escaping: set[fx.Node] = set()
        self.mutated: set[fx.Node] = set()

    def run(self) -> None:
        for node in self.graph.nodes:
            if node.op == "call_function":
                self._functional(node)
        self._find_roots()
        rules: tuple[Callable[[fx.Node, str], fx.Node | None], ...] = (
            self._folded, self._bypassed, self._repeated, self._scaled
        )  # fmt: skip
        for node in list(self.graph.nodes):
            if node.op != "call_function" or not torch_private.is_pure(node.target):
                continue
            packet = _packet(node)
            for rule in rules:
                replacement = rule(node, packet)
                if replacement is not None:
                    node.replace_all_uses_with(replacement)
                    if node in self.escaping:
                        self.escaping.add(self._root(replacement))
                    self.graph.erase_node(node)
                    break

    def _find_roots(self) -> None:
        for node in self.graph.nodes:
            if node.op == "call_function" and torch_private.is_view(node.target):
                base = next(iter(node.all_input_nodes), None)
                if base is not None:
                    self.roots[node] = self._root(base)
                    self.viewed.add(base)
            elif node.op == "call_function" and _is_getitem(node):
                self.roots[node] = self._root(node.args[0])
            if node.op == "call_function":
                self.mutated.update(self._root(a) for a in _written(node))
        output = next(n for n in reversed(self.graph.nodes) if n.op == "output")
        self.escaping = {self._root(n) for n in output.all_input_nodes}

    def _root(self, node: Any) -> Any:
        return self.roots.get(node, node)

    # --- rules -------------------------------------------------------------------------------------------------

    def _functional(self, node: fx.Node) -> None:
        """``add_(t, 1)`` on a temporary that no view has seen becomes ``add(t, 1)``; later readers get the result."""
        written = _written(node)
        if len(written) != 1 or not _packet(node).endswith("_"):
            return
        (target,) = written
        if node.args[0] is not target or target.op != "call_function" or torch_private.is_view(target.target):
            return
        if any(torch_private.is_view(u.target) or u.op == "output" for u in target.users if u is not node):
            return
        namespace, _, rest = str(node.target).partition(".")
        packet, _, overload = rest.rpartition(".")
        functional = getattr(getattr(getattr(torch.ops, namespace), packet[:-1], None), overload, None)
        if functional is None or _meta_key(target) != _meta_key(node):
            return
        node.target = functional
        later = False
        for other in list(self.graph.nodes):
            if other is node:
                later = True
            elif later and target in other.all_input_nodes:
                other.replace_input_with(target, node)

    def _folded(self, node: fx.Node, packet: str) -> fx.Node | None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return None
        fill = _FILLS.get(packet)
        if fill is not None:
            number = fill(node.args)
            if isinstance(number, (int, float, bool)):
                self.fills[node] = number
            return None
        if packet not in _FOLDED or not node.all_input_nodes:
            return None
        symbolic = any(isinstance(s, torch.SymInt) for s in value.shape)
        if symbolic or not all(n in self.fills for n in node.all_input_nodes):
            return None
        kwargs = {k: v for k, v in node.kwargs.items() if k not in ("device", "memory_format", "layout", "pin_memory")}

        def scalar(n: fx.Node) -> torch.Tensor:
            return torch.tensor(self.fills[n], dtype=n.meta["val"].dtype)

        result = node.target(*map_arg(node.args, scalar), **map_arg(kwargs, scalar))  # type: ignore[operator]
        if result.dtype != value.dtype or result.dim() or result.is_complex():
            return None
        with self.graph.inserting_before(node):
            made = self.graph.call_function(
                aten.full.default, (list(value.shape), result.item()), {"dtype": value.dtype, "device": value.device}
            )
        made.meta = dict(node.meta)
        self.fills[made] = result.item()
        return made

    def _bypassed(self, node: fx.Node, packet: str) -> fx.Node | None:
        """Views, copies and arithmetic that give their operand back."""
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            return None
        if packet in _COPIES:
            source = self._before_widening(source, node)
        if _meta_key(node) is None or _meta_key(node) != _meta_key(source):
            return None
        if torch_private.is_view(node.target):
            return None if self._is_result(node) else source
        copies = packet in _COPIES
        neutral = packet in _NEUTRAL and len(node.args) == 2 and not node.kwargs and _is_number(
            node.args[1], _NEUTRAL[packet]
        )  # fmt: skip
        return source if (copies or neutral) and self._may_share(node, source) else None

    def _before_widening(self, source: fx.Node, node: fx.Node) -> fx.Node:
        """bf16 → f32 → bf16 is the first again: widening loses nothing."""
        inner = source.args[0] if source.op == "call_function" and source.args and _packet(source) in _COPIES else None
        if not isinstance(inner, fx.Node):
            return source
        first, middle = inner.meta.get("val"), source.meta.get("val")
        if not isinstance(first, torch.Tensor) or not isinstance(middle, torch.Tensor):
            return source
        exact = _widens(first.dtype, middle.dtype) and first.is_floating_point() == middle.is_floating_point()
        return inner if exact and first.dtype == node.meta["val"].dtype else source

    def _may_share(self, node: fx.Node, source: fx.Node) -> bool:
        """Whether a copy may become its operand: no result of the caller gains an alias, nothing writes to either."""
        root = self._root(source)
        if root in self.mutated or node in self.mutated:
            return False
        return node not in self.escaping or (root not in self.escaping and root.op == "call_function")

    def _is_result(self, node: fx.Node) -> bool:
        return any(u.op == "output" for u in node.users)

    def _scaled(self, node: fx.Node, packet: str) -> fx.Node | None:
        """A convolution of single points of single channels is a product, which loops compute with what surrounds it."""
        if packet != "aten.convolution" or not _is_of_points(node):
            return None
        x, weight, bias, *_ = node.args
        value = node.meta["val"]
        product = x
        for target, operand in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
            if not isinstance(operand, fx.Node):
                continue
            shape = [operand.meta["val"].shape[0], *[1] * (value.dim() - 2)]
            with self.graph.inserting_before(node):
                wide = self.graph.call_function(aten.view.default, (operand, shape))
                product = self.graph.call_function(target, (product, wide))
            wide.meta = {**node.meta, "val": operand.meta["val"].view(shape)}
            product.meta = dict(node.meta)
            self.roots[wide] = self._root(operand)
        return product  # type: ignore[return-value]

    def _repeated(self, node: fx.Node, packet: str) -> fx.Node | None:
        key = (node.target, _hashable(node.args), _hashable(tuple(sorted(node.kwargs.items()))))
        try:
            found = self.known.setdefault(key, node)
        except TypeError:
            return None
        if found is node:
            return None
        roots = {self._root(node), self._root(found)}
        if roots & self.mutated or self._root(found) in self.mutated:
            return None
        if node in self.escaping and not torch_private.is_view(node.target) and self._root(found) in self.escaping:
            return None
        if torch_private.is_view(node.target) and self._is_result(node):
            return None
        return found


def _widens(first: torch.dtype, second: torch.dtype) -> bool:
    """Whether the second dtype holds all that the first does. Float8 and wide unsigned integers are promoted to nothing."""
    try:
        return first != second and torch.promote_types(first, second) == second
    except RuntimeError:
        return False


def _is_of_points(convolution: fx.Node) -> bool:
    """Whether each result is one element times the weight of its channel. In half precision a bias would be rounded apart."""
    x, weight, bias, stride, padding, _, _, beyond, groups = convolution.args
    assert isinstance(x, fx.Node) and isinstance(weight, fx.Node)
    value, kernel = x.meta["val"], weight.meta["val"]
    channels, *window = map(str, kernel.shape)
    single = all(n == "1" for n in window) and str(groups) == channels == str(value.shape[1])
    plain = all(s == 1 for s in stride) and not any(padding) and not any(beyond)  # type: ignore[union-attr, arg-type]
    wide = value.dtype in (torch.float32, torch.float64)
    return single and plain and kernel.is_contiguous() and (wide or (bias is None and value.is_floating_point()))


def _packet(node: fx.Node) -> str:
    return str(node.target).rpartition(".")[0]


def _checks(target: Any) -> bool:
    """Whether an operator returns nothing: it raises for some values."""
    return isinstance(target, OpOverload) and not target._schema.returns


def _is_getitem(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _written(node: fx.Node) -> list[fx.Node]:
    """Nodes whose memory the operator writes into."""
    found = torch_private.written_operands(node) or ()
    return [n for w in found for n in (w if isinstance(w, (list, tuple)) else (w,)) if isinstance(n, fx.Node)]


def _meta_key(node: fx.Node) -> tuple[Any, ...] | None:
    """What must agree for one node to stand in for another: everything but the values."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    bits = value.is_conj(), value.is_neg()
    return (value.dtype, value.device, _sizes(value.shape), _sizes(value.stride()), str(value.storage_offset()), bits)


def _sizes(values: Iterable[Any]) -> tuple[Any, ...]:
    """Sizes by their expressions: comparing SymInts would add guards."""
    return tuple(v if isinstance(v, int) else str(v) for v in values)


def _is_number(value: Any, number: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == number


def _hashable(value: Any) -> Any:
    """Arguments as a key: 1, 1.0 and True differ, containers by content."""
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(v) for v in value)
    if isinstance(value, (bool, int, float)):
        return type(value), repr(value)
    return value
