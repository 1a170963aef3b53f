"""Measures the structure of a tree's packages: folders, imports and their cycles, and what is large.

    python scripts/structure.py [ROOT] [--json]

ROOT is any checkout (the current folder, where it is not given); its packages are those under ``compiler/`` and ``server/``.
Standard library only: nothing of the tree is imported, so that every commit can be measured with the same counting.

An import is made at import time, under ``TYPE_CHECKING``, or late: inside a function. An arrow leads from one folder to
another whose modules it imports. A cycle is a strongly connected component of modules. That a module's own packages are
imported before it counts as no import; otherwise each package that imports its modules would be a cycle.

The complexity of a function is 1, and 1 more for each ``if``, ``for``, ``while``, ``except``, ``with``, ``assert``, conditional
expression, comprehension, ``case``, and operand of ``and`` and ``or`` after the first. Nested functions count on their own.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

TOPS = ("compiler", "server")
MOST_LINES, MOST_FUNCTION_LINES, MOST_METHODS, HIGHEST = 500, 40, 30, 10

When = Literal["import time", "typing", "late"]
Edge = tuple[str, str]  # the module that imports, and the imported one
Definition = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.With, ast.Assert, ast.comprehension,
             ast.match_case)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Module:
    """A source file: ``folder`` is the package that it lies in, ``name`` its dotted name."""

    name: str
    folder: str
    path: str  # relative to the root
    text: str
    tree: ast.Module
    is_package: bool


@dataclass(frozen=True, slots=True)
class Size:
    """Something that is large: ``size`` in the unit of its list."""

    size: int
    path: str
    line: int
    name: str = ""


@dataclass(slots=True)
class Structure:
    """What is measured. Arrows are pairs of folders with the number of imports between them."""

    modules: dict[str, int] = field(default_factory=dict)
    arrows: dict[str, int] = field(default_factory=dict)
    arrows_at_import_time: dict[str, int] = field(default_factory=dict)
    arrows_otherwise: dict[str, int] = field(default_factory=dict)  # under TYPE_CHECKING, or late
    cycles: list[list[str]] = field(default_factory=list)
    cycles_with_typing: list[list[str]] = field(default_factory=list)
    long_files: list[Size] = field(default_factory=list)
    long_functions: list[Size] = field(default_factory=list)
    complex_functions: list[Size] = field(default_factory=list)
    large_classes: list[Size] = field(default_factory=list)
    isinstance_calls: dict[str, int] = field(default_factory=dict)
    any_annotations: dict[str, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


# --- modules --------------------------------------------------------------------------------------------------------


def sources(root: Path) -> Iterator[tuple[Path, Path]]:
    """The files of packages, and the folder that is their import root."""
    for top in TOPS:
        for package in sorted((root / top).glob("*/__init__.py")):
            yield from ((path, root / top) for path in sorted(package.parent.rglob("*.py")))


def read(root: Path) -> tuple[list[Module], list[str]]:
    """The modules, and the files that this Python cannot parse."""
    modules, unreadable = [], []
    for path, top in sources(root):
        parts = path.relative_to(top).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        relative = path.relative_to(root).as_posix()
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            unreadable.append(relative)
            continue
        modules.append(Module(name, ".".join(parts[:-1]), relative, text, tree, is_package))
    return modules, unreadable


# --- imports --------------------------------------------------------------------------------------------------------


def imports(module: Module, known: set[str]) -> Iterator[tuple[str, When]]:
    """The modules of the tree that ``module`` imports, and when; once for each statement."""
    pending: list[tuple[ast.AST, When]] = [(module.tree, "import time")]
    while pending:
        node, when = pending.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in sorted(_imported(node, module, known) - {module.name}):
                yield name, when
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            guarded: When = "typing" if when == "import time" else when
            pending += _at(node.body, guarded) + _at(node.orelse, when)
        else:
            inner: When = "late" if isinstance(node, Definition) and when == "import time" else when
            pending += _at(ast.iter_child_nodes(node), inner)


def _at(nodes: Iterable[ast.AST], when: When) -> list[tuple[ast.AST, When]]:
    return [(node, when) for node in nodes]


def _is_type_checking(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def _imported(node: ast.Import | ast.ImportFrom, module: Module, known: set[str]) -> set[str]:
    if isinstance(node, ast.Import):
        return {name for alias in node.names if (name := _longest(alias.name, known))}
    base = node.module or ""
    if node.level:
        package = module.folder.split(".")
        base = ".".join([*package[: len(package) - node.level + 1], *(base.split(".") if base else ())])
    names = (f"{base}.{alias.name}" for alias in node.names)
    return {name if name in known else base for name in names if name in known or base in known}


def _longest(name: str, known: set[str]) -> str:
    """``import a.b.c`` where ``a.b`` is a module of the tree."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def components(modules: Iterable[str], edges: Iterable[Edge]) -> list[list[str]]:
    """Strongly connected components of more than one module, largest first (Tarjan, "Depth-first search and linear
    graph algorithms", 1972), without recursion."""
    following: dict[str, list[str]] = defaultdict(list)
    for origin, target in sorted(set(edges)):
        following[origin].append(target)
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for start in sorted(modules):
        work = [(start, iter(following[start]))] if start not in order else []
        while work:
            node, rest = work[-1]
            if node not in order:
                order[node] = lowest[node] = len(order)
                stack.append(node)
            target = next(rest, None)
            if target is not None and target not in order:
                work.append((target, iter(following[target])))
            elif target is not None:
                if target in stack:
                    lowest[node] = min(lowest[node], order[target])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == order[node]:
                    at = stack.index(node)
                    found.append(sorted(stack[at:]))
                    del stack[at:]
    return sorted((c for c in found if len(c) > 1), key=lambda c: (-len(c), c))


