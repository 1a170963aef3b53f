"""``guard_filter_fn``: the program says which guards to keep, and takes it upon itself that the others hold.

An entry has the fields that torch's own filters ask for (``torch.compiler.keep_tensor_guards_unsafe`` and its kin work).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...record.report import Guard
from ..breaks import UsageError
from ..frame.mismatch import NOTHING, Search
from ..hook import _hook
from ..tracing.sources import GuardProgram

_KINDS = {
    "TENSOR": "TENSOR_MATCH", "EQUALS": "EQUALS_MATCH", "TYPE": "TYPE_MATCH", "IS": "ID_MATCH", "ID": "ID_MATCH",
    "CODE": "FUNCTION_MATCH", "LENGTH": "SEQUENCE_LENGTH", "KEYS": "DICT_KEYS_MATCH", "MISSING": "NOT_PRESENT_IN_GENERIC_DICT",
    "SAME": "DUPLICATE_INPUT", "DISTINCT": "NO_TENSOR_ALIASING", "SHAPE": "SHAPE_ENV", "GRAD_MODE": "GRAD_MODE",
    "STATE": "GLOBAL_STATE", "HOOKS": "EMPTY_NN_MODULE_HOOKS_DICT", "HOLDS": "DICT_CONTAINS", "FLOAT": "EQUALS_MATCH",
}  # fmt: skip
"""Our kinds of guards by the names that torch has for those that check the same."""


@dataclass(frozen=True)
class GuardSource:
    """Where what a guard checks is found. ``modules`` are the classes of the modules on the way there."""

    name: str
    modules: tuple[type, ...] = ()

    def is_unspecialized_nn_module(self) -> bool:
        return bool(self.modules)

    def is_unspecialized_builtin_nn_module(self) -> bool:
        return bool(self.modules) and (self.modules[0].__module__ or "").startswith(("torch.nn.", "torch.ao."))


@dataclass(frozen=True)
class OriginalGuard:
    """The guard itself: ours, and its source."""

    guard: Guard
    source: GuardSource


@dataclass(frozen=True)
class GuardFilterEntry:
    """One guard, as a filter sees it. ``guard_type`` is torch's name for what is checked, of the object ``value``."""

    name: str
    has_value: bool
    value: Any
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: OriginalGuard


def apply(
    guards: GuardProgram,
    keep: Callable[[Sequence[GuardFilterEntry]], Any],
    args: tuple[Any, ...],
    function: types.FunctionType,
) -> None:
    """Leaves out of ``guards`` what ``keep`` says no of. Raises UsageError where it does not answer for each guard."""
    search = Search(guards.nodes, guards.texts, function, args)
    entries = [_entry(search, check[0], record) for check, record in zip(guards.checks, guards.records, strict=True)]
    kept = list(keep(entries))
    if len(kept) != len(entries):
        raise UsageError(f"guard_filter_fn gave {len(kept)} answers for {len(entries)} guards: give a bool for each")
    guards.checks = [check for check, wanted in zip(guards.checks, kept, strict=True) if wanted]
    guards.records = [record for record, wanted in zip(guards.records, kept, strict=True) if wanted]


def _entry(search: Search, node: int, record: Guard) -> GuardFilterEntry:
    value = search.value(node) if record.source else NOTHING
    modules, at = [], node
    while record.source and search.nodes[at][1] > _hook.ROOT_WEAK:
        at = search.nodes[at][0]
        kind = type(search.value(at))
        if issubclass(kind, torch.nn.Module):
            modules.append(kind)
    root = search.root(node)
    return GuardFilterEntry(
        record.source, value is not NOTHING, None if value is NOTHING else value, _KINDS.get(record.kind, record.kind), (),
        bool(record.source) and root == _hook.ROOT_GLOBALS, OriginalGuard(record, GuardSource(record.source, tuple(modules))),
    )  # fmt: skip
