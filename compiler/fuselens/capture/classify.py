"""Which callables become graph nodes, which are computed while tracing, which break the graph, which are inlined."""

from __future__ import annotations

import datetime
import functools
import io
import itertools
import logging
import math
import operator
import os
import pathlib
import random
import sys
import sysconfig
import types
import typing
import warnings
from typing import Any

import torch
import torch.nn.functional as F

from .. import torch_private
from .bytecode.decoding import decode
from .polyfills import collectives, operators
from .polyfills import python as polyfills
from .polyfills import torch_functions as torch_polyfills
from .program import switches

TORCH_DIRECTORY = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OWN_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TRACED_OWN = (
    polyfills.__file__,
    switches.__file__,
    torch_polyfills.__file__,
    collectives.__file__,
    operators.__file__,
)
_STANDARD = tuple(
    os.path.join(d, "") for d in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")} if d
)  # fmt: skip
_PACKAGES = tuple(os.path.join(d, "") for d in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")} if d)
_TRITON = tuple(os.path.join(d, "triton", "") for d in _PACKAGES)
_CAPTURED_TORCH = (TORCH_DIRECTORY + os.path.join("nn", "modules") + os.sep, TORCH_DIRECTORY + "optim" + os.sep)
_NOT_CAPTURED_TORCH = (os.path.join("nn", "modules", "module.py"), os.path.join("optim", "optimizer.py"))

# functions that change or read hidden state, or that do not work on traced values: never put into a graph
_NOT_IN_GRAPH = {
    "compile", "save", "load", "manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state",
    "set_default_dtype", "set_default_device", "set_default_tensor_type", "set_num_threads", "set_printoptions",
    "set_grad_enabled", "set_deterministic_debug_mode", "use_deterministic_algorithms", "from_numpy", "frombuffer",
    "export", "cond", "vmap", "set_float32_matmul_precision", "typename", "is_grad_enabled",
    "is_inference_mode_enabled", "set_autocast_enabled", "get_default_dtype", "get_default_device", "compiled_with_cxx11_abi",
    "is_inference", "fork", "wait", "from_file", "from_dlpack", "to_dlpack", "get_num_threads", "get_device_module", "is_autocast_enabled",
    "_print", "_from_blob", "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_cufft_clear_plan_cache",
    "_cufft_set_plan_cache_max_size", "_cufft_get_plan_cache_size", "_cufft_get_plan_cache_max_size", "_make_dual",
    "_nested_tensor_from_mask_left_aligned",
    "handle_torch_function", "has_torch_function", "has_torch_function_unary", "has_torch_function_variadic",
    "_unpack_dual", "_add_batch_dim", "_remove_batch_dim", "_debug_has_internal_overlap", "_is_zerotensor",
}  # fmt: skip
_QUANTIZED = (
    "quantize_per_",
    "quantized_",
    "_empty_affine_",
    "_empty_per_channel_",
    "_make_per_",
)  # no fake tensor says
_METHODS_NOT_IN_GRAPH = {
    "backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_", "numpy",
    "tolist", "item", "data_ptr", "storage", "untyped_storage", "share_memory_", "set_", "rename_",
    "__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__dlpack__", "__reduce_ex__",
    "__deepcopy__", "apply_", "map_", "module_load", "pin_memory", "to_sparse", "new", "__hash__", "__repr__",
    "__format__", "__contains__", "unflatten_names", "storage_offset", "is_set_to", "is_shared", "is_pinned", "is_inference",
    "is_coalesced", "get_device_properties", "retains_grad",
}  # fmt: skip
# tensor methods that must run in plain Python, and the code of the break when it is not FL104
METHOD_CODES = dict.fromkeys(
    ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__"), "FL102"
) | {"backward": "FL122"}  # fmt: skip


@functools.cache
def _graph_callables() -> dict[int, Any]:
    """Every public torch function that may be a node, by identity (the objects live as long as torch)."""
    found: dict[int, Any] = {}

    def add(owner: Any, names: Any, private: bool = False) -> None:
        for name in names:
            if name in _NOT_IN_GRAPH or name.startswith(_QUANTIZED) or (name.startswith("_") and not private):
                continue
            try:
                value = getattr(owner, name)
            except (AttributeError, RuntimeError):
                continue
            if callable(value) and not isinstance(value, (type, types.ModuleType)):
                found[id(value)] = value

    variable_functions = [n for n in dir(torch_private.VARIABLE_FUNCTIONS) if not n.startswith("__")]
    for owner in (torch, torch_private.VARIABLE_FUNCTIONS):  # torch's own Python code calls them under both names
        add(owner, variable_functions, private=True)
    add(torch, _public_functions(torch))
    add(torch.functional, torch.functional.__all__)
    add(F, [n for n in dir(F) if not n.startswith("_")])
    for owner in (torch.special, torch.linalg, torch.fft, *torch_private.C_FUNCTION_OWNERS):
        add(owner, dir(owner))
    for name in ("abs", "neg", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor",
                 "invert", "lshift", "rshift", "lt", "le", "eq", "ne", "gt", "ge", "getitem", "pos", "iadd", "isub", "imul",
                 "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor", "setitem"):  # fmt: skip
        found.pop(id(getattr(operator, name)), None)
    return found


def _public_functions(module: types.ModuleType) -> list[str]:
    return [
        n for n, v in vars(module).items()
        if isinstance(v, (types.FunctionType, types.BuiltinFunctionType)) and not n.startswith("_")
        and (getattr(v, "__module__", "") or "").startswith(("torch.functional", "torch._C", "torch._tensor"))
    ]  # fmt: skip


def is_graph_callable(obj: Any) -> bool:
    """Whether a call of ``obj`` is recorded as one node of the graph."""
    found = _graph_callables().get(id(obj))
    if found is obj and obj is not None:
        return True
    kind = type(obj)
    return kind.__name__ in ("OpOverload", "OpOverloadPacket") and kind.__module__ == "torch._ops"


def is_graph_method(name: str) -> bool:
    """Whether the Tensor method ``name`` may be recorded as a node."""
    return name not in _METHODS_NOT_IN_GRAPH and (name.startswith("__") or not name.startswith("_"))


def is_library_callable(obj: Any) -> bool:
    """What is known by identity: C functions, method descriptors, torch operators, annotations such as `int | None`."""
    return is_library_kind(type(obj))


def is_library_kind(kind: type) -> bool:
    """Whether instances of ``kind`` are what :func:`is_library_callable` says."""
    if kind in _numpy_functions():
        return True
    return issubclass(
        kind,
        (
            types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
            types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.UnionType,
            types.GenericAlias,
        ),
    ) or (kind.__module__ or "").startswith("torch._ops")  # fmt: skip


def is_heap_type(kind: type) -> bool:
    """Whether ``kind`` was made while running, by a ``class`` statement say, and is not built in."""
    return bool(kind.__flags__ & (1 << 9))  # Py_TPFLAGS_HEAPTYPE


def builtin_base(kind: type) -> Any:
    """The builtin class whose ``__new__`` makes instances of ``kind``."""
    makers = (vars(c).get("__new__") for c in kind.__mro__)
    return next(maker for maker in makers if isinstance(maker, types.BuiltinMethodType)).__self__


def is_library_file(filename: str) -> bool:
    """Code that belongs to torch, Triton, the standard library or this compiler: spans inside it are not the user's."""
    return filename.startswith((TORCH_DIRECTORY, _OWN_DIRECTORY, "<frozen ", *_TRITON)) or (
        filename.startswith(_STANDARD) and not filename.startswith(_PACKAGES)
    )


def runs_imports(code: types.CodeType) -> bool:
    """Whether ``code`` is of the import system. What it calls meets modules that are half there, finders and loaders."""
    return code.co_filename.startswith("<frozen importlib")


def in_packages(filename: str) -> bool:
    """Code of an installed package."""
    return filename.startswith(_PACKAGES)


def is_installed(filename: str) -> bool:
    """Whether a file is a library's, or of an installed package: where that is upgraded, the worker starts anew."""
    return is_library_file(filename) or in_packages(filename)


def is_made_at_run_time(filename: str) -> bool:
    """Code that a program gave to ``exec``: it has no lines to show, but its globals may change as the user's may."""
    return filename.startswith("<") and not filename.startswith("<frozen ")


def is_library_module(name: str) -> bool:
    """Modules whose functions, classes and constants are taken as they are, without guards."""
    return name.partition(".")[0] in _LIBRARY_ROOTS


def is_library_class(cls: type) -> bool:
    """Whether what ``cls`` defines is taken without guards. Each ``GraphModule`` has a class of its own, which changes when the
    graph is compiled again."""
    return is_library_module(cls.__module__) and not (
        issubclass(cls, torch.fx.GraphModule) and "<locals>" in cls.__qualname__
    )


_LIBRARY_ROOTS = frozenset(sys.stdlib_module_names) | {"torch", "fuselens"}


def frame_is_captured(code: types.CodeType) -> bool:
    """Whether a frame of ``code`` that is called on its own is worth tracing (it may still be inlined if not)."""
    if code.co_name in _COMPREHENSIONS:
        return False
    filename = code.co_filename
    if filename.startswith(_CAPTURED_TORCH):
        return not filename.endswith(_NOT_CAPTURED_TORCH)
    if filename.startswith(("<stdin>", "<ipython")):
        return True
    return not is_library_file(filename) and not filename.startswith(_UNTRACED_PACKAGES)


_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>")
_UNTRACED_PACKAGES = tuple(
    os.path.join(d, name) + os.sep
    for d in _PACKAGES
    for name in ("numpy", "scipy", "pandas", "sympy", "networkx", "triton", "PIL", "matplotlib", "_pytest", "pytest",
                 "pluggy", "hypothesis", "IPython", "tqdm", "_distutils_hack", "setuptools")
)  # fmt: skip


def may_inline(code: types.CodeType) -> bool:
    """Whether a call of a function with ``code`` is traced into."""
    return not code.co_filename.startswith(_OWN_DIRECTORY) or code.co_filename in _TRACED_OWN


def numpy() -> Any:
    """The module numpy, which torch imports where it is installed."""
    return sys.modules["numpy"]


def _numpy_scalars() -> tuple[type, ...]:
    return tuple({numpy().dtype(c).type: None for c in "?bhilqBHILQefdFD"}) if "numpy" in sys.modules else ()


NUMPY_SCALARS: tuple[type, ...] = _numpy_scalars()
"""numpy's classes of numbers."""


@functools.cache
def numpy_makers() -> frozenset[Any]:
    """numpy's classes of what is constant: numbers, dtypes, and what describes dtypes."""
    return frozenset((*NUMPY_SCALARS, numpy().dtype, numpy().finfo, numpy().iinfo)) if NUMPY_SCALARS else frozenset()


@functools.cache
def _numpy_functions() -> tuple[type, ...]:
    return (numpy().ufunc, type(numpy().sum)) if NUMPY_SCALARS else ()


def is_of_numpy(function: Any) -> bool:
    """Whether a function, a class or an object that is called may be one of numpy's. Nothing is asked of a program's objects."""
    plain = type(function) in (type, types.FunctionType, types.BuiltinFunctionType)
    module = function.__module__ if plain else type(function).__module__
    return isinstance(module, str) and module.partition(".")[0] == "numpy"


def is_numpy_function(obj: Any) -> bool:
    """Whether ``obj`` is one of numpy's functions of arrays, which computes and no more."""
    return type(obj) in _numpy_functions()


def is_array(kind: type) -> bool:
    """Whether ``kind`` is numpy's class of arrays."""
    return bool(NUMPY_SCALARS) and kind is numpy().ndarray


def _arrays_are_traced() -> bool:
    return bool(NUMPY_SCALARS) and int(numpy().__version__.partition(".")[0]) >= 2


ARRAYS_ARE_TRACED = _arrays_are_traced()
"""Whether what numpy computes of arrays is computed by graphs: since numpy 2, dtypes alone decide what they are promoted to."""


def is_numpy_description(kind: type) -> bool:
    """Whether instances of ``kind`` describe numbers of numpy, and do not change."""
    return bool(NUMPY_SCALARS) and issubclass(kind, (numpy().dtype, numpy().finfo, numpy().iinfo))


def is_placement(kind: type) -> bool:
    """Whether instances of a class say how a tensor is laid out over a mesh, and do not change."""
    loaded = sys.modules.get("torch.distributed.tensor.placement_types")
    return loaded is not None and issubclass(kind, loaded.Placement)


def is_type_form(kind: type) -> bool:
    """Whether instances of ``kind`` are what hints are written with (``Optional[int]``, a type variable), and do not change."""
    return kind.__module__ in ("typing", "typing_extensions") or kind in (types.GenericAlias, types.UnionType)


# builtins without side effects: computed while tracing when every argument is a constant
FOLDED: frozenset[Any] = frozenset(
    [
        abs, bin, bool, bytes, chr, complex, divmod, float, format, hex, int, len, max, min, oct, ord, pow, range,
        repr, round, slice, str, sum, all, any, hash, ascii, callable, sys.getrecursionlimit, int.from_bytes, float.fromhex, bytes.fromhex,
        sys.intern, typing.get_args, typing.get_origin, str.maketrans, bytes.maketrans, torch.device, torch.finfo, torch.iinfo,
        torch.is_complex, torch.promote_types, torch.can_cast, torch.typename,
    ]
    + [v for n, v in vars(math).items() if callable(v) and not n.startswith("_")]
    + [
        v for n, v in vars(operator).items()
        if callable(v) and not n.startswith("_")
        and n not in ("setitem", "delitem", "iadd", "iconcat", "imul", "attrgetter", "itemgetter", "methodcaller", "call")
    ]
)  # fmt: skip

# operator functions on tensors become nodes with the same function
TENSOR_OPERATORS: frozenset[Any] = frozenset(
    getattr(operator, n)
    for n in (
        "abs", "neg", "pos", "invert", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_",
        "xor", "lshift", "rshift", "lt", "le", "eq", "ne", "gt", "ge", "getitem", "iadd", "isub", "imul", "itruediv",
        "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor",
    )
) | {abs, pow, divmod, round}  # fmt: skip

_PURE_PATH = frozenset(dir(pathlib.PurePath))

# callables that must run each time, in program order: by identity, else by the module that defines them
_BREAKING: dict[Any, str] = {
    print: "FL103", input: "FL103", breakpoint: "FL103", warnings.warn: "FL103", os.urandom: "FL115",
    torch.manual_seed: "FL115", torch.seed: "FL115", torch.save: "FL118", torch.load: "FL118",
    torch.autograd.grad: "FL122", torch.autograd.backward: "FL122",
}  # fmt: skip
_BREAKING_MODULES = {
    "logging": "FL103", "warnings": "FL103", "_warnings": "FL103", "random": "FL115", "_random": "FL115", "secrets": "FL115",
    "uuid": "FL115", "time": "FL119", "io": "FL118", "_io": "FL118", "posix": "FL118", "nt": "FL118", "subprocess": "FL118",
    "socket": "FL118", "_socket": "FL118", "tempfile": "FL118", "shutil": "FL118", "glob": "FL118", "pathlib": "FL118",
    "urllib.request": "FL118", "http.client": "FL118", "mmap": "FL118", "fcntl": "FL118", "select": "FL118",
}  # fmt: skip
_QUIET = {"posix": frozenset({"fspath", "getcwd"}), "pathlib": _PURE_PATH, "warnings": frozenset({"catch_warnings"})}
_CLOCK_METHODS = frozenset({"now", "utcnow", "today"})


def unwrapped(obj: Any) -> Any:
    """What the peer wraps of torch's own functions, like ``manual_seed``, when it is loaded; other objects as they are."""
    if type(obj) is not types.FunctionType:
        return obj
    obj = torch_private.unwrap_torch_compile(obj) or obj
    return getattr(obj, "__wrapped__", obj) if (obj.__module__ or "").startswith("torch.") else obj


def breaking_code(obj: Any) -> str | None:
    """The diagnostic code of a callable that must run in plain Python, or None when there is no special reason."""
    given, obj = obj, unwrapped(obj)
    try:
        if given in _BREAKING or obj in _BREAKING:  # the table has what was there when this module was loaded
            return _BREAKING.get(given) or _BREAKING[obj]
    except TypeError:
        return None
    name = getattr(obj, "__name__", "")
    receiver = getattr(obj, "__self__", None)
    if receiver is not None and not issubclass(type(receiver), types.ModuleType):
        if receiver is datetime.datetime or receiver is datetime.date:
            return "FL119" if name in _CLOCK_METHODS else None
        return breaking_method(type(receiver), name, receiver)
    module = getattr(obj, "__module__", None) or ""
    if not isinstance(module, str) or name in _QUIET.get(module, ()):
        return None
    return "FL115" if module.startswith("numpy.random") else _BREAKING_MODULES.get(module)


def is_routine(obj: Any) -> bool:
    """Whether ``obj`` is a function or method of some kind, Cython's among them, so that its name can be asked for."""
    return type(obj) is types.MethodType or type(obj).__name__ == "cython_function_or_method"


def breaking_method(kind: type, name: str, instance: Any = None) -> str | None:
    """The same for the method ``name`` of an instance of ``kind``, of ``instance`` where it is known."""
    if issubclass(kind, (random.Random, random.SystemRandom)) or kind.__module__.startswith("numpy.random"):
        return "FL115"
    if issubclass(kind, logging.Logger):
        return "FL103"
    if issubclass(kind, io.IOBase):
        terminal = isinstance(sys.stdout, kind) if instance is None else instance in (sys.stdout, sys.stderr)
        return "FL103" if terminal and name in _PRINTS else "FL118"
    if issubclass(kind, pathlib.Path) and name not in _PURE_PATH and not name.startswith("__"):
        return "FL118"
    return _BREAKING_MODULES.get(kind.__module__) if kind.__module__ in ("socket", "_socket", "subprocess") else None


_PRINTS = frozenset({"write", "writelines", "flush"})
READS_FRAME = frozenset(
    "locals vars eval exec dir breakpoint set_trace _getframe currentframe settrace setprofile".split()
)


_AS_ATTRIBUTES = frozenset({"_getframe", "currentframe", "settrace", "setprofile"})
_OF_ARGUMENTS = frozenset({"vars", "dir"})  # which read the frame only where they have no argument


def frame_reads_itself(code: types.CodeType) -> bool:
    """Whether the code may look at its own frame (``locals()`` and friends), which splitting it would show, or has the
    frames that it calls from then on watched, among which resume functions would be."""
    if READS_FRAME.isdisjoint(code.co_names):
        return False
    instructions = decode(code).instructions
    return any(
        i.argval in READS_FRAME
        and (i.op in ("LOAD_GLOBAL", "LOAD_NAME") or i.argval in _AS_ATTRIBUTES)
        and not (i.argval in _OF_ARGUMENTS and following.op.startswith("LOAD_"))
        for i, following in itertools.pairwise(instructions)
        if isinstance(i.argval, str)
    )
