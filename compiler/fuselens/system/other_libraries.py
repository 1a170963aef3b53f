"""Libraries that list the backends of ``torch.compile`` by name: once one of them is imported, its list has ours, too.

Accelerate takes a member of an enumeration, ``DynamoBackend``, and so does the Trainer of Transformers, which asks Accelerate.
Nothing is imported for that.
Lightning's ``Trainer`` calls a module's steps, which it compiles itself where ``torch.compile`` made the module.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_NAME = "FUSELENS"


def prepare() -> None:
    """Adds our name to the libraries that are there, and to those that are imported later."""
    for module, extend in _LISTS.items():
        loaded = sys.modules.get(module)
        if loaded is not None:
            extend(loaded)
        elif not any(isinstance(finder, _After) and finder.module == module for finder in sys.meta_path):
            sys.meta_path.insert(0, _After(module))


class _After:
    """A finder of one module that finds it as the others do, and extends it when it has run."""

    def __init__(self, module: str) -> None:
        self.module = module

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.module:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Extending(spec.loader, _LISTS[name])  # type: ignore[assignment]
        return spec


class _Extending:
    """A loader that extends what another one has loaded."""

    def __init__(self, loader: Any, extend: Any) -> None:
        self._loader, self._extend = loader, extend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._extend(module)


def _with_backend(module: ModuleType) -> None:
    """Accelerate's ``DynamoBackend`` with a member of our name."""
    kind: Any = getattr(module, "DynamoBackend", None)
    members = getattr(kind, "_member_map_", None)
    if members is None or _NAME in members:
        return
    made: Any = str.__new__(kind, _NAME)
    made._name_, made._value_ = _NAME, _NAME
    made._sort_order_ = len(members)
    made.__objclass__ = kind
    members[_NAME] = made
    kind._member_names_.append(_NAME)
    kind._value2member_map_[_NAME] = made
    type.__setattr__(kind, _NAME, made)


def steps_of_a_trainer(kind: type) -> list[str]:
    """The methods of a class of modules that its trainer calls in place of the module: Lightning's steps that it defines."""
    for base in kind.__mro__:
        if base.__name__ == "LightningModule" and base.__module__ in _LIGHTNING:
            return [n for n in _STEPS if getattr(kind, n, None) is not getattr(base, n, None)]
    return []


_LIGHTNING = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
_LISTS = {"accelerate.utils.dataclasses": _with_backend}
