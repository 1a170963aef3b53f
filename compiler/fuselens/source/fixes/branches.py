"""Branches on a tensor's value: both sides computed, and ``torch.where`` chooses; checks instead of assertions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ...record.report import Diagnostic, Edit, Fix, Span
from .effects import is_output
from .purity import is_pure
from .source import FORMATTED, Source

_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_TRUTHS = frozenset(
    "all any equal isnan isinf isfinite logical_and logical_or logical_not logical_xor isclose isin eq ne lt le gt ge "
    "bool signbit".split()
) - {"equal"}  # torch.equal gives a Python bool


def branch_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    """For a condition, or a statement or an expression that has one, at ``span``."""
    node = source.at(finding.span, ast.expr) or source.at(finding.span, ast.stmt)
    if node is None:
        return
    if isinstance(node, ast.expr) and not isinstance(node, ast.IfExp):
        node = _whole_condition(source, node)
        holder = source.parents[node]
        if getattr(holder, "test", None) is node:
            node = holder
    match node:
        case ast.IfExp():
            yield from _ternary(source, node)
        case ast.If():
            yield from _if(source, node)
        case ast.BoolOp():
            if (text := condition(source, node, {})) is not None:
                yield Fix("Combine the conditions with & and |", (source.replaced(node, f"({text})"),))


def chooses(source: Source, span: Span | None) -> bool:
    """Whether what is at ``span`` decides between two ways to go on; an assertion does not."""
    node = source.at(span, ast.expr) or source.at(span, ast.stmt)
    return node is not None and not isinstance(source.statement(node), ast.Assert)


def _whole_condition(source: Source, node: ast.expr) -> ast.expr:
    for parent in source.above(node):
        if not (isinstance(parent, ast.BoolOp) or (isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not))):
            break
        node = parent
    return node


def condition(source: Source, node: ast.expr, names: dict[str, str]) -> str | None:
    """The text of a tensor of bool that says what ``node`` says as a condition; ``names`` are called otherwise. None
    where parts must not be evaluated, or combined, as tensors."""
    if not is_pure(source, node):
        return None
    match node:
        case ast.BoolOp(op=op, values=values):
            parts = [condition(source, value, names) for value in values]
            sign = " & " if isinstance(op, ast.And) else " | "
            return None if None in parts else sign.join(f"({part})" for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = condition(source, operand, names)
            return None if inner is None else f"~({inner})"
        case ast.Compare(ops=[op], left=left, comparators=[right]):
            plain = isinstance(op, _COMPARISONS) and not any(_is_text(side) for side in (left, right))
            return source.renamed(node, names) if plain else None
        case ast.Compare() | ast.Constant():
            return None
        case ast.Call(func=ast.Name(id="bool"), args=[argument], keywords=[]):
            return condition(source, argument, names)
        case ast.Call(func=ast.Attribute(attr=name)) if name in _TRUTHS:
            return source.renamed(node, names)
        case ast.Call(func=ast.Name(id="isinstance" | "hasattr" | "callable" | "len")):
            return None
    text = source.renamed(node, names)
    return f"{text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f'({text})'} != 0"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str | bytes))


def _chosen(node: ast.expr) -> bool:
    """Whether ``torch.where`` could choose this value."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float | complex) and not isinstance(node.value, bool)
    return not isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Lambda, ast.Starred, *FORMATTED))


# --- conditional expressions ----------------------------------------------------------------------------------------


def _ternary(source: Source, node: ast.IfExp) -> Iterator[Fix]:
    test = condition(source, node.test, {})
    sides = (node.body, node.orelse)
    if test is None or not all(_chosen(side) and is_pure(source, side) for side in sides):
        return
    where, imports = source.spelled("torch.where", node)
    text = ", ".join((test, *(source.argument(side) for side in sides)))
    edits = (*imports, source.replaced(node, f"{where}({text})"))
    yield Fix("Compute both values and choose with torch.where", edits)


# --- if statements --------------------------------------------------------------------------------------------------


class _Unfit(Exception):
    """A branch does what cannot be done on both sides, or no expression can choose."""


@dataclass(slots=True)
class _Side:
    """What a branch does: lines to run before, what the variables are afterwards, what it returns."""

    label: str
    lines: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    result: list[str] | None = None


