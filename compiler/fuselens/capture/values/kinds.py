"""What an operation means for each kind of tracked value: a table from class of value to handler.

An operation (an attribute, a call, truth, identity, text …) has one table. The table is read by the class of the value: the class
has a handler of its own, or else the nearest of its bases has one, or else the operation's general answer holds.

Why tables, and not methods of the values: the classes in ``algebra.py`` stand below everything else. What an operation means needs
guards, the tracer and the machine, and these are written in terms of values. As methods, the handlers would either gather all of
capture in one file or import it late. In a table the whole of one operation stays in one place, where it can be compared
with CPython's; and a module that brings a kind of its own registers it without a change to others.

:class:`~fuselens.capture.values.algebra.ActiveValue` is one kind among these. It is for values of a rule's own, which say themselves what
is done to them: each table has one handler that asks them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")
Handler = TypeVar("Handler", bound=Callable)


class PerKind(dict[type, Callable[..., R]]):
    """Handlers by class. ``table[type(value)]`` is the one for ``value``: found once by the method resolution order, then a look-up."""

    def __init__(self, otherwise: Callable[..., R]) -> None:
        super().__init__()
        self._otherwise = otherwise
        self._registered: dict[type, Callable[..., R]] = {}

    def of(self, *kinds: type) -> Callable[[Handler], Handler]:
        """Registers the decorated function as the handler of ``kinds``."""

        def register(handler: Handler) -> Handler:
            self._registered.update(dict.fromkeys(kinds, handler))
            self.clear()  # what was found before may have a nearer handler now
            return handler

        return register

    def __missing__(self, kind: type) -> Callable[..., R]:
        registered = (self._registered[base] for base in kind.__mro__ if base in self._registered)
        found = self[kind] = next(registered, self._otherwise)
        return found
