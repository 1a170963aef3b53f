"""What a function reads beside its tensors, and how to put something else there: globals, closures, attributes, items.

The code says which names are read. Where they lead is followed through the program's own functions and objects; libraries are left
alone, but for modules of torch.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..capture.classify import is_installed

_VALUES = (bool, int, float, str)
_DEEPEST = 6
_MOST_ITEMS = 64  # of one container
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Read:
    """``value`` is at ``name``; ``put(other)`` puts another there."""

    name: str
    value: Any
    put: Callable[[Any], object]

    @property
    def other(self) -> Any:
        return other_than(self.value)

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Inside, the other value is there."""
        self.put(self.other)
        try:
            yield
        finally:
            self.put(self.value)


def other_than(value: Any) -> Any:
    """Another value of the same type, for which a program may well do something else."""
    if type(value) is bool:
        return not value
    if type(value) is str:
        return f"{value}_"
    return value + 1 if type(value) is int else value * 1.5 + 0.25


def reads(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Read]:
    """Each value once: first what the arguments hold, then what the function reads, nearest first. Arguments that are values
    themselves are not among them."""
    walk = _Walk()
    function = target
    if isinstance(target, torch.nn.Module):
        function = type(target).forward
    walk.names_of(function)
    for place, value in (*enumerate(args), *kwargs.items()):
        if type(value) not in _VALUES:
            yield from walk.at(f"argument {place + 1}" if isinstance(place, int) else place, value, None, 0)
    if isinstance(target, torch.nn.Module):
        yield from walk.at("self", target, None, 0)
    elif isinstance(target, types.MethodType):
        yield from walk.at("self", target.__self__, None, 0)
    yield from walk.of_function(function, 0)


def modules(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.nn.Module]:
    """The modules that a call reaches."""
    walk = _Walk()
    for _ in walk.of_function(type(target).forward if isinstance(target, torch.nn.Module) else target, 0):
        pass
    given = [m for m in (target, *args, *kwargs.values()) if isinstance(m, torch.nn.Module)]
    return [*dict.fromkeys((*given, *walk.modules))]


