"""The text that fixes are made for: its syntax tree by position, and edits that fit into it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ...record.report import Edit, Span
from ..discovery import Definition, SourceModule

N = TypeVar("N", bound=ast.AST)
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_NEW = [getattr(ast, name) for name in ("TemplateStr", "Interpolation") if hasattr(ast, name)]
FORMATTED: tuple[type[ast.expr], ...] = (ast.JoinedStr, ast.FormattedValue, *_NEW)
"""f-strings, 3.14's t-strings, and what stands between their braces."""
_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set,
          ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)  # fmt: skip


class Source(SourceModule):
    """One parsed file. Raises SyntaxError."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text, path)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._by_place: dict[Span, list[ast.expr | ast.stmt]] = {}
        for node in self.parents:
            if isinstance(node, ast.expr | ast.stmt):
                for place in {self.span(node), self.place(node)}:
                    self._by_place.setdefault(place, []).append(node)

    # --- finding --------------------------------------------------------------------------------------------------------

    def at(self, span: Span | None, kind: type[N]) -> N | None:
        """The outermost node of ``kind`` whose text is exactly ``span``."""
        found = self._by_place.get(span, ()) if span is not None else ()
        return next((node for node in found if isinstance(node, kind)), None)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that ``node`` is part of, from the inside."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The statement that ``node`` is, or is part of."""
        return next((n for n in (node, *self.above(node)) if isinstance(n, ast.stmt)), None)

    def function(self, node: ast.AST) -> Definition | None:
        """The innermost function around ``node``; None in a lambda, a comprehension's scope does not count."""
        found = next((n for n in self.above(node) if isinstance(n, Scope)), None)
        return found if isinstance(found, Definition) else None

    def owner(self, function: Definition) -> ast.ClassDef | None:
        return next((n for n in self.above(function) if isinstance(n, ast.ClassDef)), None)

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements that ``statement`` is one of."""
        for _, value in ast.iter_fields(self.parents[statement]):
            if isinstance(value, list) and statement in value:
                return value
        return [statement]

    def next(self, statement: ast.stmt) -> ast.stmt | None:
        block = self.block(statement)
        position = block.index(statement) + 1
        return block[position] if position < len(block) else None

    # --- text -----------------------------------------------------------------------------------------------------------

    def text(self, node: ast.expr | ast.stmt) -> str:
        return self.between(self.span(node))

    def between(self, span: Span) -> str:
        lines = self.lines[span.line - 1 : span.end_line]
        lines[-1] = lines[-1][: span.end_column]
        lines[0] = lines[0][span.column :]
        return b"\n".join(lines).decode("utf-8", "surrogatepass")

    def operand(self, node: ast.expr) -> str:
        """The text of ``node`` as an operand of any operator, or the receiver of a method."""
        text = self.text(node)
        number = isinstance(node, ast.Constant) and not isinstance(node.value, str | bytes)
        inside = isinstance(node, ast.Tuple | ast.GeneratorExp) and not text.startswith("(")
        return f"({text})" if number or inside or not isinstance(node, _ATOMS) else text

    def argument(self, node: ast.expr) -> str:
        """The text of ``node`` as an argument of a call."""
        text = self.text(node)
        bare = isinstance(node, ast.Tuple) and not text.startswith("(")
        return f"({text})" if bare or isinstance(node, ast.NamedExpr | ast.Yield | ast.YieldFrom) else text

    def indentation(self, statement: ast.stmt) -> str:
        line = self.lines[statement.lineno - 1].decode("utf-8", "surrogatepass")
        return line[: len(line) - len(line.lstrip())]

    def alone(self, *statements: ast.stmt) -> bool:
        """Whether nothing but comments stands on the lines of these statements besides them."""
        first, last = statements[0], statements[-1]
        before = self.lines[first.lineno - 1][: first.col_offset]
        after = self.lines[(last.end_lineno or last.lineno) - 1][last.end_col_offset or 0 :].strip()
        return not before.strip() and (not after or after.startswith(b"#"))

    # --- edits ----------------------------------------------------------------------------------------------------------

    def replaced(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        return Edit(self.span(node), text)

    def rewritten(self, statements: Iterable[ast.stmt], lines: Iterable[str]) -> Edit | None:
        """Statements that follow each other, replaced by ``lines`` (without indentation). None where other statements
        share their lines."""
        every = list(statements)
        first, last = every[0], every[-1]
        if not self.alone(*every):
            return None
        indentation = self.indentation(first)
        span = Span(self.filename, first.lineno, first.col_offset, *_end(last))
        return Edit(span, f"\n{indentation}".join(lines))

    def removed(self, statement: ast.stmt) -> Edit:
        """With the whole line where it stands alone; leaves ``pass`` in a block that would be empty."""
        if len(self.block(statement)) == 1 or not self.alone(statement):
            return self.replaced(statement, "pass")
        return Edit(Span(self.filename, statement.lineno, 0, _end(statement)[0] + 1, 0), "")

    def inserted(self, statement: ast.stmt, lines: Iterable[str]) -> Edit:
        """New lines before ``statement`` and its decorators."""
        line = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
        text = "".join(f"{self.indentation(statement)}{new}\n" for new in lines)
        return Edit(Span(self.filename, line, 0, line, 0), text)

    def inserted_after(self, statement: ast.stmt, lines: Iterable[str]) -> Edit:
        """New lines below ``statement``, which stands alone on its own."""
        place = Span(self.filename, *_end(statement), *_end(statement))
        return Edit(place, "".join(f"\n{self.indentation(statement)}{new}" for new in lines))

    def decorated(self, function: Definition, argument: str, *, option: bool = False) -> Edit | None:
        """``argument`` (``name=value``), or an entry of ``options=``, for the decorator that compiles ``function``. None
        where there is none to extend, or where the argument is given."""
        for decorator in function.decorator_list:
            if self.decorates(decorator) is None:
                continue
            given = decorator.keywords if isinstance(decorator, ast.Call) else []
            name, _, value = argument.partition("=")
            if option:
                if any(k.arg in ("mode", "options", None) for k in given):
                    return None
                argument = f'options={{"{name}": {value}}}'
            elif any(k.arg in (name, None) for k in given):
                return None
            if not self.takes_arguments(decorator):
                return None
            if not isinstance(decorator, ast.Call):
                return self.replaced(decorator, f"{self.text(decorator)}({argument})")
            return self.extended(decorator, argument)
        return None

    def extended(self, call: ast.Call, argument: str) -> Edit:
        """``argument`` as the last one of a call."""
        arguments = [*call.args, *(k.value for k in call.keywords)]
        if not arguments:
            return self.replaced(call, f"{self.text(call.func)}({argument})")
        last = self.span(max(arguments, key=lambda a: (a.lineno, a.col_offset)))
        return Edit(Span(last.file, last.end_line, last.end_column, last.end_line, last.end_column), f", {argument}")

    def spelled(self, name: str, used_at: ast.AST) -> tuple[str, tuple[Edit, ...]]:
        """How this file says the dotted ``name`` of a module's member, and the import that it lacks for that."""
        module, _, member = name.rpartition(".")
        hidden = self.local_names(used_at)
        for local, meaning in self.names.items():
            if local not in hidden and meaning == name:
                return local, ()
            if local not in hidden and meaning == module:
                return f"{local}.{member}", ()
        top, _, rest = name.partition(".")
        local = next((local for local, meaning in self.names.items() if meaning == top and local not in hidden), None)
        if local is not None:
            return f"{local}.{rest}", ()
        if top not in hidden:
            return name, (self.imported(top),)
        alias = self.unused(f"_{top}")
        return f"{alias}.{rest}", (self.imported(f"{top} as {alias}"),)

    def imported(self, module: str) -> Edit:
        """``import module``, before the first import that is not of ``__future__``."""
        return self.imported_line(f"import {module}")

    def imported_line(self, line: str) -> Edit:
        """The same of a whole import."""
        body = [s for s in self.tree.body if not _is_preamble(s)]
        first = next((s for s in body if isinstance(s, ast.Import | ast.ImportFrom)), body[0])
        return self.inserted(first, [line])

    # --- names ----------------------------------------------------------------------------------------------------------

    def local_names(self, node: ast.AST) -> set[str]:
        """The variables and parameters of the functions around ``node``."""
        names: set[str] = set()
        for scope in (node, *self.above(node)):
            if isinstance(scope, Scope):
                names |= {name for n in ast.walk(scope) if n is not scope and (name := _bound(n))}
        return names

    def unused(self, name: str) -> str:
        """``name``, with a number where the file uses it already."""
        taken = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)}
        taken |= (
            {n.arg for n in ast.walk(self.tree) if isinstance(n, ast.arg)} | self.names.keys() | self.definitions.keys()
        )
        return next(n for k in range(1, len(taken) + 3) if (n := name if k == 1 else f"{name}_{k}") not in taken)

    def renamed(self, node: ast.expr, names: dict[str, str]) -> str:
        """The text of ``node`` as an argument, with variables called otherwise."""
        edits = [self.replaced(n, names[n.id]) for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in names]
        return self.edited(node, edits)

    def edited(self, node: ast.expr, edits: Iterable[Edit]) -> str:
        """The text of ``node`` as an argument after ``edits`` inside of it."""
        span = self.span(node)
        lines = self.lines[span.line - 1 : span.end_line]
        lines[-1] = lines[-1][: span.end_column]
        text = b"\n".join(lines)
        offsets = [0]
        for line in lines:
            offsets.append(offsets[-1] + len(line) + 1)
        for edit in sorted(edits, key=lambda e: e.span, reverse=True):
            start = offsets[edit.span.line - span.line] + edit.span.column
            end = offsets[edit.span.end_line - span.line] + edit.span.end_column
            text = text[:start] + edit.replacement.encode() + text[end:]
        result = text[span.column :].decode("utf-8", "surrogatepass")
        bare = isinstance(node, ast.Tuple) and not result.startswith("(")
        return f"({result})" if bare or isinstance(node, ast.NamedExpr) else result


