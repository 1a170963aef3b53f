"""torch's own compiler, which this one is not: its marks and stances are read, and it is kept from what is ours."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch.utils.checkpoint

from .names import private

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode
else:
    FakeTensorMode = private.FakeTensorMode


# What fake modes read of the peer compiler's settings, at their defaults.
_PEER_SETTINGS = {
    "fake_tensor_cache_enabled": True, "fake_tensor_cache_crosscheck_enabled": False, "_custom_ops_profile": None,
}  # fmt: skip


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keeps fake tensors from logging the errors of operators, which the program is about to raise, or to handle, itself."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


class _LazyModule(types.ModuleType):
    """Stands for a module of the peer compiler until somebody wants more of it than the settings above.

    Fake modes read those on every operator, and the first read imports the whole peer (1.1 s of processor time). torch
    loads that package on first attribute access anyway; this only makes the three settings not count as one.
    """

    def __getattr__(self, name: str) -> Any:
        found = sys.modules.get(self.__name__)
        if found in (None, self):
            if self.__name__ == "torch._dynamo" and name == "config":
                return _PEER_CONFIG
            if self.__name__ == "torch._dynamo.config" and name in _PEER_SETTINGS:
                return _PEER_SETTINGS[name]
        if found is self and name.startswith("__"):  # somebody asks each module where it came from
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
        return getattr(self._real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real(), name, value)

    def _real(self) -> types.ModuleType:
        if sys.modules.get(self.__name__) is self:
            sys.modules.pop(self.__name__, None)
        return importlib.import_module(self.__name__)


_PEER_CONFIG = _LazyModule("torch._dynamo.config")


@contextlib.contextmanager
def without_peer_import() -> Iterator[None]:
    """Makes fake modes find the peer's settings without importing it; does nothing once it is imported."""
    if "torch._dynamo" in sys.modules:
        yield
        return
    torch.__dict__.setdefault("_dynamo", _LazyModule("torch._dynamo"))
    with import_lock:  # the constructor has an import statement, which looks here first
        sys.modules["torch._dynamo.config"] = _PEER_CONFIG
        try:
            yield
        finally:
            if sys.modules.get("torch._dynamo.config") is _PEER_CONFIG:
                sys.modules.pop("torch._dynamo.config", None)


import_lock = threading.Lock()


def methods_kept_from_peer(cls: type) -> Iterator[tuple[Any, str, Any]]:
    """Methods of ``cls`` that torch wraps to keep them out of the peer's graphs, whose first call imports the peer (2 s): each with
    the attribute, and its value, that has the wrapper call the method as it is."""
    for method in vars(cls).values():
        inner = getattr(method, "__wrapped__", None)
        code = getattr(method, "__code__", None)
        if inner is not None and code is not None and code.co_filename.endswith("_compile.py"):
            yield inner, "__dynamo_disable", inner


ORIGINAL, ORIGINAL_MODULE = "_torchdynamo_orig_callable", "_orig_mod"
"""The attributes of what ``torch.compile`` returns that have what it was given, of a function and of a module."""


def unwrap_torch_compile(obj: Any) -> Any | None:
    """The function or module that ``torch.compile`` wrapped into ``obj``; None when it wrapped nothing."""
    if type(obj).__name__ == "OptimizedModule":
        return getattr(obj, ORIGINAL_MODULE, None)
    return getattr(obj, ORIGINAL, None)


def uncompiled_call(module: torch.nn.Module) -> Callable[..., Any]:
    """What a call of ``module`` does when the peer does not compile it: ``module.compile()`` changes that in place."""
    return module if module.__dict__.get("_compiled_call_impl") is None else module._call_impl


def _peer_settings() -> Any:
    """The module of the peer's settings, once somebody has loaded it."""
    module = sys.modules.get("torch._dynamo.config")
    return module if module is not None and module is not _PEER_CONFIG and hasattr(module, "_config") else None


def peer_setting(name: str) -> Any:
    """One of the peer's settings; None where nobody has loaded them."""
    module = _peer_settings()
    return None if module is None else getattr(module, name, None)


def changed_peer_settings() -> dict[str, Any]:
    """Those of the peer's settings that a program, or its environment, has changed."""
    module = _peer_settings()
    if module is None:
        return {}
    entries = {
        n: e for n, e in module._config.items() if e.alias is None and not n.startswith("_") and n != "TYPE_CHECKING"
    }
    changed = {name: getattr(module, name) for name in entries if not module._is_default(name)}
    return {name: value for name, value in changed.items() if value != entries[name].default}  # else it was set back


PEER_STANCE_MODULE, PEER_STANCE = "torch._dynamo.eval_frame", "_stance"
# sets the peer's evaluator of this thread (None: off) and returns what it was; C itself, or the peer would trace it
SWITCH_PEER: Callable[[Any], Any] = private.peer_evaluator
_PEER_DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "_dynamo", "")
_KEEPS_FROM_PEER = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "_compile.py")
_DIRECT = "call_directly"
_PEER_MARKS = {
    "graph_break": "break", "skip_frame": "break", "step_unsupported": "break", "set_stance": "forbidden",
}  # fmt: skip


