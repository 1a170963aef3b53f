"""What a program keeps between calls: attributes of modules and objects, what containers hold, variables of a file."""

from __future__ import annotations

import types
from collections import deque
from typing import Any

import torch

_LEAVES = (type(None), bool, int, float, complex, str, bytes)
_MOST_ITEMS = 1000  # longer containers are data: they count by their length
_DEEPEST = 6
_OF_TORCH = frozenset({"_parameters", "_buffers", "_modules"})


class ProgramState:
    """The state of ``roots`` as it is now. ``values`` has each leaf by its path; :meth:`restore` puts all of it back,
    in the same objects. Of a file's variables only data counts; objects are looked into where they are modules, were
    given, or have a class of a given file."""

    def __init__(self, *roots: Any) -> None:
        self.values: dict[str, Any] = {}
        self._tensors: list[tuple[torch.Tensor, torch.Tensor, bool]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._seen: dict[int, Any] = {}
        self._files = {root.__name__ for root in roots if isinstance(root, types.ModuleType)}
        for position, root in enumerate(roots):
            self._look(root, f"<{position}>", 0, given=True)

    def restore(self) -> None:
        for container, content in self._containers:
            if isinstance(container, dict):
                if container.keys() != content.keys() or any(container[k] is not v for k, v in content.items()):
                    container.clear()
                    container.update(content)
            elif isinstance(container, set):
                if container != content:
                    container.clear()
                    container.update(content)
            elif len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
                container.clear()
                container.extend(content)
        with torch.no_grad():
            for tensor, value, requires_grad in self._tensors:
                if tensor.shape == value.shape and not torch.equal(tensor, value):
                    tensor.copy_(value)
                if tensor.is_leaf and tensor.requires_grad != requires_grad:
                    tensor.requires_grad_(requires_grad)

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
            for group in ("_parameters", "_buffers", "_modules"):
                self._items(getattr(value, group), path, depth - 1)
        elif isinstance(value, types.ModuleType):
            self._namespace(vars(value), path)
        elif isinstance(value, dict | list | tuple | set | deque):
            self._items(value, path, depth)
        elif hasattr(value, "__dict__") and not isinstance(value, type) and (
            given or type(value).__module__ in self._files
        ) and not isinstance(value, types.FunctionType | types.MethodType):  # fmt: skip
            self._attributes(value, path, depth)

    def _tensor(self, tensor: torch.Tensor, path: str) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout != torch.strided:
            return
        copy = tensor.detach().clone()
        self._tensors.append((tensor, copy, tensor.requires_grad))
        self.values[path] = copy.clone().requires_grad_() if tensor.requires_grad else copy

    def _attributes(self, value: Any, path: str, depth: int) -> None:
        found = vars(value)
        self._containers.append((found, dict(found)))
        for name, attribute in found.items():
            if name not in _OF_TORCH:
                self._look(attribute, f"{path}.{name}", depth + 1)

    def _items(self, value: Any, path: str, depth: int) -> None:
        self.values[f"{path} holds"] = len(value)
        if len(value) > _MOST_ITEMS:
            return
        if not isinstance(value, tuple):
            self._containers.append((value, value.copy()))
        if isinstance(value, set):
            return
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            self._look(item, f"{path}[{key!r}]" if type(key) in _LEAVES else f"{path}[…]", depth + 1)

    def _namespace(self, names: dict[str, Any], path: str) -> None:
        """Variables are put back by name: others are left alone, as are functions, classes and imports."""
        data = (*_LEAVES, dict, list, set, deque, torch.Tensor)
        for name, value in list(names.items()):
            own = isinstance(value, torch.nn.Module) or type(value).__module__ in self._files
            if not name.startswith("__") and (type(value) in data or own):
                self._look(value, f"{path}.{name}", 1)