def applied(text: str, edits: Iterable[Edit]) -> str:
    """``text`` (without a byte order mark) after ``edits``, which all refer to it as it is."""
    lines = _split(text)
    encoded = text.encode("utf-8", "surrogatepass")
    for edit in sorted(edits, key=lambda e: e.span, reverse=True):
        start = lines[min(edit.span.line, len(lines)) - 1] + edit.span.column
        beyond = edit.span.end_line > len(lines)
        end = len(encoded) if beyond else lines[edit.span.end_line - 1] + edit.span.end_column
        encoded = encoded[:start] + edit.replacement.encode("utf-8", "surrogatepass") + encoded[end:]
    return encoded.decode("utf-8", "surrogatepass")


def _split(text: str) -> list[int]:
    """Byte offsets of the starts of the lines, as CPython's tokenizer counts them."""
    encoded = text.encode("utf-8", "surrogatepass")
    starts, position = [0], 0
    while position < len(encoded):
        if encoded[position : position + 2] == b"\r\n":
            position += 1
        position += 1
        if encoded[position - 1 : position] in (b"\n", b"\r"):
            starts.append(position)
    return starts


def _bound(node: ast.AST) -> str | None:
    """The name that a node binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.alias(name=name, asname=given):
            return given or name.partition(".")[0]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler():
            return node.name
        case ast.MatchAs() | ast.MatchStar():
            return node.name
    return None


def _end(node: ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _is_preamble(statement: ast.stmt) -> bool:
    """A docstring, or an import of ``__future__``: nothing may come before those."""
    future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    return future or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
