"""What operators return for operands of such metadata, remembered, for fake tensors of integer sizes.

Torch's fake mode remembers results as well, but looking one up and making tensors of it takes it several times as long
as this, for it knows more kinds of tensors; and it imports its reasoning about symbolic sizes to do so. What is
remembered is plain data: it can be kept on disk, so that a later process runs no operator's rules for shapes at all.

An operator's result is remembered if it consists of strided tensors that are new or, each, a view of the same operand.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

_SCALARS = frozenset({
    int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
})  # fmt: skip
_LIMIT = 100_000  # results; a process that meets more begins anew


class Layout(NamedTuple):
    """One tensor of a result. ``view`` is the position of the operand in whose memory it lies; None: in its own."""

    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    view: int | None


Layouts = tuple[Layout, ...]
Known = dict[Any, "tuple[type | None, Layouts] | None"]
Make = Callable[[torch.Tensor, torch.device], torch.Tensor]  # a fake tensor of a meta tensor and the device it claims


class FakeResults:
    """Results by operator and operands: (type of sequence or None, layouts), or None for what is not remembered.

    ``fake`` is the class of fake tensors; ``state`` what else of torch results depend on; ``same_keys`` tells whether
    two tensors are dispatched alike. Keys and results are plain data, which can be kept.
    """

    def __init__(
        self, fake: type, state: Callable[[], tuple[Any, ...]], same_keys: Callable[[torch.Tensor, torch.Tensor], bool]
    ) -> None:
        self._fake, self._state, self._same_keys = fake, state, same_keys
        self._known: Known = {}
        self._used: Known | None = None
        self._functions: dict[str, bool] = {}
        self._views: dict[str, bool] = {}

    def suits(self, func: Any) -> bool:
        """Whether all that ``func`` does is to return tensors, and torch defines it."""
        found = self._functions.get(func._name)
        if found is None:
            found = self._functions[func._name] = _suits(func)
        return found

    def view(self, mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        """The view that a function gives that only takes an operand apart, without asking torch's rules; None for other calls."""
        layout_of = _VIEWS.get(func)
        if layout_of is None or kwargs:
            return None
        x: Any = args[0]
        if type(x) is not self._fake or x.fake_mode is not mode or x.constant is not None:
            return None
        if not _plain(x) or x.is_inference() is not torch.is_inference_mode_enabled():
            return None
        found = layout_of(x, *args[1:])
        if found is None:
            return None
        layout = Layout(x.dtype, x.fake_device, *found, view=0)
        return _made(layout, args, functools.partial(self._fake, mode))

    @contextlib.contextmanager
    def followed(self, known: Known) -> Iterator[Known]:
        """Inside, ``known`` are results that were remembered before, and what is used is entered into the other."""
        self._known.update(known)
        before, self._used = self._used, {}
        try:
            yield self._used
        finally:
            self._used = before

    def run(
        self, mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], compute: Callable[[], Any]
    ) -> Any:
        """``compute()`` for a function that suits, or what it returned for such operands."""
        key = self._key(mode, func, args, kwargs)
        if key is None:
            return compute()
        found = self._known.get(key, self)
        if isinstance(found, tuple):
            if self._used is not None:
                self._used[key] = found
            kind, layouts = found
            make = functools.partial(self._fake, mode)
            made = [_made(layout, args, make) for layout in layouts]
            return made[0] if kind is None else kind(made)
        used, self._used = self._used, None  # of what it calls in its turn nothing is needed the next time
        try:
            result = compute()
        finally:
            self._used = used
        if found is self:
            if len(self._known) >= _LIMIT:
                self._known.clear()
            self._known[key] = described = self._described(mode, func, args, result)
            if self._used is not None and described is not None:
                self._used[key] = described
        return result

    def _key(self, mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        parts, of_memory = [func._name, *self._state()], self._gives_views(func)
        if not self._add(parts, mode, args, of_memory):
            return None
        for name, value in kwargs.items():
            parts.append(name)
            if not self._add(parts, mode, (value,), of_memory):
                return None
        return tuple(parts)

    def _gives_views(self, func: Any) -> bool:
        """Whether the function may give views of its operands: then it matters where in their memory these are."""
        found = self._views.get(func._name)
        if found is None:
            aliases = any(r.alias_info is not None for r in func._schema.returns)
            found = self._views[func._name] = aliases or "as_strided" in func._name
        return found

    def _add(self, parts: list[Any], mode: Any, values: Sequence[Any], of_memory: bool) -> bool:
        """Adds what a result depends on of each value; False where that is not known."""
        fake = self._fake
        for value in values:
            kind = type(value)
            if kind is fake:
                if value.fake_mode is not mode or value.constant is not None or not _plain(value):
                    return False
                parts += (
                    value.dtype, value.fake_device, value.shape, value.stride(), value.requires_grad, value.is_inference(),
                )  # fmt: skip
                if of_memory:
                    parts += (value.storage_offset(), value.untyped_storage().nbytes())
            elif kind in _SCALARS:
                if value != value:
                    return False
                parts += (kind, value)
            elif kind is list or kind is tuple:
                parts += (kind, len(value))
                if not self._add(parts, mode, value, of_memory):
                    return False
            else:
                return False
        return True

    def _described(self, mode: Any, func: Any, args: Sequence[Any], result: Any) -> tuple[type | None, Layouts] | None:
        make = functools.partial(self._fake, mode)
        kind = list if type(result) is list else tuple if isinstance(result, tuple) else None
        tensors: tuple[Any, ...] = (result,) if kind is None else tuple(result)
        operands = {_storage(a): i for i, a in reversed([*enumerate(args)]) if type(a) is self._fake}
        nested = {_storage(a) for a in args if type(a) in (tuple, list) for a in a if type(a) is self._fake}
        own: set[int] = set()
        layouts: list[Layout] = []
        for t in tensors:
            if type(t) is not self._fake or t.fake_mode is not mode or t.constant is not None or not _plain(t):
                return None
            view = operands.get(_storage(t))
            if t.requires_grad or any(t is a for a in args) or _storage(t) in nested or _storage(t) in own:
                return None
            if view is None:
                own.add(_storage(t))
            elif not self._gives_views(func):  # its schema does not say so
                return None
            layout = Layout(t.dtype, t.fake_device, tuple(t.shape), t.stride(), t.storage_offset(), view)
            again = _made(layout, args, make)
            sizes = [x.untyped_storage().nbytes() for x in (t, again)]
            if not self._same_keys(again, t) or sizes[0] != sizes[1] or again.storage_offset() != layout.offset:
                return None
            layouts.append(layout)
        return kind, tuple(layouts)


def _suits(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    if schema is None or schema.is_mutable or func.namespace not in ("aten", "prims") or not schema.returns:
        return False
    packet = func.overloadpacket.__name__
    return not packet.startswith("lift") and all("Tensor" in str(r.type) for r in schema.returns)


def _select(x: Any, dim: int, index: int) -> _Extents | None:
    if not (type(dim) is type(index) is int and -x.dim() <= dim < x.dim() and -x.shape[dim] <= index < x.shape[dim]):
        return None
    sizes, strides = [*x.shape], [*x.stride()]
    size, step = sizes.pop(dim), strides.pop(dim)
    return tuple(sizes), tuple(strides), x.storage_offset() + index % size * step


def _slice(x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> _Extents | None:
    known = all(type(n) is int for n in (dim, 0 if start is None else start, 0 if end is None else end, step))
    if not (known and -x.dim() <= dim < x.dim() and step > 0):
        return None
    sizes, strides = [*x.shape], [*x.stride()]
    begin, stop, _ = slice(start, end).indices(sizes[dim])
    offset = x.storage_offset() + begin * strides[dim]
    sizes[dim] = -(-max(stop - begin, 0) // step)
    strides[dim] *= step
    return tuple(sizes), tuple(strides), offset


def _squeeze(x: Any, dim: int) -> _Extents | None:
    if type(dim) is not int or not -x.dim() <= dim < x.dim():
        return None
    if x.shape[dim] != 1:
        return tuple(x.shape), x.stride(), x.storage_offset()
    return _select(x, dim, 0)


_Extents = tuple[tuple[int, ...], tuple[int, ...], int]
_VIEWS: dict[Any, Callable[..., _Extents | None]] = {
    torch.ops.aten.select.int: _select, torch.ops.aten.slice.Tensor: _slice, torch.ops.aten.squeeze.dim: _squeeze,
}  # fmt: skip


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _made(layout: Layout, args: Sequence[Any], make: Make) -> torch.Tensor:
    dtype, device, shape, stride, offset, view = layout
    if view is None:
        return make(torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device)
    meta = torch.empty(0, dtype=dtype, device="meta")
    meta.set_(args[view].untyped_storage(), offset, shape, stride)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return make(meta, device)
