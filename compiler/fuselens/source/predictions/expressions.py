"""What expressions give and which graph breaks they cause, without running them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from .calls import Calls
from .values import (
    PLAIN,
    UNKNOWN,
    Array,
    Class,
    Constant,
    Container,
    Function,
    Imported,
    Instance,
    Plain,
    Tensor,
    Value,
    holds_tensors,
    item_of,
    join,
    join_all,
    truth,
)

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Div: operator.truediv,
}  # fmt: skip
_LARGE = 2**63


def _computed(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Value:
    """The result for two numbers of usual size."""
    if not all(isinstance(v, int | float) and abs(v) < _LARGE for v in (left, right)):
        return PLAIN
    try:
        return Constant(function(left, right))
    except ArithmeticError:
        return PLAIN


class Expressions(Calls):
    """Evaluates expressions, one method per kind of node."""

    def evaluate(self, node: ast.expr | None) -> Value:
        if node is None:
            return PLAIN
        self.steps += 1
        method = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if method is not None:
            return method(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.evaluate(child)
        return UNKNOWN

    def evaluate_all(self, nodes: Iterable[ast.expr]) -> tuple[Value, ...]:
        return tuple(self.evaluate(node) for node in nodes)

    # --- conditions ----------------------------------------------------------------------------------------------------

    def condition(self, node: ast.expr) -> bool | None:
        """Evaluates a condition that control flow depends on; its truth, where the source tells."""
        match node:
            case ast.BoolOp():
                return self._operands(node, tested=True)[1]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                negated = self.condition(operand)
                return None if negated is None else not negated
            case ast.NamedExpr():
                return self._test(self.evaluate(node), node.value)
        return self._test(self.evaluate(node), node)

    def _test(self, value: Value, node: ast.expr, code: str = "FL101") -> bool | None:
        """The truth of ``value``, whose ``bool()`` is asked for."""
        if isinstance(value, Tensor):
            self.found(code, node)
        return truth(value)

    def _operands(self, node: ast.BoolOp, tested: bool) -> tuple[Value, bool | None]:
        """Value and truth of ``and`` and ``or``. What follows an operand that decides is not evaluated."""
        decides = isinstance(node.op, ast.Or)
        values: list[Value] = []
        known: bool | None = not decides
        for operand in node.values:
            last = operand is node.values[-1]
            if tested:
                value, true = UNKNOWN, self.condition(operand)
            else:
                value = self.evaluate(operand)
                true = truth(value) if last else self._test(value, operand)
            if true is decides:
                return value if not values else UNKNOWN, known if known is None else decides
            if true is None or last:
                values.append(value)
            known = known if true is not None else None
        return join_all(tuple(values)), known

    def _on_boolop(self, node: ast.BoolOp) -> Value:
        return self._operands(node, tested=False)[0]

    def _on_unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            true = self._test(value, node, "FL102")
            return PLAIN if true is None else Constant(not true)
        if isinstance(node.op, ast.USub) and isinstance(value, Constant) and isinstance(value.value, int | float):
            return Constant(-value.value)
        return PLAIN if isinstance(value, Plain) else value

    def _on_ifexp(self, node: ast.IfExp) -> Value:
        match self.condition(node.test):
            case True:
                return self.evaluate(node.body)
            case False:
                return self.evaluate(node.orelse)
        return join(self.evaluate(node.body), self.evaluate(node.orelse))

    def _on_compare(self, node: ast.Compare) -> Value:
        left = self.evaluate(node.left)
        result: Value = PLAIN
        for i, (kind, comparator) in enumerate(zip(node.ops, node.comparators, strict=True)):
            right = self.evaluate(comparator)
            result = self._compared(kind, left, right, node)
            if i + 1 < len(node.ops):
                self._test(result, node)
            left = right
        return result

    def _compared(self, kind: ast.cmpop, left: Value, right: Value, node: ast.Compare) -> Value:
        none = Constant(None)
        match kind:
            case ast.Is() | ast.IsNot():
                if isinstance(left, Constant) and isinstance(right, Constant):
                    return Constant((left.value is right.value) == isinstance(kind, ast.Is))
                known = isinstance(left, Tensor | Container | Instance | Function | Class | Array | Imported)
                return Constant(isinstance(kind, ast.IsNot)) if right == none and known else PLAIN
            case ast.In() | ast.NotIn():
                searched = isinstance(right, Tensor) or (holds_tensors(right) and not isinstance(left, Constant))
                elements = right.elements if isinstance(right, Container) else None
                if searched or (isinstance(left, Tensor) and elements):
                    self.found("FL102", node)
                return PLAIN
        if none in (left, right):
            return PLAIN
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            return self._elementwise(left, right, mask=True)
        if isinstance(left, Constant) and isinstance(right, Constant) and type(kind) in _COMPARISONS:
            try:
                return Constant(_COMPARISONS[type(kind)](left.value, right.value))
            except TypeError:
                return PLAIN
        return PLAIN if isinstance(left, Plain) or isinstance(right, Plain) else UNKNOWN

    # --- operators -----------------------------------------------------------------------------------------------------

    def _elementwise(self, left: Value, right: Value, mask: bool = False) -> Tensor:
        sides = [v for v in (left, right) if not isinstance(v, Plain)]
        return Tensor(mask, all(isinstance(v, Tensor) and v.single for v in sides))

    def _on_binop(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        return self.operated(node.op, left, right, node)

    def operated(self, kind: ast.operator, left: Value, right: Value, node: ast.expr | ast.stmt) -> Value:
        """The result of an operator, also in place."""
        if isinstance(left, Constant) and isinstance(left.value, str):
            values = right.elements or () if isinstance(right, Container) else (right,)
            if (isinstance(kind, ast.Mod) and "%s" in left.value and any(isinstance(v, Tensor) for v in values)) or (
                isinstance(kind, ast.Mult) and isinstance(right, Tensor)
            ):
                self.found("FL102", node)
            return PLAIN
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            if isinstance(left, Container) or isinstance(right, Container):
                if isinstance(kind, ast.Mult):
                    self.found("FL105", node, what="operator *", why="on a list and a Tensor")
                return UNKNOWN
            bits = isinstance(kind, ast.BitAnd | ast.BitOr | ast.BitXor)
            masks = all(not isinstance(v, Tensor) or v.mask for v in (left, right))
            result = self._elementwise(left, right, mask=bits and masks)
            return replace(result, single=False) if isinstance(kind, ast.MatMult) else result
        if isinstance(left, Array) or isinstance(right, Array):
            self.found("FL105", node, what="an operator", why="on an array")
            return Array()
        if isinstance(left, Container):
            if isinstance(kind, ast.Add) and isinstance(right, Container):
                return join(replace(left, elements=None), replace(right, elements=None))
            return replace(left, elements=None) if isinstance(kind, ast.Mult) else UNKNOWN
        if isinstance(left, Constant) and isinstance(right, Constant) and type(kind) in _ARITHMETIC:
            return _computed(_ARITHMETIC[type(kind)], left.value, right.value)
        return PLAIN if isinstance(left, Plain) and isinstance(right, Plain) else UNKNOWN

    def _on_subscript(self, node: ast.Subscript) -> Value:
        value = self.evaluate(node.value)
        index = self._index(node.slice, value, node)
        match value:
            case Tensor():
                self._indexed(index, node)
                return Tensor(value.mask)
            case Plain():
                return PLAIN
            case Array():
                self.found("FL105", node, what="subscript", why="of an array")
                return Array()
            case Container() if isinstance(index, Constant) and not value.mapping and value.elements is not None:
                try:
                    return value.elements[index.value]
                except (IndexError, TypeError):
                    return UNKNOWN
            case Container():
                if isinstance(index, Tensor) and not value.mapping:
                    self.found("FL105", node, what="an index", why="a Tensor is not known while tracing")
                return replace(value, elements=None) if isinstance(node.slice, ast.Slice) else value.item
            case Instance(contents=contents) if contents:
                return item_of(value)
        return item_of(value) if isinstance(value, Instance) else UNKNOWN

    def _index(self, index: ast.expr, value: Value, node: ast.expr | ast.stmt) -> Value:
        """An index; the bounds of slices must be numbers."""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        values: list[Value] = []
        for part in parts:
            if isinstance(part, ast.Slice):
                bounds = [self.evaluate(b) for b in (part.lower, part.upper, part.step) if b is not None]
                if isinstance(value, Tensor | Container) and any(isinstance(b, Tensor) for b in bounds):
                    self.found("FL102", node)
                values.append(PLAIN)
            else:
                values.append(self.evaluate(part))
        return Container(UNKNOWN, tuple(values)) if isinstance(index, ast.Tuple) else values[0]

    def _indexed(self, index: Value, node: ast.expr) -> None:
        """Reading a tensor at ``index``. Masks give a shape that depends on data, a tensor without dimensions a number."""
        parts = index.elements or () if isinstance(index, Container) else (index,)
        if any(isinstance(p, Tensor) and p.mask and not p.single for p in parts):
            self.found("FL108", node)
        elif any(isinstance(p, Tensor) and p.single and not p.mask for p in parts):
            self.found("FL102", node)

    # --- names and attributes ------------------------------------------------------------------------------------------

    def _on_constant(self, node: ast.Constant) -> Value:
        return Constant(node.value)

    def _on_name(self, node: ast.Name) -> Value:
        return self.look_up(node.id)

    def _on_namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.variables[node.target.id] = value
        return value

    def _on_attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.evaluate(node.value), node.attr, node)

    def _on_starred(self, node: ast.Starred) -> Value:
        return self.evaluate(node.value)

    def _on_await(self, node: ast.Await) -> Value:
        self.evaluate(node.value)
        return UNKNOWN

    # --- containers ----------------------------------------------------------------------------------------------------

    def _on_list(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        values = self.evaluate_all(node.elts)
        if any(isinstance(e, ast.Starred) for e in node.elts):
            items = (item_of(v) if isinstance(e, ast.Starred) else v for e, v in zip(node.elts, values, strict=True))
            return Container(join_all(tuple(items)))
        return Container(join_all(values), values)

    _on_tuple = _on_set = _on_list

    def _on_dict(self, node: ast.Dict) -> Value:
        for key in node.keys:
            self.evaluate(key)
        return Container(join_all(self.evaluate_all(node.values)), mapping=True)

    def _on_joinedstr(self, node: ast.JoinedStr) -> Value:
        for part in node.values:
            if isinstance(part, ast.FormattedValue) and isinstance(self.evaluate(part.value), Tensor):
                self.found("FL102", node)
        return PLAIN

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        return Container(self._generated(node.generators, [node.elt])[0])

    _on_listcomp = _on_setcomp = _on_generatorexp = _comprehension

    def _on_dictcomp(self, node: ast.DictComp) -> Value:
        return Container(self._generated(node.generators, [node.key, node.value])[1], mapping=True)

    def _generated(self, generators: list[ast.comprehension], results: list[ast.expr]) -> tuple[Value, ...]:
        """What a comprehension's ``results`` are; its variables are its own."""
        outside = dict(self.variables)
        reached = True
        for generator in generators:
            self.assign(generator.target, item_of(self.evaluate(generator.iter)))
            for test in generator.ifs:
                reached = self.condition(test) is not False and reached
        values = self.evaluate_all(results) if reached else tuple(UNKNOWN for _ in results)
        self.variables = outside
        return values

    def _on_lambda(self, node: ast.Lambda) -> Value:
        return Function(node, self.variables, qualname="<lambda>")

    # --- assignment ----------------------------------------------------------------------------------------------------

    def assign(self, target: ast.expr, value: Value) -> None:
        """Binds ``target``, which may be a pattern."""
        match target:
            case ast.Name(id=name):
                self.variables[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                known = value.elements if isinstance(value, Container) else None
                whole = not any(isinstance(p, ast.Starred) for p in parts)
                for i, part in enumerate(parts):
                    if isinstance(part, ast.Starred):
                        self.assign(part.value, Container(item_of(value)))
                    elif known is not None and whole and len(known) == len(parts):
                        self.assign(part, known[i])
                    else:
                        self.assign(part, item_of(value))
            case ast.Attribute(value=owner, attr=name):
                held = self.evaluate(owner)
                if isinstance(held, Instance):
                    held.attributes[name] = PLAIN if self.uncertain and isinstance(value, Constant) else value
                elif isinstance(held, Tensor) and name == "data":
                    self.found(
                        "FL110", target, what=f"assignment to `{self.text(target)}`", why="it changes the tensor"
                    )
            case ast.Subscript(value=owner, slice=index):
                held = self.evaluate(owner)
                position = self._index(index, held, target)
                if isinstance(held, Container) and isinstance(position, Tensor) and not held.mapping:
                    self.found("FL105", target, what="an index", why="a Tensor is not known while tracing")
