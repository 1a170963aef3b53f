"""Calls of torch functions that are not operations: modes, contexts, questions about the program."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ..breaks import Break
from ..polyfills import python as polyfills
from ..polyfills import torch_functions as torch_polyfills
from ..tracing import sources as src
from ..tracing.symbols import SizesChanged
from ..values import truth as truths
from ..values.algebra import (
    Constant,
    DictValue,
    FunctionValue,
    GradModeContext,
    ObjectValue,
    SequenceValue,
    SymbolValue,
    TensorValue,
    Value,
)
from ..values.iterators import iterate
from ..values.known import fold
from .table import RULES, Rule, called, rule

if TYPE_CHECKING:
    from ..machine import Machine


@rule(torch.is_tensor)
def _is_tensor(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(isinstance(m.use(args[0]), TensorValue))


@rule(torch_private.DISPATCH_MODES)
def _dispatch_modes(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    m.tracer.torch_state.guard_ambient(m.tracer.span)
    return Constant(torch_private.DISPATCH_MODES())


@rule(torch.nn.Parameter)
def _parameter(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A parameter that is made while tracing: a node gives the very object."""
    given = dict(zip(("data", "requires_grad"), args, strict=False)) | kwargs
    data, wanted = m.use(given.get("data", Constant(None))), m.use(given.get("requires_grad", Constant(True)))
    what = "torch.nn.Parameter"
    if not isinstance(data, TensorValue) or not isinstance(wanted, Constant) or m.tracer.graphs.nested:
        raise Break("FL104", what=what, why="what it is made of is not known while tracing")
    if data.kind not in (torch.Tensor, torch.nn.Parameter):
        raise Break("FL104", what=what, why="it is made of an instance of a subclass")
    made = m.tracer.call("call_function", torch_private.make_parameter, (data, wanted), {}, what)
    assert isinstance(made, TensorValue)
    return TensorValue(made.node, None, torch.nn.Parameter)


