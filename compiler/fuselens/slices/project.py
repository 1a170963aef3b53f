"""The other files of a program: imported while it is evaluated, they are as tolerant as it is."""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import itertools
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..capture.classify import is_installed
from ..system import source_text

_MARKS = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
_MOST_FILES = 200  # that are looked at for one that imports another

Execute = Callable[[str, bytes, dict[str, Any]], None]
"""Given a file's path, its text, and the namespace to evaluate it in."""


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, execute: Execute) -> None:
        super().__init__(name, path)
        self._execute = execute

    def exec_module(self, module: types.ModuleType) -> None:
        self._execute(self.path, self.get_data(self.path), vars(module))


class _Finder:
    """Finds what Python's own finder does, and gives the project's files another loader."""

    def __init__(self, program: str, execute: Execute) -> None:
        self._root = _root(Path(program).resolve().parent)
        self._execute = execute

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader or spec.origin is None:
            return None
        if is_installed(spec.origin) or not Path(spec.origin).resolve().is_relative_to(self._root):
            return None
        spec.loader = _Loader(name, spec.origin, self._execute)
        return spec


def importers(path: str) -> Iterator[tuple[str, str]]:
    """Programs beside a file, or above it, that import it: path and text of each."""
    file = Path(path).resolve()
    names = {file.stem} if file.stem != "__init__" else {file.parent.name}
    word = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    seen = 0
    for folder in (file.parent, *itertools.takewhile(_is_of_a_project, file.parent.parents)):
        for other in sorted(folder.glob("*.py")):
            seen += 1
            if other == file or seen > _MOST_FILES:
                continue
            with contextlib.suppress(OSError, UnicodeDecodeError, SyntaxError):
                text = source_text.decode(source_text.read_bytes(other))
                if word.search(text) and names & set(_imported_parts(text)):
                    yield str(other), text


def _root(folder: Path) -> Path:
    """The folder of a program's project: that of a repository or a package, else the one above the program's."""
    above = [folder, *itertools.takewhile(_is_of_a_project, folder.parents)]
    marked = (f for f in above if any((f / name).exists() for name in _MARKS))
    return next(marked, above[min(1, len(above) - 1)])


def _is_of_a_project(folder: Path) -> bool:
    """Whether a folder above a file's may be its project's."""
    return folder not in (Path.home(), Path(tempfile.gettempdir())) and len(folder.parts) > 2


def _imported_parts(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
            yield from (alias.name for alias in node.names)


@contextlib.contextmanager
def without(path: str) -> Iterator[None]:
    """In the block, a file is imported anew."""
    spelled = (path, str(Path(path).resolve()))
    held = {n: m for n, m in sys.modules.items() if getattr(m, "__file__", None) in spelled}
    before = set(sys.modules)
    for name in held:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and not is_installed(file):
                del sys.modules[name]
        sys.modules.update(held)


@contextlib.contextmanager
def imported_by(program: str, execute: Execute) -> Iterator[None]:
    """In the block, files of the program's project are evaluated by ``execute``."""
    finder: Any = _Finder(program, execute)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