class _Converter:
    """Writes an ``if`` statement without branches. ``statements`` are those that are replaced: the ``if``, and the
    ``return`` after it where that is the other side."""

    def __init__(self, source: Source, statement: ast.If, where: str, statements: list[ast.stmt]) -> None:
        function = source.function(statement)
        if function is None or any(isinstance(n, ast.Global | ast.Nonlocal) for n in ast.walk(function)):
            raise _Unfit
        self.source, self.statement, self.where, self.statements = source, statement, where, statements
        self.taken: set[str] = set()
        self.parameters = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
        inside = {n for s in statements for n in ast.walk(s)}
        names = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n not in inside]
        self.read = {n.id for n in names if isinstance(n.ctx, ast.Load)}  # elsewhere in the function
        before = {n.id for n in names if isinstance(n.ctx, ast.Store) and n.lineno < statement.lineno}
        self.bound = before | self.parameters

    def convert(self) -> list[str]:
        body, orelse = self.statement.body, self.statement.orelse or self.statements[1:]
        yes, no = self.side(body, "then"), self.side(orelse, "else")
        if (yes.result is None) != (no.result is None):
            raise _Unfit
        test = condition(self.source, self.statement.test, {})
        if test is None:
            raise _Unfit
        lines = [*yes.lines, *no.lines]
        if yes.result is not None and no.result is not None:
            if len(yes.result) != len(no.result):
                raise _Unfit
            test = self.named(test, lines, once=len(yes.result) == 1)
            results = [self.choice(test, a, b) for a, b in zip(yes.result, no.result, strict=True)]
            return [*lines, f"return {', '.join(results)}"]
        merged = self.merged(yes, no)
        if not merged:
            raise _Unfit
        test = self.named(test, lines, once=len(merged) == 1)
        values = [self.choice(test, a, b) for a, b in merged.values()]
        places = any(not name.isidentifier() for name in merged)
        if len(merged) > 1 and (places or _names_in(values) & merged.keys()):  # one would read what another has changed
            return [*lines, f"{', '.join(merged)} = {', '.join(values)}"]
        return [*lines, *(f"{name} = {value}" for name, value in zip(merged, values, strict=True))]

    def merged(self, yes: _Side, no: _Side) -> dict[str, tuple[str, str]]:
        """Both values of each variable that is read afterwards."""
        found: dict[str, tuple[str, str]] = {}
        for name in dict.fromkeys((*yes.values, *no.values)):
            if name not in self.read and name.isidentifier():
                continue
            element = name.endswith("]")
            if not (name in yes.values and name in no.values) and name not in self.bound and not element:
                raise _Unfit
            found[name] = yes.values.get(name, name), no.values.get(name, name)
        return found

    def named(self, test: str, lines: list[str], *, once: bool) -> str:
        if once:
            return test
        name = self.fresh("condition")
        lines.append(f"{name} = {test}")
        return name

    def fresh(self, name: str) -> str:
        found = self.source.unused(name)
        while found in self.taken:
            found += "_"
        self.taken.add(found)
        return found

    def choice(self, test: str, yes: str, no: str) -> str:
        return f"{self.where}({test}, {yes}, {no})"

    def side(self, block: list[ast.stmt], label: str, values: Mapping[str, str] = MappingProxyType({})) -> _Side:
        """What ``block`` computes, after ``values``. A value that is used again in it gets a variable of its own."""
        side = _Side(label, values=dict(values))
        for position, statement in enumerate(block):
            rest = block[position + 1 :]
            match statement:
                case ast.Pass():
                    continue
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.assign(side, name, self.text(value, side), rest)
                case ast.AugAssign(target=ast.Name(id=name), op=op, value=value) if name not in self.parameters:
                    sign = _SIGNS.get(type(op))
                    if sign is None:
                        raise _Unfit
                    old = side.values.get(name, name)
                    self.assign(side, name, f"{old} {sign} ({self.text(value, side)})", rest)
                case ast.Assign(targets=[ast.Subscript() | ast.Attribute() as place], value=value):
                    self.store(side, place, self.text(value, side), rest)
                case ast.AugAssign(target=ast.Subscript() | ast.Attribute() as place, op=op, value=value):
                    if type(op) not in _SIGNS:
                        raise _Unfit
                    text = f"{self.source.text(place)} {_SIGNS[type(op)]} ({self.text(value, side)})"
                    self.store(side, place, text, rest)
                case ast.Return(value=ast.expr() as value):
                    parts = value.elts if isinstance(value, ast.Tuple) else [value]
                    side.result = [self.text(part, side) for part in parts]
                    return side
                case ast.If(test=test) if not rest:
                    self.inner(side, statement, test)
                case _:
                    raise _Unfit
        return side

    def inner(self, side: _Side, statement: ast.If, test: ast.expr) -> None:
        """An ``elif``, or an ``if`` at the end of its block."""
        self.text(test, side)
        again = condition(self.source, test, side.values)
        yes, no = (self.side(b, side.label, side.values) for b in (statement.body, statement.orelse))
        if again is None or yes.result is not None or no.result is not None:
            raise _Unfit
        side.lines += [*yes.lines, *no.lines]
        for name, (one, other) in self.merged(yes, no).items():
            side.values[name] = one if one == other else self.choice(again, one, other)

    def store(self, side: _Side, place: ast.Subscript | ast.Attribute, text: str, rest: list[ast.stmt]) -> None:
        """An assignment to an element or an attribute, by its text: what is in it must not be needed, or change, after."""
        base = {n.id for n in ast.walk(place) if isinstance(n, ast.Name)}
        after = {n.id for s in rest for n in ast.walk(s) if isinstance(n, ast.Name)}
        if not is_pure(self.source, place) or base & (after | side.values.keys()):
            raise _Unfit
        side.values[self.source.text(place)] = text

    def assign(self, side: _Side, name: str, text: str, rest: list[ast.stmt]) -> None:
        if any(isinstance(n, ast.Name) and n.id == name for s in rest for n in ast.walk(s)):
            temporary = self.fresh(f"{name}_{side.label}")
            side.lines.append(f"{temporary} = {text}")
            text = temporary
        side.values[name] = text

    def text(self, value: ast.expr, side: _Side) -> str:
        if not _chosen(value) or not is_pure(self.source, value):
            raise _Unfit
        read = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        if any(not v.isidentifier() for n, v in side.values.items() if n in read):
            raise _Unfit
        return self.source.renamed(value, side.values)


