"""What an expression may be, as far as the source tells without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Value:
    """Base, and by itself: nothing is known."""


@dataclass(frozen=True, slots=True)
class Plain(Value):
    """A Python value that tracing knows: a number, text, a shape, a dtype."""


@dataclass(frozen=True, slots=True)
class Constant(Plain):
    """A Python value that the source tells."""

    value: Any


@dataclass(frozen=True, slots=True)
class Tensor(Value):
    """``mask``: of booleans, so that indexing with it gives a shape that depends on data. ``single``: without
    dimensions."""

    mask: bool = False
    single: bool = False


@dataclass(frozen=True, slots=True)
class Array(Value):
    """An array or a number of numpy's."""


@dataclass(frozen=True, slots=True)
class Container(Value):
    """A list, tuple, set, dictionary or iterator. ``item``: what iterating gives; of a dictionary (``mapping``), its values.
    ``elements``: one by one, where the source tells how many there are."""

    item: Value
    elements: tuple[Value, ...] | None = None
    mapping: bool = False


@dataclass(frozen=True, slots=True)
class Imported(Value):
    """Something of another module, a builtin included, by its dotted name."""

    name: str


@dataclass(frozen=True, slots=True)
class Method(Value):
    """A method of ``owner``, looked up and not called yet."""

    owner: Value
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Function(Value):
    """A function of this file with the variables around it, and what it is bound to."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    around: Mapping[str, Value]
    bound: Value | None = None
    qualname: str = ""


@dataclass(frozen=True, slots=True)
class Class(Value):
    """A class of this file."""

    node: ast.ClassDef


@dataclass(frozen=True, slots=True, eq=False)
class Instance(Value):
    """An instance of a class of this file, or of the library class ``name``. ``contents``: the modules in a
    container of modules."""

    name: str
    node: ast.ClassDef | None = None
    attributes: dict[str, Value] = field(default_factory=dict)
    contents: tuple[Value, ...] = ()


UNKNOWN = Value()
PLAIN = Plain()
TENSOR = Tensor()
TENSORS = Container(TENSOR)


def join(a: Value, b: Value, loops: bool = False) -> Value:
    """What a variable is where two ways meet. After a loop that may make a tensor of a number, it is a tensor."""
    if a is b or a == b:
        return a
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return Tensor(a.mask and b.mask, a.single and b.single)
    if isinstance(a, Plain) and isinstance(b, Plain):
        return PLAIN
    if isinstance(a, Container) and isinstance(b, Container) and a.mapping == b.mapping:
        if _empty(a) or _empty(b):
            return Container(b.item if _empty(a) else a.item, mapping=a.mapping)
        return Container(join(a.item, b.item, loops), mapping=a.mapping)
    if loops and {type(a), type(b)} <= {Tensor, Plain, Constant} and Constant(None) not in (a, b):
        return a if isinstance(a, Tensor) else b
    return UNKNOWN


def _empty(container: Container) -> bool:
    return container.elements == ()


def join_all(values: tuple[Value, ...]) -> Value:
    """What one of several values may be."""
    if not values:
        return UNKNOWN
    joined = values[0]
    for value in values[1:]:
        joined = join(joined, value)
    return joined


def item_of(value: Value) -> Value:
    """What iterating over ``value`` gives."""
    match value:
        case Tensor():
            return Tensor(value.mask)
        case Container(mapping=True) | Plain():
            return PLAIN
        case Container():
            return value.item
        case Instance(contents=contents) if contents:
            return join_all(contents)
        case Instance(name="torch.nn.ModuleList" | "torch.nn.Sequential"):
            return Instance("torch.nn.Module")
    return UNKNOWN


def holds_tensors(value: Value) -> bool:
    """Whether ``value`` is a sequence with a tensor in it."""
    if not isinstance(value, Container) or value.mapping:
        return False
    return isinstance(value.item, Tensor) or any(isinstance(v, Tensor) for v in value.elements or ())


def truth(value: Value) -> bool | None:
    """Whether ``value`` is true, where the source tells."""
    match value:
        case Constant():
            return bool(value.value)
        case Function() | Class() | Imported() | Method():
            return True
        case Container(elements=elements) if elements:
            return True
    return None
