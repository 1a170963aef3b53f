"""The line of a program that leaves what a call leaves: that makes a result, writes to an input, changes a setting, draws random numbers.

The call is made eagerly, line by line. Where no graph of a function computes a wrong value, this line is the nearest that is known.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..capture.classify import is_installed
from ..inputs.compared import argument_names, place_of
from ..inputs.comparison import copied, differ, place, unchanged, version
from ..inputs.line_values import COMPILER, program_line
from ..inputs.program_state import ProgramState, TorchSettings
from ..inputs.structures import leaves, tensors_in
from ..proving import drawn
from ..proving.kinds import Kind
from ..proving.proof import MEMORY, WRITTEN
from ..record.report import Span

_SECONDS = 10.0  # of one call, line by line
_Place = tuple[str, int]


def line_of(where: str, target: Any, kind: Kind) -> Span | None:
    """``where`` names what a call leaves, as :func:`fuselens.proving.proof.flat` does, or is :data:`fuselens.proving.drawn.WHERE`. None
    where no line does it, or the call raises."""
    args, kwargs, found = kind.args, kind.kwargs, None
    with unchanged(target, *args, *kwargs.values()), kind.around(), contextlib.suppress(Exception):
        found = _line_of(where, target, copied(args, False), copied(kwargs, False))
    if found is not None:
        return Span(found[0], found[1], 0, found[1], 0)
    if not where.startswith("result"):
        return None
    with kind.around():
        return place(target, args, kwargs, returned=True)


def _line_of(where: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Place | None:
    if where.startswith("result"):
        return _maker(where, target, args, kwargs)
    if (probe := _probe(where, target, args, kwargs)) is None:
        return None
    lines = _Lines(probe)
    with lines:
        target(*args, **kwargs)
    return lines.found


def _probe(where: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """How to see what a call has left so far at ``where``; None for what is not known."""
    if where == drawn.WHERE:
        return torch.get_rng_state
    names = argument_names(target, args, kwargs)
    for number, tensor in enumerate(tensors_in((args, kwargs))):
        if where.removesuffix(WRITTEN) == place_of("input", str(number), names):
            return functools.partial(version, tensor)
    for name in TorchSettings().values:
        if where == f"{name} afterwards":
            return lambda: TorchSettings().values[name]
    roots = [v for v in (target, *args, *kwargs.values()) if not isinstance(v, torch.Tensor)]
    for path in ProgramState(*roots).values:
        if where == place_of("state", path, ()):
            return lambda: ProgramState(*roots).values.get(path)
    return None


class _Lines:
    """Follows a call line by line until what ``probe()`` gives changes: ``found`` is the line that changed it."""

    def __init__(self, probe: Callable[[], Any]) -> None:
        self.found: _Place | None = None
        self._probe, self._first, self._at = probe, probe(), None
        self._until = time.monotonic() + _SECONDS

    def __enter__(self) -> None:
        self._had = sys.gettrace()
        sys.settrace(self._follow)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._had)

    def _follow(self, frame: types.FrameType, event: str, _: object) -> Any:
        if self.found or not _is_programs(frame) or time.monotonic() > self._until:
            return None
        if self._at is not None and differ(self._first, self._probe(), ""):
            self.found = self._at
        caller = frame.f_back if event == "return" else None
        if caller is not None and _is_programs(caller):  # its line goes on
            self._at = caller.f_code.co_filename, caller.f_lineno
        elif event == "line":
            self._at = frame.f_code.co_filename, frame.f_lineno
        return self._follow


def _is_programs(frame: types.FrameType) -> bool:
    file = frame.f_code.co_filename
    return not file.startswith(COMPILER) and not is_installed(file)


class _Makers(TorchFunctionMode):
    """Inside, each tensor that a function of torch gives is kept, with the lines of the program that made it and wrote to it last."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[int, tuple[torch.Tensor, _Place, _Place]] = {}

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (line := program_line()) is not None:
            for tensor in tensors_in(args[0] if result is None and args else result):
                _, made, _ = self.lines.get(id(tensor), (tensor, line, line))
                self.lines[id(tensor)] = tensor, made, line
        return result


def _maker(where: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Place | None:
    """The line that makes a result, or writes to it last where its values are in question."""
    with _Makers() as makers:
        result = target(*args, **kwargs)
    for name, value in leaves("result", result):
        if isinstance(value, torch.Tensor) and where in (name, name + MEMORY) and id(value) in makers.lines:
            _, made, written = makers.lines[id(value)]
            return made if where.endswith(MEMORY) else written
    return None
