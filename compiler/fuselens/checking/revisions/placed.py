"""The program's modules are those of another folder, wherever this process would have found them in the working tree."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...inputs import recorded_inputs
from ...record.wire import Revision


@contextlib.contextmanager
def placed(revision: Revision | None) -> Iterator[None]:
    """In the block, folders of the search path, packages that are installed as links to the working tree (``pip install -e``) and
    the current folder are those of the revision. Calls that were recorded in the working tree's files are those of the revision's."""
    if revision is None or revision.folder == revision.top:
        yield
        return
    before, here = list(sys.path), os.getcwd()
    sys.path[:] = [_moved(entry or here, revision) for entry in sys.path]
    for finder in sys.meta_path:
        _move_links(finder, revision)
    with contextlib.suppress(OSError):
        os.chdir(_moved(here, revision))
    try:
        with recorded_inputs.of_files_below(revision.folder, revision.top):
            yield
    finally:
        sys.path[:] = before
        os.chdir(here)


def _moved(entry: str, revision: Revision) -> str:
    """The same folder of the revision; what git does not have, such as an environment, stays."""
    try:
        inside = Path(os.path.realpath(entry)).relative_to(os.path.realpath(revision.top))
    except ValueError:
        return entry
    there = Path(revision.folder, inside)
    return str(there) if there.exists() else entry


def _move_links(finder: Any, revision: Revision) -> None:
    """Of setuptools' and others' finders of packages that are elsewhere: a table of names and places."""
    module = sys.modules.get(getattr(finder, "__module__", "") or "")
    for owner in (finder, module):
        table = getattr(owner, "MAPPING", None) or getattr(owner, "known_source_files", None)
        if isinstance(table, dict) and all(isinstance(v, str) for v in table.values()):
            table.update({name: _moved(place, revision) for name, place in table.items()})
