"""The contract with undocumented torch: every name that we use and torch does not document, what for, and what if it is gone.

``TABLE`` is data, for whoever checks an installation. :data:`private` looks names up, each once and when it is first
needed, so that a torch which renames one costs one capability and no exception:

- the first of a name's places that exists serves, then what ``instead`` lists: a documented name, or a constant answer;
- where nothing serves, the name is a :class:`Missing`, which raises :class:`MissingName` when it is used. The frame or graph
  that needed it runs eagerly, with finding FL918;
- without a name of :data:`COMPILING` nothing is compiled.

Standard library only. ``torch_private`` is the one module that uses :data:`private`.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from ..record.diagnostics import make
from ..record.report import Diagnostic, Span

TESTED = ((2, 11), (2, 15))
"""The oldest and the newest release of torch that the tests pass on."""

COMPILING = "compiling anything"
SIZES = "compiling for sizes that vary"
TRAINING = "compiling what autograd records"
TRANSFORMS = "compiling functions of torch.func"
MODES = "compiling under modes and classes with __torch_function__"
VIEWS = "compiling graphs that write to views"
HIGHER_ORDER = "torch's control flow operators in graphs"
ATTENTION = "flex attention in graphs"
OPTIMIZERS = "optimisers in graphs"
MASKED = "torch.masked in graphs"
RECORDINGS = "recording calls as CUDA graphs"
GPU = "kernels for GPUs"
FLOAT8 = "float8 in kernels for GPUs"
CHECKPOINTS = "checkpoints in graphs"
DATA = "compiling operators whose results depend on data"
CACHING = "keeping compiled graphs from one process to the next"
SPEED = "a part of the speed of compiling"
COLLECTIVES = "torch.distributed's collectives in graphs"
WRAPPERS = "classes with __torch_dispatch__ in graphs"
KERNELS = "operators of torch.library.triton_op in graphs"
ARRAYS = "numpy's arrays in graphs"
RANKS = "ranks that are not there"
FOR_TRITON = "functions for Triton programs"
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Returns:
    """Stands for a function: whatever it is given, it returns ``value``."""

    value: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value

    def __str__(self) -> str:
        return f"the answer {self.value}"


class Never(Exception):
    """Stands for a class of exceptions that this torch does not have, and so never raises."""


@dataclass(frozen=True, slots=True)
class Name:
    """An undocumented name of torch, or an attribute of one of its classes."""

    key: str  # its attribute of :data:`private`
    places: tuple[
        str, ...
    ]  # where the tested versions have it, the newest first; `module:name` where a function hides the module
    purpose: str
    lost: str  # the capability that goes where nothing serves
    instead: tuple[str | Callable[..., Any], ...] = ()  # what serves where no place has it: other places, or functions


class MissingName(RuntimeError):
    """This torch lacks an undocumented name that something needs."""

    def __init__(self, name: Name) -> None:
        super().__init__(f"torch {torch_version()} has no {name.places[0]}, which {name.lost} needs")
        self.name = name


class Missing:
    """Stands for a name that is gone. It may be handed around and compared; whoever uses it is told what is lost."""

    def __init__(self, name: Name) -> None:
        self._name = name

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise MissingName(self._name)

    __call__ = __iter__ = __len__ = __getitem__ = __contains__ = __enter__ = __bool__ = __lt__ = __or__ = __and__ = (
        _refuse
    )

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(self._name)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (
            type("Gone", (), {"__new__": self._refuse}),
        )  # a class that derives from it may be defined, not instantiated

    def __instancecheck__(self, value: object) -> bool:
        return False

    def __subclasscheck__(self, value: type) -> bool:
        return False


def lacking(error: BaseException) -> dict[str, Any] | None:
    """The fields of finding FL918 where ``error`` comes of an undocumented name that this torch lacks; None for others."""
    if isinstance(error, MissingName):
        return _fields(error.name.places[0], error.name.lost)
    if isinstance(error, AttributeError) and error.name in ATTRIBUTES:
        return _fields(f"{type(error.obj).__name__}.{error.name}", COMPILING)
    return None


def findings(span: Span | None) -> list[Diagnostic]:
    """What is to be said of this torch, at ``span``: FL919 where it is newer than tested, and :func:`lost_findings`."""
    newer = [make("FL919", span, **_fields("", ""))] if newer_than_tested() else []
    return newer + lost_findings(span)


def lost_findings(span: Span | None) -> list[Diagnostic]:
    """FL918 of each name that was found missing, and with which something is lost."""
    return [make("FL918", span, **_fields(n.places[0], n.lost)) for n in lost if n.lost != NOTHING]


def _fields(name: str, capability: str) -> dict[str, Any]:
    oldest, newest = (".".join(map(str, version)) for version in TESTED)
    return {"version": torch_version(), "name": name, "lost": capability, "oldest": oldest, "newest": newest}


def torch_version() -> str:
    return str(importlib.import_module("torch").__version__)


def newer_than_tested() -> bool:
    """Whether this torch is a later release than any that the tests passed on."""
    numbers = torch_version().split("+")[0].split(".")
    return tuple(int(n) for n in numbers[:2] if n.isdigit()) > TESTED[1]


def flag_of_fx() -> bool:
    """Whether torch.fx records, until torch 2.13."""
    return getattr(importlib.import_module("torch.fx._symbolic_trace"), "_is_fx_tracing_flag", False)


def _n(key: str, places: str, purpose: str, lost: str, *instead: str | Callable[..., Any]) -> Name:
    return Name(key, tuple(places.split()), purpose, lost, instead)


_C = "torch._C."
_C10D = "torch.distributed.distributed_c10d."
_FAKE = "torch._subclasses.fake_tensor."
_SYMBOLS = "torch.fx.experimental.symbolic_shapes."

TABLE: dict[str, Name] = {
    n.key: n
    for n in (
        # --- fake tensors
        _n("FakeTensor", _FAKE + "FakeTensor", "tells fake tensors from real ones", COMPILING),
        _n("FakeTensorMode", _FAKE + "FakeTensorMode", "runs operators without data", COMPILING),
        _n("wrap_meta_outputs", _FAKE + "FakeTensorMode.wrap_meta_outputs_with_default_device_logic",
           "makes fake tensors of meta ones", SPEED),
        _n("supports_symint", _FAKE + "FakeTensorMode.cpp_meta_supports_symint",
           "tells that a fake mode calls nothing but an operator's kernel for meta tensors", SPEED, Returns(False)),
        _n("in_kernel_invocation", _FAKE + "in_kernel_invocation_manager", "runs that kernel as a fake mode does", SPEED),
        _n("has_meta", "torch._subclasses.fake_impls.has_meta", "whether an operator has that kernel", SPEED, Returns(False)),
        _n("fake_rules", "torch._subclasses.fake_impls.op_implementations_checks", "the operators with rules of their own", SPEED),
        _n("fake_decompositions", _FAKE + "torch_decomp_decompositions", "the operators that fake modes decompose", SPEED),
        _n("meta_table", "torch._decomp.meta_table", "the operators with rules for meta tensors in Python", SPEED),
        _n("needs_data_error", _FAKE + "DataDependentOutputException", "what an operator that reads data raises", DATA, Never),
        _n("needs_shape_error", _FAKE + "DynamicOutputShapeException", "the same where data decides a shape", DATA, Never),
        _n("no_rule_error", _FAKE + "UnsupportedOperatorException", "the same where there is no rule", DATA, Never),
        _n("unset_fake", _FAKE + "unset_fake_temporarily", "computes with data while a fake mode is active", COMPILING),
        _n("dispatch_has_kernel", _C + "_dispatch_has_kernel_for_dispatch_key", "whether an operator is made of others", COMPILING),
        _n("decomposition_table", "torch._decomp.decomposition_table", "the operators that torch decomposes", COMPILING),
        _n("all_decompositions", "torch._decomp.global_decomposition_table", "all tables of those", CACHING),
        _n("core_decompositions", "torch._decomp._core_aten_decompositions_post_autograd", "the decompositions of core ATen", COMPILING),
        _n("get_decompositions", "torch._decomp.get_decompositions", "the decompositions of some operators", COMPILING),
        _n("make_fx", "torch.fx.experimental.proxy_tensor.make_fx", "graphs of functions that are no frames", FOR_TRITON),
        _n("OpOverload", "torch._ops.OpOverload", "tells operators from other functions", COMPILING),
        _n("OpOverloadPacket", "torch._ops.OpOverloadPacket", "the same of names with several overloads", COMPILING),
        _n("python_dispatcher", "torch._dispatch.python.enable_python_dispatcher", "rules in Python for symbolic sizes", SIZES),
        _n("key_is_included", _C + "_dispatch_tls_is_dispatch_key_included", "tells whether those rules hold", SIZES),
        _n("no_python_dispatcher", "torch._dispatch.python.no_python_dispatcher", "rules in C++ where they take symbolic sizes", SIZES),
        _n("pytree", "torch.utils._pytree", "takes structures of tensors apart", COMPILING),
        _n("zero_tensor", "torch.ops.aten._efficientzerotensor.default", "zeros without memory", NOTHING, Returns(None)),
        _n("unique", "torch.ops.aten._unique.default", "an operator whose rule torch 2.11 has wrong", NOTHING, Returns(None)),
        _n("cpu_attention", "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default",
           "attention on the CPU, one result of which has another dtype than the rule says", NOTHING, Returns(None)),
        _n("gpu_attention", "torch.ops.aten._scaled_dot_product_efficient_attention.default",
           "attention with dropout on a GPU, where that is not here", NOTHING, Returns(None)),
        _n("index_put", "torch.ops.aten._unsafe_index_put.default", "an operator that runs on any devices", NOTHING, Returns(None)),
        # --- symbolic sizes
        _n("ShapeEnv", _SYMBOLS + "ShapeEnv", "reasons about symbolic sizes", SIZES),
        _n("SLoc", _SYMBOLS + "SLoc", "says where a condition comes from", SIZES),
        _n("DimDynamic", _SYMBOLS + "DimDynamic", "says how a size varies", SIZES),
        _n("Source", "torch._guards.Source", "says where an input comes from", SIZES),
        _n("local_source", "torch._guards.GuardSource.LOCAL", "the same, of a local variable", SIZES),
        _n("trace_structured", "torch._logging.trace_structured", "finds that nobody reads torch's trace log", SPEED, Returns(None)),
        _n("integer_functions", "torch.utils._sympy.functions", "integer division and the like in expressions of sizes", COMPILING),
        _n("symbol_is_type", "torch.utils._sympy.symbol.symbol_is_type", "tells symbols of floats from those of integers", SIZES),
        _n("float_symbol", "torch.utils._sympy.symbol.SymT.FLOAT", "the kind of symbols of floats", SIZES),
        _n("numpy", "torch._numpy", "numpy's operations on tensors", ARRAYS),
        # --- modes, classes, transforms
        _n("TorchDispatchMode", "torch.utils._python_dispatch.TorchDispatchMode", "hears of each operator", COMPILING),
        _n("number_of_dispatch_modes", _C + "_len_torch_dispatch_stack", "whether dispatch modes surround a call", COMPILING),
        _n("dispatch_modes", "torch.utils._python_dispatch._get_current_dispatch_mode_stack", "which ones", COMPILING),
        _n("pop_dispatch_mode", "torch.utils._python_dispatch._pop_mode", "leaves those that an interrupt left behind", COMPILING),
        _n("without_modes", "torch.utils._python_dispatch._disable_current_modes", "makes tensors that no mode sees", COMPILING),
        _n("DisableTorchDispatch", _C + "_DisableTorchDispatch", "the same", FLOAT8),
        _n("number_of_function_modes", _C + "_len_torch_function_stack", "whether function modes surround a call", COMPILING),
        _n("function_mode_at", _C + "_get_function_stack_at", "which ones", MODES),
        _n("push_function_mode", _C + "_push_on_torch_function_stack", "enters a mode that the program entered", MODES),
        _n("pop_function_mode", _C + "_pop_torch_function_stack", "leaves a mode that the program left", MODES),
        _n("function_enabled", _C + "_is_torch_function_enabled", "whether __torch_function__ is asked", COMPILING),
        _n("function_all_disabled", _C + "_is_torch_function_all_disabled", "whether neither modes nor classes are asked", COMPILING),
        _n("EnableTorchFunction", _C + "_EnableTorchFunction", "hears what a class would be asked", MODES),
        _n("DisableTorchFunction", _C + "DisableTorchFunction", "asks neither modes nor classes", COMPILING),
        _n("DisableTorchFunctionSubclass", _C + "DisableTorchFunctionSubclass", "asks no class", COMPILING),
        _n("disabled_function", _C + "_disabled_torch_function_impl", "classes that do not want to be asked", COMPILING),
        _n("disabled_dispatch", _C + "_disabled_torch_dispatch_impl", "classes that do not see operators", COMPILING),
        _n("make_subclass", "torch.Tensor._make_subclass", "makes instances of classes of tensors", MODES),
        _n("device_function", "torch.utils._device.DeviceContext.__torch_function__", "the mode of `with torch.device`", MODES),
        _n("device_constructors", "torch.utils._device._device_constructors", "the functions that it gives a device", MODES),
        _n("innermost_transform", _C + "_functorch.peek_interpreter_stack", "whether a function transform surrounds a call", COMPILING),
        _n("is_transformed", _C + "_functorch.is_functorch_wrapped_tensor", "tells tensors of transforms from others", COMPILING),
        _n("include_set", _C + "_dispatch_tls_local_include_set", "the state that a transform which fails has to leave", TRANSFORMS),
        _n("exclude_set", _C + "_dispatch_tls_local_exclude_set", "the same", TRANSFORMS),
        _n("force_keys", _C + "_ForceDispatchKeyGuard", "sets that state again", TRANSFORMS),
        _n("functional_key", _C + "DispatchKey.Functionalize", "functionalization, below a class with __torch_dispatch__", WRAPPERS),
        _n("key_is_excluded", _C + "_dispatch_tls_is_dispatch_key_excluded", "the same", WRAPPERS),
        _n("exclude_key", _C + "_dispatch_tls_set_dispatch_key_excluded", "the same", WRAPPERS),
        _n("dispatch_keys", _C + "_dispatch_keys", "what kind of tensor it is", COMPILING),
        _n("dispatch_key_set", _C + "_dispatch_key_set", "the same as text", COMPILING),
        _n("default_device", _C + "_get_default_device", "where new tensors are", COMPILING),
        _n("operator_kernels", "torch.library._impls", "kernels that a program registered for torch's operators", CACHING),
        _n("registrations", _C + "_dispatch_dump", "in which file each of an operator's kernels was registered", CACHING),
        # --- what programs may call, and what surrounds them
        _n("peer_evaluator", _C + "_dynamo.eval_frame.set_eval_frame", "switches the evaluator of torch.compile off",
           NOTHING, Returns(None)),
        _n("is_tracing", _C + "_is_tracing", "whether torch.jit.trace records", COMPILING, "torch.jit.is_tracing"),
        _n("tracing_state", _C + "_get_tracing_state", "what torch.jit.trace records", NOTHING, Returns(None)),
        _n("fx_traces", "torch.fx._symbolic_trace._get_is_fx_tracing", "whether torch.fx records", NOTHING, flag_of_fx),
        _n("LazyGraphModule", "torch.fx._lazy_graph_module._LazyGraphModule", "puts off writing the code of graphs", SPEED,
           "torch.fx.GraphModule"),
        _n("annotate", "torch.fx.traceback.annotate", "a context that graphs ignore", NOTHING, Returns(None)),
        _n("set_grad", _C + "_set_grad_enabled", "changes grad mode in graphs", COMPILING),
        _n("check", "torch._check", "a check in graphs", COMPILING),
        _n("check_all", "torch._check_tensor_all", "a check in graphs", COMPILING),
        _n("assert_true", "torch._assert", "the same, of the program's own", NOTHING, Returns(None)),
        _n("assert_async", "torch._assert_async", "a check of data in graphs", COMPILING),
        _n("parse_to", _C + "_nn._parse_to", "what the arguments of Module.to mean", NOTHING, Returns(None)),
        _n("log_usage", _C + "_log_api_usage_once", "what torch calls to count uses", NOTHING, Returns(None)),
        _n("privateuse_name", _C + "_get_privateuse1_backend_name", "a function whose answer is constant", NOTHING,
           Returns("privateuseone")),
        _n("processor", _C + "_cpu", "functions that tell what the processor can do, whose answers are constant", NOTHING,
           Returns(None)),
        _n("vector_width", _C + "_get_cpu_capability", "the same of vectors", NOTHING, "torch.backends.cpu.get_cpu_capability"),
        _n("variable_functions", _C + "_VariableFunctions", "where torch's functions of C are", COMPILING),
        _n("nn_functions", _C + "_nn", "the same, of torch.nn.functional", COMPILING),
        _n("special_functions", _C + "_special", "the same, of torch.special", COMPILING),
        _n("linalg_functions", _C + "_linalg", "the same, of torch.linalg", COMPILING),
        _n("nested_functions", _C + "_nested", "the same, of torch.nested", COMPILING),
        _n("fft_functions", _C + "_fft", "the same, of torch.fft", COMPILING),
        _n("module_call_impl", "torch.nn.Module._call_impl", "what calls a module", COMPILING),
        _n("module_wrapped_call_impl", "torch.nn.Module._wrapped_call_impl", "what calls that", COMPILING),
        _n("group_tensors", _C + "_group_tensors_by_device_and_dtype", "how optimisers sort their tensors", OPTIMIZERS),
        _n("optimizer_value", "torch.optim.optimizer:_get_value", "how they read their numbers", OPTIMIZERS),
        _n("while_loop", "torch._higher_order_ops.while_loop", "a loop in graphs", HIGHER_ORDER),
        _n("scan", "torch._higher_order_ops.scan", "the same with results of each turn", HIGHER_ORDER),
        _n("map", "torch._higher_order_ops.map", "the same over a dimension", HIGHER_ORDER),
        _n("associative_scan", "torch._higher_order_ops.associative_scan", "a scan in graphs", HIGHER_ORDER),
        _n("flex_attention", "torch._higher_order_ops.flex_attention", "attention with a function of scores", ATTENTION),
        _n("composite_key", _C + "DispatchKey.CompositeExplicitAutograd", "the same by operators", ATTENTION),
        _n("flex_layout", "torch._higher_order_ops.flex_attention:_permute_strides", "how its result lies in memory", ATTENTION),
        _n("flex_strides", "torch._higher_order_ops.flex_attention:_construct_strides", "the same", ATTENTION),
        _n("fast_attention", "torch._native_multi_head_attention", "attention of torch.nn.MultiheadAttention", NOTHING, Returns(None)),
        _n("fast_encoder", "torch._transformer_encoder_layer_fwd", "the same of encoders", NOTHING, Returns(None)),
        _n("masked_input", "torch.masked._ops._combine_input_and_mask", "what masked reductions begin with", MASKED),
        _n("masked_mask", "torch.masked._ops._input_mask", "the same", MASKED),
        _n("masked_identity", "torch.masked._ops._reduction_identity", "the same", MASKED),
        _n("masked_where", "torch.masked._ops._where", "the same", MASKED),
        _n("autocast_on", _C + "_is_any_autocast_enabled", "whether autocast is on", COMPILING),
        _n("deterministic", _C + "_get_deterministic_algorithms", "whether algorithms are deterministic", COMPILING,
           "torch.are_deterministic_algorithms_enabled"),
        _n("deterministic_warns", _C + "_get_deterministic_algorithms_warn_only", "whether others are only warned of", COMPILING,
           "torch.is_deterministic_algorithms_warn_only_enabled"),
        _n("flash_attention", _C + "_get_flash_sdp_enabled", "which attention is allowed", COMPILING,
           "torch.backends.cuda.flash_sdp_enabled"),
        _n("efficient_attention", _C + "_get_mem_efficient_sdp_enabled", "the same", COMPILING,
           "torch.backends.cuda.mem_efficient_sdp_enabled"),
        _n("math_attention", _C + "_get_math_sdp_enabled", "the same", COMPILING, "torch.backends.cuda.math_sdp_enabled"),
        _n("cudnn_attention", _C + "_get_cudnn_sdp_enabled", "the same", COMPILING, "torch.backends.cuda.cudnn_sdp_enabled"),
        _n("half_sums_attention", _C + "_get_math_sdp_allow_fp16_bf16_reduction", "the same", COMPILING,
           "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed"),
        _n("attention_order", _C + "_get_sdp_priority_order", "which attention comes first", CACHING, Returns(())),
        _n("float32_precision", _C + "_get_fp32_precision_getter", "what products round to", GPU),
        _n("peer_disable", "torch._compile._disable_dynamo", "wraps rules so that they import torch.compile", SPEED, Returns(None)),
        _n("operator_definitions", "torch._library.custom_ops.OPDEFS", "finds the functions of operators that launch Triton kernels",
           KERNELS, Returns(None)),
        # --- torch.distributed
        _n("collectives", "torch.ops._c10d_functional", "communicates in a graph", COLLECTIVES, Returns(None)),
        _n("default_group", _C10D + "_get_default_group", "which group a call without one is of", COLLECTIVES, Returns(None)),
        _n("group_rank", _C10D + "_canonicalize_group_rank", "the place of a rank in its group", COLLECTIVES, Returns(0)),
        _n("default_store", _C10D + "_get_default_store", "where ranks compare what they run", COLLECTIVES, Returns(None)),
        _n("resolve_group", _C10D + "_resolve_process_group", "which ranks communicate", COLLECTIVES, Returns(None)),
        _n("distributed_world", _C10D + "_world", "which groups coalesce their calls", COLLECTIVES, Returns(None)),
        _n("active_ddp", "torch.nn.parallel.DistributedDataParallel._get_active_ddp_module", "whose buckets a backward fills",
           COLLECTIVES, Returns(None)),
        _n("first_bucket", "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES", "how large the first bucket is", COLLECTIVES, Returns(None)),
        # --- ranks that are not there
        _n("fake_store", "torch.testing._internal.distributed.fake_pg.FakeStore", "makes the backend that communicates nothing", RANKS),
        _n("finished_work", _C + "_distributed_c10d._create_work_from_future", "what a reduction returns there", RANKS),
        _n("forget_layouts", "torch.distributed.tensor.debug._clear_sharding_prop_cache", "layouts know the groups of a rank", RANKS,
           Returns(None)),
        _n("forget_moves", "torch.distributed.tensor._redistribute._gen_transform_infos", "the same", RANKS),
        _n("graph_task", _C + "_current_graph_task_id", "whether a backward runs", RANKS, Returns(-1)),
        _n("running_node", _C + "_current_autograd_node", "which line a step of the backward is of", RANKS, Returns(None)),
        # --- autograd
        _n("saved_hooks", _C + "_autograd._top_saved_tensors_default_hooks", "whether hooks see what autograd saves", COMPILING),
        _n("ignore_saved_hooks", _C + "_autograd._saved_tensors_hooks_set_tracing", "keeps them from seeing what we trace", COMPILING),
        _n("set_anomaly", _C + "set_anomaly_enabled", "the same of anomaly detection", COMPILING),
        _n("stop_recomputation", "torch.utils.checkpoint._StopRecomputationError", "what ends a checkpoint's second run",
           CHECKPOINTS, Never),
        _n("get_creation_meta", _C + "_autograd._get_creation_meta", "which views may be written to", VIEWS),
        _n("set_creation_meta", _C + "_autograd._set_creation_meta", "the same", VIEWS),
        _n("several_views", _C + "_autograd.CreationMeta.MULTI_OUTPUT_NODE", "one of several views of a tensor", VIEWS),
        _n("plain_view", _C + "_autograd.CreationMeta.DEFAULT", "any other view", VIEWS),
        _n("below_autograd", _C + "_AutoDispatchBelowADInplaceOrView", "reads values that autograd does not see", COMPILING),
        _n("ragged_size", "torch.nested._internal.nested_tensor.get_tensor_symint", "which nested tensors are of one size", COMPILING),
        _n("ragged_sizes", "torch.nested._internal.nested_tensor._tensor_symint_registry", "the same", COMPILING),
        _n("padded", "torch.ops.aten._jagged_to_padded_dense_forward", "rows of nested tensors as a block", COMPILING, Returns(None)),
        _n("unpadded", "torch.ops.aten._padded_dense_to_jagged_forward", "the same, back", COMPILING, Returns(None)),
        _n("nested_values", "torch.ops.aten._nested_get_values.default", "the rows of a nested tensor", COMPILING, Returns(None)),
        _n("nested_view", "torch._nested_view_from_jagged", "makes nested tensors", COMPILING, Returns(None)),
        _n("nested_from_padded", "torch._nested_from_padded_tensor", "the same", COMPILING, Returns(None)),
        _n("nested_dummy", "torch.nested._internal.nested_tensor._nt_view_dummy", "who is asked to make a nested tensor", COMPILING),
        _n("is_fx_tracing", "torch.fx._symbolic_trace.is_fx_tracing", "a function whose answer is constant", COMPILING),
        _n("without_keys", _C + "_ExcludeDispatchKeyGuard", "leads operators past autograd to nested tensors", COMPILING),
        _n("with_keys", _C + "_ForceDispatchKeyGuard", "the same", COMPILING),
        _n("included_keys", _C + "_dispatch_tls_local_include_set", "the same", COMPILING),
        _n("excluded_keys", _C + "_dispatch_tls_local_exclude_set", "the same", COMPILING),
        _n("key_set", _C + "DispatchKeySet", "the same", COMPILING),
        _n("dispatch_key", _C + "DispatchKey", "the same", COMPILING),
        _n("to_functional", "torch._to_functional_tensor", "makes graphs without writes", COMPILING),
        _n("from_functional", "torch._from_functional_tensor", "the same", COMPILING),
        _n("is_functional", "torch._is_functional_tensor", "the same", COMPILING),
        _n("sync_functional", "torch._sync", "the same", COMPILING),
        _n("replace_functional", "torch._functionalize_replace", "the same", COMPILING),
        _n("commit_functional", "torch._functionalize_commit_update", "the same", COMPILING),
        _n("functional_metadata_changed", "torch._functionalize_has_metadata_mutation", "the same", COMPILING),
        _n("enable_functional", "torch._enable_functionalization", "the same", COMPILING),
        _n("disable_functional", "torch._disable_functionalization", "the same", COMPILING),
        _n("neg_view", "torch._neg_view", "a view of negated memory", COMPILING),
        _n("keeps_graph", _C + "_autograd._get_current_graph_task_keep_graph", "whether a backward may run again", TRAINING,
           Returns(True)),
        _n("release_saved", _C + "_FunctionBase.maybe_clear_saved_tensors", "frees what a backward read", TRAINING, Returns(None)),
        _n("version", "torch.Tensor._version", "how often memory was written to", COMPILING),
        # --- memory and GPUs
        _n("storage_uses", _C + "_storage_Use_Count", "whether anything else holds a storage", RECORDINGS),
        _n("storage_over", _C + "_construct_storage_from_data_pointer", "a storage over memory of ours", RECORDINGS),
        _n("end_pool", _C + "_cuda_endAllocateToPool", "ends a recording that failed", RECORDINGS, Returns(None)),
        _n("release_pool", _C + "_cuda_releasePool", "the same", RECORDINGS, Returns(None)),
        _n("cuda_stream", _C + "_cuda_getCurrentRawStream", "the stream that kernels are launched on", GPU),
        _n("cuda_device", _C + "_cuda_getDevice", "the device that is current", GPU, "torch.cuda.current_device"),
        _n("foreach_copy", "torch._foreach_copy_", "copies lists of tensors", RECORDINGS),
        _n("occupy", "torch.cuda._sleep", "a card is busy while what is measured on it is launched", GPU, Returns(None)),
        _n("profiler_listens", _C + "_autograd._profiler_enabled", "whether a recording is to be named", RECORDINGS,
           Returns(False)),
    )
}  # fmt: skip


ATTRIBUTES: dict[str, str] = {
    "_allowed_callable_ids": "functions that a program allowed in torch.compile's graphs",
    "_backend_fns": "kernels of an operator that a program gave it for devices",
    "_backward_cls": "the class of an autograd function's ctx",
    "_backward_fn": "the formula of an operator's gradient",
    "_backward_hooks": "whether a program watches a tensor's gradient",
    "_base": "the tensor that another one is a view of",
    "_call_impl": "what calls a module",
    "_config": "the settings of torch.compile, with their defaults",
    "_current_level": "whether tensors may carry tangents of forward-mode differentiation",
    "_cdata": "where a tensor's or storage's object of C++ is",
    "_destroy": "takes the rules of a library of operators back",
    "_dispatch_impl": "what a fake mode does behind its cache",
    "_disallowed_callable_ids": "functions that a program excluded from torch.compile",
    "_expr": "the expression that a symbolic size was made with",
    "_infer_parameters": "makes the parameters of a lazy module",
    "_init_fn": "the function that an operator was made of",
    "_is_default": "whether a setting of torch.compile is at its default",
    "_is_view": "whether a tensor is a view",
    "_name": "the name of an operator, for a key",
    "_op_dk": "runs an operator by the kernel of one dispatch key",
    "_overloadname": "the name of an overload of an operator",
    "_post_accumulate_grad_hooks": "whether a program watches a parameter's gradient",
    "_qualified_op_name": "an operator's name",
    "_schema": "what an operator takes, returns and writes to",
    "_setup_context_fn": "what an operator keeps for its gradient",
    "_values": "the rows of a nested tensor, as autograd sees them",
    "_version": "how often a tensor was written to",
}
"""Undocumented attributes of torch's objects, and what they tell. They are read from objects, so nothing can serve for them."""

