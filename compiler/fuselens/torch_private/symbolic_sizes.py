"""Sizes that are symbols: torch's shape environment, marks of sizes, and expressions over symbols."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch.utils.checkpoint
from torch.torch_version import TorchVersion

from .names import private
from .peer import import_lock


def depends_on_data(env: Any) -> bool:
    """Whether numbers or sizes were traced that only data decides."""
    return env.counter["create_unbacked_symbol"] > 0


def load_symbolic_sizes() -> None:
    """Imports what fake modes and symbolic sizes import when they are first used, and what sympy's first sum does."""
    import sympy

    importlib.import_module("torch.fx.experimental.symbolic_shapes")
    a, b = sympy.symbols("a b")
    a + b  # pyright: ignore[reportUnusedExpression]


def new_shape_env(on_guard: Callable[[], None] | None = None, *, scalars: bool = False, shapes: bool = False) -> Any:
    """Torch's reasoning about symbolic sizes. ``on_guard`` is told of each condition that is decided with example values.

    ``scalars``, ``shapes``: numbers taken from tensors, and output shapes that depend on data, are symbols without a value.
    """
    with _without_validator():
        env = _shape_env_class()(allow_scalar_outputs=scalars, allow_dynamic_output_shape_ops=shapes)
    if on_guard is not None:
        env.guards = _Observed(on_guard)
    return env


@functools.cache
def _shape_env_class() -> type:
    # Torch's trace log finds out at its first record that nobody listens. Let that one be cheap: theirs hold a stack that
    # is symbolised by code that imports the peer.
    private.trace_structured("artifact", dict, suppress_context=True, expect_trace_id=False)

    class Env(private.ShapeEnv):
        """Does not look for the user's frame on Python's stack, where it is not; torch imports the peer to do so."""

        def _get_stack_summary(self, *args: Any, **kwargs: Any) -> Any:
            return private.SLoc("", None), ""

    return Env


@contextlib.contextmanager
def _without_validator() -> Iterator[None]:
    """Makes shape environments find that their conditions are not validated by a solver, which is the default, without
    importing the validator: that imports the peer compiler."""
    name = "torch.fx.experimental.validator"
    if name in sys.modules:
        yield
        return
    stand_in = types.ModuleType(name)
    stand_in.translation_validation_enabled = lambda: False  # type: ignore[attr-defined]
    with import_lock:
        sys.modules[name] = stand_in
        try:
            yield
        finally:
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]


def stop_observing(env: Any) -> None:
    """``env`` tells nobody of its conditions any more."""
    env.guards = list(env.guards)


class _Observed(list[Any]):
    """A list that tells when something is appended."""

    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self.told = told

    def append(self, item: Any) -> None:
        super().append(item)
        self.told()


class _Text(str):
    """A source's name: torch 2.13 reads it as an attribute, earlier versions call it."""

    __slots__ = ()

    def __call__(self) -> str:
        return str(self)


@functools.cache
def source_class() -> type:
    class Named(private.Source):  # type: ignore[misc]
        """Where an input came from, as far as shape reasoning wants to know: a name."""

        def __init__(self, text: str) -> None:
            object.__setattr__(self, "text", text)
            object.__setattr__(self, "name", _Text(text))
            object.__setattr__(self, "guard_source", _GuardSource(private.local_source))

        def __hash__(self) -> int:
            return hash(self.text)  # type: ignore[attr-defined]

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and other.text == self.text  # type: ignore[attr-defined]

    return Named


class _GuardSource:
    """torch's GuardSource member, readable both as an attribute and as the result of a call."""

    def __init__(self, member: Any) -> None:
        self.member = member

    def __call__(self) -> Any:
        return self.member

    def __getattr__(self, name: str) -> Any:
        return getattr(self.member, name)


