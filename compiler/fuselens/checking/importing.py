"""Executes a file as the module that it is, with what it sees of the process, and restores all after.

The text may differ from what is on disk. What the file raises refuses it; a refused effect ends its import and is a finding.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import linecache
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import sandbox
from ..record import diagnostics
from ..record.report import Diagnostic
from ..slices import arguments
from ..system import source_text
from .parsing import FileRefused
from .user_code import describe, frame_in, text_at, user_stack


@contextlib.contextmanager
def import_surroundings(path: str, source: str) -> Iterator[tuple[str, str]]:
    """What a module sees of the process while it is imported: its directory on ``sys.path``, ``sys.argv``, its text
    in ``linecache`` (for tracebacks and ``inspect.getsource``). Yields its name and package; restores all after."""
    file = Path(path)
    root, parts = file.resolve().parent, [] if file.name == "__init__.py" else [file.stem]
    while (root / "__init__.py").exists() and root.name.isidentifier():
        parts.insert(0, root.name)
        root = root.parent
    name = ".".join(parts) or file.stem
    if name.partition(".")[0] in sys.modules and not _loaded_from(name.partition(".")[0], root):
        name = f"_{name.rpartition('.')[2]}_checked"  # a file called like a loaded library must not replace it
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    before = list(sys.path), list(sys.argv), sys.modules.get(name), linecache.cache.get(path)
    sys.path.insert(0, str(root))
    sys.argv = [path, *arguments(source, path)]
    linecache.cache[path] = (len(source), None, source_text.lines(source, keepends=True), path)
    try:
        yield name, package
    finally:
        sys.path[:], sys.argv, module, lines = before
        _restore(sys.modules, name, module)
        _restore(linecache.cache, path, lines)


def _restore(table: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _loaded_from(name: str, root: Path) -> bool:
    """Whether the loaded top-level module comes from ``root``: then it is this file, or its package."""
    module = sys.modules[name]
    files = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return any(Path(f).resolve().is_relative_to(root) for f in files if f)


class _GivenSource(importlib.machinery.SourceFileLoader):
    """Loads the text that is being checked, which may differ from what is on disk."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_source(self, fullname: str) -> str:
        return self.source


def imported(
    name: str, package: str, path: str, source: str, execute: Callable[[dict[str, Any]], None]
) -> tuple[types.ModuleType, Diagnostic | None]:
    """Executes the file as a module, up to an effect that is refused: that is a finding. Raises FileRefused at the deepest line
    of the file that was running."""
    loader = _GivenSource(name, path, source)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__package__ = package
    try:
        if "." in name:
            importlib.import_module(name.rpartition(".")[0])
        sys.modules[name] = module
        execute(module.__dict__)
    except SystemExit as error:
        raise FileRefused(_exit_diagnostic(error, path, source)) from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and frame_in(error, path) is None:
            raise  # the person's own Ctrl-C
        found = _import_diagnostic(error, path)
        if found.code != "FL915":
            raise FileRefused(found) from error
        sandbox.take()
        return module, found
    return module, None


def _exit_diagnostic(error: SystemExit, path: str, source: str) -> Diagnostic:
    stack = user_stack(error, path)
    span = stack[-1].span if stack else None
    what = text_at(source, span) if span is not None and span.line == span.end_line else ""
    return diagnostics.make("FL904", span, stack=stack, what=f"`{what or 'sys.exit'}`")


def _import_diagnostic(error: BaseException, path: str) -> Diagnostic:
    stack = user_stack(error, path)
    made = diagnostics.make("FL903", stack[-1].span if stack else None, stack=stack, why=describe(error))
    return sandbox.behind(error) or made
