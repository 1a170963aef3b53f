"""What holds around a call: modes, autocast, gradients, hooks, transforms, and contexts that are entered."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch.utils.checkpoint
from torch.autograd import forward_ad

from .names import private
from .operators import DISPATCH_MODES, foreign_rules, processor
from .torch_function import NUMBER_OF_MODES


def set_grad_enabled(enabled: bool) -> None:
    """The function that graphs call to change grad mode (documented spellings are context managers)."""
    private.set_grad(enabled)


def functorch_active() -> bool:
    """Whether a functorch transform (vmap, grad) is running around the call."""
    return private.innermost_transform() is not None


def dispatch_mode_active() -> bool:
    """Whether a TorchDispatchMode surrounds the call."""
    return DISPATCH_MODES() > 0


def foreign_mode_active() -> bool:
    """Whether one of them is no :class:`Bystander`."""
    return DISPATCH_MODES() > 0 and not all(isinstance(m, Bystander) for m in private.dispatch_modes())


def leave_dispatch_modes() -> None:
    """Leaves all dispatch modes of this thread but bystanders."""
    while foreign_mode_active():
        private.pop_dispatch_mode()


def mode_active() -> bool:
    """Whether a TorchDispatchMode or TorchFunctionMode surrounds the call."""
    return dispatch_mode_active() or NUMBER_OF_MODES() > 0


TORCHSCRIPT_RECORDS: Callable[[], bool] = private.is_tracing


def fx_records() -> bool:
    """Whether ``torch.fx`` traces; its own function warns."""
    return private.fx_traces()


AMBIENT: dict[str, Callable[[], Any]] = {
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled,
    "whether autocast is on": private.autocast_on,
    "the number of active dispatch modes": DISPATCH_MODES,
    "the number of active function modes": NUMBER_OF_MODES,
    "whether torch.jit.trace records": TORCHSCRIPT_RECORDS,
    "the innermost function transform": private.innermost_transform,
}
"""State of torch that every graph depends on, and the builtin functions that read it."""
AMBIENT_ON_GPU: dict[str, Callable[[], Any]] = {
    "whether algorithms are deterministic": private.deterministic,
}
"""State that graphs for a GPU depend on, too."""
DETERMINISM: dict[str, Callable[[], Any]] = {
    **AMBIENT_ON_GPU, "whether algorithms that are not are only warned of": private.deterministic_warns,
}  # fmt: skip
"""State that programs which ask for it depend on."""

ATTENTION: dict[str, Callable[[], Any]] = {
    "torch.backends.cuda.flash_sdp_enabled()": private.flash_attention,
    "torch.backends.cuda.mem_efficient_sdp_enabled()": private.efficient_attention,
    "torch.backends.cuda.math_sdp_enabled()": private.math_attention,
    "torch.backends.cuda.cudnn_sdp_enabled()": private.cudnn_attention,
    "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()": private.half_sums_attention,
}
"""The same of graphs that attend."""
ATTENDS = (
    torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.multi_head_attention_forward,
    private.fast_attention, private.fast_encoder,
)  # fmt: skip


def attends_by_steps() -> bool:
    """Whether the program leaves attention no implementation but the one by products and a softmax (``SDPBackend.MATH``)."""
    others = private.flash_attention, private.efficient_attention, private.cudnn_attention
    return not any(enabled() for enabled in others)


def float32_precision(backend: str, operation: str) -> str:
    """What operands of f32 are rounded to: "none" and "ieee" say that they are not. ``torch.get_float32_matmul_precision``
    raises where a program has set this for a backend alone."""
    return private.float32_precision(backend, operation)


def float32_precisions() -> list[str]:
    """The same of all backends."""
    return [float32_precision(b, o) for b in ("cuda", "mkldnn") for o in ("matmul", "conv", "rnn")]


class Float32Precision:
    """What products and convolutions of f32 round operands to on a GPU; calling it tells whether that is as it was when this was made."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found = self.now()

    @staticmethod
    def now() -> tuple[str, str]:
        return float32_precision("cuda", "matmul"), float32_precision("cuda", "conv")

    def __call__(self) -> bool:
        return self.now() == self.found

    def __str__(self) -> str:
        return "fp32_precision of torch.backends.cuda.matmul is {!r}, of torch.backends.cudnn.conv {!r}".format(
            *self.found
        )


AUTOCAST_ON: Callable[[], bool] = private.autocast_on


def autocast_active() -> bool:
    """Whether autocast is on for any device."""
    return AUTOCAST_ON()