def measure_imports(modules: list[Module], into: Structure) -> None:
    folder = {module.name: module.folder for module in modules}
    edges: dict[When, list[Edge]] = {"import time": [], "typing": [], "late": []}
    for module in modules:
        for name, when in imports(module, set(folder)):
            edges[when].append((module.name, name))

    def arrows(*kinds: When) -> dict[str, int]:
        pairs = ((folder[a], folder[b]) for kind in kinds for a, b in edges[kind])
        return dict(sorted(Counter(f"{a} -> {b}" for a, b in pairs if a != b).items()))

    into.arrows = arrows("import time", "typing", "late")
    into.arrows_at_import_time = arrows("import time")
    into.arrows_otherwise = arrows("typing", "late")
    into.cycles = components(folder, edges["import time"])
    into.cycles_with_typing = components(folder, [*edges["import time"], *edges["typing"]])


# --- sizes ----------------------------------------------------------------------------------------------------------


def complexity(function: ast.AST) -> int:
    """The cyclomatic complexity, as the module's docstring says."""
    total, pending = 1, list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if isinstance(node, (*Definition, ast.ClassDef)):
            continue
        total += isinstance(node, _BRANCHES) + (len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0)
        pending += ast.iter_child_nodes(node)
    return total


def measure_sizes(modules: list[Module], into: Structure) -> None:
    functions: list[Size] = []
    for module in modules:
        count = len(module.text.splitlines())
        if count > MOST_LINES:
            into.long_files.append(Size(count, module.path, 1))
        for node in ast.walk(module.tree):
            if isinstance(node, Definition):
                functions.append(Size(complexity(node), module.path, node.lineno, node.name))
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MOST_FUNCTION_LINES:
                    into.long_functions.append(Size(length, module.path, node.lineno, node.name))
            elif isinstance(node, ast.ClassDef):
                methods = sum(isinstance(inner, Definition) for inner in node.body)
                if methods > MOST_METHODS:
                    into.large_classes.append(Size(methods, module.path, node.lineno, node.name))
    into.complex_functions = _largest(functions)[:HIGHEST]
    into.long_files, into.long_functions = _largest(into.long_files), _largest(into.long_functions)
    into.large_classes = _largest(into.large_classes)