def original_attribute(obj: Any) -> str:
    """The attribute that has what the peer wrapped into ``obj``, or what torch wrapped to keep it from the peer."""
    return ORIGINAL if ORIGINAL in obj.__dict__ else "__wrapped__"


def is_peer_code(code: types.CodeType) -> bool:
    """Whether ``code`` belongs to the peer compiler: what it calls is the peer's business."""
    return code.co_filename.startswith(_PEER_DIRECTORY)


def is_size_mark(function: types.FunctionType) -> bool:
    """Whether a call of ``function`` tells the peer, while it traces, that a size does not vary."""
    return function.__module__ == "torch._dynamo.decorators" and function.__name__ == "mark_static"


def peer_mark(obj: Any) -> str | None:
    """What the program said about ``obj`` with torch's spellings: one of the marks of ``capture.marks``, or None."""
    if type(obj) is types.FunctionType:
        if (obj.__module__, obj.__name__) == ("torch._dynamo.mutation_guard", "tag"):
            return "ignored"  # once the peer has run, every module that is made is entered into its books
        said = obj.__dict__
        if obj.__code__.co_filename == _KEEPS_FROM_PEER and (kept := said.get("__wrapped__")) is not None:
            if (kept.__module__ or "").startswith("torch.optim."):
                return "compiled"  # torch keeps the peer out of optimisers' books; nothing there is beyond tracing
            direct = getattr(kept.__dict__.get("__dynamo_disable"), "__name__", "") == _DIRECT
            return None if direct else "excluded"
        if said.get("_dynamo_marked_constant"):
            return "constant"
        if said.get("_torchdynamo_disable") and (obj.__module__ or "").startswith("torch.optim."):
            return (
                "compiled"  # by the peer's hand, once it has run: it leaves optimisers out, the program did not say so
            )
        if said.get("_torchdynamo_disable") and said.get("_torchdynamo_wrapper_id", id(obj)) == id(obj):
            return "excluded"
        if said.get(ORIGINAL) is not None and is_peer_code(obj.__code__):
            return "compiled"
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None:
        return None
    if issubclass(type(obj), (types.FunctionType, type)) and obj.__module__ == "torch._dynamo.decorators":
        return _PEER_MARKS.get(obj.__name__)
    if id(obj) in getattr(rules, "_allowed_callable_ids", ()):  # a thread may be importing it right now
        return "node"
    return "excluded" if id(obj) in getattr(rules, "_disallowed_callable_ids", ()) else None


@functools.cache
def bypass_peer_wrappers() -> None:
    """Call fake kernels and decompositions directly while the peer compiler is not loaded.

    Torch wraps some of them in a decorator that imports the peer (1.3 s) at the first call, to keep itself out of its
    graphs. Until something else loads the peer, its wrapped functions are called as they are; from then on torch's own
    wrapper works as if nothing had happened. Takes 10 ms; does nothing where torch has no such decorator.
    """
    for name in ("torch._decomp", "torch._prims", "torch._refs"):
        importlib.import_module(name)
    codes = getattr(getattr(private.peer_disable, "__code__", None), "co_consts", ())
    wrapper = next((c for c in codes if isinstance(c, types.CodeType) and c.co_name == "inner"), None)
    if wrapper is None or _peer_loaded():
        return
    places = ("torch._refs", "torch._decomp", "torch._prims", "torch._meta_registrations", "torch._subclasses")
    stack: list[Any] = [getattr(FakeTensorMode, "__torch_dispatch__", None)]
    for name, module in list(sys.modules.items()):
        if name.startswith(places):
            stack += [v for v in vars(module).values() if isinstance(v, types.FunctionType)]
    for rules in private.all_decompositions.values():
        stack += rules.values()
    seen: set[int] = set()
    while stack:
        f = stack.pop()
        if not isinstance(f, types.FunctionType) or id(f) in seen:
            continue
        seen.add(id(f))
        cells = [c.cell_contents for c in f.__closure__ or () if _is_filled(c)]
        if f.__code__ is wrapper:
            for raw in cells:
                if isinstance(raw, types.FunctionType) and not hasattr(raw, "__dynamo_disable"):
                    raw.__dynamo_disable = _direct_until_peer_loads(raw)  # type: ignore[attr-defined]
        stack += [*cells, getattr(f, "__wrapped__", None)]


def _peer_loaded() -> bool:
    return "__file__" in vars(sys.modules.get("torch._dynamo", types.SimpleNamespace()))  # a stand-in has none


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _direct_until_peer_loads(raw: Any) -> Callable[..., Any]:
    def call_directly(*args: Any, **kwargs: Any) -> Any:
        if _peer_loaded() and hasattr(raw, "__dynamo_disable"):
            del raw.__dynamo_disable
        return raw(*args, **kwargs)

    return call_directly
