"""Symbolic sizes and integers: which of them are symbols, and the guards that torch's shape reasoning left behind.

torch's ``ShapeEnv`` gives the expressions and remembers every comparison it had to decide with example values. Here
those become ``SHAPE`` guards, small postfix programs over sizes, strides and integers that the C guard machine evaluates.

Floats that changed between calls (a learning rate under a scheduler) are symbols as well. Graphs compute with them; a condition
on one of them is a guard of its own. Where that cannot be expressed, the program's floats stay exact from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ...record.report import Span, Symbol
from ...torch_private.result_layouts import is_dense
from ..breaks import text_of
from ..hook import _hook
from .float_conditions import FloatCondition, formula
from .sources import GuardProgram, Source

if TYPE_CHECKING:
    import sympy  # where it is needed: it takes half a second to import, and static sizes do not need it
    from torch import fx

Program = tuple[tuple[int, int], ...]


INTEGER = -1  # stands for a dimension where an integer itself is meant
LARGEST = 2**31 - 1  # symbolic integers are no larger, so that products of two of them fit in 64 bits


class NotGuardable(Exception):
    """A condition on sizes that guards cannot express: the frame is traced again with static sizes."""


class Violated(Exception):
    """A size that the program marked dynamic cannot be: ``what`` it is, ``why``, and the expression that forced it."""

    def __init__(self, what: str, why: str, span: Span | None) -> None:
        super().__init__(what, why)
        self.what = what
        self.why = why
        self.span = span


class FloatCompared(NotGuardable):
    """The trace depends on a float in more than the values that it computes."""


class SizesChanged(Exception):
    """An input's size differs from an earlier call's: the frame is traced again with that size symbolic."""


class DrawnWhole(Exception):
    """The trace begins again, because a function that draws random numbers is drawn as a whole."""


@dataclass(slots=True)
class Variation:
    """What is known to vary between the calls of one code object, by source text.

    ``axes`` names dimensions, and integers (under :data:`INTEGER`), that are symbols from the start; ``kept`` are those that
    varied in earlier runs, floats too (None: nobody has asked yet); ``sizes``, ``integers`` and ``floats`` are those of the
    compilations so far; ``needed`` are values of integers that began as symbols, and on which the trace came to depend.
    ``contents`` are the numbers that tensors held in compilations that rely on them; none where they varied.
    """

    axes: dict[str, dict[int, str]] = field(default_factory=dict)
    sizes: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)
    integers: dict[str, set[int]] = field(default_factory=dict)
    floats: dict[str, set[float]] = field(default_factory=dict)
    needed: dict[str, set[int]] = field(default_factory=dict)
    contents: dict[str, set[Any]] = field(default_factory=dict)
    exact_floats: bool = False  # a guard on one could not be expressed
    draws: bool = False  # numbers that are drawn at random were symbols in a trace
    whole_draws: set[Any] = field(default_factory=set)  # code of functions whose results are drawn
    exact_draws: bool = False  # the trace depends on such a number: the frame breaks where it is drawn
    kept: dict[str, set[int]] | None = None

    @property
    def is_known(self) -> bool:
        """Whether anything is known to vary, or was compiled before."""
        return bool(self.axes or self.kept or self.sizes or self.integers or self.floats)

    def varied_before(self, text: str) -> set[int]:
        """The dimensions of an input that varied in earlier runs."""
        return self.kept.get(text, set()) if self.kept else set()

    def changed(self, text: str, values: Mapping[int, Any]) -> set[int]:
        """Which dimensions of an input (a number is one) have had other values, in this run or an earlier one."""
        before = [dict(enumerate(shape)) for shape in self.sizes.get(text, ())]
        before += [{INTEGER: number} for number in (*self.integers.get(text, ()), *self.floats.get(text, ()))]
        other = {d for d, value in values.items() if any(earlier.get(d, value) != value for earlier in before)}
        return other | self.varied_before(text)

    def is_steady(self, text: str, numbers: Any) -> bool:
        """Whether a tensor, at ``text``, held these numbers in every compilation that relies on them. If not, it never will be."""
        before = self.contents.get(text)
        if before is None or numbers in before:
            return True
        before.clear()
        return False

    @property
    def varied_contents(self) -> dict[str, set[Any]]:
        """The tensors whose numbers varied, as :attr:`contents`."""
        return {text: set() for text, numbers in self.contents.items() if not numbers}

    def outdates(self, symbols: Mapping[str, Any], sizes: Mapping[str, Any], *numbers: Mapping[str, Any]) -> bool:
        """Whether something that varied before did not begin as a symbol in a compilation for these sizes and numbers."""
        for text in {**self.axes, **(self.kept or {})}:
            known = ({*self.axes.get(text, ())} | self.varied_before(text)) - {*symbols.get(text, ())}
            if INTEGER in known and any(text in found for found in numbers):
                return True
            if any(0 <= d < len(shape) and shape[d] > 1 for shape in sizes.get(text, ()) for d in known):
                return True
        return False

    def dims(self, source: Source, tensor: torch.Tensor, dynamic: bool | None) -> dict[int, bool]:
        """Dimensions of an input that become symbols, and whether equal sizes may share theirs.

        They are those that the program marked or named, all with ``dynamic=True``, and those that changed since an
        earlier compilation. Parameters, and what cannot be made anew with other sizes, stay as they are.
        """
        history = tensor.requires_grad and not tensor.is_leaf and not is_dense(tensor)
        if isinstance(tensor, torch.nn.Parameter) or history or tensor.is_conj() or tensor.is_neg():
            return {}
        marks = torch_private.size_marks(tensor) or torch_private.SizeMarks()
        named = self.axes.get(source.text, {})
        found = dict.fromkeys(named, True)
        if dynamic is not False:
            changed = [earlier for earlier in self.sizes.get(source.text, ()) if len(earlier) == tensor.dim()]
            found |= {
                d: _alike_before(d, tensor.shape, changed)
                for d, size in enumerate(tensor.shape)
                if d not in marks.static and (dynamic or any(earlier[d] != size for earlier in changed))
            }
            found |= dict.fromkeys(self.varied_before(source.text) - marks.static, False)
            found |= dict.fromkeys(marks.weakly_dynamic, True)
        found |= dict.fromkeys(marks.dynamic, False)
        return {d: shared for d, shared in found.items() if 0 <= d < tensor.dim() and tensor.shape[d] > 1}

    def integer(self, source: Source, value: int, dynamic: bool | None) -> bool:
        """Whether an integer becomes a symbol: a named one, an argument with ``dynamic=True``, or one that changed."""
        named = INTEGER in self.axes.get(source.text, ()) or INTEGER in self.varied_before(source.text)
        if named or (dynamic and source.is_argument):
            return True
        return any(earlier != value for earlier in self.integers.get(source.text, ()))

    def float(self, source: Source, value: float) -> bool:
        """Whether a float becomes a symbol: one that changed."""
        if self.exact_floats:
            return False
        return INTEGER in self.varied_before(source.text) or any(
            earlier != value for earlier in self.floats.get(source.text, ())
        )


def _alike_before(d: int, shape: tuple[int, ...], earlier: list[tuple[int, ...]]) -> bool:
    """Whether the dimensions that have the size of ``d`` have always had it: one symbol may stand for them."""
    same = [e for e, size in enumerate(shape) if size == shape[d]]
    return all(before[e] == before[d] for before in earlier for e in same)


class Sizes:
    """The symbolic sizes and integers of one capture. ``axes`` names those that the user named, as in :class:`Variation`.

    ``position`` tells where in the program the trace is: what was decided there is guarded because of it.
    """

    def __init__(
        self,
        axes: Mapping[str, Mapping[int, str]],
        position: Callable[[], Span | None] | None = None,
        scalars: bool = False,
        shapes: bool = False,
    ) -> None:
        self.axes = axes
        self.causes: list[Span | None] = []  # beside torch's list of conditions
        self.env = torch_private.new_shape_env(
            lambda: self.causes.append(position() if position else None), scalars=scalars, shapes=shapes
        )
        self.tensors: list[tuple[Source, torch.Tensor, Span | None]] = []
        self.integers: list[tuple[Source, torch.SymInt, Span | None]] = []
        self.names: dict[str, str] = {}
        self.floats: dict[sympy.Symbol, Source] = {}
        self.drawn: dict[
            sympy.Symbol, tuple[int | None, int | None]
        ] = {}  # that each call draws: no guard can ask for them
        self.ends: dict[str, int] = {}  # of symbols whose range is a bucket: what its kernels are planned for
        self.promised: list[
            tuple[str, Any, tuple[int | None, int | None], Span | None]
        ] = []  # sizes that must stay free

    def fake(
        self,
        mode: Any,
        tensor: torch.Tensor,
        dims: Mapping[int, bool],
        source: Source,
        span: Span | None,
        *,
        promised: bool = True,
    ) -> torch.Tensor:
        """``tensor`` as a fake whose dimensions ``dims`` are symbols, see :meth:`Variation.dims`. Where the marks on it are
        ``promised``, those sizes must stay free."""
        fake = torch_private.fake_symbolic(mode, tensor, dims, source.text)
        self.tensors.append((source, fake, span))
        marks = torch_private.size_marks(tensor)
        if marks is not None and promised:
            self._promise(fake, marks, source, span)
        for d, name in self.axes.get(source.text, {}).items():
            if 0 <= d < fake.dim():
                self._name(fake.shape[d], name)
        return fake

    def integer(self, value: int, source: Source, span: Span | None) -> torch.SymInt:
        """A symbol for an integer. Its sign is that of ``value``: the loop IR's symbols are not negative."""
        lower, upper = (0, LARGEST) if value >= 0 else (-LARGEST, -1)
        number = torch_private.symbolic_integer(self.env, value, source.text, lower, upper)
        self.integers.append((source, number, span))
        name = self.axes.get(source.text, {}).get(INTEGER, source.text)
        if name.isidentifier() and name not in self.names.values():
            self._name(number, name)
        return number

    def float(self, value: float, source: Source) -> torch.SymFloat:
        """A symbol for a float."""
        number = torch_private.symbolic_float(self.env, value, source.text)
        self.floats[torch_private.raw_expression(number)] = source
        return number

    def draw(self, value: Any, text: str, lower: int = 0, upper: int = 0) -> Any:
        """A symbol for a number that each call draws anew; an integer is between these bounds."""
        if isinstance(value, int):
            number: Any = torch_private.symbolic_integer(self.env, value, text, lower, upper)
        else:
            number = torch_private.symbolic_float(self.env, value, text)
        raw = torch_private.raw_expression(number)
        self.drawn[raw] = torch_private.bounds(self.env, raw)
        return number

    def is_drawn(self, number: Any) -> bool:
        """Whether a number depends on one that each call draws anew."""
        return bool(self.drawn) and not self.drawn.keys().isdisjoint(torch_private.raw_expression(number).free_symbols)

    def is_free(self, number: Any) -> bool:
        """Whether a size or number is a symbol that the program has not made equal to a number."""
        if not torch_private.is_symbolic_number(number):
            return False
        simplified = torch_private.simplified(self.env, torch_private.raw_expression(number))
        return bool(simplified.free_symbols)

    def _promise(self, fake: torch.Tensor, marks: torch_private.SizeMarks, source: Source, span: Span | None) -> None:
        """Restricts the dimensions that the program marked dynamic to their ranges; they must not be specialised."""
        if marks.unbacked:
            raise Violated(f"{source.text}.shape[{min(marks.unbacked)}]", "mark_unbacked is not supported", span)
        ranges = {d: (low, high) for d, low, high in marks.ranges}
        for d in sorted(marks.dynamic):
            size, (low, high) = fake.shape[d], ranges.get(d, (None, None))
            text = f"{source.text}.shape[{d}]"
            if not isinstance(size, torch.SymInt):
                raise Violated(text, f"it is {size}, and sizes 0 and 1 are always specialised", span)
            hint = torch_private.size_hint(size)
            if not (low is None or low <= hint) or not (high is None or hint <= high):
                raise Violated(text, f"it is {hint}, which is not in the range that was promised", span)
            torch_private.restrict(size, low, high)
            if d in marks.buckets and high is not None:
                self.ends[torch_private.raw_expression(size).name] = high
            self.promised.append((text, torch_private.raw_expression(size), (low, high), span))

    def _check_promises(self, symbols: Mapping[str, Symbol]) -> None:
        """Raises :class:`Violated` where a size that was marked dynamic is not free to vary within its range."""
        for text, raw, (low, high), span in self.promised:
            symbol = symbols[raw.name]
            if symbol.specialised and not self._is_as_free(raw, low, high):
                raise Violated(text, f"the program made it equal to {symbol.specialised}", symbol.span or span)
            if (low is not None and low < (symbol.lower or 0)) or (high is not None and high > (symbol.upper or high)):
                narrowed = f"the program only holds for {symbol.lower} to {symbol.upper or 'any size'}"
                raise Violated(text, narrowed, symbol.span or span)

    def _is_as_free(self, raw: Any, low: int | None, high: int | None) -> bool:
        """Whether what a size was found to equal is another size, which varies over the same range at least."""
        other = torch_private.simplified(self.env, raw)
        if not other.is_Symbol:
            return not other.is_number and (low, high) == (None, None)
        lower, upper = torch_private.bounds(self.env, other)
        return (low is None or (lower or 0) <= low) and (high is None or upper is None or high <= upper)

    def _name(self, size: Any, name: str) -> None:
        import sympy

        expression = torch_private.size_expression(size)
        if isinstance(expression, sympy.Symbol):
            self.names.setdefault(expression.name, name)

    def add_guards(self, guards: GuardProgram) -> list[Symbol]:
        """Adds every condition on sizes and integers; gives the symbols for the report.

        Raises :class:`NotGuardable`; :class:`Violated` where that, or a condition, restricts what was promised to be free.
        """
        try:
            found = self._add_guards(guards)
        except NotGuardable as reason:
            if not self.promised:
                raise
            text, _, _, span = self.promised[0]
            raise Violated(text, str(reason), span) from None
        self._check_promises(found)
        return list(found.values())

    def _add_guards(self, guards: GuardProgram) -> dict[str, Symbol]:
        import sympy

        where: dict[sympy.Symbol, tuple[int, int]] = {}
        strides: dict[sympy.Symbol, tuple[int, int]] = {}
        origin: dict[sympy.Symbol, tuple[str, Span | None]] = {}
        for source, number, span in self.integers:
            raw = torch_private.raw_expression(number)
            where[raw] = (guards.node(source), -1)
            origin[raw] = (source.text, span)
        for source, fake, span in self.tensors:
            for d, size in enumerate(fake.shape):
                raw = torch_private.raw_expression(size)
                if isinstance(raw, sympy.Symbol) and raw not in where:
                    where[raw] = (guards.node(source), d)
                    origin[raw] = (f"{source.text}.shape[{d}]", span)
            for d, stride in enumerate(fake.stride()):
                raw = torch_private.raw_expression(stride)
                if isinstance(raw, sympy.Symbol) and raw not in where:
                    strides.setdefault(raw, (guards.node(source), -2 - d))
        where = {**strides, **where}  # a stride is a symbol of its own where it is no size
        for source, fake, span in self.tensors:
            node = guards.node(source)
            for d, size in enumerate(fake.shape):
                self._equal(guards, (node, d), torch_private.raw_expression(size), where, f"{source}.shape[{d}]", span)
            for d, stride in enumerate(fake.stride()):
                expression = torch_private.raw_expression(stride)
                self._equal(guards, (node, -2 - d), expression, where, f"{source}.stride({d})", span)
        conditions = list(zip(torch_private.shape_guards(self.env), self.causes, strict=True))
        for expression, span in conditions:
            if expression.free_symbols & self.floats.keys():
                self._float_condition(guards, expression, span)
            else:
                self._condition(guards, expression, where, span)
        for raw, drawn_between in self.drawn.items():
            known = torch_private.simplified(self.env, raw), torch_private.bounds(self.env, raw)
            if known != (raw, drawn_between):
                raise NotGuardable(f"the trace depends on {raw}, which is drawn at random")
        found: dict[str, Symbol] = {}
        for raw, (text, span) in origin.items():
            simplified = torch_private.simplified(self.env, raw)
            decided = [cause for e, cause in conditions if raw in e.free_symbols]
            forced = decided[-1] if decided else None
            if simplified != raw:
                self._condition(guards, sympy.Eq(raw, simplified, evaluate=False), where, forced)
            lower, upper = torch_private.bounds(self.env, raw)
            if lower is not None:
                self._condition(guards, sympy.Ge(raw, lower, evaluate=False), where, span)
            if upper is not None:
                self._condition(guards, sympy.Le(raw, upper, evaluate=False), where, span)
            hint = torch_private.symbol_hint(self.env, raw)
            value = self._shown(simplified) if simplified != raw else ""
            found[raw.name] = Symbol(self.names.get(raw.name, raw.name), text, hint, lower, upper, value, forced)
        return found

    def decided_by_data(self, graph: fx.Graph) -> list[Symbol]:
        """The numbers and sizes that nodes of a graph take from data, with the program's text for them."""
        found: list[Symbol] = []
        for node in graph.nodes:
            if node.op == "placeholder":
                continue
            for raw in made_symbols(node):
                span = node.meta.get("span")
                lower, upper = torch_private.bounds(self.env, raw)
                found.append(
                    Symbol(raw.name.removeprefix("z"), text_of(span) or node.name, None, lower, upper, "", span)
                )
        return found

    def _equal(
        self, guards: GuardProgram, have: tuple[int, int], expression: Any, where: Any, text: str, span: Span | None
    ) -> None:
        import sympy

        if isinstance(expression, sympy.Symbol) and where.get(expression) == have:
            return
        variables: list[tuple[int, int]] = [have]
        program = [(_hook.S_VAR, 0), *_postfix(expression, where, variables), (_hook.S_EQ, 0)]
        self._add(guards, variables, program, f"{text} == {self._shown(expression)}", span)

    def _condition(self, guards: GuardProgram, expression: Any, where: Any, span: Span | None) -> None:
        import sympy

        if expression in (sympy.true, True):
            return
        variables: list[tuple[int, int]] = []
        self._add(guards, variables, _postfix(expression, where, variables), self._shown(expression), span)

    def _float_condition(self, guards: GuardProgram, expression: Any, span: Span | None) -> None:
        """A guard on a float; it calls an object, once for each condition."""
        symbol, *others = expression.free_symbols
        found = None if others else formula(expression, symbol)
        if found is None:
            raise FloatCompared(f"{expression} compares a float")
        source = self.floats[symbol]
        text = str(expression).replace(symbol.name, source.text)
        guards.check(source, _hook.CALL, FloatCondition(found, text), name="FLOAT", text=text, span=span)

    def _add(self, guards: GuardProgram, variables: Any, program: Any, text: str, span: Span | None) -> None:
        guards.check_shape(tuple(variables), tuple(program), text, span)

    def _shown(self, expression: Any) -> str:
        return self.rename(str(expression))

    def rename(self, text: str, suffix: str = "") -> str:
        """``text`` with torch's symbol names replaced by the user's axis names, each with ``suffix``."""
        return torch_private.rename_symbols(text, {raw: name + suffix for raw, name in self.names.items()})


