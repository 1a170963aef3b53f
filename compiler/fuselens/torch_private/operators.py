"""Operators: which there are, what they are made of, and what rules torch has for them."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import operator
import os
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.utils.checkpoint
from torch.torch_version import TorchVersion

from .names import private
from .numpy_operations import Operation
from .torch_function import takes_class

if TYPE_CHECKING:
    from torch._ops import OpOverload
else:
    OpOverload = private.OpOverload


OPTIMIZER_VALUE: Callable[[Any], Any] = private.optimizer_value
SCALED = {
    name: getattr(torch, name)
    for name in ("add", "sub", "addcdiv", "addcmul", "_foreach_addcdiv_", "_foreach_addcmul_")
}
"""Functions that multiply by a number, which optimisers may have in a tensor."""
DISPATCH_MODES: Callable[[], int] = private.number_of_dispatch_modes
GROUP_TENSORS = private.group_tensors
_OF_PROCESSOR = tuple(getattr(private.processor, n) for n in dir(private.processor) if n.startswith(("_is_", "_get_")))
CONSTANT_FUNCTIONS: tuple[Any, ...] = (
    private.privateuse_name, private.tracing_state, private.vector_width, *_OF_PROCESSOR,
)  # fmt: skip


@functools.cache
def processor() -> str:
    """What those functions say of the processor, as text."""
    found = [ask() for ask in _OF_PROCESSOR]
    return str([sorted(told.items()) if isinstance(told, dict) else told for told in found])


HIGHER_ORDER: dict[str, Any] = {
    "while_loop": private.while_loop, "scan": private.scan, "map": private.map, "associative_scan": private.associative_scan,
}  # fmt: skip
ANNOTATE = private.annotate
FLEX_ATTENTION: Any = private.flex_attention
CHECK, CHECK_ALL, ASSERT = private.check, private.check_all, private.assert_true
ASSERT_ASYNC = private.assert_async


FLEX_LAYOUT: Any = private.flex_layout


def flex_attention_by_operators() -> Any:
    """What computes flex attention by products and a softmax."""
    return FLEX_ATTENTION.py_kernels[private.composite_key]


def flex_strides(sizes: Sequence[int], query: Sequence[int]) -> tuple[int, ...]:
    """Those that ``FLEX_LAYOUT`` gives a result of these sizes. It imports the peer compiler for the order of a few numbers."""
    order = sorted(range(len(query)), key=lambda d: (query[d], -d))
    strides = private.flex_strides(sizes, order)
    if strides[-1] != 1:
        last = len(order) - 1
        strides = private.flex_strides(sizes, [last, *(d for d in order if d != last)])
    return tuple(strides)


def flex_index_mode() -> Any:
    """What handles ``tensor[index]`` in functions of scores. Its module, which flex attention imports, is imported then."""
    module = importlib.import_module("torch._dynamo._trace_wrapped_higher_order_op")
    return module.TransformGetItemToIndex.__torch_function__


MODULE_CALLS = (private.module_call_impl, private.module_wrapped_call_impl)
SET_GRAD_ENABLED: Callable[[bool], None] = private.set_grad
C_FUNCTION_OWNERS: tuple[Any, ...] = (
    private.nn_functions,
    private.special_functions,
    private.linalg_functions,
    private.nested_functions,
    private.fft_functions,
)
LOG_API_USAGE = private.log_usage
PARSE_TO: Callable[..., Any] = private.parse_to
IS_FX_TRACING: Callable[[], bool] = private.is_fx_tracing
TRACING_STATE: Callable[[], Any] = private.tracing_state
VARIABLE_FUNCTIONS = private.variable_functions


CLASS_QUESTIONS = frozenset({
    torch.ops.aten.sym_size.default, torch.ops.aten.sym_stride.default, torch.ops.aten.sym_numel.default,
    torch.ops.aten.sym_storage_offset.default, torch.ops.aten.dim.default,
    torch.ops.aten.is_non_overlapping_and_dense.default, torch.ops.prim.layout.default,
    torch.ops.aten.sym_is_contiguous.default, torch.ops.aten.is_contiguous.default,
    torch.ops.aten.is_contiguous.memory_format, torch.ops.aten.is_strides_like_format.default,
})  # fmt: skip
"""What the dispatcher asks classes of Python about their tensors; it has no kernels of these."""


def dispatch_key_bits(tensor: torch.Tensor) -> int:
    """The tensor's dispatch key set as one word."""
    return private.dispatch_keys(tensor).raw_repr()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is an ordinary strided tensor: operators see nothing special below ``__torch_function__``, no
    functorch wrapper, no sparse layout."""
    return (
        (type(tensor) in (torch.Tensor, torch.nn.Parameter) or takes_class(type(tensor)))
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not private.is_transformed(tensor)
        and not tensor.is_quantized
    )


def foreign_rules() -> bool:
    """Whether decompositions or kernels of torch's operators were registered by others than torch."""
    rules = (rule for table in private.all_decompositions.values() for rule in table.values())
    if any(not (getattr(rule, "__module__", None) or "torch").startswith("torch") for rule in rules):
        return True
    devices = ("/Meta", "/CUDA", "MPS", "XPU")  # kernels do not take part in tracing; also AutogradMPS and the like
    kernels = (k for k in private.operator_kernels if k.startswith("aten/") and not k.endswith(devices))
    return not all(map(is_torch_kernel, kernels))


