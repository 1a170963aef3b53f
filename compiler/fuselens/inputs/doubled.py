"""A call's values in float64, beside those that the call itself computes.

Each operator runs as the program asks, and once more on values that were kept in float64 from the start. Conditions, indices and
random numbers are those of the call itself, so both are about the same computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_private
from .structures import mapped, tensors_in

WIDER = {
    torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float64: torch.float64,
    torch.complex64: torch.complex128, torch.complex128: torch.complex128,
}  # fmt: skip
HALVES = (torch.bfloat16, torch.float16)
MOST_BYTES = 2 << 30  # of memory that is kept alive; beyond it nothing more is known
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_ITEMS = {torch.float64: 8, torch.complex128: 16}

_MOVES = frozenset({
    "cat", "stack", "index_select", "gather", "clone", "_to_copy", "copy", "copy_", "constant_pad_nd", "flip", "roll", "repeat", "index",
    "select_scatter", "slice_scatter", "fill_", "zero_", "zeros_like", "empty_like", "new_zeros", "lift_fresh_copy",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Exact:
    """``value`` is in float64. ``signed``: the sign of each zero is certain, because no sum was taken on the way, whose order is open."""

    value: torch.Tensor
    signed: bool


class Doubled(torch_private.RecordingMode):
    """Inside, values are kept in float64, too. A value belongs to memory, so views and writes need nothing more."""

    def __init__(self) -> None:
        super().__init__()
        self._wide: dict[tuple[int, torch.dtype], torch.Tensor] = {}  # by storage and dtype: all of its elements
        self._alive: dict[int, Any] = {}  # storages, so that no other takes their place
        self._summed: set[int] = set()  # storages of values in which sums are
        self._bytes = 0
        self.half = False  # whether a value of half precision was made

    @property
    def over(self) -> bool:
        """Whether there was more than can be kept."""
        return self._bytes > MOST_BYTES

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.over or not any(map(_is_known, tensors_in((args, kwargs)))):
            return func(*args, **kwargs)
        written = list(_written(func, args, kwargs))
        exact = mapped(self._wider, args), mapped(self._wider, kwargs)
        storages = {torch_private.storage_key(t) for t in tensors_in((args, kwargs)) if _is_plain(t)}
        result = func(*args, **kwargs)
        made = [t for t in tensors_in(result) if _is_plain(t) and torch_private.storage_key(t) not in storages]
        self.half |= any(t.dtype in HALVES for t in made)
        if written or any(map(_is_known, made)):
            if not _keeps_zeros(func) or not self._summed.isdisjoint(storages):
                self._summed.update(map(torch_private.storage_key, (*made, *written)))
            self._again(func, exact, result, made, written)
        return result

    def exactly(self, value: Any) -> Exact | None:
        """What a tensor is in float64; None where that is not known."""
        if not _is_known(value) or self._key(value) not in self._wide:
            return None
        with torch.no_grad():
            return Exact(self._wide_of(value).clone(), torch_private.storage_key(value) not in self._summed)

    # --- memory ----------------------------------------------------------------------------------------------------

    def _key(self, tensor: torch.Tensor) -> tuple[int, torch.dtype]:
        return torch_private.storage_key(tensor), tensor.dtype

    def _wider(self, value: Any) -> Any:
        """An operand in float64. Dtypes that an operator is asked to compute in are wide, too."""
        if isinstance(value, torch.dtype):
            return WIDER.get(value, value)
        return self._wide_of(value)

    def _wide_of(self, value: Any) -> Any:
        """The value in float64, as a view of all that its memory has; what has no counterpart stays."""
        if not isinstance(value, torch.Tensor) or not _is_known(value):
            return value
        key = self._key(value)
        if key not in self._wide:
            storage = value.untyped_storage()
            count = storage.nbytes() // value.dtype.itemsize
            whole = torch.empty(0, dtype=value.dtype, device=value.device).set_(storage, 0, (count,), (1,))
            self._wide[key] = whole.to(WIDER[value.dtype], copy=True)
            self._alive[key[0]] = storage
            self._bytes += storage.nbytes() + count * _ITEMS[WIDER[value.dtype]]
        wide = self._wide[key].as_strided(value.shape, value.stride(), value.storage_offset())
        wide = wide.conj() if value.is_conj() else wide
        return torch_private.negated(wide) if value.is_neg() else wide

    def _again(self, func: Any, exact: Any, result: Any, made: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        for tensor in written:  # what was known of the memory by another dtype holds no more
            cdata, dtype = self._key(tensor)
            for key in [k for k in self._wide if k[0] == cdata and k[1] != dtype]:
                del self._wide[key]
        found: list[Any] = []
        if not _is_random(func):
            try:
                with torch.no_grad():
                    found = list(tensors_in(func(*exact[0], **exact[1])))
            except Exception:  # noqa: BLE001 - an operator without a kernel for float64: its result counts as exact
                found = []
        results = list(tensors_in(result))
        if len(found) != len(results):
            found = results
            for tensor in written:
                if _is_known(tensor):
                    self._wide_of(tensor).copy_(tensor)
        for tensor, wide in zip(results, found, strict=True):
            if _is_known(tensor) and any(tensor is t for t in made):
                mine = self._wide_of(tensor)
                if wide.shape == mine.shape:
                    mine.copy_(wide)


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN and value.layout is torch.strided and not value.is_meta and not value._is_zerotensor()


def _is_known(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and _is_plain(value) and value.dtype in WIDER


_TIES = frozenset(("minimum", "maximum", "fmin", "fmax"))
_CLAMPS = frozenset(("clamp", "clamp_min", "clamp_max"))


def _keeps_zeros(func: Any) -> bool:
    """Whether the sign of a zero that an operator gives is certain. Which of two zeros is the smaller depends in eager on where they are:
    its vectors and what is left over from them do not agree."""
    name = func.overloadpacket.__name__
    if name in _TIES or (name in _CLAMPS and func._overloadname == "Tensor"):  # limits that are numbers are certain
        return False
    return torch.Tag.pointwise in getattr(func, "tags", ()) or name in _MOVES


def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """What an operator writes to."""
    schema = getattr(func, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from (t for t in tensors_in(given) if _is_plain(t))
