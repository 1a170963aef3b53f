"""What an attribute of a Python function is: of an existing one, and of one that was made while tracing."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..breaks import Break, raising
from ..hook import _hook
from ..tracing import sources as src
from .algebra import Constant, DictValue, FunctionValue, Known, MadeFunction, MethodValue, SequenceValue, Value
from .attributes import ABSENT, ATTRIBUTES, class_attribute, not_traced
from .known import plain

if TYPE_CHECKING:
    from ..machine import Machine

_FUNCTION_PARTS = ("__annotate__", "__annotations__", "__defaults__", "__kwdefaults__", "__type_params__")


@ATTRIBUTES.of(FunctionValue)
def _of_function(m: Machine, value: FunctionValue, name: str) -> Value:
    """An attribute of an existing function."""
    if name in ("__name__", "__qualname__", "__module__", "__doc__"):
        return Constant(getattr(value.function, name))
    if name == "__code__":
        return Known(value.function.__code__)
    if name == "__class__":
        return Known(types.FunctionType)
    if name == "__get__":
        return _binding(value)
    own = own_attribute(m, value, name)
    if own is not None:
        return own
    if name in _FUNCTION_PARTS and name in vars(types.FunctionType):
        base = value.source or src.constant(value.function, value.function.__qualname__)
        try:
            part = getattr(value.function, name)
        except Exception as error:  # noqa: BLE001 - 3.14 evaluates annotations when they are asked for, which runs anything
            raise Break("FL106", what=f"{value.describe()}.{name}", why=f"it raises {type(error).__name__}") from None
        return m.use(m.tracer.lazy(part, src.generic_attribute(base, name)))
    if class_attribute(types.FunctionType, name) is ABSENT:
        raise raising(AttributeError(f"'function' object has no attribute '{name}'", name=name, obj=value.function))
    return not_traced(m, value, name)


def _binding(function: Value) -> MethodValue:
    """``function.__get__``: a scheduler of learning rates asks for it, to bind an optimizer's ``step`` again."""
    return MethodValue(Known(types.FunctionType.__get__), function)


def own_attribute(m: Machine, value: FunctionValue, name: str) -> Value | None:
    """An attribute that was set on the function, as ``functools.wraps`` does; None when there is none."""
    attributes, source = vars(value.function), value.source
    if name in attributes:
        base = source or src.constant(value.function, value.function.__qualname__)
        return m.use(m.tracer.lazy(attributes[name], src.attribute(base, name)))
    if source is not None:
        m.tracer.guard(
            src.instance_dict(source), _hook.MISSING, name, name="MISSING", text=f"{source} has no attribute {name}"
        )
    return None


def _annotations(m: Machine, value: MadeFunction) -> Value:
    """A function's annotations, which are made when they are first asked for."""
    annotate = m.use(value.attributes.get("__annotate__", value.annotate or Constant(None)))
    if value.annotations is None and not isinstance(annotate, Constant):
        value.annotations = m.call(annotate, [Constant(1)], {})  # annotationlib.Format.VALUE
    given = m.use(value.annotations) if value.annotations is not None else None
    if not isinstance(given, DictValue):
        flat = given.items if isinstance(given, SequenceValue) else []
        given = DictValue({plain(m.use(k)): v for k, v in zip(flat[::2], flat[1::2], strict=True)})
        value.annotations = given if flat else None
    return given


@ATTRIBUTES.of(MadeFunction)
def _of_made_function(m: Machine, value: MadeFunction, name: str) -> Value:
    if name in value.attributes:
        return m.use(value.attributes[name])
    part = _PARTS.get(name)
    if part is not None:
        return part(m, value)
    if class_attribute(types.FunctionType, name) is ABSENT:
        raise raising(AttributeError(f"'function' object has no attribute '{name}'", name=name))
    return not_traced(m, value, name)


def _docstring(m: Machine, value: MadeFunction) -> Value:
    first = value.code.co_consts[0] if value.code.co_consts else None
    return Constant(first if isinstance(first, str) else None)


_PARTS: dict[str, Callable[[Machine, MadeFunction], Value]] = {
    "__name__": lambda m, f: Constant(f.code.co_name),
    "__qualname__": lambda m, f: Constant(f.code.co_qualname),
    "__module__": lambda m, f: Constant(f.globals.get("__name__")),
    "__doc__": _docstring,
    "__annotations__": _annotations,
    "__defaults__": lambda m, f: m.use(f.defaults or Constant(None)),
    "__kwdefaults__": lambda m, f: m.use(f.kwdefaults or Constant(None)),
    "__class__": lambda m, f: Known(types.FunctionType),
    "__code__": lambda m, f: Known(f.code),
    "__call__": lambda m, f: f,
    "__get__": lambda m, f: _binding(f),
}
"""What a function made while tracing consists of."""
if "__annotate__" in vars(types.FunctionType):
    _PARTS["__annotate__"] = lambda m, f: m.use(f.annotate or Constant(None))
if "__type_params__" in vars(types.FunctionType):  # of generic functions, which are not traced
    _PARTS["__type_params__"] = lambda m, f: SequenceValue([], tuple)


def replace_annotations(m: Machine, owner: MadeFunction, name: str, value: Value) -> None:
    """On 3.14 a function's annotations and the function that makes them take each other's place when they are set."""
    if name == "__annotations__":
        owner.annotate = owner.annotations = None
        owner.attributes.pop("__annotate__", None)
    elif name == "__annotate__" and name in vars(types.FunctionType):
        value = m.use(value)
        if isinstance(value, (MadeFunction, FunctionValue)):
            owner.annotations = None
            owner.attributes.pop("__annotations__", None)
        elif not value.is_none:
            raise Break("FL110", what=f"assignment to `{owner.describe()}.{name}`", why="it is no Python function")