@dataclasses.dataclass(frozen=True, slots=True)
class SizeMarks:
    """What the program said about a tensor's dimensions with ``mark_dynamic`` and its kin; ``ranges`` of the former, and those of
    them that are ``buckets``."""

    dynamic: frozenset[int] = frozenset()
    weakly_dynamic: frozenset[int] = frozenset()
    static: frozenset[int] = frozenset()
    unbacked: frozenset[int] = frozenset()
    ranges: tuple[tuple[int, int | None, int | None], ...] = ()
    buckets: frozenset[int] = frozenset()


_MARKED = "_has_dynamo_dim_marking"  # what torch sets on every tensor that it marks, from 2.13 on
_MARKS = {
    "dynamic": "_dynamo_dynamic_indices", "weakly_dynamic": "_dynamo_weak_dynamic_indices",
    "static": "_dynamo_static_indices", "unbacked": "_dynamo_unbacked_indices",
}  # fmt: skip
_RANGES = "_dynamo_dynamic_range"
_BUCKETS = "_fuselens_buckets"
MARKS: tuple[str, ...] = (_MARKED,) if TorchVersion(torch.__version__) >= "2.13" else (_MARKED, *_MARKS.values())
"""A tensor that has none of these attributes is not marked."""


class DimRange(NamedTuple):
    """A range as torch's ``mark_dynamic`` attaches it."""

    dim: int
    min: int | None
    max: int | None


def size_marks(tensor: torch.Tensor) -> SizeMarks | None:
    """The marks on ``tensor``, torch's or our own; None when there are none."""
    said: dict[str, Any] = tensor.__dict__  # pyright: ignore[reportAssignmentType] - of an object, it can be written to
    if not any(mark in said for mark in MARKS):
        return None
    found = {kind: frozenset(said.get(attribute, ())) for kind, attribute in _MARKS.items()}
    ranges = tuple((r.dim, r.min, r.max) for r in said.get(_RANGES, ()) if r.min is not None or r.max is not None)
    return SizeMarks(**found, ranges=tuple(sorted(ranges, key=str)), buckets=frozenset(said.get(_BUCKETS, ())))


def mark_size(
    tensor: torch.Tensor, dim: int, kind: str, low: int | None = None, high: int | None = None, *, bucket: bool = False
) -> None:
    """Marks a dimension the way torch does; ``kind`` is a field of :class:`SizeMarks`, or "" for no mark. A range may be a
    ``bucket``."""
    said: dict[str, Any] = tensor.__dict__  # pyright: ignore[reportAssignmentType] - of an object, it can be written to
    for attribute in (*_MARKS.values(), _BUCKETS):
        said.get(attribute, set()).discard(dim)
    said[_RANGES] = {r for r in said.get(_RANGES, ()) if r.dim != dim}
    if bucket:
        said.setdefault(_BUCKETS, set()).add(dim)
    if kind:
        said.setdefault(_MARKS[kind], set()).add(dim)
    if kind == "dynamic":
        said[_RANGES].add(DimRange(dim, low, high))
    said[_MARKED] = True


def symbolic_integer(env: Any, value: int, name: str, lower: int, upper: int) -> torch.SymInt:
    """A symbol for an integer that is ``value`` now, and always between ``lower`` and ``upper``."""
    source = source_class()(name)
    symbol = env.create_unspecified_symbol(value, source, private.DimDynamic.DYNAMIC)
    env.constrain_symbol_range(symbol, lower, upper)
    return env.create_symintnode(symbol, hint=value, source=source)


def symbolic_float(env: Any, value: float, name: str) -> torch.SymFloat:
    """A symbol for a float that is ``value`` now."""
    source = source_class()(name)
    symbol = env.create_unspecified_symbol(value, source, private.DimDynamic.DYNAMIC)
    return env.create_symfloatnode(symbol, hint=value, source=source)


def varying_floats(number: Any) -> bool:
    """Whether a symbolic number depends on a float that varies."""
    return any(private.symbol_is_type(s, private.float_symbol) for s in number.node.expr.free_symbols)


def specialised(number: Any) -> int | float | bool:
    """The example value of a symbolic number, on which the trace depends from now on."""
    if isinstance(number, torch.SymInt):
        return int(number)
    if isinstance(number, torch.SymBool):
        return bool(number)
    env, symbols = number.node.shape_env, number.node.expr.free_symbols
    values = {s: env.evaluate_expr(s) for s in symbols}  # guards compare integers only
    return float(number.node.expr.xreplace(values))


