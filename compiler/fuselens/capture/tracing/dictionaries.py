"""The items of an existing dictionary: guards are on what is looked up of it, and on all keys only where all are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..values.algebra import Value


class Holds:
    """A guard: a dictionary has the key, whatever it is for."""

    __slots__ = ("_key", "otherwise")

    def __init__(self, key: Any, text: str) -> None:
        self._key = key
        self.otherwise = f"`{text}` is no longer true"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holds) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, mapping: Any) -> bool:
        return self._key in mapping


class GivenItems(dict[Any, "Value"]):
    """Tells ``on_key`` of each key that is looked up and not read, and of whether it is there, until ``on_all`` has been told that
    all keys count: what iterates, counts, compares or writes does. ``on_key`` says whether it could guard the key by itself.

    An item that is read has a guard of its own, at its place in the dictionary.
    """

    __slots__ = ("_on_all", "_on_key")

    def __init__(
        self, items: dict[Any, Value], on_key: Callable[[Any, bool], bool], on_all: Callable[[], None]
    ) -> None:
        super().__init__(items)
        self._on_key: Callable[[Any, bool], bool] | None = on_key
        self._on_all = on_all

    def _look(self, key: Any) -> None:
        if self._on_key is not None and not self._on_key(key, super().__contains__(key)):
            self._all()

    def _all(self) -> None:
        if self._on_key is not None:
            self._on_key = None
            self._on_all()

    def __getitem__(self, key: Any) -> Value:
        if not super().__contains__(key):
            self._look(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        if not super().__contains__(key):
            self._look(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._look(key)
        return super().__contains__(key)


def _whole(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def of_all(self: GivenItems, *args: Any, **kwargs: Any) -> Any:
        self._all()
        return method(self, *args, **kwargs)

    of_all.__name__ = name
    return of_all


for _name in (
    "__iter__", "__len__", "__reversed__", "__eq__", "__ne__", "__or__", "__ror__", "__ior__", "__setitem__", "__delitem__",
    "keys", "values", "items", "copy", "pop", "popitem", "setdefault", "update", "clear", "__repr__",
):  # fmt: skip
    setattr(GivenItems, _name, _whole(_name))
