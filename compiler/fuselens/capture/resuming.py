"""What the generated code of replaced frames calls to go on in resume functions."""

from __future__ import annotations

from typing import Any


class Tail:
    """What the replacement of a resume function returns to go on in another: its caller calls that, so that a loop with
    a break in it does not nest."""

    __slots__ = ("args", "function")

    def __init__(self, function: Any, *args: Any) -> None:
        self.function = function
        self.args = args


def run_tails(function: Any, *args: Any) -> Any:
    """The result of a resume function, and of those that it hands over to."""
    result = function(*args)
    while type(result) is Tail:
        result = result.function(*result.args)
    return result


END = object()


def next_or_end(iterator: Any) -> Any:
    """The next item, as a ``for`` loop takes it; :data:`END` at the end."""
    return next(iterator, END)
