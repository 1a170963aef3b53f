"""What the generated code of replaced frames calls to make objects again, and to bring existing ones up to date.

It does what the program did while it was traced, without running methods of the program's classes once more.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Any

from .. import classify
from ..values.algebra import change_set


class Kept:
    """A constant that keeps its parts' identity in co_consts."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Globals:
    """A module's namespace as constants of generated code refer to it."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace

    def store(self, name: str, value: Any) -> None:
        self.namespace[name] = value

    def function(self, code: Any, defaults: Any, kwdefaults: Any, annotations: Any, closure: Any) -> Any:
        """A function as ``def`` makes it."""
        made = types.FunctionType(code, self.namespace, code.co_name, defaults, closure)
        made.__kwdefaults__ = kwdefaults
        if annotations:
            pairs = annotations.items() if isinstance(annotations, dict) else zip(*[iter(annotations)] * 2, strict=True)
            made.__annotations__ = dict(pairs)
        return made


def applied(function: Any, args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


def entered_exit(maker: Any) -> Any:
    """Enters a fresh context manager and gives its bound ``__exit__``, as ``with`` keeps it on the stack."""
    context = maker()
    context.__enter__()
    return context.__exit__


def delete_attribute(owner: Any, name: str) -> None:
    """Without the attribute the object may be already: the program may have assigned what it deleted."""
    delete = delattr if isinstance(owner, (threading.local, type)) else object.__delattr__
    with contextlib.suppress(AttributeError):
        delete(owner, name)


def new_exception(cls: Any, args: Any) -> Any:
    """An exception that the ``__new__`` of a builtin class makes of ``args``."""
    return classify.builtin_base(cls).__new__(cls, *args)


def new_container(cls: Any, base: Any, items: Any) -> Any:
    """An instance of a subclass of ``base`` that holds ``items``, without running the subclass's own methods."""
    if base is tuple:
        return tuple.__new__(cls, items)
    made = base.__new__(cls)
    if issubclass(base, dict):
        for key, value in items.items():
            base.__setitem__(made, key, value)
    else:
        base.extend(made, items)
    return made


def refill_list(target: Any, items: list[Any]) -> None:
    if isinstance(target, deque):
        deque.clear(target)
        deque.extend(target, items)
    else:
        list.__setitem__(target, slice(None), items)


def refill_dict(target: dict[Any, Any], items: dict[Any, Any]) -> None:
    """Deletes and adds no more keys than the program did, where their order allows: something may iterate over it."""
    kind: Any = OrderedDict if isinstance(target, OrderedDict) else dict
    wanted = [key if type(key) is str else id(key) for key in items]
    kept = set(wanted)
    found = {key if type(key) is str else id(key): key for key in kind.keys(target)}
    for known in [k for k in found if k not in kept]:
        kind.__delitem__(target, found.pop(known))
    if list(found) != wanted[: len(found)]:
        kind.clear(target)
    for key, value in items.items():
        kind.__setitem__(target, key, value)


def replay_set(target: set[Any], steps: Iterable[tuple[str, Sequence[Any]]]) -> set[Any]:
    for name, keys in steps:
        change_set(target, name, keys)
    return target