def _legacy(kind: Any, dtype: Callable[[], torch.dtype], device: str) -> None:
    @rule(kind)
    def make(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if set(kwargs) - {"device"}:
            raise Break("FL104", what=kind.__name__, why="of a storage")
        m.tracer.torch_state.guard_ambient(m.tracer.span)
        described = [Constant(dtype()), kwargs.get("device", Constant(torch.device(device)))]
        return m.call(FunctionValue(torch_polyfills.legacy_tensor, None), [*described, *args], {})


_legacy(torch.Tensor, torch.get_default_dtype, "cpu")
for _name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"):
    for _module, _where in ((torch, "cpu"), (torch.cuda, "cuda")):
        _kind = getattr(_module, f"{_name}Tensor")
        _legacy(_kind, functools.partial(getattr, _kind, "dtype"), _where)


@rule(torch.is_grad_enabled)
def _is_grad_enabled(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _require_known_grad_mode(m)
    return Constant(torch.is_grad_enabled())


@rule(torch.is_inference_mode_enabled)
def _is_inference_mode_enabled(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    m.tracer.torch_state.guard_ambient(m.tracer.span)
    return Constant(torch.is_inference_mode_enabled())


@rule(torch.jit.is_tracing, torch_private.TORCHSCRIPT_RECORDS)
def _is_tracing(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    m.tracer.torch_state.guard_ambient(m.tracer.span)
    return Constant(False)


@rule(torch_private.TRACING_STATE)
def _tracing_state(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    m.tracer.torch_state.guard_ambient(m.tracer.span)
    return Constant(None)


@rule(torch.compiler.is_exporting, torch.jit.is_scripting, torch_private.IS_FX_TRACING)
def _false(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(False)


@rule(torch.compiler.is_compiling)
def _true(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(True)


@rule(torch_private.PARSE_TO)
def _parse_to(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What ``module.to(…)`` makes of its arguments: device, dtype and more."""
    used = [m.use(a) for a in args]
    if used and isinstance(used[0], TensorValue) and len(used) == 1 and not kwargs:
        described: list[Value] = [
            Constant(used[0].fake.device),
            Constant(used[0].fake.dtype),
            Constant(False),
            Constant(None),
        ]
        return SequenceValue(described, tuple)
    return fold(m, torch_private.PARSE_TO, used, kwargs, "Module.to")


@rule(torch_private.LOG_API_USAGE)
def _nothing(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(None)


@rule(torch.get_default_dtype)
def _get_default_dtype(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    m.tracer.torch_state.guard_ambient(m.tracer.span)
    return Constant(torch.get_default_dtype())


def _grad_mode(enabled: bool, kind: Any) -> None:
    @rule(kind)
    def make(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        context = GradModeContext(enabled, kind)
        given = [*args, *kwargs.values()]
        return m.call(context, given, {}) if given else context


_grad_mode(False, torch.no_grad)
_grad_mode(True, torch.enable_grad)


@rule(torch_private.CHECK)
def _check(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    condition = m.use(args[0] if args else kwargs["cond"])
    message = m.use(args[1] if len(args) > 1 else kwargs.get("message", Constant(None)))
    decided = m.truth(condition)
    if decided is False or not isinstance(condition, (Constant, SymbolValue)):
        raise Break("FL104", what="torch._check", why="it raises, or checks what it should not")
    if decided is None:
        if not message.is_none:
            message = m.call(message, [], {})
        m.tracer.restore_written()
        m.tracer.call("call_function", torch_private.check_number, (condition, message), {}, "torch._check", keep=True)
    return Constant(None)


@rule(torch_private.CHECK_ALL)
def _check_all(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch._check_tensor_all``: where an element is false, the frame runs as it was written."""
    condition = m.use(args[0] if args else kwargs["cond"])
    if not isinstance(condition, TensorValue) or condition.fake.dtype is not torch.bool:
        raise Break("FL104", what="torch._check_tensor_all", why="of what is no boolean tensor")
    decided = m.use(m.tracer.call("call_method", "all", (condition,), {}, "torch._check_tensor_all"))
    if not truths.checked(m, decided, True):
        raise Break("FL102", what="torch._check_tensor_all")
    return Constant(None)


@rule(torch_private.ASSERT)
def _assert(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    truth = m.truth(args[0])
    if truth is not True and not (truth is None and truths.checked(m, m.use(args[0]), True)):
        raise Break("FL102", what="torch._assert")
    return Constant(None)


def _require_known_grad_mode(m: Machine) -> None:
    if not m.tracer.graphs.scopes[-1].grad_mode_known:
        raise Break("FL104", what="grad mode", why="a backward runs with it or without it")


def set_grad_enabled(m: Machine, enabled: bool) -> None:
    """Changes grad mode from here on, in the trace and in the graph."""
    _require_known_grad_mode(m)
    if torch.is_grad_enabled() == enabled:
        return
    torch_private.set_grad_enabled(enabled)
    node = m.tracer.graphs.current.call_function(torch_private.SET_GRAD_ENABLED, (enabled,))
    node.meta["val"] = None
    node.meta["span"] = m.tracer.span


def _constant_function(function: Any) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return fold(m, function, args, kwargs, function.__name__)

    return run


for _f in filter(None, (*torch_private.CONSTANT_FUNCTIONS, getattr(torch.cpu, "get_capabilities", None))):
    RULES[_f] = _constant_function(_f)


def _determinism(read: Callable[[], Any]) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        m.tracer.torch_state.guard_determinism()
        return Constant(read())

    return run


for _f in torch_private.DETERMINISM.values():
    RULES[_f] = _determinism(_f)


@rule(polyfills.fresh)
def _fresh(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    context = m.use(args[0])
    return GradModeContext(context.enabled, context.maker) if isinstance(context, GradModeContext) else context


@rule(torch_private.OPTIMIZER_VALUE)
def _optimizer_value(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A number that eager takes out of a tensor with ``item()``: here the tensor, as precise as a Python float."""
    value = m.use(args[0])
    if isinstance(value, TensorValue) and value.fake.is_floating_point():
        return m.tracer.call("call_method", "double", (value,), {}, "Tensor.double")
    return value


def scaled(m: Machine, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``addcdiv`` and its kin where their number is a tensor; None where it is not."""
    last = args[3] if len(args) == 4 and name.startswith("_foreach") else None
    number = kwargs.get("alpha") or kwargs.get("value", last)
    number = m.use(number or Constant(None))
    numbers = [m.use(n) for n in number.items] if isinstance(number, SequenceValue) else [number]
    if not numbers or not all(isinstance(n, TensorValue) for n in numbers):
        return None
    given = [m.use(a) for a in args]
    tensors = [v.fake.dtype for v in given if isinstance(v, TensorValue)]
    if not all(dtype.is_floating_point for dtype in tensors) or "out" in kwargs:
        return None
    return m.call(FunctionValue(vars(polyfills)[name.lstrip("_")], None), args, kwargs)


def _scaling(name: str, function: Any) -> None:
    @rule(function)
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = scaled(m, name, args, kwargs)
        if given is not None:
            return given
        used = tuple(m.use(a) for a in args)
        return m.tracer.call("call_function", function, used, {k: m.use(v) for k, v in kwargs.items()}, f"torch.{name}")


for _name, _f in torch_private.SCALED.items():
    _scaling(_name, _f)


@rule(torch_private.GROUP_TENSORS)
def _group_tensors(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Tensors of parallel lists by device and dtype: what optimisers and gradient clipping do first."""
    columns = [iterate(m, column) for column in iterate(m, args[0])]
    first = [m.use(v) for v in columns[0]]
    kinds = {(v.fake.device, v.fake.dtype) for v in first if isinstance(v, TensorValue)}
    if len(kinds) != 1 or not all(isinstance(v, TensorValue) for v in first):
        raise Break(
            "FL104", what="grouping tensors", why="they differ in device or dtype, in an order that is not known"
        )
    lists = SequenceValue([SequenceValue(list(c), list) for c in columns], list)
    counted = len(args) > 1 and m.truth(args[1])
    indices = SequenceValue([Constant(i) for i in range(len(first) if counted else 0)], list)
    return DictValue({kinds.pop(): SequenceValue([lists, indices], tuple)})


@called(torch.jit.ScriptFunction)
def _scripted(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The Python function that TorchScript compiled."""
    original = getattr(value.value, torch_private.SCRIPTED, None)
    if original is None or value.source is None:  # loaded from a file
        raise Break("FL104", what=value.describe(), why="its Python source is not known")
    return m.call(m.tracer.lazy(original, src.generic_attribute(value.source, torch_private.SCRIPTED)), args, kwargs)


# --- nested tensors ---


@rule(torch_private.NESTED_DUMMY)
def _nested_dummy(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Who is asked to make a nested tensor: below, that is known."""
    return Constant(None)


def _makes_nested(function: Any, ours: Callable[..., Any]) -> None:
    @rule(function)
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if m.tracer.sizes is None:  # which know ragged ones
            raise SizesChanged
        values, offsets, _, *others = (m.use(a) for a in args)
        what = f"torch.nested.{ours.__name__}"
        return m.tracer.call("call_function", ours, (values, offsets, *others), {}, what)


_makes_nested(torch_private.NESTED_VIEW, torch_private.nested_view)
_makes_nested(torch_private.NESTED_FROM_PADDED, torch_private.nested_from_padded)


# --- functions that look at values ---


@rule(torch_private.check_values)
def _check_values(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    condition, error, message = (m.use(a) for a in args)
    assert isinstance(error, Constant) and isinstance(message, Constant)
    m.tracer.check(condition, error.value, message.value)
    return Constant(None)


@rule(torch_private.ASSERT_ASYNC)
def _assert_async(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    match [m.use(a) for a in (*args, *kwargs.values())]:
        case [TensorValue() as condition, *rest] if not rest or isinstance(rest[0], Constant):
            return _check_values(m, [condition, Constant("RuntimeError"), *(rest or [Constant("")])], {})
    raise Break("FL104", what="torch._assert_async", why="its message is not known while tracing")


def _looks(original: Any, name: str, suits: Callable[..., bool]) -> None:
    """Traces ``original`` as its polyfill for arguments that suit; others as any function, which looking at values breaks."""
    made = vars(torch_polyfills)[name]
    parameters = inspect.signature(made)

    @rule(original)
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        used, named = [m.use(a) for a in args], {k: m.use(v) for k, v in kwargs.items()}
        try:
            given = parameters.bind(*used, **named).arguments
        except TypeError:
            given = {}
        if given and isinstance(given["input"], TensorValue) and suits(**given):
            return m.call(FunctionValue(made, None), args, kwargs)
        return m.tracer.call("call_function", original, tuple(used), named, f"torch.{name}")


def _is_quantile(input: TensorValue, q: Value, **rest: Value) -> bool:  # noqa: A002
    x, dim = input.fake, rest.get("dim", Constant(None))
    interpolation = rest.get("interpolation", Constant("linear"))
    if x.dtype not in (torch.float32, torch.float64) or x.numel() == 0 or not isinstance(interpolation, Constant):
        return False
    if not isinstance(dim, Constant) or not (dim.value is None or -max(x.dim(), 1) <= dim.value < max(x.dim(), 1)):
        return False
    if interpolation.value not in ("linear", "lower", "higher", "midpoint", "nearest"):
        return False
    if isinstance(q, TensorValue):
        return q.fake.dtype == x.dtype and q.fake.device == x.device and q.fake.dim() < 2 and q.fake.numel() > 0
    return isinstance(q, Constant) and isinstance(q.value, (int, float)) and 0 <= q.value <= 1


def _is_covariance(input: TensorValue, **rest: Value) -> bool:  # noqa: A002
    x, correction = input.fake, rest.get("correction", Constant(1))
    if x.dim() > 2 or x.dtype is torch.bool or x.is_complex() or not isinstance(correction, Constant):
        return False
    count = x.shape[-1] if x.dim() else 1
    weights = [rest.get(name, Constant(None)) for name in ("fweights", "aweights")]
    tensors = [w.fake for w in weights if isinstance(w, TensorValue)]
    if len(tensors) + sum(w.is_none for w in weights) < 2:
        return False
    if tensors and x.dtype in (
        torch.float16,
        torch.bfloat16,
    ):  # gradients of weights are noise, and eager's another one
        return False
    for floating, w in enumerate(weights):
        if isinstance(w, TensorValue) and w.fake.is_floating_point() != bool(floating):
            return False
    if any(t.dim() != 1 or t.shape[0] != count or t.dtype is torch.bool or t.is_complex() for t in tensors):
        return False
    return x.numel() > 0 and bool(tensors or count > correction.value)


def _pools_directly(input: TensorValue, return_indices: Value | None = None, **_: Value) -> bool:  # noqa: A002
    x = input.fake
    if return_indices is not None and (not isinstance(return_indices, Constant) or return_indices.value):
        return False
    return x.device.type == "cpu" and not (x.requires_grad and torch.is_grad_enabled())


LOOKING = frozenset({"quantile", "nanquantile", "cov", "corrcoef"})  # methods, too
_looks(torch.nn.functional.gaussian_nll_loss, "gaussian_nll_loss", lambda var, **_: isinstance(var, TensorValue))
_looks(torch.quantile, "quantile", _is_quantile)
_looks(torch.nanquantile, "nanquantile", _is_quantile)
_looks(torch.cov, "cov", _is_covariance)
for _pool in (torch.max_pool1d, torch.nn.functional.max_pool1d):
    _looks(_pool, "max_pool1d", _pools_directly)
_looks(torch.corrcoef, "corrcoef", _is_covariance)