def tracing_state() -> tuple[str, ...] | None:
    """State of torch that decides what an operator calls and returns, as text that means the same in every process.

    None where somebody takes part in it whom a name does not tell: dispatch modes, transforms, and Python functions that
    were registered for torch's own operators. What function modes do is in the graph already; its frame guards them.
    """
    if DISPATCH_MODES() or dual_level_active() or foreign_rules():
        return None
    if private.innermost_transform() is not None:
        return None
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    settings = (
        torch.get_default_dtype(), private.default_device(), NUMBER_OF_MODES(), torch.is_inference_mode_enabled(),
        [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        torch.is_autocast_cache_enabled(), torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(), torch.utils.deterministic.fill_uninitialized_memory,
        float32_precisions(), torch.backends.mkldnn.enabled, torch.backends.mkldnn.is_available(),
        cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled(),
        cuda.fp16_bf16_reduction_math_sdp_allowed(), private.attention_order(),
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic, torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cpu.get_cpu_capability(), processor(),
    )  # fmt: skip
    return tuple(map(str, settings))


@contextlib.contextmanager
def autocast_off() -> Iterator[None]:
    """Inside, no operator casts its operands."""
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


class AutocastState:
    """What autocast does, for all devices; calling it tells whether that is as it was when this was made."""

    __slots__ = ("settings",)

    def __init__(self) -> None:
        self.settings = self.now()

    @staticmethod
    def now() -> tuple[Any, ...]:
        devices = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
        return *devices, torch.is_autocast_cache_enabled()

    def __call__(self) -> bool:
        return self.now() == self.settings

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, autocast does the same."""
        with contextlib.ExitStack() as stack:
            for device, (enabled, dtype) in zip(("cpu", "cuda"), self.settings, strict=False):
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype, enabled))
            yield

    def __str__(self) -> str:
        (cpu, cpu_dtype), (cuda, cuda_dtype), _ = self.settings
        return f"autocast is {cpu_dtype if cpu else 'off'} on the CPU, {cuda_dtype if cuda else 'off'} on CUDA devices"


SAVED_TENSORS_HOOKS: Callable[[bool], Any] = private.saved_hooks
"""The hooks that see what autograd saves now, or None; with True also those that are ignored while tracing."""


def saved_tensors_hooked() -> bool:
    """Whether the program's hooks see what autograd saves now."""
    return SAVED_TENSORS_HOOKS(False) is not None


def saving_watched() -> bool:
    """Whether the program sees each operator's saved tensors: hooks of its own, or anomaly detection.

    Torch's own hooks (checkpoints, ``save_on_cpu``) serve any node of autograd alike.
    """
    hooks = SAVED_TENSORS_HOOKS(False)
    if hooks is not None and getattr(hooks[0], "__module__", "") not in _TORCHS_HOOKS:
        return True
    return torch.is_anomaly_enabled()


_TORCHS_HOOKS = ("torch.utils.checkpoint", "torch.autograd.graph")
StopRecomputation: type[BaseException] = private.stop_recomputation
"""What the hooks of a checkpoint raise when everything that is needed has been computed again."""


@contextlib.contextmanager
def saving_unwatched() -> Iterator[None]:
    """Inside, saved tensors are seen by no hook and no traceback is kept: tracing is none of the program's operators."""
    anomaly, check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    before = private.ignore_saved_hooks(True)
    private.set_anomaly(False)
    try:
        yield
    finally:
        private.set_anomaly(anomaly, check_nan)
        private.ignore_saved_hooks(before)


DUAL_LEVEL = (vars(forward_ad), "_current_level")
"""The dictionary and key under which torch keeps the level of forward-mode differentiation: -1 outside of it."""


def dual_level_active() -> bool:
    """Whether tensors may carry tangents of forward-mode differentiation."""
    return DUAL_LEVEL[0][DUAL_LEVEL[1]] >= 0


def make_parameter(data: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """What graphs call where the program makes a parameter."""
    return torch.nn.Parameter(data, requires_grad)


def initialise_lazy(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Makes the parameters of a lazy module, for inputs like these, and makes it the module that it becomes."""
    module._infer_parameters(module, args, kwargs)


def may_draw(node: torch.fx.Node) -> bool:
    """Whether a node may draw random numbers; only its name can tell."""
    return _DRAWS.search(getattr(node.target, "__name__", str(node.target))) is not None


_DRAWS = re.compile(
    "rand|normal|bernoulli|multinomial|poisson|exponential|uniform|dropout|geometric|cauchy|binomial|relu_"
)


def makes_leaf(node: torch.fx.Node) -> bool:
    """Whether a node gives a leaf of autograd's graph, or changes an input into one."""
    asked = getattr(node.target, "__name__", node.target) == "requires_grad_"
    return asked or node.target is make_parameter or node.kwargs.get("requires_grad") is True


_PLACE = "fuselens.torch_private"  # as the texts of graphs name it


class EnterContext:
    """What graphs call where the program enters a context manager of torch; ``maker`` makes a fresh one."""

    def __init__(self, maker: Callable[[], Any]) -> None:
        self.maker = maker
        self.__name__ = self.__qualname__ = "enter_context"
        self.__module__ = _PLACE

    def __call__(self, stand_in: Callable[[], Any] | None = None) -> Entered:
        context = (stand_in or self.maker)()
        context.__enter__()
        return Entered(context, next(_entries))

    @property
    def is_inference(self) -> bool:
        """Whether new tensors become inference tensors inside."""
        context = self.maker()
        return isinstance(context, torch.inference_mode) and context.mode


@dataclasses.dataclass(slots=True)
class Entered:
    """A context manager that was entered, the ``order``-th in the process."""

    context: Any
    order: int


_entries = itertools.count()


def exit_context(entered: Entered) -> None:
    """What graphs call where the program leaves what :class:`EnterContext` entered."""
    entered.context.__exit__(None, None, None)


def exit_all(values: Iterable[Any]) -> None:
    """Leaves those of ``values`` that were entered, the last one first."""
    for entered in sorted((v for v in values if isinstance(v, Entered)), key=lambda e: e.order, reverse=True):
        exit_context(entered)


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Inside, a function transform may fail on fake tensors: it leaves no trace in torch's dispatcher.

    torch describes the operands of a failed operator under a guard of its dispatch keys. Frames that the exception
    keeps alive own that guard, and it would set the keys back to those inside the transform when they are collected.
    """
    include, exclude = private.include_set(), private.exclude_set()
    with private.force_keys(include, exclude):
        try:
            yield
        except BaseException as error:
            seen: set[int] = set()
            found: BaseException | None = error
            while found is not None and id(found) not in seen:
                seen.add(id(found))
                traceback.clear_frames(found.__traceback__)
                found = found.__context__
            raise


class RecordingMode(private.TorchDispatchMode):
    """A dispatch mode whose handler is called as it is (by default torch wraps it, and imports the peer compiler)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True


class Bystander(RecordingMode):
    """One that frames may be compiled under: while they are, and fakes are made, it lets every operator pass."""


def recording() -> bool:
    """Whether operators run under a :class:`RecordingMode`."""
    return any(isinstance(m, RecordingMode) and not isinstance(m, Bystander) for m in private.dispatch_modes())


def fakes_are_made() -> bool:
    """Whether operators run under a mode of fake tensors."""
    return any(isinstance(m, private.FakeTensorMode) for m in private.dispatch_modes())


# --- torch.distributed ------------------------------------------------------------------------------------------------


def collective(name: str) -> Any:
    """The functional operator of torch's of that name: ``all_reduce``, ``wait_tensor``, …"""
    return getattr(private.collectives, name).default


def is_collective(target: Any) -> bool:
    """Whether an operator communicates with other ranks, or waits for that."""
    packet = target.overloadpacket if isinstance(target, private.OpOverload) else target
    return isinstance(packet, private.OpOverloadPacket) and packet._qualified_op_name.startswith("_c10d_functional")


def default_group() -> Callable[[], Any]:
    """torch's function that gives the group of calls that name none."""
    return private.default_group


def rank_in_group(group: Any, rank: int | None, group_rank: int | None) -> int:
    return private.group_rank(group, rank, group_rank, return_global=False)


def coalesces(group: Any) -> bool:
    """Whether calls on a group are being collected, to run as one."""
    return group in private.distributed_world.pg_coalesce_state


def bucket_bytes() -> tuple[int, int] | None:
    """What the first bucket of gradients holds, and the others, inside of a ``DistributedDataParallel``'s forward; None outside."""
    ddp = private.active_ddp() if torch.distributed.is_available() else None
    if ddp is None:
        return None
    first = private.first_bucket if getattr(ddp, "bucket_bytes_cap_default", True) else None
    return first or ddp.bucket_bytes_cap, ddp.bucket_bytes_cap


def group_now() -> Any:
    """The default process group; None where there is none."""
    return (
        torch.distributed.group.WORLD
        if torch.distributed.is_available() and torch.distributed.is_initialized()
        else None
    )


def ranks_of(group: str) -> list[int]:
    """The ranks of a group, by its name."""
    return torch.distributed.get_process_group_ranks(private.resolve_group(group))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of a GPU or of the machine."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return type(error) is RuntimeError and "DefaultCPUAllocator: can't allocate memory" in str(error)


def is_of_communication(error: BaseException) -> bool:
    """Whether a library that communicates has raised it."""
    return isinstance(error, torch.distributed.DistError) or any(
        name in str(error) for name in ("gloo", "NCCL", "c10d")
    )


def store_connection() -> Any:
    """A connection of its own to the store of the default process group: threads may use it. None where it is no TCP store."""
    store = private.default_store()
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    if not isinstance(store, torch.distributed.TCPStore):
        return None
    made = torch.distributed.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
    return torch.distributed.PrefixStore("fuselens", made)


def leave_groups() -> None:
    """Closes this process's connections, so that nobody waits for it."""
    with contextlib.suppress(Exception):
        torch.distributed.destroy_process_group()
