"""Which files of a folder have something to do with us. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..system import source_text
from .discovery import discover

_SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__", "build", "dist", "venv", "env"})


def python_files(directory: Path) -> Iterator[Path]:
    """Files below ``directory`` with annotated functions, and those that cannot be read, or parsed although they seem to have
    some: compiling them will say why."""
    for root, directories, files in os.walk(directory):
        directories[:] = sorted(
            d
            for d in directories
            if not d.startswith(".") and d not in _SKIPPED and not (Path(root) / d / "pyvenv.cfg").exists()
        )
        for file in sorted(f for f in files if f.endswith(".py")):
            path = Path(root) / file
            if not path.exists():
                continue  # a link to nowhere, such as an editor's lock
            source = source_text.shown(path)
            if source is None:
                yield path
                continue
            if "compile" not in source or ("fuselens" not in source and "torch" not in source):
                continue
            try:
                if not discover(source, str(path)):
                    continue
            except SyntaxError:
                pass
            yield path
