"""What a failed guard expected and what it found, in words. Reads objects as guards do, and runs none of their code."""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Sequence
from typing import Any

from ..hook import _hook, tensor_layout

_SHOWN = 60


def mismatch(guards: _hook.Guards, check: int, texts: Sequence[str], function: Any, arguments: tuple[Any, ...]) -> str:
    """``n: expected 3, found 4``: why check number ``check`` fails for a call. ``texts`` are the nodes' expressions."""
    search = Search(guards.nodes, texts, function, arguments)
    if check >= len(guards.checks):
        return search.missing(guards.gather[check - len(guards.checks)])
    node, kind, *operands = guards.checks[check]
    if kind in _OF_STATE:
        return _OF_STATE[kind](search, *operands)
    found = search.value(node)
    return search.missing(node) if found is NOTHING else _OF_OBJECT[kind](search, node, found, *operands)


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()


class Search:
    """Finds the objects at the nodes of a guard program."""

    def __init__(
        self, nodes: Sequence[_hook.Node], texts: Sequence[str], function: Any, arguments: tuple[Any, ...]
    ) -> None:
        self.nodes, self.texts, self.function, self.arguments = nodes, texts, function, arguments

    def value(self, node: int) -> Any:
        found, _, gathered = _hook.Guards(self.nodes, (), (node,)).check(self.function, self.arguments)
        return gathered[0] if found and gathered else NOTHING

    def root(self, node: int) -> int:
        """The kind of the root that the object at a node hangs on."""
        while self.nodes[node][1] > _hook.ROOT_WEAK:
            node = self.nodes[node][0]
        return self.nodes[node][1]

    def hangs_on(self, node: int, kind: type) -> bool:
        """Whether an object on the way to the node is of a class."""
        while self.nodes[node][1] > _hook.ROOT_WEAK:
            node = self.nodes[node][0]
            if issubclass(type(self.value(node)), kind):
                return True
        return False

    def missing(self, node: int) -> str:
        """The outermost object on the way to the node that is not there."""
        while self.nodes[node][1] > _hook.ROOT_WEAK and self.value(self.nodes[node][0]) is NOTHING:
            node = self.nodes[node][0]
        return f"{self.texts[node]}: expected an object, found nothing"


def _expected(what: str, expected: str, found: str) -> str:
    return f"{what}: expected {expected}, found {found if found != expected else 'another one'}"


def show(value: Any) -> str:
    """A constant as Python text; of anything else what it is, without calling its ``__repr__``."""
    kind = type(value)
    if value is NOTHING:
        return "nothing"
    if kind in (int, float, complex, str, bytes, bool, type(None)) or type(kind) is enum.EnumMeta:
        try:
            text = repr(value) if kind is not int or value.bit_length() < 10_000 else f"{value:#x}"
        except Exception:  # noqa: BLE001 - an enum's __repr__ may do anything
            return f"a {kind.__qualname__}"
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    if kind in (tuple, list):
        items = [show(v) if not isinstance(v, (tuple, list, dict)) else f"a {type(v).__name__}" for v in value[:8]]
        text = ", ".join(items + ["…"] * (len(value) > 8)) + ("," if kind is tuple and len(value) == 1 else "")
        return f"({text})" if kind is tuple else f"[{text}]"
    if isinstance(value, types.BuiltinFunctionType):
        return value.__name__
    if isinstance(value, (type, types.FunctionType)):
        return value.__qualname__
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, types.CodeType):
        return f"that of {value.co_qualname}"
    if tensor_layout.is_tensor(value):
        return tensor_layout.describe(value)
    if kind.__module__ == "torch":
        return repr(value)
    return f"a {kind.__qualname__}"


def _type(search: Search, node: int, found: Any, kind: type) -> str:
    name = f"type({search.texts[node]})"
    if kind.__qualname__ == type(found).__qualname__:
        return f"{name}: expected {kind.__qualname__}, found another class of that name"
    return _expected(name, kind.__qualname__, type(found).__qualname__)


