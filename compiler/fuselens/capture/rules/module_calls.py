"""Calls of modules: hooks, forward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from ... import torch_private
from ..breaks import Break, Initialised, Raised
from ..hook import _hook
from ..tracing import sources as src
from ..values import attributes
from ..values.algebra import DictValue, ObjectValue, SequenceValue, TensorValue, Value
from ..values.iterators import iterate
from ..values.known import UNKNOWN, plain
from .table import rule

if TYPE_CHECKING:
    from ..machine import Machine

_TABLES = torch.nn.modules.module.__dict__
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")
_PRE = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")
_POST = ("_forward_hooks", "_forward_hooks_with_kwargs")


@rule(*torch_private.MODULE_CALLS)
def _call_impl(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    module = m.use(args[0])
    if not isinstance(module, ObjectValue):
        raise Break("FL104", what="Module.__call__", why="the module is not known while tracing")
    return call_module(m, module, args[1:], kwargs)


def call_module(m: Machine, module: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``module(...)``: its hooks and its forward, in the order of ``Module.__call__``."""
    name = module.python_type.__name__
    if issubclass(module.python_type, LazyModuleMixin) and module.value.has_uninitialized_params():
        _initialise(m, module, args, kwargs)
        raise Initialised
    if any(list(_hooks(m, module, table, None)) for table in _BACKWARD):
        raise Break("FL104", what=f"{name} with backward hooks", why="they run eagerly")
    for hook, with_kwargs in list(_hooks(m, module, *_PRE)):
        given = [module, SequenceValue(list(args), tuple)]
        result = m.use(m.call(hook, [*given, DictValue(dict(kwargs))] if with_kwargs else given, {}))
        if result.is_none:
            continue
        args, kwargs = _changed(m, name, result, with_kwargs, kwargs)
    hooks = list(_hooks(m, module, *_POST))
    try:
        result = m.use(m.call(attributes.load(m, module, "forward"), args, kwargs))
        for hook, with_kwargs in hooks:
            given = [
                module,
                SequenceValue(list(args), tuple),
                *([DictValue(dict(kwargs))] if with_kwargs else []),
                result,
            ]
            changed = m.use(m.call(hook, given, {}))
            if not changed.is_none:
                result = changed
    except Raised:
        if hooks:  # some of them may have to run all the same
            raise Break("FL104", what=f"{name} with hooks", why="its forward raises") from None
        raise
    return result


def _initialise(m: Machine, module: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Lets a lazy module make its parameters for inputs of these shapes, which is the first thing that a call of it does."""
    what = f"{module.python_type.__name__} without parameters"
    if any(map(torch_private.may_draw, m.tracer.graphs.current.nodes)) or m.tracer.graphs.nested:
        raise Break("FL104", what=what, why="random numbers are drawn before they are made")
    given, named = [_shown(m, a) for a in args], {k: _shown(m, v) for k, v in kwargs.items()}
    if module.source is None or UNKNOWN in (*map(type, given), *map(type, named.values())):
        raise Break("FL104", what=what, why="its arguments are not known while tracing")
    try:
        torch_private.initialise_lazy(module.value, tuple(given), named)
    except Exception as error:  # noqa: BLE001 - eager raises it again
        raise Break("FL104", what=what, why=f"{type(error).__name__}: {error}") from None


def _shown(m: Machine, value: Value) -> Any:
    """What a lazy module sees of an argument: shape and dtype of a tensor."""
    value = m.use(value)
    if not isinstance(value, TensorValue):
        return plain(value)
    sizes = [torch_private.number_hint(n) for n in value.fake.shape]
    return torch.empty(sizes, dtype=value.fake.dtype, device="meta")  # type: ignore[arg-type]


def _changed(
    m: Machine, name: str, result: Value, with_kwargs: bool, kwargs: dict[str, Value]
) -> tuple[list[Value], dict[str, Value]]:
    """The arguments that a hook gives in place of its own."""
    if not with_kwargs:
        items = iterate(m, result) if isinstance(result, SequenceValue) and issubclass(result.kind, tuple) else [result]
        return items, kwargs
    if isinstance(result, SequenceValue) and result.kind is tuple and len(result.items) == 2:
        keywords = m.use(result.items[1])
        if isinstance(keywords, DictValue):
            return iterate(m, result.items[0]), dict(keywords.items)
    raise Break("FL104", what=f"{name} with hooks", why="a hook returns neither None nor arguments and keywords")


def _hooks(m: Machine, module: ObjectValue, table: str, with_kwargs: str | None) -> Iterator[tuple[Value, bool]]:
    """The hooks of a kind, global ones first, and whether each takes keywords. An empty table costs one guard."""
    for owner, name in ((None, f"_global{table}"), (module, table)):
        real = _TABLES[name] if owner is None else vars(module.value).get(name)
        source = _source(owner, name)
        if source is not None and not real:
            m.tracer.guard(source, _hook.LENGTH_IS, 0, name="HOOKS", text=f"no hooks in {source}")
            continue
        held = _table(m, owner, name)
        keyed = _table(m, owner, f"_global{with_kwargs}" if owner is None else with_kwargs) if with_kwargs else None
        for key, hook in held.items.items():
            yield hook, keyed is not None and key in keyed.items


def _source(owner: ObjectValue | None, name: str) -> src.Source | None:
    if owner is None:
        return src.constant(_TABLES[name], name)
    return None if owner.source is None else src.attribute(owner.source, name)


def _table(m: Machine, owner: ObjectValue | None, name: str) -> DictValue:
    if owner is None and name not in _TABLES:
        return DictValue({})
    if owner is None:
        found = m.use(m.tracer.lazy(_TABLES[name], src.constant(_TABLES[name], name)))
    else:
        found = attributes.load(m, owner, name)
    if not isinstance(found, DictValue):
        raise Break("FL104", what="a module with hooks", why=f"{name} is no dictionary")
    return found