def made_symbols(node: fx.Node) -> list[Any]:
    """The symbols that a node's value has, and none of its operands: data decides them."""
    given = {s for n in node.all_input_nodes for s in torch_private.symbols_in(n.meta.get("val"))}
    return [s for s in dict.fromkeys(torch_private.symbols_in(node.meta.get("val"))) if s not in given]


_BINARY = {
    "FloorDiv": _hook.S_FLOORDIV, "CleanDiv": _hook.S_FLOORDIV, "Mod": _hook.S_MOD, "PythonMod": _hook.S_MOD,
    "Equality": _hook.S_EQ, "Unequality": _hook.S_NE, "StrictLessThan": _hook.S_LT, "LessThan": _hook.S_LE,
}  # fmt: skip
_SWAPPED = {"StrictGreaterThan": _hook.S_LT, "GreaterThan": _hook.S_LE}
_FOLDED = {
    "Add": _hook.S_ADD, "Mul": _hook.S_MUL, "Min": _hook.S_MIN, "Max": _hook.S_MAX, "And": _hook.S_AND, "Or": _hook.S_OR,
}  # fmt: skip


def _postfix(
    expression: Any, where: Mapping[sympy.Symbol, tuple[int, int]], variables: list[tuple[int, int]]
) -> list[Any]:
    """The postfix program of a sympy expression; appends to ``variables`` what it reads."""
    import sympy

    expression = sympy.sympify(expression)
    if isinstance(expression, sympy.Integer):
        return [(_hook.S_CONST, int(expression))]
    if expression in (sympy.true, sympy.false):
        return [(_hook.S_CONST, int(bool(expression)))]
    if isinstance(expression, sympy.Symbol):
        place = where.get(expression)
        if place is None:
            raise NotGuardable(f"{expression} is neither the size of an input nor an integer that is one")
        if place not in variables:
            variables.append(place)
        return [(_hook.S_VAR, variables.index(place))]
    kind = type(expression).__name__
    args = [_postfix(a, where, variables) for a in expression.args]
    if kind in _FOLDED:
        out = args[0]
        for a in args[1:]:
            out = [*out, *a, (_FOLDED[kind], 0)]
        return out
    if kind in _BINARY and len(args) == 2:
        return [*args[0], *args[1], (_BINARY[kind], 0)]
    if kind in _SWAPPED:
        return [*args[1], *args[0], (_SWAPPED[kind], 0)]
    if kind == "Not":
        return [*args[0], (_hook.S_NOT, 0)]
    if kind == "Abs":
        return [*args[0], *args[0], (_hook.S_CONST, -1), (_hook.S_MUL, 0), (_hook.S_MAX, 0)]
    if (
        kind in ("Pow", "PowByNatural")
        and isinstance(expression.args[1], sympy.Integer)
        and 0 < int(expression.args[1]) < 8
    ):
        out = args[0]
        for _ in range(int(expression.args[1]) - 1):
            out = [*out, *args[0], (_hook.S_MUL, 0)]
        return out
    raise NotGuardable(f"no guard for {kind} in {expression}")