def is_torch_kernel(name: str) -> bool:
    """Whether torch itself registered the kernel ``aten/operator/key`` (2.15 has some): torch keeps the file of each."""
    operator, _, key = name.removeprefix("aten/").rpartition("/")
    place = f"{key}: registered at {os.path.dirname(torch.__file__)}{os.sep}"
    return any(line.startswith(place) for line in private.registrations(f"aten::{operator}").splitlines())


def is_torch_operator(target: Any) -> bool:
    """Whether ``target`` is an operator, or an overload of one, that torch itself defines."""
    packet = getattr(target, "overloadpacket", target)
    if not isinstance(packet, private.OpOverloadPacket):
        return False
    return packet._qualified_op_name.partition("::")[0] in ("aten", "prims", "prim")


def has_schema(target: Any) -> bool:
    """Whether ``target`` is an operator, or all overloads of one: its schema says what it writes to."""
    return isinstance(target, (OpOverload, private.OpOverloadPacket))


def graph_module(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A module that writes its Python code when it is first called: most graphs never are, and writing takes as long as
    splitting them."""
    return private.LazyGraphModule(root, graph)


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Torch's core ATen decompositions, overload → function. Imports nothing of the peer compiler."""
    return private.core_decompositions()


def traced(
    fn: Callable[..., Any], examples: Sequence[Any], decompositions: dict[Any, Callable[..., Any]], *, symbolic: bool
) -> torch.fx.GraphModule:
    """The operators of a function without what it writes to its own tensors, on fake tensors like ``examples``; ``symbolic``: for
    sizes that vary. Raises whatever the function raises."""
    function = torch.func.functionalize(lambda *args: fn(*args))
    mode = "symbolic" if symbolic else "fake"
    return private.make_fx(function, decomposition_table=decompositions, tracing_mode=mode)(*examples)


def decompositions_for(names: list[str]) -> dict[Any, Callable[..., Any]]:
    """Every registered decomposition of the ATen packets ``names``; unknown names are skipped (older torch)."""
    packets = [getattr(torch.ops.aten, n) for n in names if hasattr(torch.ops.aten, n)]
    return private.get_decompositions(packets)


def backward_class(function: type) -> type:
    """The class of ``ctx`` in an autograd function."""
    return function._backward_cls  # type: ignore[attr-defined]


def shares_memory(target: Any) -> bool:
    """Whether the schema of an operator says that its results are memory of an operand, to which it does not write."""
    return isinstance(target, OpOverload) and _shares_memory(target)


@functools.lru_cache(1 << 12)  # torch makes a schema's parts anew each time
def _shares_memory(target: OpOverload) -> bool:
    aliases = [r.alias_info for r in target._schema.returns]
    return bool(aliases) and all(a is not None and not a.is_write for a in aliases)


def is_view(target: Any) -> bool:
    """Whether an operator's results are its first operand, elsewhere arranged: views by their schema, and ``_unsafe_view``. That
    one's schema does not say it, since torch calls it where nothing else has the operand: nobody can tell it from a view."""
    return isinstance(target, OpOverload) and (_shares_memory(target) or target.name() == "aten::_unsafe_view")


def makes_new(target: Any) -> bool:
    """Whether it is an operator whose results are no operands or views of them, changed or not."""
    schema = getattr(target, "_schema", None)
    return schema is not None and all(r.alias_info is None for r in schema.returns)


def is_pure(target: Any) -> bool:
    """Whether an operator only computes: it writes to no operand and draws no random numbers."""
    drawing = torch.Tag.nondeterministic_seeded
    return isinstance(target, OpOverload) and not writes_operands(target) and drawing not in target.tags


class _OnlyComputes(private.TorchDispatchMode):
    """Refuses operators that do more than compute, or write where they may."""

    def __init__(self, may_write: bool) -> None:
        super().__init__()
        self.may_write = may_write

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the handler is called as it is

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        draws = torch.Tag.nondeterministic_seeded in func.tags
        writes = writes_operands(func) and not self.may_write
        if draws or writes or not is_torch_operator(func) or "empty" in func._schema.name:
            raise RuntimeError(f"{func} does more than compute")
        return func(*args, **(kwargs or {}))


def only_computes(may_write: bool) -> contextlib.AbstractContextManager[Any]:
    """Inside, operators raise RuntimeError that draw random numbers, give memory as it is, or are not torch's own, and unless they
    ``may_write`` those that write to an operand."""
    return _OnlyComputes(may_write)


def drops_nothing(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator that may draw random numbers to drop elements, as attention does, is called to drop none."""
    given = dict(zip((a.name for a in target._schema.arguments), args, strict=False)) | dict(kwargs)
    for argument in target._schema.arguments:
        if argument.name in ("dropout_p", "dropout"):
            found = given.get(argument.name, argument.default_value)
            return isinstance(found, (int, float)) and found == 0
    return False


def only_overload(target: Any) -> Any:
    """The operator that a name stands for, if it has one overload; else ``target``."""
    if isinstance(target, private.OpOverloadPacket) and len(names := target.overloads()) == 1:
        return getattr(target, names[0])
    return target


def writes(node: torch.fx.Node) -> bool:
    """Whether a node of a captured graph may write into one of its arguments, augmented assignment included."""
    return augments(node.target) or mutates(node.op, node.target, node.kwargs)


def mutates(kind: str, target: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call may write into an argument, by its keywords, its schema or its name; ``kind`` is fx's opcode."""
    if "out" in kwargs or kwargs.get("inplace") is True:
        return True
    if writes_operands(target):
        return True
    name = target if kind == "call_method" else getattr(target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in ("setitem", "__setitem__")


def augments(target: Any) -> bool:
    """Whether this is the function of an augmented assignment."""
    name = getattr(target, "__name__", "")
    return name.startswith("i") and getattr(operator, f"__{name}__", None) is target


def writes_operands(target: Any) -> bool:
    """Whether the schema of an operator (or of one of its overloads) says that it writes to an operand, or numpy does."""
    if isinstance(target, Operation):
        return target.writes
    if isinstance(target, private.OpOverloadPacket):
        return any(writes_operands(getattr(target, name)) for name in target.overloads())
    return isinstance(target, OpOverload) and target._schema.is_mutable


@dataclasses.dataclass(frozen=True)
class TritonOperator:
    """An operator of ``torch.library.triton_op``: its parameters and what they are by default, those that it writes to, the function
    that it is, and its gradient's."""

    operator: Any
    definition: Any
    name: str
    names: tuple[str, ...]
    defaults: Mapping[str, Any] = dataclasses.field(compare=False)
    written: tuple[str, ...]
    function: types.FunctionType
    setup: Callable[..., Any] | None
    formula: Callable[..., Any] | None


def triton_operator(target: Any) -> TritonOperator | None:
    """What ``target`` is, if that is an operator of ``torch.library.triton_op``, and nothing but its function is its kernel."""
    if isinstance(target, private.OpOverloadPacket):
        names = target.overloads()
        target = getattr(target, names[0]) if len(names) == 1 else None
    if not isinstance(target, OpOverload) or target.namespace in ("aten", "prims", "prim", "fuselens"):
        return None
    find = getattr(private.operator_definitions, "get", None)
    definition = find(target._schema.name) if find is not None else None
    kinds = getattr(definition, "_torch_dispatch_fns", ())
    if (
        definition is None
        or not any(kind.__name__ == "FunctionalTensorMode" for kind in kinds)
        or len(definition._backend_fns) > 1
    ):
        return None
    kernel = definition._init_fn
    cells = dict(zip(kernel.__code__.co_freevars, kernel.__closure__ or (), strict=True))
    function = cells["fn"].cell_contents if "fn" in cells else None
    arguments = target._schema.arguments
    if type(function) is not types.FunctionType or any(a.kwarg_only for a in arguments):
        return None
    return TritonOperator(
        target, definition, target._schema.name, tuple(a.name for a in arguments),
        {a.name: a.default_value for a in arguments if a.has_default_value()}, written_arguments(target), function,
        definition._setup_context_fn, definition._backward_fn,
    )  # fmt: skip


def writes_lists(target: Any) -> bool:
    """Whether a function is an operator on lists of tensors that writes to the first of them."""
    name = getattr(target, "__name__", "")
    return name.startswith("_foreach_") and name.endswith("_")


def written_operands(node: torch.fx.Node) -> list[Any] | None:
    """The arguments that a node of an operator writes to; None when it calls something else."""
    if not isinstance(node.target, OpOverload):
        return None
    places = [a.name for a in node.target._schema.arguments]
    given = dict(zip(places, node.args, strict=False)) | node.kwargs
    return [given.get(name) for name in written_arguments(node.target)]


def written_arguments(target: OpOverload) -> tuple[str, ...]:
    """Names of the arguments that an operator writes to."""
    return tuple(a.name for a in target._schema.arguments if a.alias_info is not None and a.alias_info.is_write)


def is_composite(op: OpOverload) -> bool:
    """Whether ``op`` is implemented in terms of other operators, autograd included."""
    if op.namespace == "prim":
        return False
    return private.dispatch_has_kernel(op.name(), "CompositeImplicitAutograd")


def python_rules() -> contextlib.AbstractContextManager[Any]:
    """Torch's Python rules for operators whose C++ form refuses symbolic sizes or hides what it writes. Slower."""
    return private.python_dispatcher()


def follows_python_rules() -> bool:
    """Whether those rules hold now."""
    return bool(private.key_is_included(private.dispatch_key.PythonDispatcher))


def no_python_rules() -> contextlib.AbstractContextManager[Any]:
    """Without those rules, for an operator whose C++ form takes symbolic sizes."""
    return private.no_python_dispatcher()


GPU_ATTENTION: Any = private.gpu_attention
"""``op(query, key, value, mask, needs_gradient, dropout, is_causal, *, scale)``; None where torch has no such operator."""
FAKES_LOG = "torch._subclasses.fake_tensor"  # the log of calls that raise on fake tensors
SCRIPTED = "_torchdynamo_inline"  # the attribute of a TorchScript function that has the Python function it was made of


def needs_python_rules(error: RuntimeError) -> bool:
    """Whether an operator's C++ form failed because it takes no symbolic sizes."""
    text = str(error)
    return "SymIntArrayRef expected to contain only concrete integers" in text or "with symbolic sizes/strides" in text


def script_origin(function: torch.jit.ScriptFunction[Any, Any]) -> str | None:
    """The attribute of a scripted function that holds the Python function it was made of; None when it has none."""
    return "_torchdynamo_inline" if hasattr(function, "_torchdynamo_inline") else None


# what the reductions of torch.masked are made of
MASKED_PARTS: tuple[Any, ...] = (private.masked_mask, private.masked_identity, private.masked_where)
MASKED_INPUT = private.masked_input
MATMUL_FIXES_SIZES = TorchVersion(torch.__version__) < "2.13"
"""Whether the C++ form of ``matmul`` takes the sizes of batches as plain numbers, and so fixes symbolic ones."""
SHRINKS_BY_ROUNDED = TorchVersion(torch.__version__) >= "2.14"
"""Whether ``softshrink`` of halves rounds its limit to their precision first."""


@functools.cache
def largest_float8() -> int:
    """The bits that torch makes of numbers too large for float8_e4m3fn: those of the largest, or (until 2.12) of NaN."""
    with private.DisableTorchDispatch():
        return int(torch.tensor(1e6, device="cpu").to(torch.float8_e4m3fn).view(torch.uint8))