def size_expression(size: Any) -> Any:
    """The sympy expression of a size after what was learnt about it; an integer's for an int."""
    import sympy

    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def raw_expression(size: Any) -> Any:
    """The sympy expression that a size was created with."""
    import sympy

    return size.node._expr if is_symbolic_number(size) else sympy.Integer(size)


def symbols_of(size: Any) -> Any:
    """The sympy symbols on which a number still depends."""
    return size.node.expr.free_symbols if is_symbolic_number(size) else frozenset()


def restrict(size: Any, lower: int | None, upper: int | None) -> None:
    """Makes a symbolic size lie between the bounds, its example value does."""
    known = size.node.shape_env.var_to_range[size.node.expr]
    size.node.shape_env.constrain_symbol_range(
        size.node.expr, int(known.lower) if lower is None else lower, 2**62 if upper is None else upper
    )


def simplified(env: Any, symbol: Any) -> Any:
    """What ``symbol`` was found to equal; itself when nothing was."""
    return env.replacements.get(symbol, symbol)


def shape_guards(env: Any) -> list[Any]:
    """The conditions on symbols that were decided with example values."""
    return [g.expr for g in env.guards]


def symbol_hint(env: Any, symbol: Any) -> int | None:
    value = _examples(env).get(symbol)
    return None if value is None else int(value)


def _examples(env: Any) -> Any:
    """The values of symbols in this call, by symbol."""
    return getattr(env, "backed_var_to_val", None) or env.var_to_val


def bounds(env: Any, symbol: Any) -> tuple[int | None, int | None]:
    """The least and greatest value that ``symbol`` may have; None for no bound."""
    found = env.var_to_range.get(symbol)
    if found is None:
        return None, None
    lower = int(found.lower) if found.lower.is_Integer else None
    upper = int(found.upper) if found.upper.is_Integer and int(found.upper) < 2**62 else None
    return lower, upper


def known_sizes(env: Any) -> list[Any]:
    """All that ``env`` knows of its symbols, as plain data in a fixed order: examples, bounds, what they equal, and conditions."""
    symbols = sorted(env.var_to_range, key=lambda s: s.name)
    return [
        [
            [s.name, s.is_integer, str(_examples(env).get(s)), str(env.var_to_range[s]), str(simplified(env, s))]
            for s in symbols
        ],
        list(dict.fromkeys(map(str, shape_guards(env)))),
    ]


def as_data(condition: Any) -> Any:
    """A condition on symbols as nested tuples of names and numbers. Raises ValueError where it holds anything else."""
    import sympy

    if isinstance(condition, sympy.Symbol):
        return ("symbol", condition.name)
    if isinstance(condition, sympy.Integer):
        return int(condition)
    name = type(condition).__name__
    if _functions().get(name) is not type(condition):
        raise ValueError(f"{name} in a condition")
    return (name, *map(as_data, condition.args))


def from_data(env: Any, data: Any) -> Any:
    """The condition on symbols of ``env`` that :func:`as_data` wrote. Raises whatever comes of anything else."""
    import sympy

    if type(data) is int:
        return sympy.Integer(data)
    name, *args = data
    if name == "symbol":
        return next(s for s in env.var_to_range if s.name == args[0])
    return _functions()[name](*(from_data(env, a) for a in args))


@functools.cache
def _functions() -> dict[str, Any]:
    """The functions of conditions, by class name."""
    import sympy

    known = (
        sympy.Add, sympy.Mul, sympy.Pow, sympy.And, sympy.Or, sympy.Not, sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge,
    )  # fmt: skip
    return {f.__name__: f for f in known} | integer_functions()


def require(env: Any, condition: Any) -> None:
    """Decides that a condition on symbols holds, as it does for the example."""
    env.evaluate_expr(condition)


