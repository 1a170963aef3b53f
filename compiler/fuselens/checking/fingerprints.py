"""What a compilation of a function depends on, as one hash: a function whose fingerprint did not change need not be
compiled again.

The hash covers the function's code and, transitively, whatever that code can reach by name: defaults, closure, globals,
attributes of modules, classes, instances, ``nn.Module`` trees, in the state that importing the file left them in; and
the example inputs, the configuration and what torch holds globally. Lines and columns of the file itself are left out
(a function that only moved is the same function); those of other files count, because a report points there. Tensors
count by their metadata: guards ask for no more. A value whose state cannot be seen gives no fingerprint at all.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import hashlib
import inspect
import pathlib
import re
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from .. import torch_private
from ..api import Annotation
from ..capture import classify
from ..torch_private import unwrap_torch_compile

_LIMIT = 200_000  # values: beyond, compiling is no more work than looking
_EXACT_ELEMENTS = 4096  # of tensors of integers, whose values end up in shapes and indices
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), type(NotImplemented),
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, pathlib.PurePath, re.Pattern,
)  # fmt: skip


class _Pair(NamedTuple):
    first: int


_NAMED = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType, type(vars(_Pair)["first"]),
)  # fmt: skip
_BY_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.partial: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    type(functools.cache(len)): ("__wrapped__",),
}
_SEQUENCES = (tuple, list, collections.deque)
_SETS = (set, frozenset)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType)
_NOT_STATE = frozenset({
    "__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__", "__annotations__",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__orig_bases__", "__parameters__", "_abc_impl",
})  # fmt: skip


class _OpaqueError(Exception):
    """A value whose state cannot be seen."""


def fingerprint(path: str, *parts: Any) -> str:
    """The fingerprint of ``parts`` (a function or module, its inputs, …) as code of the file ``path`` uses them; "" when
    one of them reaches a value whose state cannot be seen."""
    walk = _Walk(path)
    try:
        walk.value((parts, _global_state()), ())
    except (_OpaqueError, RecursionError):
        return ""
    return walk.hash.hexdigest()


def of_config(config: Any) -> tuple[Any, ...]:
    """A configuration, or another flat dataclass, as a part of a fingerprint."""
    return tuple((f.name, getattr(config, f.name)) for f in dataclasses.fields(config))


def _global_state() -> tuple[Any, ...]:
    """What importing a file may have set for all of torch."""
    return (
        torch.__version__, torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.are_deterministic_algorithms_enabled(),
        torch_private.float32_precisions(), torch.get_num_threads(),
    )  # fmt: skip


class _Walk:
    """One depth-first walk. A value met again is written as its number, so that cycles end and sharing counts."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.hash = hashlib.sha256()
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._kept: list[Any] = []  # what was seen stays alive, so that its id stays its own

    def put(self, *words: object) -> None:
        self.hash.update(repr(words).encode("utf-8", "backslashreplace"))

    def value(self, value: Any, names: tuple[str, ...]) -> None:
        """Hashes ``value``; ``names`` are those that the code which reaches it uses, for attributes of modules."""
        if isinstance(value, _PLAIN):
            self.put(type(value).__qualname__, value)
        elif isinstance(value, types.ModuleType):
            self._module(value, names)
        elif not self._again((id(value),), value):
            self._new(value)

    def _new(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif (original := _under_compile(value)) is not None:
            self._all("compiled", original)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, _NAMED):
            self.put("named", kind.__name__, getattr(value, "__qualname__", ""))
        elif kind in _BY_ATTRIBUTES:
            self._all(kind.__name__, (getattr(value, name) for name in _BY_ATTRIBUTES[kind]))
        elif isinstance(value, enum.Enum):
            self._all("enum", (kind.__module__, kind.__qualname__, value.name, value.value))
        elif isinstance(value, types.CellType):
            self._all("cell", _contents(value))
        elif kind in _SEQUENCES:
            self._all(kind.__name__, value)
        elif kind in _SETS:
            self._set(value)
        elif kind in _MAPPINGS:
            self._all(kind.__name__, (part for item in value.items() for part in item))
            self.value(getattr(value, "default_factory", None), ())
        elif kind.__module__.partition(".")[0] == "numpy":
            self._numpy(value)
        elif kind.__module__ == "torch._ops":
            self.put("operator", str(value))
        else:
            self._instance(value)

    def _again(self, key: tuple[Any, ...], value: Any) -> bool:
        if key in self._numbers:
            self.put("again", self._numbers[key])
            return True
        if len(self._kept) >= _LIMIT:
            raise _OpaqueError
        self._numbers[key] = len(self._kept)
        self._kept.append(value)
        return False

    def _all(self, kind: str, parts: Iterable[Any]) -> None:
        self.put("(", kind)
        for part in parts:
            self.value(part, ())
        self.put(")")

    def _set(self, value: Iterable[Any]) -> None:
        """In the order of the elements' own hashes: that of a set of strings changes from process to process."""
        digests = []
        for element in value:
            apart = _Walk(self.path)
            apart.value(element, ())
            digests.append(apart.hash.hexdigest())
        self.put("set", sorted(digests))

    def _tensor(self, tensor: torch.Tensor) -> None:
        strides = tensor.stride() if tensor.layout == torch.strided else ()
        grad = tensor.requires_grad, tensor.is_leaf
        self.put(
            type(tensor).__qualname__, tensor.dtype, tuple(tensor.shape), strides, tensor.device, tensor.layout, grad
        )
        exact = tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.numel() <= _EXACT_ELEMENTS
        if exact and not (tensor.is_floating_point() or tensor.is_complex()):
            self.put(tensor.tolist())

    def _numpy(self, value: Any) -> None:
        if hasattr(value, "tobytes"):  # an array or a scalar of one
            self.put("numpy", str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest())
        elif type(value).__name__ == "ufunc" or type(value).__name__.endswith("DType"):
            self.put("numpy", repr(value))
        else:
            raise _OpaqueError

    def _code(self, code: types.CodeType) -> None:
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        self.put("code", code.co_qualname, code.co_code, code.co_exceptiontable, names, counts)
        if code.co_filename != self.path:
            self.put(code.co_filename, code.co_firstlineno, code.co_linetable)
        self._all("constants", code.co_consts)

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self.put("function", function.__module__, function.__qualname__)
        if is_library_file(code.co_filename):
            self._all("closure", function.__closure__ or ())  # a library's decorator around a function of the user's
            return
        self._all(
            "state", (code, function.__defaults__, function.__kwdefaults__, function.__closure__, function.__dict__)
        )
        names = tuple(sorted(set(_names(code))))
        for name in names:
            if name in function.__globals__:
                self.put("global", name)
                self.value(function.__globals__[name], names)

    def _module(self, module: types.ModuleType, names: tuple[str, ...]) -> None:
        """A module counts by what the code at hand may take of it; one of a library, by what others put into it."""
        self.put("module", module.__name__)
        library = is_library_file(getattr(module, "__file__", None) or "<frozen module>")
        for name in names:
            value = module.__dict__.get(name, inspect.Parameter.empty)
            if value is inspect.Parameter.empty or (library and not _is_users(value)):
                continue
            if not self._again((id(module), name), value):
                self.put("attribute", name)
                self.value(value, names)

    def _class(self, cls: type) -> None:
        self.put("class", cls.__module__, cls.__qualname__)
        if not _is_users(cls):
            return
        self._all("bases", (*cls.__bases__, type(cls)))
        for name, value in vars(cls).items():
            if name not in _NOT_STATE:
                self.put("attribute", name)
                self.value(value, ())

    def _instance(self, value: Any) -> None:
        """An object by its class and its attributes. One of a class that C defines may have more state than those."""
        cls = type(value)
        self.value(cls, ())
        if not all(_has_no_more_state(base) for base in cls.__mro__):
            raise _OpaqueError
        for kinds, parts in ((_SEQUENCES, iter), (_MAPPINGS, lambda v: (p for item in dict.items(v) for p in item))):
            if isinstance(value, kinds):
                self._all("elements", parts(value))
        if isinstance(value, _SETS):
            self._set(value)
        self._all("attributes", (part for item in _attributes(value).items() for part in item))