def _largest(sizes: list[Size]) -> list[Size]:
    return sorted(sizes, key=lambda s: (-s.size, s.path, s.line))


# --- types ----------------------------------------------------------------------------------------------------------


def any_annotations(tree: ast.AST) -> int:
    """How often annotations say ``Any``, those in quotes included."""
    written = (getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns"))
    return sum(_says_any(annotation) for annotation in written if isinstance(annotation, ast.expr))


def _says_any(annotation: ast.expr) -> int:
    total = 0
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                total += _says_any(ast.parse(node.value, mode="eval").body)
            except (SyntaxError, ValueError):
                continue  # a text in ``Literal`` or ``Annotated``
        else:
            total += getattr(node, "id", getattr(node, "attr", "")) == "Any"
    return total


def measured(root: Path) -> Structure:
    """The structure of the tree at ``root``."""
    modules, unreadable = read(root)
    out = Structure(unreadable=unreadable)
    out.modules = dict(sorted(Counter(m.folder for m in modules if not m.is_package).items()))
    measure_imports(modules, out)
    measure_sizes(modules, out)
    tests, anys = Counter[str](), Counter[str]()
    for module in modules:
        tests[module.folder] += module.text.count("isinstance(")
        anys[module.folder] += any_annotations(module.tree)
    out.isinstance_calls, out.any_annotations = dict(sorted(tests.items())), dict(sorted(anys.items()))
    return out


# --- text -----------------------------------------------------------------------------------------------------------


def shown(s: Structure) -> Iterator[str]:
    """The lines of a report for readers."""
    yield from _table(f"modules: {sum(s.modules.values())} in {len(s.modules)} folders", s.modules)
    for title, arrows in (
        ("arrows between folders", s.arrows),
        ("at import time", s.arrows_at_import_time),
        ("under TYPE_CHECKING, or inside functions", s.arrows_otherwise),
    ):
        yield f"{title}: {len(arrows)} ({sum(arrows.values())} imports)"
    yield ""
    yield from _cycles("cycles at import time", s.cycles)
    yield from _cycles("cycles with imports under TYPE_CHECKING", s.cycles_with_typing)
    yield from _sizes(f"files over {MOST_LINES} lines", s.long_files)
    yield from _sizes(f"functions over {MOST_FUNCTION_LINES} lines", s.long_functions)
    yield from _sizes("highest cyclomatic complexities", s.complex_functions)
    yield from _sizes(f"classes over {MOST_METHODS} methods", s.large_classes)
    yield from _table(f"isinstance( : {sum(s.isinstance_calls.values())}", s.isinstance_calls)
    yield from _table(f"Any in annotations: {sum(s.any_annotations.values())}", s.any_annotations)
    if s.unreadable:
        yield f"cannot be parsed: {', '.join(s.unreadable)}"


def _table(title: str, numbers: dict[str, int]) -> Iterator[str]:
    yield title
    yield from (
        f"  {number:5}  {name}" for name, number in sorted(numbers.items(), key=lambda x: (-x[1], x[0])) if number
    )
    yield ""


def _cycles(title: str, cycles: list[list[str]]) -> Iterator[str]:
    yield f"{title}: {len(cycles)}"
    yield from (f"  {len(cycle):5}  {', '.join(cycle)}" for cycle in cycles)
    yield ""


def _sizes(title: str, sizes: list[Size]) -> Iterator[str]:
    yield f"{title}: {len(sizes)}"
    yield from (f"  {s.size:5}  {s.path}:{s.line} {s.name}".rstrip() for s in sizes)
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the structure of a tree's packages.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(), metavar="ROOT")
    parser.add_argument("--json", action="store_true", help="one JSON object, with each arrow")
    arguments = parser.parse_args()
    structure = measured(arguments.root.resolve())
    if arguments.json:
        print(json.dumps(asdict(structure), indent=1))
    else:
        print("\n".join(shown(structure)))


if __name__ == "__main__":
    main()