def rename_symbols(text: str, names: dict[str, str]) -> str:
    """``text`` with symbol names (s77) replaced."""
    return re.sub(r"\b[su]\d+\b", lambda m: names.get(m[0], m[0]), text) if names else text


def is_symbolic_number(value: object) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def symbols_in(value: Any) -> Iterator[Any]:
    """The sympy symbols of numbers, of the layouts of tensors, and of lists of them."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from symbols_in(item)
    elif isinstance(value, torch.Tensor):
        yield from symbols_in([*value.shape, *value.stride(), value.storage_offset()])
    elif is_symbolic_number(value) and not is_ragged(value):
        yield from raw_expression(value).free_symbols


def ragged_size(lengths: torch.Tensor, times: int = 1) -> Any:
    """The ragged size of nested tensors with these offsets, or lengths, ``times`` a number: that of a fake tensor if it was
    set."""
    size = private.ragged_size(lengths)
    return size if times == 1 else size * times


def times_of(size: Any) -> int:
    """The number by which a ragged size was multiplied, as in strides."""
    return size.node.nested_int_coeff()


def set_ragged_size(fake: Any, size: Any) -> None:
    """Lets the ragged size of a fake tensor be that of an existing one."""
    fake.nested_int_memo = size


def lengths_of(size: Any) -> torch.Tensor | None:
    """The offsets, or lengths, that a ragged size stands for, while a nested tensor has them."""
    return next((t for t, known in private.ragged_sizes.items() if bool(known == size)), None)


def is_ragged(size: Any) -> bool:
    """Whether a size is the ragged one of a nested tensor: a name for lengths, which is equal to itself alone."""
    return type(size) is torch.SymInt and size.node.is_nested_int()


def item_at(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """``tensor[index]`` of an integer that may be symbolic, which torch would want to know."""
    return tensor.select(0, index) if isinstance(index, torch.SymInt) else tensor[index]


def shape_env_of(value: Any) -> Any:
    """The shape environment that a symbolic number belongs to; None for what is none."""
    return value.node.shape_env if is_symbolic_number(value) else None


def integer_functions() -> dict[str, Any]:
    """The sympy functions of torch's size expressions, by class name (FloorDiv, Mod, PythonMod, Max, Min, …).

    They may appear in sizes, strides and indexes of the loop IR, so its text form prints and parses them by name.
    """
    names = ("FloorDiv", "CeilDiv", "CleanDiv", "Mod", "PythonMod", "ModularIndexing", "Max", "Min", "PowByNatural",
             "IntTrueDiv", "FloatTrueDiv", "ToFloat", "TruncToInt", "FloorToInt", "CeilToInt", "Identity")  # fmt: skip
    functions = private.integer_functions
    return {n: getattr(functions, n) for n in names if hasattr(functions, n)}


def size_hint(size: Any) -> int:
    """The example value of a size; 4096 for one that only data decides."""
    if isinstance(size, int):
        return size
    node = size.node
    hint = node.hint if getattr(node, "has_hint", lambda: True)() else None
    return 4096 if hint is None else int(hint)


def symint_expression(value: Any) -> Any:
    """The sympy expression behind a SymInt, SymFloat or SymBool."""
    return value.node.expr


def symint_hint(value: Any) -> int | None:
    """The example value behind a SymInt; None when it depends on data."""
    hint = value.node.hint
    return None if hint is None else int(hint)


def number_hint(value: Any) -> int | float | bool | None:
    """The example value behind a number that may be symbolic; None when it depends on data."""
    if isinstance(value, (int, float)):
        return value
    return value.node.hint if getattr(value.node, "has_hint", lambda: True)() else None


def symint_may_be_negative(value: Any) -> bool:
    """Whether what is known of a SymInt leaves room for negative values."""
    return not value.node.shape_env.bound_sympy(value.node.expr).lower >= 0


def has_metadata_mutation(tensor: torch.Tensor) -> bool:
    """Whether a functional wrapper's sizes or strides were changed in place (``t_()``, ``resize_()``)."""
    return private.functional_metadata_changed(tensor)
