"""What a program may turn on for a part of its code. Traced like the program's own functions, so that a switch is as it
would be at every point of the trace, and is put back wherever the code goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Switch:
    """The state, of all threads."""

    def __init__(self) -> None:
        self.error = False


SWITCH = Switch()


class error_on_graph_break:  # noqa: N801 - torch's own name for it
    """Context manager and decorator: inside, a graph break raises :class:`GraphBreakError`, or with False it does not.

    With ``fullgraph=True`` every graph break raises, whatever this says. Read while compiling: code that was compiled with
    its breaks goes on running.
    """

    def __init__(self, error: bool) -> None:
        self.error = error
        self.before: list[bool] = []

    def __call__(self, fn: F) -> F:
        error = self.error

        @functools.wraps(fn)
        def switched(*args: Any, **kwargs: Any) -> Any:
            with error_on_graph_break(error):
                return fn(*args, **kwargs)

        return switched  # type: ignore[return-value]

    def __enter__(self) -> None:
        self.before.append(SWITCH.error)
        SWITCH.error = self.error

    def __exit__(self, *exc: object) -> None:
        SWITCH.error = self.before.pop()