lost: list[Name] = []
"""The names that were looked for and that nothing serves for, in the order in which they were needed."""


def find(name: Name) -> Any:
    """What serves for ``name`` in this torch; a :class:`Missing` where nothing does."""
    for place in (*name.places, *name.instead):
        if callable(place):
            return place
        found = _at(place)
        if found is not None:
            return found
    lost.append(name)
    return Missing(name)


def absent() -> list[Name]:
    """Names that this torch lacks, with which something is lost that it is built for."""
    cuda = importlib.import_module("torch").version.cuda is not None
    found = [n for n in TABLE.values() if n.lost != NOTHING and not any(map(callable, n.instead))]
    found = [n for n in found if all(_at(p) is None for p in (*n.places, *n.instead) if isinstance(p, str))]
    return [n for n in found if cuda or not any("_cuda" in place for place in n.places)]


def _at(place: str) -> Any:
    """The object at a dotted place, or in a module that is written before a colon; None where there is none."""
    module, colon, rest = place.rpartition(":")
    try:
        found: Any = importlib.import_module(module if colon else "torch")
        for part in rest.split(".")[not colon :]:
            if isinstance(found, types.ModuleType) and not hasattr(found, part):
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


class _Private:
    """Undocumented names by key, each found when it is first asked for."""

    def __getattr__(self, key: str) -> Any:
        if key not in TABLE:
            raise AttributeError(f"{key} is not declared in the table of undocumented names")
        found = find(TABLE[key])
        self.__dict__[key] = found
        return found


private: Any = _Private()


PYTREE = private.pytree
