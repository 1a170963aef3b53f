"""Calls of Triton kernels: ``kernel[grid](…)`` is one node, whichever of Triton's decorators are around the kernel.

Triton's own ``__getitem__`` is traced, so that here are the rules of ``run``. The node calls the kernel itself, with the arguments
that the program gave. Grids are known while tracing: a function of the parameters is traced for each choice of those that
``autotune`` and ``heuristics`` decide at run time. Guards compare what was read of the kernel.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ...ir import user_kernels
from ...ir.user_kernels import CONSTANT, FLOAT, INTEGER, TENSOR, Slot
from ..breaks import Break
from ..hook import _hook
from ..rules.table import NAMED_RULES, rule
from ..tracing import sources as src
from ..tracing.tracer import specialise
from ..values.algebra import (
    Constant,
    DictValue,
    FunctionValue,
    Known,
    ObjectValue,
    SequenceValue,
    SymbolValue,
    TensorValue,
    Value,
)
from ..values.known import UNKNOWN, deep_use, plain
from ..values.subscripts import subscript
from . import analysis

if TYPE_CHECKING:
    from ..machine import Machine

_WRAPPED = ("Autotuner", "Heuristics")
_MOST_GRIDS = 256  # choices of parameters for which a grid is traced


class _Same:
    """A guard: the kernel has the source and the helpers that were read."""

    def __init__(self, chain: Sequence[Any], facts: analysis.Facts) -> None:
        self.functions = [(k.fn, getattr(k, "configs", None), list(getattr(k, "configs", ()))) for k in chain]
        self.source = analysis.source_of(chain[-1])
        self.helpers = [(_namespace(where), name, helper) for (where, name), helper in facts.helpers.items()]

    def __call__(self, kernel: Any) -> bool:
        for fn, configs, before in self.functions:
            if kernel.fn is not fn or getattr(kernel, "configs", None) is not configs or list(configs or ()) != before:
                return False
            kernel, last = fn, kernel
        same = all(names.get(name) is helper for names, name, helper in self.helpers)
        return same and getattr(last, "src", self.source) == self.source


def _namespace(where: Any) -> Mapping[str, Any]:
    return getattr(where, "__globals__", None) or vars(where)


class _Call:
    """One call while its node is made."""

    def __init__(self, m: Machine, kernel: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> None:
        self.m, self.value, self.kernel = m, kernel, kernel.value
        self.chain = _chain(kernel.value)
        self.base = self.chain[-1]
        self.name = self.base.fn.__name__
        self.operands: dict[str, list[Value]] = {TENSOR: [], INTEGER: [], FLOAT: []}
        self.parameters = inspect.signature(self.base.fn).parameters
        self.names = list(self.parameters)
        self.args = [m.use(a) for a in args]
        self.kwargs = {k: m.use(v) for k, v in kwargs.items()}

    def refuse(self, why: str) -> Break:
        return Break("FL124", what=self.name, why=why)

    # --- arguments

    def slot(self, value: Value, constexpr: bool) -> Slot:
        """What stands for an argument; it becomes an operand of the node unless it is part of the kernel."""
        value = deep_use(self.m, value)
        if isinstance(value, TensorValue):
            return self._operand(TENSOR, self._checked(value))
        if isinstance(value, SymbolValue):
            if value.python_type is int and not constexpr:
                return self._operand(INTEGER, value)
            value = Constant(specialise(value))
        if isinstance(value, Constant) and not constexpr:
            if type(value.value) is int:
                return self._operand(INTEGER, value) if -(1 << 63) <= value.value < 1 << 63 else (CONSTANT, value.value)
            if type(value.value) is float:
                return self._operand(FLOAT, value)
        return CONSTANT, self._constant(value)

    def _operand(self, kind: str, value: Value) -> Slot:
        operands = self.operands[kind]
        for place, known in enumerate(operands):
            if known is value or (isinstance(known, TensorValue) and known.node is getattr(value, "node", None)):
                return kind, place
        operands.append(value)
        return kind, len(operands) - 1

    def _checked(self, value: TensorValue) -> TensorValue:
        fake = value.fake
        lazy = fake.is_conj() or fake.is_neg() or fake.is_quantized or fake.is_nested
        if type(value) is not TensorValue or fake.layout is not torch.strided or lazy:
            raise self.refuse(f"of {value.describe()}")
        return value

    def _constant(self, value: Value) -> Any:
        found = plain(value)
        if found is not UNKNOWN:
            return found
        if isinstance(value, (Known, FunctionValue)):
            return value.value if isinstance(value, Known) else value.function
        kind = value.python_type
        if isinstance(value, ObjectValue) and value.source is not None:
            if analysis.is_kernel(value.value) or kind.__module__ in ("triton.language.core", "triton.language"):
                if kind.__name__ in ("dtype", "constexpr", "JITFunction", "InterpretedFunction"):
                    self.m.tracer.guard_identity(value.source, value.value)
                    return value.value
        raise self.refuse(f"its argument {value.describe()} is not known while tracing")

    def is_constexpr(self, name: str) -> bool:
        parameter = self.parameters.get(name)
        if parameter is None:
            return True  # an option, as num_warps
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        return "constexpr" in text

    # --- grids

    def grids(self, grid: Value) -> tuple[dict[tuple[Any, ...], tuple[Slot, ...]], tuple[str, ...]]:
        grid = self.m.use(grid)
        if isinstance(grid, SequenceValue):
            return {(): self._sizes(grid)}, ()
        given = dict(zip(self.names, self.args, strict=False)) | {
            k: v for k, v in self.kwargs.items() if k in self.names
        }
        defaults = {n: p.default for n, p in self.parameters.items() if p.default is not inspect.Parameter.empty}
        given = {n: self.m.tracer.lazy(d, src.constant(d, n)) for n, d in defaults.items()} | given
        choices = self._choices(given)
        chosen = tuple(sorted({n for choice in choices for n in choice} - given.keys()))
        found: dict[tuple[Any, ...], tuple[Slot, ...]] = {}
        for choice in choices:
            meta = {n: choice.get(n, given.get(n)) for n in self.names}
            made = self.m.call(grid, [DictValue({n: v for n, v in meta.items() if v is not None})], {})
            key = tuple(plain(self.m.use(choice[n])) if n in choice else None for n in chosen)
            if any(type(k) not in (int, bool, str, float, type(None)) for k in key):
                raise self.refuse("its grid depends on parameters that are no numbers")
            found[key] = self._sizes(self.m.use(made))
        return found, chosen

    def _choices(self, given: Mapping[str, Value]) -> list[dict[str, Value]]:
        """What ``autotune`` and ``heuristics`` may choose."""
        choices: list[dict[str, Value]] = [{}]
        for wrapper in self.chain[:-1]:
            if type(wrapper).__name__ == "Autotuner":
                if wrapper.early_config_prune:
                    raise self.refuse(
                        "a function of the program chooses among its configurations, and its grid is one as well"
                    )
                configs = [{n: Constant(v) for n, v in c.kwargs.items() if n in self.names} for c in wrapper.configs]
                choices = [{**choice, **config} for choice in choices for config in configs]
            else:
                choices = [self._by_rules(wrapper, given, choice) for choice in choices]
        if len(choices) > _MOST_GRIDS:
            raise self.refuse(f"its grid is a function, and there are more than {_MOST_GRIDS} configurations")
        return choices

    def _by_rules(self, wrapper: Any, given: Mapping[str, Value], choice: dict[str, Value]) -> dict[str, Value]:
        found = dict(choice)
        for name, function in wrapper.values.items():
            rule_ = self.m.use(self.m.tracer.lazy(function, src.constant(function, f"heuristics of {name}")))
            result = self.m.use(self.m.call(rule_, [DictValue({**given, **found})], {}))
            found[name] = Constant(specialise(result)) if isinstance(result, SymbolValue) else result
        return found

    def _sizes(self, grid: Value) -> tuple[Slot, ...]:
        items = [self.m.use(v) for v in grid.items] if isinstance(grid, SequenceValue) else []
        if not 0 < len(items) <= 3:
            raise self.refuse("its grid is no tuple of up to three sizes")
        return tuple(self.slot(item, False) for item in items)

    # --- what it writes

    def written(self, tensors: Mapping[str, Slot], constants: Mapping[str, Any]) -> tuple[set[int], analysis.Facts]:
        """The operands whose memory the kernel may write to."""
        if self._hooks():
            return {place for _, place in tensors.values()}, analysis.Facts()
        try:
            facts = analysis.facts_of(self.base, tensors, constants)
        except analysis.Unreadable as unreadable:
            raise self.refuse(f"it cannot be told what it writes to: {unreadable}") from None
        named = {n for w in self.chain for n in (*getattr(w, "reset_to_zero", ()), *getattr(w, "restore_value", ()))}
        return {tensors[n][1] for n in (facts.written | named) & tensors.keys()}, facts

    def _hooks(self) -> bool:
        """Whether functions of the program run beside the kernel, which may write to anything."""
        for part in self.chain:
            if getattr(part, "pre_run_hooks", None) or any(c.pre_hook for c in getattr(part, "configs", ())):
                return True
            if getattr(part, "user_defined_pre_hook", False) or getattr(part, "user_defined_post_hook", False):
                return True
        return False

    # --- the node

    def node(self, grid: Value) -> Value:
        m = self.m
        if any(scope.transform for scope in m.tracer.graphs.scopes):
            raise self.refuse("a function transform runs it")
        names = [*self.names, *(f"argument {i}" for i in range(len(self.args)))]
        positional = tuple(self.slot(a, self.is_constexpr(n)) for n, a in zip(names, self.args, strict=False))
        keywords = {k: self.slot(v, self.is_constexpr(k)) for k, v in self.kwargs.items()}
        slots = dict(zip(self.names, positional, strict=False)) | {k: s for k, s in keywords.items() if k in self.names}
        tensors = {n: s for n, s in slots.items() if s[0] == TENSOR}
        constants = {n: s[1] for n, s in slots.items() if s[0] == CONSTANT}
        written, facts = self.written(tensors, constants)
        grids, chosen = self.grids(grid)
        self._guard(facts)
        launch = user_kernels.Launch(
            self.name, self.kernel, positional, keywords, grids, chosen,
            self._digest(positional, keywords, grids, chosen), *analysis.place_of(self.base), analysis.source_of(self.base),
        )  # fmt: skip
        name = user_kernels.register(launch)
        for place in written:
            self._count(self.operands[TENSOR][place])
        lists = [SequenceValue(self.operands[kind], list) for kind in (TENSOR, INTEGER, FLOAT)]
        places = SequenceValue([Constant(i) for i in sorted(written)], list)
        given = (Constant(name), lists[0], places, *lists[1:], SequenceValue([], list))
        m.tracer.call("call_function", user_kernels.LAUNCH, given, {}, self.name, keep=True)
        return Constant(None)

    def _count(self, value: Value) -> None:
        """Fake tensors count that they are written to: so it is known to which inputs the graph writes."""
        assert isinstance(value, TensorValue)
        if torch_private.times_written(value.fake) >= 0:
            torch.autograd.graph.increment_version(value.fake)

    def _guard(self, facts: analysis.Facts) -> None:
        source = self.value.source
        if source is None:
            raise self.refuse("it is made while tracing")
        tracer = self.m.tracer
        tracer.guard_identity(source, self.kernel)
        same = _Same(self.chain, facts)
        tracer.guard(source, _hook.CALL, same, name="KERNEL", text=f"{source} has the source that was read")

    def _digest(self, *parts: Any) -> str:
        around = [
            (type(w).__name__, [c.all_kwargs() for c in getattr(w, "configs", ())], getattr(w, "keys", None),
             getattr(w, "values", None), getattr(w, "reset_to_zero", None), getattr(w, "restore_value", None))
            for w in self.chain[:-1]
        ]  # fmt: skip
        try:
            if self._hooks():
                raise analysis.NoDigest("functions of the program run beside the kernel")
            return analysis.digest_of(self.base, around, *(_listed(p) for p in parts))
        except (analysis.NoDigest, analysis.Unreadable):
            return ""


def _listed(part: Any) -> Any:
    return [list(pair) for pair in part.items()] if isinstance(part, Mapping) else part


def _chain(kernel: Any) -> list[Any]:
    """The kernel with what is around it, from outside."""
    found = [kernel]
    while type(found[-1]).__name__ in _WRAPPED:
        found.append(found[-1].fn)
    if not analysis.is_kernel(found[-1]):
        raise Break("FL124", what=type(kernel).__qualname__, why=f"{type(found[-1]).__qualname__} is around it")
    return found


def _run(m: Machine, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``run(self, *args, grid, warmup, **kwargs)`` of a kernel, or of what ``autotune`` and ``heuristics`` made of one."""
    kernel, *given = args
    kernel = m.use(kernel)
    warmup = kwargs.pop("warmup", None)
    if (
        not isinstance(kernel, ObjectValue)
        or "grid" not in kwargs
        or warmup is None
        or plain(m.use(warmup)) is not False
    ):
        raise Break("FL124", what="run", why="it is no call of the form kernel[grid](…)")
    grid = kwargs.pop("grid")
    return _Call(m, kernel, given, kwargs).node(grid)


for _module, _name in (
    ("jit", "JITFunction"), ("interpreter", "InterpretedFunction"), ("autotuner", "Autotuner"), ("autotuner", "Heuristics"),
):  # fmt: skip
    NAMED_RULES[f"triton.runtime.{_module}", f"{_name}.run"] = _run


def _wrapped_item(m: Machine, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``wrap_triton(kernel)[grid]`` of an existing wrapper."""
    wrapper = m.use(args[0])
    if not isinstance(wrapper, ObjectValue) or wrapper.source is None or len(args) != 2:
        raise Break("FL124", what="wrap_triton", why="it is not known while tracing")
    kernel = m.tracer.lazy(wrapper.value.kernel, src.generic_attribute(wrapper.source, "kernel"))
    return subscript(m, m.use(kernel), m.use(args[1]))


_WRAPPER = "torch._higher_order_ops.triton_kernel_wrap"
NAMED_RULES[_WRAPPER, "TraceableTritonKernelWrapper.__getitem__"] = _wrapped_item


@rule(torch.library.wrap_triton)
def _wrap(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        raise Break("FL124", what="wrap_triton", why="its arguments do not fit")
    return m.use(args[0])
