"""What a program keeps between calls: tensors, attributes of modules and objects, what containers hold, variables."""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..capture.classify import is_installed

log = logging.getLogger(__name__)

_LEAVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_MOST_ITEMS = 1000  # longer containers of plain data count by their length
_DEEPEST = 8
_OF_MODULES = ("_parameters", "_buffers", "_modules")
# Torch's other objects are its own: a context of autocast, too, notes what there was before it.
_KEEPS_STATE = (
    "torch.optim",
    "torch.amp.grad_scaler",
    "torch.cuda.amp.grad_scaler",
    "torch.distributed.optim",
)
_MISSING: Any = object()


class ProgramState:
    """The state that is reachable from ``roots``, as it is now.

    A root is a function (its closure, its defaults, the variables of its file), a module of torch, a file, or any object.
    ``values`` has each leaf by its path. :meth:`restore` puts all of it back, in the same objects.
    Files and objects of the standard library, of torch and of installed packages are left alone,
    but for modules, optimizers, schedulers, gradient scalers and generators of random numbers.
    """

    def __init__(self, *roots: Any) -> None:
        self.values: dict[str, Any] = {}
        self._restores: list[Callable[[], object]] = []
        self._seen: dict[int, Any] = {}
        for position, root in enumerate(roots):
            self._look(root, f"<{position}>" if position else "", 0, given=True)

    def restore(self) -> None:
        with torch.no_grad():
            for put_back in self._restores:
                put_back()

    def _look(self, value: Any, path: str, depth: int, *, given: bool = False) -> None:
        if type(value) in _LEAVES:
            self.values[path] = value
            return
        if id(value) in self._seen or depth > _DEEPEST:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif isinstance(value, torch.nn.Module):
            self._attributes(value, path, depth)
            for group in _OF_MODULES:  # however deep a model is, it is one level
                held = getattr(value, group)
                self._restores.append(functools.partial(_put_back_dict, held, dict(held)))
                for name, part in held.items():
                    self._look(part, f"{path}.{name}", depth)
        elif isinstance(value, torch.Generator):
            self._restores.append(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, types.ModuleType):
            if given or _is_users(getattr(value, "__file__", None)):
                self._namespace(vars(value), path)
        elif isinstance(value, dict | list | tuple | set | deque):
            self._items(value, path, depth)
        elif isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            self._callable(value, path, depth, given=given)
        elif isinstance(value, type):
            self._class(value, path, depth)
        elif given or _has_state(type(value)):
            try:
                self._attributes(value, path, depth)
            except Exception:  # an object of a program may raise at anything: its state stays as it is
                log.info("%s cannot be looked into", path, exc_info=True)

    # --- kinds of values -------------------------------------------------------------------------------------------

    def _tensor(self, tensor: torch.Tensor, path: str) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout != torch.strided:
            return
        copy, requires_grad, grad = (
            tensor.detach().clone(),
            tensor.requires_grad,
            tensor.grad if tensor.is_leaf else None,
        )
        if copy.is_floating_point() or copy.is_complex():
            copy.requires_grad_(requires_grad)
        self.values[path] = copy
        has_history = tensor.grad_fn is not None

        def put_back() -> None:
            if tensor.grad_fn is not None and not has_history:  # what was written to it required a gradient
                with contextlib.suppress(RuntimeError):  # of a view
                    tensor.detach_()
            with torch.inference_mode() if tensor.is_inference() else contextlib.nullcontext():
                if tensor.shape != copy.shape or tensor.dtype != copy.dtype or tensor.device != copy.device:
                    tensor.data = copy.detach().clone()
                elif not torch.equal(tensor, copy):
                    tensor.copy_(copy)
            if tensor.is_leaf:
                if tensor.requires_grad != requires_grad:
                    tensor.requires_grad_(requires_grad)
                if tensor.grad is not grad:
                    tensor.grad = grad

        self._restores.append(put_back)
        if tensor.is_leaf and requires_grad:
            self._look(grad, f"{path}.grad", 0)

    def _attributes(self, value: Any, path: str, depth: int) -> None:
        found = getattr(value, "__dict__", None)
        if type(found) is dict:
            self._restores.append(functools.partial(_put_back_dict, found, dict(found)))
            for name, attribute in found.items():
                if not (name in _OF_MODULES and isinstance(value, torch.nn.Module)):
                    self._look(attribute, f"{path}.{name}", depth + 1)
        for name in _slots(type(value)):
            held = getattr(value, name, _MISSING)
            self._restores.append(functools.partial(_put_back_attribute, value, name, held))
            self._look(held, f"{path}.{name}", depth + 1)

    def _items(self, value: Any, path: str, depth: int) -> None:
        self.values[f"{path} holds"] = len(value)
        if isinstance(value, dict):
            self._restores.append(functools.partial(_put_back_dict, value, dict.copy(value)))
            items: Iterator[tuple[Any, Any]] = iter(dict.items(value))
        elif isinstance(value, set):
            self._restores.append(functools.partial(_put_back_set, value, set(value)))
            return
        else:
            if not isinstance(value, tuple):
                self._restores.append(functools.partial(_put_back_list, value, list(value)))
            items = enumerate(value)
        if len(value) > _MOST_ITEMS and not isinstance(_first(value), torch.Tensor | torch.nn.Module | dict):
            return
        for position, (key, item) in enumerate(items):
            shown = f"[{key!r}]" if type(key) in _LEAVES else f"[#{position}]"
            self._look(item, f"{path}{shown}", depth + 1)

    def _callable(self, value: Any, path: str, depth: int, *, given: bool) -> None:
        if isinstance(value, types.MethodType):
            self._look(value.__self__, path, depth, given=given)
            value = value.__func__
        elif isinstance(value, functools.partial):
            for part in (value.args, value.keywords):
                self._look(part, path, depth + 1)
            value = value.func
        if not isinstance(value, types.FunctionType) or not (given or _is_users(value.__code__.co_filename)):
            return
        self._attributes(value, path, depth)
        for position, default in enumerate((*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())):
            if type(default) not in _LEAVES:  # others cannot change
                self._look(default, f"{path}({position})", depth + 1)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            held = _content(cell)
            self._restores.append(functools.partial(_put_back_cell, cell, held))
            self._look(held, f"{path}<{name}>", depth + 1)
        if id(value.__globals__) not in self._seen and _is_users(value.__code__.co_filename):
            self._seen[id(value.__globals__)] = value.__globals__
            self._namespace(value.__globals__, str(value.__globals__.get("__name__", "")))

    def _class(self, cls: type, path: str, depth: int) -> None:
        """What a class of the user's keeps for all of its instances."""
        if _is_users(getattr(sys.modules.get(cls.__module__), "__file__", None)):
            for name, attribute in list(vars(cls).items()):
                if not name.startswith("__") and _is_data(attribute):
                    self._restores.append(functools.partial(_put_back_attribute, cls, name, attribute))
                    self._look(attribute, f"{path}.{name}", depth + 1)

    def _namespace(self, names: dict[str, Any], path: str) -> None:
        kept = {name: value for name, value in names.items() if not name.startswith("__")}
        self._restores.append(functools.partial(_put_back_variables, names, kept))
        for name, value in kept.items():
            self._look(value, f"{path}.{name}", 1)


