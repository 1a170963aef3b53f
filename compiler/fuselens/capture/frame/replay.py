"""Code that does the program's effects after the graph: existing objects come to the state that tracing left them in."""

from __future__ import annotations

import threading

from ... import torch_private
from ..bytecode import emitters as emitters
from ..hook import _hook
from ..tracing.effects import Container
from ..values.algebra import (
    CellValue,
    Constant,
    DictValue,
    Known,
    Lazy,
    ObjectValue,
    SequenceValue,
    SetValue,
    TensorValue,
    Value,
)
from ..values.attributes import DELETED
from .rebuild import Rebuilder, plain_steps
from .remaking import Globals, delete_attribute, refill_dict, refill_list, replay_set
from .resuming import OWN_MARK


def replay(r: Rebuilder) -> None:
    """Brings existing containers, objects, cells and globals up to date, then the stack of modes."""
    tracer, effects = r.tracer, r.tracer.effects
    for container in effects.mutated.values():
        _refill(r, container)
    for (_, name), (owner, value) in effects.attributes.items():
        if owner.source is not None or isinstance(owner, Known):  # others are filled when they are built
            _assign(r, owner, name, value)
    for exception, _ in tracer.exceptions.tracebacks.values():
        if exception.source is not None:
            r.give_traceback(exception)
    for cell in effects.cells.values():
        if not r.is_own_cell(cell) and cell.contents is not None:
            r.run(setattr, cell, Constant("cell_contents"), cell.contents)
    for (_, name), (globals_, value) in effects.globals.items():
        r.run(Globals(globals_).store, Constant(name), value)
    for function, arguments in effects.calls:
        r.run(function, *arguments)
    left, entered = tracer.torch_state.change_of_modes()
    if left or entered:
        r.run(torch_private.change_modes, Constant(left), SequenceValue(entered, tuple))


def _refill(r: Rebuilder, container: Container) -> None:
    if isinstance(container, SequenceValue):
        r.run(refill_list, container, SequenceValue(list(container.items), list))
    elif isinstance(container, SetValue):
        r.run(replay_set, container, plain_steps(container.steps))
    else:
        r.run(refill_dict, container, DictValue(dict(container.items)))


def _assign(r: Rebuilder, owner: ObjectValue | TensorValue | Known, name: str, value: Value) -> None:
    if value is DELETED:
        r.run(delete_attribute, owner, Constant(name))
        return
    # the class's own __setattr__ was traced already
    direct = isinstance(owner, (TensorValue, Known)) or owner.python_type is threading.local
    r.run(setattr if direct else object.__setattr__, owner, Constant(name), value)


def store_cells(r: Rebuilder, parameters: tuple[str, ...], only_written: bool) -> None:
    """Brings the frame's cells up to date: assigned nonlocals always, own variables when code that reads them follows.

    With ``only_written`` no code of the frame follows, but functions that the frame has made may read its own variables.
    """
    escapes = bool(r.m.code.co_cellvars)
    for name, cell in r.m.cells.items():
        if name.endswith(OWN_MARK):
            continue
        free = cell.source is not None
        if cell.contents is None:
            if not free and name in parameters:
                r.code.emit(emitters.delete_deref(name))
        elif (cell.written if free else escapes or not only_written) and not _is_as_given(cell, name):
            r.value(cell.contents)
            r.code.emit(emitters.store_deref(name))


def _is_as_given(cell: CellValue, name: str) -> bool:
    """Whether one of the frame's own cells holds the argument that it was made with."""
    held = cell.contents
    if cell.source is not None or not isinstance(held, Lazy) or held.source is None:
        return False
    return held.source.kind == _hook.ROOT_LOCAL and held.source.text == name
