"""What registers itself: modules whose import puts rules, handlers of instructions or handlers of kinds into tables.

Nobody needs their names, so an import of each that looks unused would stand in the machine; here the reason is said once.
"""

from __future__ import annotations

import importlib

_MODULES = (
    "bodies.autograd_functions", "bodies.control_flow", "bodies.function_transforms", "bodies.gradients",
    "calls.calls", "calls.known_calls", "calls.object_calls",
    "instructions.attributes", "instructions.calls", "instructions.containers", "instructions.exceptions",
    "instructions.generators", "instructions.imports", "instructions.jumps", "instructions.match",
    "instructions.operators", "instructions.stack", "instructions.text", "instructions.variables", "kernels.launches",
    "rules.builtin_calls", "rules.copying", "rules.distributed", "rules.library", "rules.numbers", "rules.objects", "rules.pytree",
    "rules.templates", "rules.torch_calls",
    "values.assignments", "values.attributes", "values.container_operators", "values.hashing", "values.identity",
    "values.iterators", "values.known", "values.operators", "values.subscripts", "values.text", "values.truth",
)  # fmt: skip


def load() -> None:
    """Imports them, in an order that says which table is filled first."""
    for name in _MODULES:
        importlib.import_module(f".{name}", __package__)
