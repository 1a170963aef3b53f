"""What calls of builtins give, and the breaks that they cause: one rule for each, by name."""

from __future__ import annotations

from . import tables
from .invocation import Invocation, Rule
from .values import PLAIN, UNKNOWN, Constant, Container, Imported, Instance, Plain, Tensor, Value, item_of, join_all


def called(name: str, call: Invocation) -> Value:
    """What the builtin ``name`` gives."""
    rule = _RULES.get(name)
    return UNKNOWN if rule is None else rule(call)


# --- numbers and questions ------------------------------------------------------------------------------------------


def _plain(call: Invocation) -> Value:
    return PLAIN


def _first(call: Invocation) -> Value:
    return call.first


def _scalar(call: Invocation) -> Value:
    """Makes a Python value, of a tensor's value where it is given one."""
    if call.takes_tensor:
        call.found("FL102")
    return PLAIN


def _range(call: Invocation) -> Value:
    return Container(_scalar(call))


def _isinstance(call: Invocation) -> Value:
    whole = isinstance(call.first, Tensor) and call.arguments[1:] == (Imported("torch.Tensor"),)
    return Constant(True) if whole else PLAIN


def _hash(call: Invocation) -> Value:
    if isinstance(call.first, Tensor):
        call.found("FL104", what="hash", why="that of a Tensor differs from run to run")
    return PLAIN


def _sum(call: Invocation) -> Value:
    item = item_of(call.first)
    return item if isinstance(item, Tensor | Plain) else UNKNOWN


def _truth_of_each(call: Invocation) -> Value:
    call.compares(_compared(call))
    return PLAIN


def _extreme(call: Invocation) -> Value:
    return item_of(call.compares(_compared(call)))


def _compared(call: Invocation) -> Value:
    """The arguments where there are several, else what the one holds."""
    return Container(join_all(call.arguments), call.arguments) if len(call.arguments) > 1 else call.first


# --- sequences and iterators ----------------------------------------------------------------------------------------


def _sorted(call: Invocation) -> Value:
    call.compares(call.first)
    return Container(item_of(call.first))


def _sequence(call: Invocation) -> Value:
    return Container(item_of(call.first)) if call.arguments else Container(UNKNOWN, ())


def _dict(call: Invocation) -> Value:
    return Container(join_all(tuple(call.keywords.values())), mapping=True)


def _reversed(call: Invocation) -> Value:
    if isinstance(call.first, Tensor):
        call.found("FL104", what="reversed", why="of a tensor")
    return Container(item_of(call.first))


def _next(call: Invocation) -> Value:
    return item_of(call.first)


def _enumerate(call: Invocation) -> Value:
    return Container(Container(UNKNOWN, (PLAIN, item_of(call.first))))


def _zip(call: Invocation) -> Value:
    return Container(Container(UNKNOWN, tuple(item_of(argument) for argument in call.arguments)))


def _map(call: Invocation) -> Value:
    if len(call.arguments) < 2:
        return UNKNOWN
    return Container(call.call(call.first, *(item_of(argument) for argument in call.arguments[1:])))


def _filter(call: Invocation) -> Value:
    if len(call.arguments) != 2:
        return UNKNOWN
    item = item_of(call.arguments[1])
    if isinstance(call.call(call.first, item), Tensor):
        call.found("FL101")
    return Container(item)


# --- classes --------------------------------------------------------------------------------------------------------


def _type(call: Invocation) -> Value:
    if len(call.arguments) == 3:
        call.found("FL104", what="type", why="classes are created eagerly")
    return UNKNOWN


def _super(call: Invocation) -> Value:
    return Instance("builtins.super")


_RULES: dict[str, Rule] = {
    **dict.fromkeys(tables.SCALAR_BUILTINS, _scalar),
    **dict.fromkeys(("len", "id", "callable", "hasattr", "issubclass", "ord"), _plain),
    **dict.fromkeys(("abs", "pow"), _first),
    **dict.fromkeys(("any", "all"), _truth_of_each),
    **dict.fromkeys(("max", "min"), _extreme),
    **dict.fromkeys(("list", "tuple", "iter", "set", "frozenset"), _sequence),
    "range": _range, "isinstance": _isinstance, "hash": _hash, "sum": _sum, "sorted": _sorted, "dict": _dict,
    "reversed": _reversed, "next": _next, "enumerate": _enumerate, "zip": _zip, "map": _map, "filter": _filter,
    "type": _type, "super": _super,
}  # fmt: skip