_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.FloorDiv: "//", ast.Mod: "%",
    ast.MatMult: "@",
}  # fmt: skip


def _names_in(texts: list[str]) -> set[str]:
    return {n.id for t in texts for n in ast.walk(ast.parse(t, mode="eval")) if isinstance(n, ast.Name)}


def _if(source: Source, node: ast.If) -> Iterator[Fix]:
    if not node.orelse and all(is_output(source, s) for s in node.body):
        yield from _output(source, node)
        return
    yield from _masked(source, node)
    yield from _written_where(source, node)
    after = source.next(node)
    returns = isinstance(node.body[-1], ast.Return) and not node.orelse
    if returns and not isinstance(after, ast.Return):
        return
    statements: list[ast.stmt] = [node, after] if returns and after is not None else [node]
    if source.block(node) is getattr(source.parents[node], "orelse", None) and isinstance(source.parents[node], ast.If):
        parent = source.parents[node]
        if source.text(node).startswith("elif"):  # the whole chain is one statement
            assert isinstance(parent, ast.If)
            yield from _if(source, parent)
            return
    where, imports = source.spelled("torch.where", node)
    try:
        edit = source.rewritten(statements, _Converter(source, node, where, statements).convert())
    except _Unfit:
        return
    if edit is not None:
        yield Fix("Compute both sides and choose with torch.where", (*imports, edit))
        yield from _cond(source, node, edit, where, imports)


def _output(source: Source, node: ast.If) -> Iterator[Fix]:
    """A branch that does nothing but print, log or warn."""
    if not is_pure(source, node.test, reads=True):
        return
    compiling, imports = source.spelled("torch.compiler.is_compiling", node)
    test = source.text(node.test)
    inner = f"({test})" if isinstance(node.test, ast.BoolOp | ast.IfExp | ast.Lambda) else test
    edit = source.replaced(node.test, f"not {compiling}() and {inner}")
    yield Fix("Check and print only where the function is not compiled", (*imports, edit))


def _masked(source: Source, node: ast.If) -> Iterator[Fix]:
    """``if mask.any(): x[mask] = …``: where nothing is chosen, nothing is written."""
    match node.test:
        case ast.Call(func=ast.Attribute(value=mask, attr="any"), args=[]) if not source.dotted(mask):
            pass
        case ast.Call(func=function, args=[mask]) if source.dotted(function) == "torch.any":
            pass
        case _:
            return
    written = [s.targets[0] if isinstance(s, ast.Assign) else getattr(s, "target", None) for s in node.body]
    by_mask = all(isinstance(w, ast.Subscript) and ast.dump(w.slice) == ast.dump(mask) for w in written)
    if by_mask and not node.orelse and not source.text(node).startswith("elif"):
        edit = source.rewritten([node], [source.text(s) for s in node.body])
        if edit is not None:
            yield Fix("Write by the mask in any case", (edit,))


def _written_where(source: Source, node: ast.If) -> Iterator[Fix]:
    """``if test: x[mask] = value``, where the mask is computed: nothing is written where the test is false."""
    test = condition(source, node.test, {})
    if test is None or node.orelse or source.text(node).startswith("elif") or len(node.body) != 1:
        return
    match node.body[0]:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(), slice=mask) as place], value=ast.Constant() as value):
            by = condition(source, mask, {}) if isinstance(mask, ast.Call | ast.Compare | ast.UnaryOp) else None
            if by is None:
                return
            line = f"{source.text(place.value)}[({test}) & ({by})] = {source.text(value)}"
            if (edit := source.rewritten([node], [line])) is not None:
                yield Fix("Write where both the condition and the mask hold", (edit,))


def _cond(source: Source, node: ast.If, edit: Edit, where: str, imports: tuple[Edit, ...]) -> Iterator[Fix]:
    """For one variable: ``torch.cond`` runs one side only. Its sides must not return what they were given."""
    try:
        (assignment,) = ast.parse(edit.replacement).body
    except (SyntaxError, ValueError):
        return
    match assignment:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function, args=[test, yes, no])):
            if ast.unparse(function) != where:
                return
            test_text = ast.unparse(test)
            sides = [ast.unparse(s) + (".clone()" if isinstance(s, ast.Name) else "") for s in (yes, no)]
            spelled = where.removesuffix("where") + "cond" if where.endswith(".where") else "torch.cond"
            text = f"{name} = {spelled}({test_text}, lambda: {sides[0]}, lambda: {sides[1]})"
            yield Fix("Run one side with torch.cond", (*imports, source.replaced(node, text)))
