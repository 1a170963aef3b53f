"""``torch.utils._pytree`` on tracked containers: flattening and mapping need no node of the graph."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ... import torch_private
from ..breaks import Break
from ..tracing.wrapping import CONSTANT_TYPES
from ..values import attributes
from ..values.algebra import ActiveValue, Constant, DictValue, Known, ObjectValue, SequenceValue, Value
from ..values.iterators import iterate, iterator
from ..values.known import from_plain
from ..values.subscripts import subscript
from .table import NAMED_RULES, RULES, Rule

if TYPE_CHECKING:
    from ..machine import Machine

Test = Callable[[Value], bool]
PYTREE = torch_private.PYTREE


class Spec(ActiveValue):
    """A TreeSpec made while tracing: the structure that it describes, whose leaves say nothing."""

    __slots__ = ("structure",)

    def __init__(self, structure: Value) -> None:
        super().__init__(None)
        self.structure = structure

    @property
    def python_type(self) -> type:
        return PYTREE.TreeSpec

    def describe(self) -> str:
        return "a TreeSpec"

    def attribute(self, m: Machine, name: str) -> Value | None:
        return Constant(len(_leaves(self.structure))) if name == "num_leaves" else None

    @property
    def maker(self) -> Callable[..., Any]:
        return PYTREE.tree_structure

    @property
    def parts(self) -> list[Value]:
        rest = iter([Constant(0)] * len(_leaves(self.structure)))
        return [_filled(self.structure, rest)]


class _Leaf(Value):
    """Wraps a leaf, which may itself be a container when ``is_leaf`` says so."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        super().__init__(None)
        self.value = value

    @property
    def python_type(self) -> type:
        return self.value.python_type


def _structure(m: Machine, value: Value, is_leaf: Test) -> Value:
    """``value``'s containers made anew, with its leaves wrapped."""
    value = m.use(value)
    if is_leaf(value):
        return _Leaf(value)
    if isinstance(value, SequenceValue) and (value.kind in (list, tuple) or hasattr(value.kind, "_fields")):
        return SequenceValue([_structure(m, v, is_leaf) for v in value.items], value.kind)
    if isinstance(value, DictValue) and value.kind in (dict, OrderedDict):
        return DictValue({k: _structure(m, v, is_leaf) for k, v in value.items.items()}, value.kind)
    if value.python_type in PYTREE.SUPPORTED_NODES:
        raise Break("FL104", what="torch.utils._pytree", why=f"of a {value.python_type.__name__}")
    return _Leaf(value)


def _leaves(structure: Value) -> list[Value]:
    if isinstance(structure, _Leaf):
        return [structure.value]
    assert isinstance(structure, (SequenceValue, DictValue))
    parts = structure.items if isinstance(structure, SequenceValue) else structure.items.values()
    return [leaf for part in parts for leaf in _leaves(part)]


def _filled(structure: Value, leaves: Any) -> Value:
    """``structure`` with other leaves, not wrapped."""
    if isinstance(structure, _Leaf):
        return next(leaves)
    if isinstance(structure, SequenceValue):
        return SequenceValue([_filled(v, leaves) for v in structure.items], structure.kind)
    assert isinstance(structure, DictValue)
    return DictValue({k: _filled(v, leaves) for k, v in structure.items.items()}, structure.kind)


def _up_to(m: Machine, structure: Value, value: Value) -> list[Value]:
    """What stands in ``value`` where ``structure`` has its leaves."""
    value = m.use(value)
    if isinstance(structure, _Leaf):
        return [value]
    if isinstance(structure, SequenceValue) and isinstance(value, SequenceValue) and structure.kind is value.kind:
        if len(structure.items) == len(value.items):
            return [v for s, w in zip(structure.items, value.items, strict=True) for v in _up_to(m, s, w)]
    if isinstance(structure, DictValue) and isinstance(value, DictValue) and structure.kind is value.kind:
        if structure.items.keys() == value.items.keys():
            return [v for k, s in structure.items.items() for v in _up_to(m, s, value.items[k])]
    raise Break("FL104", what="torch.utils._pytree", why="the trees differ in structure")


