"""A value that is not known here: what it came of failed. Whatever is made of it is unknown as well; nothing is decided by it."""

from __future__ import annotations

from typing import Any, NoReturn


class UnknownUsed(Exception):
    """Something had to be decided by an unknown value."""


class Unknown:
    """``why`` says what failed, and at which line."""

    def __init__(self, why: str) -> None:
        object.__setattr__(self, "_why", why)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # it has no protocol: not an array, not to be copied or pickled by one
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __repr__(self) -> str:
        return f"<unknown: {why_of(self)}>"

    def _decided(self, *_: Any) -> NoReturn:
        raise UnknownUsed(why_of(self))

    def _same(self, *_: Any) -> Any:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __delitem__(self, key: Any) -> None:
        pass

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        raise UnknownUsed(why_of(self))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


_DECIDING = "bool iter len int float index str contains hash"
_ABSORBED = "eq ne lt le gt ge getitem neg pos abs invert"
_BINARY = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift"
for _name in _DECIDING.split():
    setattr(Unknown, f"__{_name}__", Unknown._decided)
for _name in (*_ABSORBED.split(), *(form + name for name in _BINARY.split() for form in ("", "r", "i"))):
    setattr(Unknown, f"__{_name}__", Unknown._same)


def why_of(value: Unknown) -> str:
    return object.__getattribute__(value, "_why")
