"""What two revisions have different: which files can be affected, which functions belong together, and what became of each.

A generator says which reports it needs and is sent them, so that the command line and the editor ask in their own ways.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..record.report import FileReport, Report
from ..system import source_text
from . import changes
from .changes import Change, FunctionChange
from .git import Commit, GitError, Sides
from .snapshots import Reports, Snapshots, Wanted

_ALIKE = 0.6  # of two functions, for one to be the other one renamed


@dataclass(frozen=True, slots=True)
class Uncompared:
    """A file of which one side cannot be looked at, and why."""

    file: str
    side: str  # "old" | "new"
    why: str


@dataclass(slots=True)
class Comparison:
    """``new`` is None for the working tree. ``affected`` counts files that depend on something that differs, of ``files`` that
    compile functions; ``same`` counts functions of them that are compiled as before."""

    top: str
    old: Commit
    new: Commit | None
    functions: list[FunctionChange] = field(default_factory=list)
    uncompared: list[Uncompared] = field(default_factory=list)
    files: int = 0
    affected: int = 0
    same: int = 0
    old_files: dict[str, str] = field(default_factory=dict)  # files that had another name: now → then
    reports: dict[str, tuple[FileReport | None, FileReport | None]] = field(default_factory=dict)
    pairs: list[tuple[FunctionChange, Report, Report]] = field(
        default_factory=list
    )  # every function that both sides have

    @property
    def worse(self) -> list[tuple[FunctionChange, Change]]:
        return [(function, change) for function in self.functions for change in function.worse]


Comparing = Generator[list[Wanted], list[FileReport | None], Comparison]


def paths_below(top: Path, names: Sequence[str]) -> list[str]:
    """Paths as a person writes them, from the top of the repository; none for all. Raises GitError for one outside of it."""
    out = []
    for name in names:
        whole = Path(name).absolute()
        real = whole.parent.resolve() / whole.name
        if not real.is_relative_to(top):
            raise GitError(f"{name} is outside of the repository {top}: compare what is in one repository")
        out.append(real.relative_to(top).as_posix())
    return [] if "." in out else out


def compare(snapshots: Snapshots, sides: Sides, wanted: Sequence[str] = (), functions: Sequence[str] = ()) -> Comparing:
    """``wanted`` are files and folders, from the top; ``functions``, with one file, are those of it that are asked for. Raises
    GitError."""
    repository = snapshots.repository
    old, new = sides.old.identity, sides.new.identity if sides.new is not None else None
    out = Comparison(str(repository.top), sides.old, sides.new)
    renamed = repository.renames(old, new)
    out.old_files = renamed
    now = snapshots.annotated(new, wanted)
    asked = [*wanted, *(renamed[n] for n in now if n in renamed)] if wanted else ()
    then = snapshots.annotated(old, asked)
    _require_something(wanted, now, then, snapshots, sides)
    known = dict.fromkeys(f for side in (now, then) for every in side.values() for f in every)
    for function in functions:
        if function not in known:
            listed = f"it has {', '.join(known)}" if known else "it has none"
            raise GitError(f"{wanted[0]} has no annotated function {function!r}, then or now; {listed}")
    names = {name: renamed.get(name, name) for name in now}
    gone = sorted(then.keys() - set(names.values()))
    out.files = len(now)
    affected = [n for n in now if snapshots.at(new).meaning(n) != _meaning_then(snapshots, old, names[n], n)]
    out.affected = len(affected)
    before = yield from _reports(snapshots, old, [*(names[n] for n in affected), *gone])
    after = yield from _reports(snapshots, new, affected)
    for name in affected:
        out.reports[name] = before.get(names[name]), after.get(name)
    for name in gone:
        out.reports.setdefault(name, (before.get(name), None))
    pairs = _Pairs(snapshots, out, old, new, then, now, names)
    out.functions = [f for f in pairs.compared() if f.changes and (not functions or f.function in functions)]
    out.pairs = [pair for pair in out.pairs if not functions or pair[0].function in functions]
    out.same = pairs.same
    return out


def _reports(snapshots: Snapshots, commit: str | None, names: Sequence[str]) -> Reports:
    return (yield from snapshots.reports(commit, names))


def _meaning_then(snapshots: Snapshots, commit: str, name: str, now: str) -> str:
    """A file that was only moved is affected all the same: what it imports may be found elsewhere."""
    return snapshots.at(commit).meaning(name) if name == now else ""


def _require_something(
    wanted: Sequence[str], now: dict[str, tuple[str, ...]], then: dict[str, tuple[str, ...]], snapshots: Snapshots, sides: Sides
) -> None:  # fmt: skip
    """Raises GitError for a path that neither side has."""
    new = sides.new.identity if sides.new is not None else None
    for path in wanted:
        known = [*snapshots.at(new).tree.entries, *snapshots.at(sides.old.identity).tree.entries]
        if not any(n == path or n.startswith(path + "/") for n in known):
            raise GitError(f"{path} is neither in {sides.old.short} nor {'in ' + new[:8] if new else 'there now'}")


class _Pairs:
    """Functions of both sides, by name; then those that were renamed or moved, by what they do."""

    def __init__(
        self, snapshots: Snapshots, out: Comparison, old: str, new: str | None, then: dict[str, tuple[str, ...]],
        now: dict[str, tuple[str, ...]], names: dict[str, str],
    ) -> None:  # fmt: skip
        self.snapshots, self.out, self.old, self.new = snapshots, out, old, new
        self.then, self.now, self.names = then, now, names
        self.same = 0
        self._bodies: dict[tuple[str | None, str], dict[str, list[str]]] = {}

    def compared(self) -> list[FunctionChange]:
        found: list[FunctionChange] = []
        left_old: list[tuple[str, Report]] = []
        left_new: list[tuple[str, Report]] = []
        for name, (before, after) in self.out.reports.items():
            old_name = self.names.get(name, name)
            had = {r.function: r for r in (before.functions if before else [])}
            has = {r.function: r for r in (after.functions if after else [])}
            whole = changes.of_file(before, after) if before is not None and after is not None else ()
            if whole:
                found.append(FunctionChange("", name, whole, whole[0].span))
            found += [self._pair(name, had[function], has[function]) for function in has if function in had]
            if self._is_known(name, "old", before, self.then.get(old_name)):
                left_new += [(name, has[f]) for f in has if f not in had]
            if self._is_known(name, "new", after, self.now.get(name)):
                left_old += [(old_name, had[f]) for f in had if f not in has]
        found += self._moved(left_old, left_new)
        found += [FunctionChange(r.function, n, changes.alone(r, added=True), r.span) for n, r in left_new]
        found += [FunctionChange(r.function, n, changes.alone(r, added=False), r.span) for n, r in left_old]
        self.same = sum(not f.changes for f in found)
        return sorted(found, key=lambda f: (f.file, f.span.line if f.span else 0, f.function))

    def _is_known(self, name: str, side: str, report: FileReport | None, written: tuple[str, ...] | None) -> bool:
        """Whether a side says of every function that it has what became of it: what is missing there is gone, or new, only then."""
        if written is None or report is None:  # there is no such file, or nothing in it is compiled
            return True
        errors = [d for d in report.diagnostics if d.severity == "error"]
        seen = {r.function for r in report.functions}
        if not errors or (written and seen.issuperset(written)):
            return True
        where = f" at {errors[0].span}" if errors[0].span is not None else ""
        self.out.uncompared.append(Uncompared(name, side, f"{errors[0].code} {errors[0].message}{where}"))
        return False

    def _pair(self, name: str, before: Report, after: Report, old_file: str = "") -> FunctionChange:
        old_name = before.function if before.function != after.function else ""
        old_file = old_file or (self.names[name] if self.names.get(name, name) != name else "")
        made = FunctionChange(after.function, name, changes.between(before, after), after.span, old_name, old_file)
        self.out.pairs.append((made, before, after))
        return made

    def _moved(self, gone: list[tuple[str, Report]], new: list[tuple[str, Report]]) -> Iterator[FunctionChange]:
        """Takes pairs out of both lists: of the same text first, then of one that is much alike, in the same file or in one that is
        gone."""
        there = self.snapshots.at(self.new).tree.entries
        for least in (1.0, _ALIKE):
            for file, report in list(new):
                body = self._body(self.new, file, report.function)
                near = [
                    (difflib.SequenceMatcher(None, body, other).ratio(), n, r)
                    for n, r in gone
                    if (other := self._body(self.old, n, r.function))
                    and (least == 1.0 or n == self.names.get(file, file) or n not in there)
                ]
                best = max(near, key=lambda found: found[0], default=None) if body else None
                if best is not None and best[0] >= least:
                    gone.remove((best[1], best[2]))
                    new.remove((file, report))
                    yield self._pair(file, best[2], report, best[1] if best[1] != file else "")

    def _body(self, commit: str | None, file: str, function: str) -> list[str]:
        """The lines of a function's body as Python would print them; none where it is not a function of the file."""
        key = commit, file
        if key not in self._bodies:
            data = (
                next(iter(self.snapshots.at(commit).tree.read([file])), b"")
                if file in self.snapshots.at(commit).tree.entries
                else b""
            )
            self._bodies[key] = _bodies(data)
        return self._bodies[key].get(function, [])


def _bodies(data: bytes) -> dict[str, list[str]]:
    try:
        tree = ast.parse(source_text.decode(data))
    except (SyntaxError, ValueError, LookupError, RecursionError):
        return {}
    out: dict[str, list[str]] = {}

    def look(body: Sequence[ast.stmt], scope: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = [ast.unparse(node.args)]
                out[scope + node.name] = lines + "\n".join(map(ast.unparse, node.body)).splitlines()
                look(node.body, f"{scope}{node.name}.<locals>.")
            elif isinstance(node, ast.ClassDef):
                look(node.body, f"{scope}{node.name}.")

    look(tree.body, "")
    return out
