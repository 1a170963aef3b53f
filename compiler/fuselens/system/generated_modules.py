"""Modules made of generated text, with no file: nobody can change what is executed between its writing and its import.

Triton asks ``inspect`` for the text of its kernels, as tracebacks do; both find it in ``linecache``. Standard library only.
"""

from __future__ import annotations

import linecache
import sys
from types import ModuleType


def module_of(name: str, text: str) -> ModuleType:
    """The module ``name`` of this text, executed once in a process. Raises whatever the text raises."""
    found = sys.modules.get(name)
    if found is not None:
        return found
    module = ModuleType(name)
    module.__file__ = file = f"{name}.py"
    linecache.cache[file] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        file,
    )  # without a time: it is never looked for
    sys.modules[name] = module
    try:
        exec(compile(text, file, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
