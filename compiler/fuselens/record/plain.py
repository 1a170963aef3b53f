"""Dataclasses as JSON-ready data, and back. How a type is converted is worked out once, not for each value.

Two forms: with every span in full, for people and other programs; and with :class:`Spans`, for the wire, where a span is
its number in a table and a line of a document a list. A report of a large model has 20,000 lines but 50 spans.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .report import Line, Span

T = TypeVar("T")


class Spans:
    """The table of a message's spans."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int, int, int]] = []
        self._of_object: dict[int, int] = {}  # the message keeps its spans alive
        self._of_span: dict[Span, int] = {}

    def number(self, span: Span) -> int:
        found = self._of_object.get(id(span))
        if found is None:
            found = self._of_object[id(span)] = self._of_span.setdefault(span, len(self.rows))
            if found == len(self.rows):
                self.rows.append((span.file, span.line, span.column, span.end_line, span.end_column))
        return found


_Encode = Callable[[Any, Spans | None], Any] | None  # None: as it is
_Decode = Callable[[Any, Sequence[Span]], Any] | None


def to_plain(value: Any, spans: Spans | None = None) -> Any:
    """Dataclasses to JSON-ready dicts, lists and scalars; fields at their default are left out."""
    if isinstance(value, (list, tuple)):
        return [to_plain(v, spans) for v in value]
    if isinstance(value, dict):
        return {str(k): to_plain(v, spans) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _class_encoder(type(value))(value, spans)
    return value


def from_plain(cls: type[T], value: Any, spans: Sequence[Span] = ()) -> T:
    """The inverse of :func:`to_plain` for the dataclass ``cls``. Unknown keys are ignored (newer writers)."""
    return _class_decoder(cls)(value, spans)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _encoder(hint: Any) -> _Encode:
    if hint in (str, int, float, bool):
        return None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return None
    if origin in (typing.Union, types.UnionType) and len(arguments) == 2 and arguments[1] is type(None):
        if (encode := _encoder(arguments[0])) is None:
            return None
        return lambda value, spans: None if value is None else encode(value, spans)
    if origin in (list, tuple):
        if (encode := _encoder(arguments[0])) is None:
            return lambda value, _: list(value)
        return lambda value, spans: [encode(v, spans) for v in value]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _class_encoder(hint)
    return to_plain


@functools.cache
def _class_encoder(cls: type) -> Callable[[Any, Spans | None], Any]:
    hints = _hints(cls)
    fields = [
        (f.name, f.default, f.default_factory is not dataclasses.MISSING, _encoder(hints[f.name]))
        for f in dataclasses.fields(cls)
    ]

    def encode(value: Any, spans: Spans | None) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, default, has_factory, inner in fields:
            v = getattr(value, name)
            if v is default or v == default or (has_factory and not v):
                continue
            out[name] = v if inner is None else inner(v, spans)
        return out

    if cls is Span:
        return lambda span, spans: encode(span, None) if spans is None else spans.number(span)
    if cls is Line:
        return lambda line, spans: (
            encode(line, None) if spans is None else [line.line, *[spans.number(s) for s in line.spans]]
        )
    return encode


def _decoder(hint: Any) -> _Decode:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (chosen,) = [a for a in arguments if a is not type(None)]
        if (decode := _decoder(chosen)) is None:
            return None
        return lambda value, spans: None if value is None else decode(value, spans)
    if origin is list or origin is tuple:
        if (decode := _decoder(arguments[0])) is None:
            return lambda value, _: origin(value)
        return lambda value, spans: origin([decode(v, spans) for v in value])
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _class_decoder(hint)
    return None


@functools.cache
def _class_decoder(cls: type) -> Callable[[Any, Sequence[Span]], Any]:
    hints = _hints(cls)
    fields = [(f.name, _decoder(hints[f.name])) for f in dataclasses.fields(cls)]

    def decode(value: Any, spans: Sequence[Span]) -> Any:
        given = {
            name: value[name] if inner is None else inner(value[name], spans) for name, inner in fields if name in value
        }
        return cls(**given)

    if cls is Span:
        return lambda value, spans: spans[value] if isinstance(value, int) else decode(value, spans)
    if cls is Line:
        return lambda value, spans: (
            Line(value[0], tuple([spans[i] for i in value[1:]])) if isinstance(value, list) else decode(value, spans)
        )
    return decode