def _names(code: types.CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def is_library_file(filename: str) -> bool:
    """Installed packages too: where they are upgraded, the worker starts anew."""
    return classify.is_library_file(filename) or classify.in_packages(filename)


def _is_users(value: Any) -> bool:
    """Whether a function, class or module comes from a file that is no library's."""
    if isinstance(value, types.FunctionType):
        return not is_library_file(value.__code__.co_filename)
    if isinstance(value, type):
        value = sys.modules.get(value.__module__)
        if value is None:
            return True
    return isinstance(value, types.ModuleType) and not is_library_file(
        getattr(value, "__file__", None) or "<frozen module>"
    )


def _under_compile(value: Any) -> tuple[Any, ...] | None:
    """The function or module that a wrapper of ``compile`` holds, and how it is to be compiled."""
    annotation = getattr(value, "__fuselens__", None)
    if isinstance(annotation, Annotation):
        return annotation.target, of_config(annotation.config)
    original = unwrap_torch_compile(value)
    return None if original is None else (original,)


def _has_no_more_state(cls: type) -> bool:
    """Whether ``cls`` is a container of Python's, or made by a ``class`` statement: that adds attributes and slots only."""
    if cls is object or cls in (*_SEQUENCES, *_MAPPINGS, *_SETS):
        return True
    ours = {"__dict__", "__slots__"} & vars(cls).keys()
    return bool(ours) or (cls.__base__ is not None and cls.__basicsize__ == cls.__base__.__basicsize__)


def _attributes(value: Any) -> Mapping[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in _NOT_STATE and hasattr(value, name):
                found[name] = getattr(value, name)
    return found
