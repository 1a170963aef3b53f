"""The other files of a program: imported while it is evaluated, they are as tolerant as it is."""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..fingerprints import is_library_file

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

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader or spec.origin is None:
            return None
        if is_library_file(spec.origin):
            return None
        spec.loader = _Loader(name, spec.origin, self._execute)
        return spec


@contextlib.contextmanager
def imported_by(execute: Execute) -> Iterator[None]:
    """In the block, files that belong to no library are evaluated by ``execute``."""
    finder: Any = _Finder(execute)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
