"""Objects as plain data that means the same in another process: constants by value, what modules define by name.

An object that no name leads to has no such form (:class:`Nameless`), and neither has what a name leads to no longer
(:class:`Gone`). Looking a name up imports nothing of the program and runs none of its code: a module that is not loaded does
not have the object.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import importlib
import logging
import os
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ... import torch_private
from ...system import source_text

_PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.layout, torch.memory_format, torch.device, torch.Size}
)  # fmt: skip
_LONGEST = 4096  # bits: Python refuses to read longer numbers
_SEQUENCES: dict[type, str] = {tuple: "tuple", frozenset: "frozenset"}
_MEMBERS = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType,
)  # fmt: skip
_SINGLE = {"Ellipsis": ..., "NotImplemented": NotImplemented}
_ITERATED: tuple[Any, ...] = (
    (), [], {}, {}.values(), {}.items(), set(), range(0), range(1 << 70), "", "\u0100", b"", bytearray(),
)  # fmt: skip
_UNMADE = (*map(iter, _ITERATED), {}.keys(), {}.values(), {}.items(), reversed([]), reversed({}))
_UNNAMED: dict[str, type] = {
    type(value).__name__: type(value) for value in _UNMADE
}  # builtin classes that no module has
_NOTHING = object()
_TABLES = "torch.nn.modules.module"  # has dictionaries of hooks in its globals
_OWN = __name__.partition(".")[0] + "."


class Nameless(Exception):
    """An object has no form that means the same in another process; the message says which."""


class Gone(Exception):
    """What was named is not there, or is another."""


class Writer:
    """Writes objects. ``special`` may write some in a form of its own: a tuple that begins with a tag; None for others."""

    def __init__(self, special: Callable[[Any], tuple[Any, ...] | None] = lambda obj: None) -> None:
        self._special = special

    def __call__(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in _PLAIN:
            if kind is int and obj.bit_length() > _LONGEST:
                raise Nameless("a long number")
            return obj
        found = self._special(obj)
        if found is not None:
            return found
        if kind is range:
            return "range", obj.start, obj.stop, obj.step
        if kind in _SEQUENCES:
            return _SEQUENCES[kind], *map(self, obj)
        if kind is slice:
            return "slice", self(obj.start), self(obj.stop), self(obj.step)
        for name, value in _SINGLE.items():
            if obj is value:
                return "single", name
        if issubclass(kind, enum.Enum):
            return "enum", self(kind), obj._name_, self(obj._value_)
        if kind is weakref.ref:
            if obj() is None:
                raise Nameless("a weak reference to what is gone")
            return "weak", self(obj())
        return self._named(obj, kind)

    def _named(self, obj: Any, kind: type) -> tuple[Any, ...]:
        for name in (_of_module, _of_namespace, _of_state, _by_name, _of_logger):
            found = name(obj)
            if found is not None:
                return found
        if kind in _MEMBERS and vars(obj.__objclass__).get(obj.__name__) is obj:
            return "member", self(obj.__objclass__), obj.__name__
        if kind in (types.BuiltinMethodType, types.MethodType):
            owner = self(obj.__self__)  # what has a name may be asked
            if getattr(obj.__self__, obj.__name__, None) == obj:
                return "bound", owner, obj.__name__
        if (kind.__module__ or "").startswith(_OWN) and "__slots__" in vars(kind):
            return "own", self(kind), *(self(getattr(obj, name)) for name in _slots(kind))
        raise Nameless(f"a {kind.__module__}.{kind.__qualname__}")


class Reader:
    """Finds what a :class:`Writer` wrote; ``special`` reads forms that are the caller's own, by tag."""

    def __init__(self, special: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self._readers = {**_READERS, **(special or {})}
        self._special = frozenset(special or ())

    def __call__(self, data: Any) -> Any:
        if type(data) is not tuple:
            return data
        tag, *parts = data
        if tag in self._special:
            return self._readers[tag](*parts)
        return self._readers[tag](*map(self, parts))


# --- writing --------------------------------------------------------------------------------------------------------


def look_up(module: str, name: str) -> Any:
    """What a loaded module defines under a dotted name; :data:`_NOTHING` where that is nothing."""
    found: Any = sys.modules.get(module)
    if found is None and module.startswith(_OWN):
        found = importlib.import_module(module)
    if not issubclass(type(found), types.ModuleType):
        return _NOTHING
    first, *rest = name.split(".")
    found = vars(found).get(first, _NOTHING)
    for part in rest:
        found = getattr(found, part, _NOTHING) if isinstance(found, type) else _NOTHING
    return found


def _by_name(obj: Any) -> tuple[Any, ...] | None:
    kind = type(obj)
    if kind is type and _UNNAMED.get(obj.__name__) is obj:
        return "unnamed", obj.__name__
    if kind.__module__ == "torch._ops" and torch_private.is_torch_operator(obj):
        return "operator", str(obj)
    if not issubclass(kind, type) and kind not in _DEFINED and kind is not functools._lru_cache_wrapper:
        return None
    module = obj.__module__
    candidates = [
        (module, obj.__qualname__),
        (module, obj.__name__),
        ("torch", obj.__name__),
        ("torch._C", obj.__name__),
    ]
    candidates += [("types", name) for name, found in vars(types).items() if found is obj]  # builtins' other names
    for place, name in candidates:
        if type(place) is str and look_up(place, name) is obj:
            return ("class", place, name, ("tuple", *_about(obj))) if issubclass(kind, type) else ("name", place, name)
    if getattr(torch_private.VARIABLE_FUNCTIONS, obj.__name__, None) is obj:  # of which torch has a Python function
        return "variable", obj.__name__
    return None


def _about(cls: type) -> tuple[Any, ...]:
    """What a trace may rely on of a class beside what it finds in it: its bases, and the fields of a dataclass."""
    order = [f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__]
    fields = vars(cls).get("__dataclass_fields__", {}).values()
    shown = [
        f"{f.name} {f.init} {f.kw_only is True} {type(f.default).__qualname__} {f.default if type(f.default) in _PLAIN else ''}"
        for f in fields
    ]
    return type(cls).__qualname__, *order, *shown


def _of_module(obj: Any) -> tuple[Any, ...] | None:
    if not issubclass(type(obj), types.ModuleType):
        return None
    name = types.ModuleType.__getattribute__(obj, "__dict__").get("__name__")
    return ("module", name) if sys.modules.get(name) is obj else None


def _of_namespace(obj: Any) -> tuple[Any, ...] | None:
    """The globals of a module, or a dictionary of hooks of torch's."""
    if not issubclass(type(obj), dict):
        return None
    name = dict.get(obj, "__name__")
    if type(name) is str and getattr(sys.modules.get(name), "__dict__", None) is obj:
        return "namespace", name
    tables = vars(sys.modules[_TABLES])
    return next((("table", name) for name, value in tables.items() if value is obj), None)


def _of_state(obj: Any) -> tuple[Any, ...] | None:
    """A function that reads torch's state."""
    return next((("state", name) for name, read in _states().items() if read is obj), None)


def _states() -> dict[str, Any]:
    return {**torch_private.AMBIENT, **torch_private.DETERMINISM, **torch_private.ATTENTION}


def _of_logger(obj: Any) -> tuple[Any, ...] | None:
    if not issubclass(type(obj), logging.Logger):
        return None
    return ("logger", obj.name) if _logger(obj.name, lambda: None) is obj else None


def _slots(kind: type) -> tuple[str, ...]:
    """Those of the class and its bases, which have no dictionary."""
    found = [vars(cls).get("__slots__", ()) for cls in reversed(kind.__mro__)]
    return tuple(name for names in found for name in ((names,) if isinstance(names, str) else names))


# --- reading --------------------------------------------------------------------------------------------------------


def _missing(what: str) -> Any:
    raise Gone(what)


def _name(module: str, name: str) -> Any:
    found = look_up(module, name)
    return found if found is not _NOTHING else _missing(f"{module}.{name}")


def _module(name: str) -> Any:
    return sys.modules.get(name) or _missing(name)


def _namespace(name: str) -> Any:
    return vars(_module(name))


def _logger(name: str, otherwise: Callable[[], Any]) -> Any:
    if name == logging.root.name:
        return logging.root
    found = logging.root.manager.loggerDict.get(name)
    return found if isinstance(found, logging.Logger) else otherwise()


def _operator(text: str) -> Any:
    namespace, name, *overload = text.split(".")
    try:
        found = getattr(getattr(torch.ops, namespace), name)
        return getattr(found, overload[0]) if overload else found
    except (AttributeError, RuntimeError):
        return _missing(text)


def _enum(kind: Any, name: str, value: Any) -> Any:
    found = kind._member_map_.get(name)
    return found if found is not None and found._value_ == value else _missing(name)


def _class(module: str, name: str, about: Any) -> Any:
    found = _name(module, name)
    return found if issubclass(type(found), type) and _about(found) == about else _missing(f"{module}.{name}")


def _bound(owner: Any, name: str) -> Any:
    return getattr(owner, name, None) or _missing(name)


def _own(kind: Any, *values: Any) -> Any:
    made = object.__new__(kind)
    for name, value in zip(_slots(kind), values, strict=True):
        object.__setattr__(made, name, value)
    return made


_READERS: dict[str, Callable[..., Any]] = {
    "tuple": lambda *items: items,
    "frozenset": lambda *items: frozenset(items),
    "range": range,
    "slice": slice,
    "single": _SINGLE.__getitem__,
    "enum": _enum,
    "weak": weakref.ref,
    "module": _module,
    "namespace": _namespace,
    "table": lambda name: (
        vars(sys.modules[_TABLES]).get(name) if name in vars(sys.modules[_TABLES]) else _missing(name)
    ),
    "state": lambda name: _states().get(name) or _missing(name),
    "name": _name,
    "unnamed": _UNNAMED.__getitem__,
    "class": _class,
    "operator": _operator,
    "variable": lambda name: getattr(torch_private.VARIABLE_FUNCTIONS, name, None) or _missing(name),
    "logger": lambda name: _logger(name, lambda: _missing(name)),
    "member": lambda owner, name: vars(owner).get(name) or _missing(name),
    "bound": _bound,
    "own": _own,
}


# --- what is compared ---------------------------------------------------------------------------------------------------


def fingerprint(code: types.CodeType) -> str:
    """A digest of all that a code object is: its instructions, constants, names, and where it stands.

    Resume functions have constants of ours. Raises Nameless for any that are neither plain nor known by a name.
    """
    return hashlib.sha256(repr(_parts(code)).encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _parts(value: Any) -> Any:
    if type(value) is types.CodeType:
        return (
            value.co_filename, value.co_firstlineno, value.co_name, value.co_qualname, value.co_code, value.co_names,
            value.co_varnames, value.co_freevars, value.co_cellvars, value.co_flags, value.co_argcount,
            value.co_posonlyargcount, value.co_kwonlyargcount, value.co_linetable, value.co_exceptiontable,
            [_parts(c) for c in value.co_consts],
        )  # fmt: skip
    if type(value) is tuple:
        return "tuple", *map(_parts, value)
    if type(value) is frozenset:
        return "frozenset", *sorted(map(repr, map(_parts, value)))
    if type(value) in _PLAIN or value is ...:
        return type(value).__name__, repr(value)
    return Writer(lambda obj: ("code", _parts(obj)) if type(obj) is types.CodeType else None)(value)


def described(obj: Any) -> list[Any]:
    """What tells an object that a library defines from another that a program has put in its place."""
    kind = type(obj)
    code = obj.__code__ if kind is types.FunctionType else None
    place = [code.co_filename, code.co_firstlineno] if code is not None else []
    names = [obj.__module__, obj.__qualname__] if kind in _DEFINED or issubclass(kind, type) else []
    value = repr(obj) if kind in _PLAIN else ""
    return [kind.__module__, kind.__qualname__, *names, *place, value]


_DEFINED = (types.FunctionType, types.BuiltinFunctionType)


_CLASSES: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter, torch.nn.Module)
_OF_TORCH = os.path.dirname(torch.__file__) + os.sep
_OF_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_MAKING = frozenset({  # what makes modules, and loads and moves them: compiled code does nothing of it
    "__init__", "__init_subclass__", "register_parameter", "register_buffer", "register_module", "add_module", "compile", "to", "_apply",
    "cuda", "cpu", "half", "float", "load_state_dict", "_load_from_state_dict", "state_dict", "_save_to_state_dict", "__repr__", "__del__",
    "__reduce_ex__", "__setstate__", "__deepcopy__", "share_memory", "_get_name", "extra_repr",
})  # fmt: skip


@functools.cache
def _has_of_torch(cls: type, name: str) -> bool:
    """Whether torch gives its class a member of this name. What libraries add is found, and compared, as functions of theirs."""
    if any(name in vars(base) for base in cls.__mro__[1:-1]):
        return True
    functions = (value for value in vars(cls).values() if type(value) is types.FunctionType)
    files = {f.__code__.co_filename for f in functions}
    return any(name in _members_in(file) for file in files if file.startswith(_OF_TORCH))


@functools.cache
def _members_in(file: str) -> frozenset[str]:
    """What the classes in a file define, by its text: a program may have changed the classes themselves."""
    return frozenset(re.findall(r"^    (?:def )?(\w+)\s*[(:=]", source_text.shown(file) or "", re.MULTILINE))


def replaced() -> tuple[Any, ...]:
    """Methods that a program has put in the place of those of torch's tensors and modules: no guard asks for them. Raises Nameless for
    what another process cannot know."""
    return tuple(
        found for cls in _CLASSES for name, value in vars(cls).items() for found in _of_member(cls, name, value)
    )


def _of_member(cls: type, name: str, value: Any) -> Iterator[tuple[Any, ...]]:
    if name in _MAKING:
        return
    if type(value) is not types.FunctionType:
        if type(value) in _MEMBERS and value.__name__ != name:  # torch has some under two names
            yield cls.__name__, name, value.__qualname__
        return
    if value.__code__.co_filename.startswith(_OF_TORCH):
        if value.__name__ != name:
            yield cls.__name__, name, value.__qualname__
        return
    if value.__code__.co_filename.startswith(_OF_OURS) or not _has_of_torch(cls, name):
        return
    if value.__closure__ or value.__defaults__ or value.__kwdefaults__:
        raise Nameless(f"{cls.__name__}.{name}, which is not torch's own")
    yield cls.__name__, name, fingerprint(value.__code__)
