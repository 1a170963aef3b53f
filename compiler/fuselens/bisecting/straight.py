"""The function ``graph`` of a graph's program (see :mod:`fuselens.ir.graphs.program_text`), statement by statement, and parts of it.

Nothing here imports torch: who searches only counts statements.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

_CHANGES = frozenset({"setitem", "setattr", "delitem", "set_grad_enabled", "_set_grad_enabled", "manual_seed"})


class NoProgram(ValueError):
    """A file is no program of a graph; the message says why."""


@dataclass(frozen=True, slots=True)
class Statement:
    """``name`` is what it defines. One that ``changes`` something has an effect beside that."""

    text: str
    name: str
    uses: frozenset[str]
    changes: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Some statements of a graph, by number. ``given`` are its inputs: names, and after how many statements of the whole graph
    they have the value that they are given. ``results`` are expressions."""

    kept: tuple[int, ...]
    given: tuple[tuple[str, int], ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    parameters: tuple[str, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]

    @property
    def whole(self) -> Part:
        return Part(tuple(range(len(self.statements))), tuple((p, 0) for p in self.parameters), self.results)

    def part(self, kept: Iterable[int], results: tuple[str, ...], start: int = 0) -> Part:
        """Those of the statements ``kept`` that lead to ``results`` or change something. What they use of others is given: with
        the value it has where it was made, and at ``start``, where the part begins, if it was made before."""
        statements = self.statements
        needed, used = set[int](), names(results)
        for number in sorted(kept, reverse=True):
            statement = statements[number]
            if statement.name in used or statement.changes:
                needed.add(number)
                used |= statement.uses
        born = dict.fromkeys(self.parameters, 0) | {s.name: k + 1 for k, s in enumerate(statements)}
        inside = {statements[k].name for k in needed}
        given = [(name, max(start, at)) for name, at in born.items() if name in used - inside]
        return Part(tuple(sorted(needed)), tuple(given), results)

    def text(self, part: Part) -> str:
        """The part as a function ``graph(self, …)``."""
        names = ", ".join(("self", *(name for name, _ in part.given)))
        body = [self.statements[k].text for k in part.kept]
        results = ", ".join(part.results)
        lines = [f"def graph({names}):", *(f"    {line}" for line in body), f"    return ({results},)"]
        return "\n".join(lines) + "\n"


def read(source: str) -> Lines:
    """The statements of a program. Raises NoProgram."""
    try:
        functions = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    except (SyntaxError, ValueError) as error:
        raise NoProgram(f"it cannot be parsed: {error}") from None
    if not {"graph", "inputs", "called"} <= functions.keys():
        raise NoProgram("it has no functions `graph`, `inputs` and `called`, as the program of a graph has")
    graph = functions["graph"]
    *body, last = graph.body
    if not isinstance(last, ast.Return) or last.value is None:
        raise NoProgram("its function `graph` cannot be run on its own")
    results = last.value.elts if isinstance(last.value, (ast.Tuple, ast.List)) else [last.value]
    statements = [_statement(node) for node in body if not _forgets(node)]
    names = [a.arg for a in graph.args.args[1:]]
    return Lines(tuple(names), tuple(statements), tuple(ast.unparse(r) for r in results))


def _statement(node: ast.stmt) -> Statement:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        node = ast.copy_location(ast.Assign([node.target], node.value), node)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        changes = any(_is_change(call.func) for call in ast.walk(node.value) if isinstance(call, ast.Call))
        return Statement(ast.unparse(node), node.targets[0].id, frozenset(names), changes)
    return Statement(ast.unparse(node), "", frozenset(names), True)


def _is_change(function: ast.expr) -> bool:
    """Whether a call by that name has an effect, as ``add_`` and ``setitem`` have."""
    text = ast.unparse(function)
    words = [w for w in text.split(".") if w not in ("default", "Tensor", "Scalar")]
    name = words[-1] if words else ""
    return name in _CHANGES or (name.endswith("_") and not name.endswith("__"))


def _forgets(node: ast.stmt) -> bool:
    """``x = None``: fx writes it where a value is used for the last time."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None


def names(results: Iterable[str]) -> set[str]:
    return {n.id for text in results for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
