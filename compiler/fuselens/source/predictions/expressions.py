"""What expressions give and which graph breaks they cause, without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from . import operators
from .calls import Calls
from .values import (
    PLAIN,
    UNKNOWN,
    Constant,
    Container,
    Function,
    Instance,
    Plain,
    Tensor,
    Value,
    item_of,
    join,
    join_all,
    truth,
)


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
            result = self.reported(operators.compared(kind, left, right), node)
            if i + 1 < len(node.ops):
                self._test(result, node)
            left = right
        return result

    # --- operators -----------------------------------------------------------------------------------------------------

    def _on_binop(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        return self.operated(node.op, left, right, node)

    def operated(self, kind: ast.operator, left: Value, right: Value, node: ast.expr | ast.stmt) -> Value:
        """The result of an operator, also in place."""
        return self.reported(operators.operated(kind, left, right), node)

    def _on_subscript(self, node: ast.Subscript) -> Value:
        value = self.evaluate(node.value)
        index = self._index(node.slice, value, node)
        return self.reported(operators.subscripted(value, index, sliced=isinstance(node.slice, ast.Slice)), node)

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
                self._unpack(parts, value)
            case ast.Attribute():
                self._assign_attribute(target, value)
            case ast.Subscript(value=owner, slice=index):
                held = self.evaluate(owner)
                position = self._index(index, held, target)
                self.reported(operators.Outcome(UNKNOWN, *operators.unknown_position(held, position)), target)

    def _unpack(self, parts: list[ast.expr], value: Value) -> None:
        known = value.elements if isinstance(value, Container) else None
        whole = known is not None and len(known) == len(parts) and not any(isinstance(p, ast.Starred) for p in parts)
        for i, part in enumerate(parts):
            if isinstance(part, ast.Starred):
                self.assign(part.value, Container(item_of(value)))
            else:
                self.assign(part, known[i] if known is not None and whole else item_of(value))

    def _assign_attribute(self, target: ast.Attribute, value: Value) -> None:
        held = self.evaluate(target.value)
        if isinstance(held, Instance):
            held.attributes[target.attr] = PLAIN if self.uncertain and isinstance(value, Constant) else value
        elif isinstance(held, Tensor) and target.attr == "data":
            self.found("FL110", target, what=f"assignment to `{self.text(target)}`", why="it changes the tensor")