class TorchSettings:
    """Settings of torch that a function may leave changed, as they are now, by name."""

    def __init__(self) -> None:
        self.values = {
            "torch.is_grad_enabled()": torch.is_grad_enabled(),
            "torch.get_default_dtype()": torch.get_default_dtype(),
            "torch.is_autocast_enabled('cpu')": torch.is_autocast_enabled("cpu"),
            "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        }

    def restore(self) -> None:
        grad, dtype, autocast, deterministic = self.values.values()
        torch.set_grad_enabled(bool(grad))
        torch.set_default_dtype(dtype)
        torch.set_autocast_enabled("cpu", bool(autocast))
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(bool(deterministic))


class RandomState:
    """The state of torch's, Python's and numpy's own generators of random numbers, as it is now."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._python = random.getstate()
        self._numpy = numpy.random.get_state() if (numpy := sys.modules.get("numpy")) else None

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _is_users(filename: str | None) -> bool:
    return filename is not None and not filename.startswith("<") and not is_installed(filename)


def _has_state(cls: type) -> bool:
    module = cls.__module__ or ""
    top = module.partition(".")[0]
    if top == "torch":
        return module.startswith(_KEEPS_STATE)
    return top not in sys.stdlib_module_names and top != "fuselens"


def _is_data(value: Any) -> bool:
    return type(value) in _LEAVES or isinstance(value, dict | list | set | deque | torch.Tensor)


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        if base is not object and not base.__module__.startswith("torch"):
            slots = vars(base).get("__slots__", ())
            yield from (
                s for s in ((slots,) if isinstance(slots, str) else slots) if s not in ("__dict__", "__weakref__")
            )


def _first(value: Any) -> Any:
    return next(iter(dict.values(value) if isinstance(value, dict) else value), None)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


# --- putting back: nothing is written where nothing changed ------------------------------------------------------------


def _put_back_dict(held: dict[Any, Any], content: dict[Any, Any]) -> None:
    now = dict.copy(held)
    if now.keys() != content.keys() or any(now[k] is not v for k, v in content.items()):
        dict.clear(held)
        dict.update(held, content)


def _put_back_set(held: set[Any], content: set[Any]) -> None:
    if held != content:
        held.clear()
        held.update(content)


def _put_back_list(held: Any, content: list[Any]) -> None:
    if len(held) != len(content) or any(a is not b for a, b in zip(held, content, strict=True)):
        held.clear()
        held.extend(content)


def _put_back_variables(names: dict[str, Any], kept: dict[str, Any]) -> None:
    for name in [n for n in names if not n.startswith("__") and n not in kept]:
        del names[name]
    names.update({name: value for name, value in kept.items() if names.get(name, _MISSING) is not value})


def _put_back_attribute(owner: Any, name: str, value: Any) -> None:
    if value is _MISSING:
        if getattr(owner, name, _MISSING) is not _MISSING:
            delattr(owner, name)
    elif getattr(owner, name, _MISSING) is not value:
        setattr(owner, name, value)


def _put_back_cell(cell: types.CellType, value: Any) -> None:
    if _content(cell) is value:
        return
    if value is _MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value
