"""Which function runs which instruction.

:data:`HANDLERS` has one entry for each micro-operation of ``bytecode/micros.py``. The modules beside this one register
their handlers, each for one subject; a handler changes the machine, or raises :class:`Break` where it cannot go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..machine import Machine

Handler = Callable[["Machine", Any], None]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = function
        return function

    return register
