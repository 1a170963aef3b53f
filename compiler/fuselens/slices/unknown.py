"""A value that is not known here: what it came of failed. Whatever is made of it is unknown as well; nothing is decided by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

ASSUMED_SIZE = 64
"""Stands for a size that is not known: of a vocabulary, of features; attention's heads divide it."""


Sizes = tuple[int | None, ...]
_RESHAPES = frozenset({"view", "reshape"})
_OF_IMAGES = frozenset(
    "nc num_channels n_channels img_channels image_channels input_channels in_chans channels_img".split()
)
_CONFIGURATIONS = frozenset("config cfg conf args opt options hparams params".split())


class UnknownUsed(Exception):
    """Something had to be decided by an unknown value."""


class _Sizes:
    """The sizes of a batch of unknown data: the first one is known."""

    def __init__(self, of: Unknown, batch: int) -> None:
        self._of, self._batch = of, batch

    def __getitem__(self, dim: Any) -> Any:
        return self._batch if dim == 0 else self._of

    def __call__(self, dim: Any = None) -> Any:
        return self if dim is None else self[dim]

    def __iter__(self) -> Any:
        raise UnknownUsed(why_of(self._of))

    def __len__(self) -> int:
        raise UnknownUsed(why_of(self._of))


class _Reshape:
    """``view`` of an unknown tensor, which says what sizes it has then."""

    def __init__(self, of: Unknown) -> None:
        self._of = of

    def __call__(self, *sizes: Any, **_: Any) -> Unknown:
        return Unknown(why_of(self._of), sizes=sizes_in(sizes))


class Unknown:
    """``why`` says what failed, and at which line; ``batch`` how many examples it holds, where that is known, and ``sizes`` those
    of a tensor whose rank is known, None for an unknown one. ``known`` are attributes of an object that could not be made."""

    def __init__(
        self, why: str, batch: int | None = None, sizes: Sizes | None = None, known: Mapping[str, Any] | None = None
    ) -> None:
        object.__setattr__(self, "_why", why)
        object.__setattr__(self, "_known", known or {})
        object.__setattr__(self, "_batch", batch if sizes is None else next(iter(sizes), None))
        object.__setattr__(self, "_sizes", sizes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # it has no protocol: not an array, not to be copied or pickled by one
        if name in (known := object.__getattribute__(self, "_known")):
            return known[name]
        if name in _RESHAPES:
            return _Reshape(self)
        if name == "unsqueeze":
            return lambda dim, *_, **__: Unknown(why_of(self), 1) if dim == 0 else self
        if name in ("shape", "size") and (batch := object.__getattribute__(self, "_batch")) is not None:
            return _Sizes(self, batch)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """An operator on it gives it again."""
        found = first_unknown((args, kwargs or {}))
        return NotImplemented if found is None else found

    def __format__(self, _: str) -> str:
        return repr(self)

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


_DECIDING = "bool iter len int float index contains hash"
_ABSORBED = "eq ne lt le gt ge getitem neg pos abs invert"
_BINARY = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift"
for _name in _DECIDING.split():
    setattr(Unknown, f"__{_name}__", Unknown._decided)
for _name in (*_ABSORBED.split(), *(form + name for name in _BINARY.split() for form in ("", "r", "i"))):
    setattr(Unknown, f"__{_name}__", Unknown._same)


def why_of(value: Unknown) -> str:
    return object.__getattribute__(value, "_why")


def batch_of(value: Unknown) -> int | None:
    return object.__getattribute__(value, "_batch")


def sizes_of(value: Unknown) -> Sizes | None:
    return object.__getattribute__(value, "_sizes")


def sizes_in(arguments: tuple[Any, ...]) -> Sizes | None:
    """The sizes that a call gives, one by one or as a sequence; None where there are none."""
    if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)):
        arguments = tuple(arguments[0])
    known = all(isinstance(a, (int, Unknown)) and not isinstance(a, bool) for a in arguments)
    return tuple(a if isinstance(a, int) and a >= 0 else None for a in arguments) if known and arguments else None


def assumed(value: Any) -> Any:
    """``value``, with sizes in place of what is unknown in it."""
    if isinstance(value, Unknown):
        return ASSUMED_SIZE
    if type(value) in (tuple, list):
        return type(value)(map(assumed, value))
    return {k: assumed(v) for k, v in value.items()} if type(value) is dict else value


def assumed_as(name: str, value: Any) -> Any:
    """:func:`assumed` for what a module takes under a name; a configuration stays unknown, for it is no size."""
    if name in _CONFIGURATIONS:
        return value
    if isinstance(value, Unknown) and name in _OF_IMAGES:
        return 3
    return 2 if isinstance(value, Unknown) and ("factor" in name or "scale" in name) else assumed(value)


def first_unknown(value: Any) -> Unknown | None:
    """A value that is unknown, or the first one in a sequence or mapping of values that is."""
    return next((v for v in _flat(value) if isinstance(v, Unknown)), None)


def is_unknown(value: Any) -> bool:
    return first_unknown(value) is not None


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        yield from _flat(tuple(value.values()))
    else:
        yield value