def _identity(search: Search, node: int, found: Any, wanted: Any) -> str:
    if isinstance(wanted, weakref.ref):
        wanted = wanted()
        if wanted is None:
            return f"{search.texts[node]}: expected an object that is gone, found {show(found)}"
    return _expected(search.texts[node], show(wanted), show(found))


def _equal(search: Search, node: int, found: Any, wanted: Any) -> str:
    return _expected(search.texts[node], show(wanted), show(found))


def _length(search: Search, node: int, found: Any, wanted: int) -> str:
    try:
        have = str(len(found))
    except Exception:  # noqa: BLE001 - the object's own __len__
        have = "none"
    return _expected(f"len({search.texts[node]})", str(wanted), have)


def _keys(search: Search, node: int, found: Any, wanted: tuple[Any, ...]) -> str:
    have = list(dict.keys(found)) if isinstance(found, dict) else found
    return _expected(f"the keys of {search.texts[node]}", show(list(wanted)), show(have))


def _absent(search: Search, node: int, found: Any, key: Any) -> str:
    value = dict.get(found, key, NOTHING) if isinstance(found, dict) and isinstance(key, str) else found
    return f"{search.texts[node]}: expected no {show(key)}, found {show(value)}"


def _tensor(search: Search, node: int, found: Any, spec: tensor_layout.TensorSpec) -> str:
    if not tensor_layout.is_tensor(found):
        return _expected(search.texts[node], tensor_layout.describe_spec(spec), show(found))
    if type(found) is not spec[0]:
        return _type(search, node, found, spec[0])
    return _expected(search.texts[node], *tensor_layout.difference(spec, found))


def _call(search: Search, node: int, found: Any, condition: Any) -> str:
    said = condition.otherwise if hasattr(type(condition), "otherwise") else "a condition on it does not hold"
    return f"{search.texts[node]}: {said}"


def _same(search: Search, node: int, found: Any, other: int) -> str:
    return f"{search.texts[node]}: expected the same object as {search.texts[other]}, found another"


def _grad_mode(search: Search, wanted: Any) -> str:
    return _expected("torch.is_grad_enabled()", str(bool(wanted)), str(not wanted))


def _state(search: Search, state: tuple[Any, Any]) -> str:
    read, wanted = state
    return _expected(f"{read.__name__}()", show(wanted), show(read()))


def _global_call(search: Search, condition: Any) -> str:
    return "a condition on global state does not hold"


def _distinct(search: Search, nodes: tuple[int, ...]) -> str:
    seen: dict[int, int] = {}
    for node in nodes:
        first = seen.setdefault(id(search.value(node)), node)
        if first != node:
            return f"{search.texts[node]}: expected another object than {search.texts[first]}, found the same"
    return "objects that differed are one"


def _shape(search: Search, variables: tuple[tuple[int, int], ...], program: Any) -> str:
    found = [f"{_variable(search.texts[n], d)} = {_extent(search.value(n), d)}" for n, d in variables]
    return f"a condition on sizes does not hold for {', '.join(found)}"


def _variable(text: str, d: int) -> str:
    return text if d == -1 else f"{text}.shape[{d}]" if d >= 0 else f"{text}.stride({-2 - d})"


def _extent(value: Any, d: int) -> str:
    if d == -1 or not tensor_layout.is_tensor(value) or value.dim() <= (d if d >= 0 else -2 - d):
        return show(value)
    return str(value.shape[d] if d >= 0 else value.stride(-2 - d))


_OF_STATE = {
    _hook.GRAD_MODE: _grad_mode, _hook.STATE: _state, _hook.GLOBAL_CALL: _global_call, _hook.DISTINCT: _distinct,
    _hook.SHAPE: _shape,
}  # fmt: skip
_OF_OBJECT = {
    _hook.TYPE_IS: _type, _hook.IS: _identity, _hook.ID_IS: _equal, _hook.EQUALS: _equal, _hook.LENGTH_IS: _length,
    _hook.DICT_KEYS_ARE: _keys, _hook.MISSING: _absent, _hook.TENSOR: _tensor, _hook.CALL: _call, _hook.SAME: _same,
}  # fmt: skip
