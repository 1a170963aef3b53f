"""A file that is being edited: after an edit only the statements that changed are parsed again, and only the functions that
they may concern are looked at again.

A *piece* is one statement of the module's scope, or several that share a line. Pieces keep their syntax trees, and trees keep
line numbers. So lines are numbered here as they are parsed, and never again: the lines of a piece that is parsed anew get the
numbers after all others. What is shown is moved to where the lines are now.
"""

from __future__ import annotations

import ast
import bisect
import itertools
import operator
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..record.report import Diagnostic, Span
from .discovery import Annotated, Parameter, SourceModule, Target, lines_of, parse, told_apart
from .names import Bindings, Names
from .predictions import of_target
from .predictions.statements import Statements

_WORD = re.compile(r"\w+")
_OPENING = (b'"""', b"'''")  # an odd one changes the meaning of everything below
_SPARE = 2000  # lines that are kept of pieces that are gone, before all begins anew


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to say about the text as it is now."""

    annotated: tuple[Annotated, ...]
    predicted: dict[str, list[Diagnostic]]


@dataclass(slots=True, eq=False)
class _Piece:
    """``first`` and ``last`` are its lines as they were parsed, ``line`` is where the first of them is now (from 1)."""

    body: list[ast.stmt]
    first: int
    last: int
    line: int
    bindings: Bindings
    words: frozenset[str]  # in its text: what it may refer to is among them
    targets: list[Target] = field(default_factory=list)
    predicted: dict[str, list[Diagnostic]] = field(default_factory=dict)  # by qualified name
    shown: Shown | None = None  # both, at the lines of now

    @property
    def end(self) -> int:
        return self.line + self.last - self.first


class _Module(SourceModule):
    """The pieces as one module, whose lines have the numbers under which they were parsed."""

    def __init__(self, pieces: Sequence[_Piece], lines: list[bytes], filename: str) -> None:
        bindings = Bindings()
        for piece in pieces:
            bindings.add(piece.bindings)
        body = [statement for piece in pieces for statement in piece.body]
        Names.__init__(self, ast.Module(body, []), filename, bindings=bindings)
        self.lines = lines
        self.targets = []


class EditedModule:
    """Finds what :class:`SourceModule` and ``predict`` find, and raises SyntaxError where they do. What other files of the
    program say is read when it begins."""

    def __init__(self, source: str, filename: str) -> None:
        self.filename = filename
        self._begin(lines_of(source), parse(source, filename))

    def _begin(self, lines: list[bytes], tree: ast.Module) -> None:
        self._now = lines
        self._lines = list(lines)  # by the number under which they were parsed
        self._pieces = self._cut(tree.body, 0, 0)
        self._look(self._pieces)

    @property
    def shown(self) -> Shown:
        return self._shown

    def update(self, source: str) -> Shown:
        """Takes a new text. After a SyntaxError everything is as it was."""
        lines = lines_of(source)
        if lines == self._now:
            return self._shown
        if len(self._lines) > 2 * len(lines) + _SPARE or not self._edit(lines):
            self._begin(lines, parse(source, self.filename))
        return self._shown

    # --- parsing --------------------------------------------------------------------------------------------------------

    def _edit(self, lines: list[bytes]) -> bool:
        """Parses what is between the pieces that stay. False where that does not tell whether the whole can be parsed."""
        before, growth = self._now, len(lines) - len(self._now)
        same, same_end = _common(before, lines)
        # from the one before the edit on: that may go on, by an `else`, or after a backslash at the end of its line
        start = max(bisect.bisect_left(self._pieces, same + 1, key=lambda p: p.end) - 1, 0)
        below = bisect.bisect_right(self._pieces, len(before) - same_end, key=lambda p: p.line)
        for stop in (below, below + 1):  # a decorator belongs to the function below it
            stay, gone, stay_below = self._pieces[:start], self._pieces[start:stop], self._pieces[stop:]
            first = stay[-1].end if stay else 0
            last = stay_below[0].line - 1 + growth if stay_below else len(lines)
            text = b"\n".join(lines[first:last])
            try:
                tree = parse(text.decode("utf-8", "surrogatepass"), self.filename)
            except SyntaxError:
                if stop <= below and stay_below:
                    continue
                if any(text.count(quotes) % 2 for quotes in _OPENING):
                    return False
                raise
            number = len(self._lines)
            ast.increment_lineno(tree, number)
            self._lines += lines[first:last]
            new = self._cut(tree.body, number, first)
            moved = [(piece, piece.line + growth) for piece in stay_below]
            for end in (0, -1):  # those at the ends were read for what is beside them
                while gone and new and self._same(gone[end], new[end]):
                    piece, again = gone.pop(end), new.pop(end)
                    moved.append((piece, again.line))
                    (stay if end == 0 else stay_below).insert(len(stay) if end == 0 else 0, piece)
            if any(piece.line != line for piece, line in moved):
                for piece, line in moved:
                    piece.line = line
                for piece in self._pieces:
                    piece.shown = None
            self._now = lines
            self._pieces = [*stay, *new, *stay_below]
            self._look(self._concerned(gone, new))
            break
        return True

    def _same(self, a: _Piece, b: _Piece) -> bool:
        """Whether two pieces have the same text."""
        return self._lines[a.first - 1 : a.last] == self._lines[b.first - 1 : b.last]

    def _cut(self, body: list[ast.stmt], number: int, line: int) -> list[_Piece]:
        """Pieces of statements whose lines are numbered after ``number``, and are after ``line`` now."""
        groups: list[list[ast.stmt]] = []
        for statement in body:
            if groups and _first_line(statement) <= (groups[-1][-1].end_lineno or 0):
                groups[-1].append(statement)
            else:
                groups.append([statement])
        return [self._piece(group, line - number) for group in groups]

    def _piece(self, body: list[ast.stmt], moved: int) -> _Piece:
        first, last = _first_line(body[0]), max(s.end_lineno or s.lineno for s in body)
        text = b"\n".join(self._lines[first - 1 : last]).decode("utf-8", "replace")
        if not text.isascii():
            text = unicodedata.normalize("NFKC", text)  # as names are, by the parser
        return _Piece(body, first, last, first + moved, Bindings.of(body), frozenset(_WORD.findall(text)))

    # --- looking --------------------------------------------------------------------------------------------------------

    def _concerned(self, gone: Sequence[_Piece], new: Sequence[_Piece]) -> Sequence[_Piece]:
        """The pieces that have to be looked at: ``new`` ones, and what refers to what these or those that are ``gone``
        bind, also by way of others."""
        if _environment(gone) != _environment(new):
            return self._pieces
        found, waiting = list(new), [p for p in self._pieces if p not in new]
        changed = _defined([*gone, *new])
        while changed:
            reached = [p for p in waiting if not p.words.isdisjoint(changed)]
            waiting = [p for p in waiting if p.words.isdisjoint(changed)]
            changed = _defined(reached)
            found += reached
        return found

    def _look(self, pieces: Sequence[_Piece]) -> None:
        """Finds and predicts anew what is in ``pieces``."""
        module = _Module(self._pieces, self._lines, self.filename)
        self._by_number = sorted(self._pieces, key=lambda p: p.first)
        self._numbers = [piece.first for piece in self._by_number]
        for piece in pieces:
            piece.targets, piece.predicted, piece.shown = module.found(piece.body), {}, None
        walk = Statements(module)
        everything = iter(told_apart([target for piece in self._pieces for target in piece.targets]))
        for piece in self._pieces:
            targets = [next(everything) for _ in piece.targets]
            names = {target.annotated.qualname for target in targets}
            if piece.predicted.keys() != names:
                piece.predicted = {t.annotated.qualname: of_target(walk, t) for t in targets}
                piece.shown = None
            piece.shown = piece.shown or self._moved(targets, piece.predicted)
        shown = [piece.shown for piece in self._pieces if piece.shown]
        predicted = {name: found for part in shown for name, found in part.predicted.items()}
        self._shown = Shown(tuple(a for part in shown for a in part.annotated), predicted)

    # --- places ---------------------------------------------------------------------------------------------------------

    def _moved(self, targets: Iterable[Target], predicted: dict[str, list[Diagnostic]]) -> Shown:
        """With the line numbers of now."""
        return Shown(
            tuple(self._annotated(target.annotated) for target in targets),
            {name: sorted(map(self._diagnostic, found), key=lambda d: (d.span is None, d.span))
             for name, found in predicted.items()},
        )  # fmt: skip

    def _annotated(self, found: Annotated) -> Annotated:
        """With each line that a person adds, of all that is below it: ``replace`` takes longer than all else of it."""
        parameters = tuple(Parameter(p.name, self._span(p.span), p.annotation) for p in found.parameters)
        return Annotated(
            found.qualname, found.kind, self._span(found.name_span), self._span(found.span), self._span(found.decorator_span),
            parameters, found.arguments, found.importable, found.operand, found.example,
        )  # fmt: skip

    def _diagnostic(self, found: Diagnostic) -> Diagnostic:
        stack = tuple(replace(frame, span=self._span(frame.span)) for frame in found.stack)
        return replace(found, span=self._span(found.span) if found.span else None, stack=stack)

    def _span(self, span: Span) -> Span:
        piece = self._by_number[bisect.bisect_right(self._numbers, span.line) - 1]
        moved = piece.line - piece.first
        return (
            Span(span.file, span.line + moved, span.column, span.end_line + moved, span.end_column) if moved else span
        )


def _first_line(statement: ast.stmt) -> int:
    """The line on which it begins, with its decorators."""
    return min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])


def _environment(pieces: Iterable[_Piece]) -> tuple[object, ...]:
    """What anything in the file may depend on without naming it."""
    whole = Bindings()
    for piece in pieces:
        whole.add(piece.bindings)
    return whole.imported, whole.relative, whole.rebound


def _defined(pieces: Iterable[_Piece]) -> set[str]:
    return {name for piece in pieces for name in piece.bindings.defined}


def _common(before: list[bytes], after: list[bytes]) -> tuple[int, int]:
    """How many lines are the same at the start, and how many of the others at the end."""
    limit = min(len(before), len(after))
    start = _first_difference(before, after, limit)
    return start, _first_difference(reversed(before), reversed(after), limit - start)


def _first_difference(a: Iterable[bytes], b: Iterable[bytes], limit: int) -> int:
    """Where the first of ``limit`` lines is that differs; ``limit`` where none does. Without a turn of ours for each line."""
    return next(itertools.compress(range(limit), map(operator.ne, a, b)), limit)