@dataclass(slots=True)
class _Walk:
    modules: list[torch.nn.Module] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)  # that some code reads
    _seen: set[int] = field(default_factory=set)
    _globals: set[tuple[int, str]] = field(default_factory=set)
    _home: dict[str, Any] = field(default_factory=dict)  # the globals of the function itself

    def names_of(self, function: Any) -> types.FunctionType | None:
        """The Python function behind a callable of the program, whose names count as read from now on."""
        function = getattr(function, "__wrapped__", function)
        function = getattr(function, "__func__", function)
        if not isinstance(function, types.FunctionType) or is_installed(function.__code__.co_filename):
            return None
        for code in _codes(function.__code__):
            self._names.update(code.co_names)
            self._names.update(c for c in code.co_consts if type(c) is str)  # keys of items
        return function

    def of_function(self, given: Any, depth: int) -> Iterator[Read]:
        function = self.names_of(given)
        if function is None or id(function.__code__) in self._seen or depth > _DEEPEST:
            return
        self._seen.add(id(function.__code__))
        space = function.__globals__
        self._home = self._home or space
        where = "" if space is self._home else f"{space.get('__name__')}."
        for name in dict.fromkeys(n for code in _codes(function.__code__) for n in code.co_names):
            if name in space and (id(space), name) not in self._globals:
                self._globals.add((id(space), name))
                put = lambda new, name=name: space.__setitem__(name, new)  # noqa: E731
                yield from self.at(f"global {where}{name}", space[name], put, depth)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                put = lambda new, cell=cell: setattr(cell, "cell_contents", new)  # noqa: E731
                yield from self.at(f"variable {name}", cell.cell_contents, put, depth)

    def at(self, path: str, value: Any, put: Callable[[Any], object] | None, depth: int) -> Iterator[Read]:
        """What is read of the value at a path: itself, or what is in it."""
        if type(value) in _VALUES:
            if put is not None:
                yield Read(path, value, put)
            return
        if id(value) in self._seen or depth > _DEEPEST or isinstance(value, torch.Tensor):
            return
        if isinstance(value, types.FunctionType | types.MethodType):
            yield from self.of_function(value, depth + 1)
            return
        self._seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            yield from self._of_module(path, value, depth)
        elif type(value) is dict or type(value) is list:
            items = list(value.items() if type(value) is dict else enumerate(value))[:_MOST_ITEMS]
            for key, item in items:
                put = lambda new, key=key: value.__setitem__(key, new)  # noqa: E731
                yield from self.at(f"{path}[{key!r}]", item, put, depth + 1)
        elif type(value) is tuple:
            for number, item in enumerate(value[:_MOST_ITEMS]):
                yield from self.at(f"{path}[{number}]", item, None, depth + 1)
        elif _is_programs(value):
            yield from self._of_object(path, value, depth)

    def _of_module(self, path: str, module: torch.nn.Module, depth: int) -> Iterator[Read]:
        self.modules.append(module)
        for name, part in module.named_modules():
            where = f"{path}.{name}" if name else path
            yield from self._methods(type(part), depth)
            for attribute, value in list(vars(part).items()):
                if (attribute.startswith("_") and attribute not in self._names) or attribute == "training":
                    continue
                put = lambda new, part=part, attribute=attribute: setattr(part, attribute, new)  # noqa: E731
                yield from self.at(f"{where}.{attribute}", value, put, depth + 1)

    def _of_object(self, path: str, value: Any, depth: int) -> Iterator[Read]:
        """Attributes that some code names, and what the methods read that it may call."""
        cls = value if isinstance(value, type) else type(value)
        if not isinstance(value, types.ModuleType):
            yield from self._methods(cls, depth)
        for name in sorted(self._names & _attributes(value)):
            found = _attribute(value, name)
            if found is not _MISSING:
                put = lambda new, name=name: _set(value, name, new)  # noqa: E731
                yield from self.at(f"{path}.{name}", found, put, depth + 1)

    def _methods(self, cls: type, depth: int) -> Iterator[Read]:
        for base in cls.__mro__:
            if not is_installed(_file(base)):
                for name, found in list(vars(base).items()):
                    function = found.fget if isinstance(found, property) else found
                    if isinstance(function, types.FunctionType) and (name in self._names or name in _IMPLIED):
                        yield from self.of_function(function, depth + 1)


_IMPLIED = frozenset({"forward", "__call__", "__getattr__", "__getitem__"})


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            yield from _codes(constant)


def _is_programs(value: Any) -> bool:
    """Whether an object, a class or a module is the program's own."""
    if isinstance(value, types.ModuleType):
        return bool(getattr(value, "__file__", None)) and not is_installed(str(value.__file__))
    return not is_installed(_file(value if isinstance(value, type) else type(value)))


def _file(cls: type) -> str:
    """Where a class is written; a name of a file that counts as installed for those that are built in."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return str(file) if file else torch.__file__


def _attributes(value: Any) -> set[str]:
    found: set[str] = set(getattr(value, "__dict__", ()))
    if not isinstance(value, type | types.ModuleType):
        for base in type(value).__mro__:
            slots = vars(base).get("__slots__", ())
            found.update((slots,) if isinstance(slots, str) else slots)
            found.update(n for n, v in vars(base).items() if type(v) in _VALUES and not is_installed(_file(base)))
    return found


def _attribute(value: Any, name: str) -> Any:
    """Without asking the class's own rules."""
    try:
        return type.__getattribute__(value, name) if isinstance(value, type) else object.__getattribute__(value, name)
    except Exception:  # noqa: BLE001 - descriptors may raise anything
        return _MISSING


def _set(owner: Any, name: str, new: Any) -> None:
    """Also where a dataclass is frozen. An attribute of the class stays there."""
    if isinstance(owner, type):
        type.__setattr__(owner, name, new)
        return
    held = getattr(owner, "__dict__", {})
    holders = [c for c in type(owner).__mro__ if type(vars(c).get(name)) in _VALUES]
    if name not in held and holders:
        type.__setattr__(holders[0], name, new)
    else:
        object.__setattr__(owner, name, new)
