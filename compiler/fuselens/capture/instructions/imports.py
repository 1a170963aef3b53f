"""Instructions of ``import`` statements.

Only what is imported already is traced: importing a module runs it.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from ..breaks import Break
from ..values import attributes, known
from ..values.algebra import Known
from .table import handles

if TYPE_CHECKING:
    from ..machine import Machine


@handles("IMPORT_NAME")
def _import_name(m: Machine, name: str) -> None:
    names, level = known.plain(known.deep_use(m, m.pop())), known.plain(m.pop())
    package = m.globals.get("__package__") or m.globals.get("__name__", "").rpartition(".")[0]
    absolute = importlib.util.resolve_name("." * level + name, package) if level else name
    wanted = [absolute, *(f"{absolute}.{n}" for n in names or ())]
    if absolute not in sys.modules or "*" in (names or ()):
        raise Break("FL105", what=f"import of {absolute}", why="the module is not imported yet, and importing runs it")
    module = sys.modules[absolute]
    for submodule in wanted[1:]:
        if submodule not in sys.modules and not hasattr(module, submodule.rpartition(".")[2]):
            raise Break("FL105", what=f"import of {submodule}", why="the module is not imported yet, or is missing")
    m.tracer.imported.update(name for name in wanted if name in sys.modules)
    m.push(Known(module if names else sys.modules[absolute if level else absolute.partition(".")[0]]))


@handles("IMPORT_FROM")
def _import_from(m: Machine, name: str) -> None:
    module = m.use(m.stack[-1])
    assert isinstance(module, Known)
    full = f"{module.value.__name__}.{name}"
    if name not in vars(module.value) and full in sys.modules:
        m.push(Known(sys.modules[full]))
        return
    m.push(attributes.load(m, module, name))