def _test(m: Machine, kwargs: dict[str, Value], what: str) -> Test:
    """The ``is_leaf`` argument; takes it out of ``kwargs``, which must then be empty."""
    given = m.use(kwargs.pop("is_leaf", Constant(None)))
    if kwargs:
        raise Break("FL104", what=what, why=f"it is given {next(iter(kwargs))!r}")
    if given.is_none:
        return lambda value: False

    def is_leaf(value: Value) -> bool:
        truth = m.truth(m.call(given, [value], {}))
        if truth is None:
            raise Break("FL102", what=what)
        return truth

    return is_leaf


def _rule(name: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES[getattr(PYTREE, name)] = function
        return function

    return register


@_rule("tree_flatten")
def _tree_flatten(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    structure = _tree(m, args, kwargs, "tree_flatten")
    return SequenceValue([SequenceValue(_leaves(structure), list), Spec(structure)], tuple)


@_rule("tree_leaves")
def _tree_leaves(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SequenceValue(_leaves(_tree(m, args, kwargs, "tree_leaves")), list)


@_rule("tree_iter")
def _tree_iter(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return iterator(m, SequenceValue(_leaves(_tree(m, args, kwargs, "tree_iter")), list))


@_rule("tree_structure")
def _tree_structure(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Spec(_tree(m, args, kwargs, "tree_structure"))


@_rule("arg_tree_leaves")
def _arg_tree_leaves(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    parts = [*args, *kwargs.values()]
    return SequenceValue([leaf for p in parts for leaf in _leaves(_structure(m, p, lambda v: False))], list)


def _tree(m: Machine, args: list[Value], kwargs: dict[str, Value], what: str) -> Value:
    named = dict(zip(("tree", "is_leaf"), args, strict=False)) | kwargs
    tree = named.pop("tree")
    return _structure(m, tree, _test(m, named, what))


@_rule("tree_unflatten")
def _tree_unflatten(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    named = dict(zip(("leaves", "treespec"), args, strict=False)) | kwargs
    leaves, spec = iterate(m, named["leaves"]), m.use(named["treespec"])
    structure = _described(m, spec)
    if len(_leaves(structure)) != len(leaves):
        raise Break("FL104", what="tree_unflatten", why=f"{len(leaves)} leaves do not fit the structure")
    return _filled(structure, iter(leaves))


def _described(m: Machine, spec: Value) -> Value:
    """The structure that a TreeSpec describes."""
    if isinstance(spec, Spec):
        return spec.structure
    if isinstance(spec, ObjectValue) and _is_spec(spec.value) and spec.source is not None:
        m.tracer.guard_identity(spec.source, spec.value)
        return _of_spec(spec.value)
    raise Break("FL104", what="tree_unflatten", why=f"of {spec.describe()}")


def _is_spec(obj: Any) -> bool:
    """Whether ``obj`` is a TreeSpec of torch's own classes: there is one for leaves."""
    kind = type(obj)
    return issubclass(kind, PYTREE.TreeSpec) and kind.__module__ == PYTREE.__name__


def _of_spec(spec: Any) -> Value:
    """The structure that an existing TreeSpec describes. Making an example of it would run the program's classes."""
    if spec.num_nodes == spec.num_leaves == 1:
        return _Leaf(Constant(0))
    parts = [_of_spec(s) for s in (spec.children() if hasattr(spec, "children") else spec.children_specs)]
    if spec.type in (list, tuple):
        return SequenceValue(parts, spec.type)
    if spec.type is namedtuple:
        return SequenceValue(parts, spec.context)
    if spec.type in (dict, OrderedDict) and all(type(k) in CONSTANT_TYPES for k in spec.context):
        return DictValue(dict(zip(spec.context, parts, strict=True)), spec.type)
    raise Break("FL104", what="torch.utils._pytree", why=f"of a {spec.type.__name__}")


def _tree_flatten_spec(m: Machine, value: Value, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``torch.fx._pytree.tree_flatten_spec``, with which exported programs take their arguments apart."""
    named = dict(zip(("pytree", "spec"), args, strict=False)) | kwargs
    if len(args) > 2 or named.keys() != {"pytree", "spec"}:
        return None
    structure = _described(m, m.use(named["spec"]))
    return SequenceValue(_subscripted(m, structure, named["pytree"]), list)


NAMED_RULES["torch.fx._pytree", "tree_flatten_spec"] = _tree_flatten_spec


def _subscripted(m: Machine, structure: Value, value: Value) -> list[Value]:
    """What subscripts find in ``value`` where ``structure`` has its leaves, in containers of whatever kinds."""
    value = m.use(value)
    if isinstance(structure, _Leaf):
        return [value]
    if isinstance(structure, DictValue) and structure.kind is dict:
        parts = dict(structure.items)
    elif isinstance(structure, SequenceValue):
        parts = dict(enumerate(structure.items))
    else:
        raise Break("FL104", what="tree_flatten_spec", why=f"of a {structure.python_type.__name__}")
    # all of them before what they hold
    found = {k: subscript(m, value, from_plain(k, "tree_flatten_spec")) for k in parts}
    return [leaf for k, part in parts.items() for leaf in _subscripted(m, part, found[k])]


def _checks_exported(m: Machine, value: Value, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The hook that compares the structure of an exported program's arguments; None where they differ, which it tells."""
    if len(args) != 3 or kwargs:
        return None
    module, given, named = map(m.use, args)
    if attributes.load_or_none(m, module, "_guards_fn") is None:  # which looks at sizes
        return None
    expected = _described(m, attributes.load(m, module, "_in_spec"))
    found = _structure(m, SequenceValue([given, named], tuple), lambda v: False)
    return Constant(None) if _is_same(expected, found) else None


NAMED_RULES["torch.export._unlift", "_check_input_constraints_pre_hook"] = _checks_exported


def _is_same(a: Value, b: Value) -> bool:
    """Whether two structures are the same."""
    if isinstance(a, SequenceValue) and isinstance(b, SequenceValue):
        return a.kind is b.kind and len(a.items) == len(b.items) and all(map(_is_same, a.items, b.items))
    if isinstance(a, DictValue) and isinstance(b, DictValue):
        same = a.kind is b.kind and list(a.items) == list(b.items)
        return same and all(map(_is_same, a.items.values(), b.items.values()))
    return isinstance(a, _Leaf) and isinstance(b, _Leaf)


@_rule("tree_map")
def _tree_map(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, tree, *rests = args
    structure = _structure(m, tree, _test(m, dict(kwargs), "tree_map"))
    columns = [_leaves(structure), *(_up_to(m, structure, r) for r in rests)]
    made = [m.call(m.use(function), list(row), {}) for row in zip(*columns, strict=True)]
    return _filled(structure, iter(made))


@_rule("tree_map_")
def _tree_map_in_place(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _tree_map(m, args, kwargs)
    return args[1]


def _chosen(m: Machine, selector: Value) -> Callable[[Value], bool]:
    """The first argument of ``tree_map_only`` and its kin: types, or a predicate."""
    if (isinstance(selector, Known) and isinstance(selector.value, type)) or isinstance(selector, SequenceValue):
        return lambda value: bool(m.truth(RULES[isinstance](m, [value, selector], {})))

    def holds(value: Value) -> bool:
        truth = m.truth(m.call(selector, [value], {}))
        if truth is None:
            raise Break("FL102", what="torch.utils._pytree")
        return truth

    return holds


@_rule("tree_map_only")
def _tree_map_only(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    selector, function, tree = (m.use(a) for a in args)
    chosen = _chosen(m, selector)
    structure = _structure(m, tree, _test(m, dict(kwargs), "tree_map_only"))
    made = [m.call(function, [leaf], {}) if chosen(leaf) else leaf for leaf in _leaves(structure)]
    return _filled(structure, iter(made))


def _quantifier(stop: bool, only: bool) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        what = "torch.utils._pytree"
        *selector, predicate, tree = (m.use(a) for a in args)
        chosen = _chosen(m, selector[0]) if only else lambda value: True
        for leaf in _leaves(_structure(m, tree, _test(m, dict(kwargs), what))):
            if chosen(leaf):
                truth = m.truth(m.call(predicate, [leaf], {}))
                if truth is None:
                    raise Break("FL102", what=what)
                if truth is stop:
                    return Constant(stop)
        return Constant(not stop)

    return run


for _name, _stop, _only in (
    ("tree_any", True, False), ("tree_all", False, False), ("tree_any_only", True, True), ("tree_all_only", False, True),
):  # fmt: skip
    RULES[getattr(PYTREE, _name)] = _quantifier(_stop, _only)
