"""A person's own run of a program, with this compiler in place of torch's: what it calls compiled functions with is remembered."""

from __future__ import annotations

import builtins
import functools
import io
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Sequence
from typing import Any

_OF_TORCH = (None, "inductor")
_TAKEN = ("fullgraph", "dynamic", "mode", "disable")


def run(path: str, arguments: Sequence[str]) -> None:
    """Runs the program ``path`` as Python would, and tells the editor of it. Raises what the program raises."""
    os.environ["FUSELENS_LIVE"] = "1"
    _take_the_place()
    sys.argv = [path, *arguments]
    whole = os.path.abspath(
        path
    )  # Python's own ``__file__``, by which what is compiled is found again in a run of its own
    if path.endswith(".pyc") or zipfile.is_zipfile(whole):
        runpy.run_path(whole, run_name="__main__")
        return
    sys.path[0:0] = [os.path.dirname(os.path.realpath(path))]
    main = types.ModuleType("__main__")
    vars(main).update(__file__=whole, __builtins__=builtins)
    with io.open_code(whole) as file:
        code = compile(file.read(), whole, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _take_the_place() -> None:
    """Calls of torch's compiler are calls of ours, unless they name another backend."""
    import torch

    from . import api

    theirs: Any = torch.compile

    @functools.wraps(theirs)
    def compiled(model: Any = None, **options: Any) -> Any:
        if options.get("backend") not in _OF_TORCH:
            return theirs(model, **options)
        if model is None:
            return functools.partial(compiled, **options)
        return api.compile(model, **{name: value for name, value in options.items() if name in _TAKEN})

    def in_place(module: torch.nn.Module, **options: Any) -> None:
        vars(module)["forward"] = compiled(module.forward, **options)

    torch.compile = compiled  # type: ignore[assignment]
    torch.nn.Module.compile = in_place  # type: ignore[method-assign]
