"""Template strings (3.14): ``t"{x:.2f}"`` keeps its parts, which are traced as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..breaks import Break
from ..tracing import sources as src
from ..tracing.sources import Source
from ..values.algebra import ActiveValue, Constant, SequenceValue, Value
from .table import rule

if TYPE_CHECKING:
    from ..machine import Machine
    from ..tracing.tracer import Tracer

if sys.version_info >= (3, 14):
    from string.templatelib import Interpolation, Template
else:

    class Interpolation:
        """Stands for what older versions lack."""

    class Template:
        """Likewise."""


KINDS = (Template, Interpolation)
_CONVERSIONS = (None, "s", "r", "a")
_FIELDS = ("value", "expression", "conversion", "format_spec")


class InterpolationValue(ActiveValue):
    """What stands between braces, unformatted. ``fields`` are in the order of the constructor's arguments."""

    __slots__ = ("fields",)

    def __init__(self, fields: list[Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.fields = fields

    @property
    def python_type(self) -> type:
        return Interpolation

    def describe(self) -> str:
        return "an interpolation of a template string"

    def attribute(self, m: Machine, name: str) -> Value | None:
        return m.use(self.fields[_FIELDS.index(name)]) if name in _FIELDS else None

    @property
    def maker(self) -> Callable[..., Any]:
        return Interpolation

    @property
    def parts(self) -> list[Value]:
        return self.fields


class TemplateValue(ActiveValue):
    """A template: ``strings``, of which there is one more than of ``interpolations``, around these."""

    __slots__ = ("strings", "interpolations")

    def __init__(self, strings: SequenceValue, interpolations: SequenceValue, source: Source | None = None) -> None:
        super().__init__(source)
        self.strings = strings
        self.interpolations = interpolations

    @property
    def python_type(self) -> type:
        return Template

    def describe(self) -> str:
        return "a template string"

    def attribute(self, m: Machine, name: str) -> Value | None:
        if name == "values":
            return SequenceValue([m.use(i).fields[0] for i in self.interpolations.items], tuple)  # type: ignore[attr-defined]
        return getattr(self, name) if name in ("strings", "interpolations") else None

    def items(self) -> list[Value]:
        """The parts in order, without empty strings."""
        return [p for p in self.parts if not (isinstance(p, Constant) and p.value == "")]

    def binary(self, symbol: str, other: Value) -> Value | None:
        if symbol not in ("+", "+=") or not isinstance(other, TemplateValue):
            return None
        return _template([*self.parts, *other.parts])

    @property
    def maker(self) -> Callable[..., Any]:
        return Template

    @property
    def parts(self) -> list[Value]:
        first, *rest = self.strings.items
        pairs = zip(self.interpolations.items, rest, strict=True)
        return [first, *(part for pair in pairs for part in pair)]


def interpolation(value: Value, text: Value, flags: int, spec: Value) -> InterpolationValue:
    """What BUILD_INTERPOLATION makes."""
    return InterpolationValue([value, text, Constant(_CONVERSIONS[flags >> 2]), spec])


def existing(tracer: Tracer, obj: Any, source: Source) -> Value:
    """A template, or an interpolation, that the frame can reach at ``source``."""
    tracer.guard_type(source, type(obj))
    if type(obj) is Interpolation:
        fields = {name: src.generic_attribute(source, name) for name in _FIELDS}
        return InterpolationValue([tracer.lazy(getattr(obj, n), place) for n, place in fields.items()], source)
    parts = [tracer.wrap(getattr(obj, n), src.generic_attribute(source, n)) for n in ("strings", "interpolations")]
    for part in parts:
        assert isinstance(part, SequenceValue)
        part.items = [tracer.use(item) for item in part.items]
    return TemplateValue(*parts, source)  # type: ignore[arg-type]


def _template(parts: list[Value]) -> TemplateValue:
    """A template of strings and interpolations in any order; strings that meet become one."""
    strings, interpolations = [""], []
    for part in parts:
        if isinstance(part, InterpolationValue):
            interpolations.append(part)
            strings.append("")
        elif isinstance(part, Constant) and type(part.value) is str:
            strings[-1] += part.value
        else:
            raise Break("FL104", what="a template string", why=f"it is made of {part.describe()}")
    return TemplateValue(SequenceValue([Constant(s) for s in strings], tuple), SequenceValue(interpolations, tuple))


@rule(Template)
def _make_template(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs:
        raise Break("FL104", what="Template", why="it takes no keyword arguments")
    return _template([m.use(a) for a in args])


@rule(Interpolation)
def _make_interpolation(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = {**dict(zip(_FIELDS, map(m.use, args), strict=False)), **kwargs}
    if len(args) > len(_FIELDS) or not given.keys() <= set(_FIELDS) or "value" not in given:
        raise Break("FL104", what="Interpolation", why="its arguments do not fit")
    defaults = (Constant(None), Constant(""), Constant(None), Constant(""))
    fields = [m.use(given.get(name, default)) for name, default in zip(_FIELDS, defaults, strict=True)]
    if not all(isinstance(f, Constant) for f in fields[1:]):
        raise Break("FL104", what="Interpolation", why="its arguments are not known while tracing")
    texts = [f.value for f in fields[1:] if isinstance(f, Constant)]
    if not isinstance(texts[0], str) or texts[1] not in _CONVERSIONS or not isinstance(texts[2], str):
        raise Break("FL104", what="Interpolation", why="its arguments do not fit")
    return InterpolationValue(fields)
