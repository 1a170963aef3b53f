"""The one module that touches names torch does not document. A new torch release means one file to look at."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import importlib
import itertools
import logging
import os
import re
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad
from torch.torch_version import TorchVersion

from fuselens.torch_private import result_layouts
from fuselens.torch_private.fake_results import FakeResults
from fuselens.torch_private.names import Missing, MissingName, private

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
else:
    OpOverload, FakeTensor, FakeTensorMode = private.OpOverload, private.FakeTensor, private.FakeTensorMode
PYTREE = private.pytree

# --- capture

FAKE_DATA_ERRORS = (private.needs_data_error,)
FAKE_SHAPE_ERRORS = (private.needs_shape_error,)
FAKE_OPERATOR_ERRORS = (private.no_rule_error,)


def needs_data(error: Exception) -> bool:
    """Whether ``error`` says that the trace needs the value of a number that only data decides."""
    reasoning = sys.modules.get("torch.fx.experimental.symbolic_shapes")
    return reasoning is not None and isinstance(error, reasoning.GuardOnDataDependentSymNode)


def depends_on_data(env: Any) -> bool:
    """Whether numbers or sizes were traced that only data decides."""
    return env.counter["create_unbacked_symbol"] > 0


def check_values(condition: torch.Tensor, error: str, message: str) -> None:
    """Raises (or warns) where the condition is false. A graph of this operator raises only, and a frame follows."""
    try:
        private.assert_async(condition)
    except RuntimeError:
        kind = getattr(builtins, error)
        if not issubclass(kind, Warning):
            raise kind(message) from None
        warnings.warn(message, kind, stacklevel=2)


def check_number(condition: bool, message: str | None) -> None:
    """``torch._check`` as a node of a graph: raises RuntimeError."""
    private.check(condition, None if message is None else lambda: message)


def fake_mode(shape_env: Any | None = None) -> FakeTensorMode:
    """A fresh fake mode; with ``shape_env`` (see :func:`new_shape_env`) sizes may be symbolic."""
    bypass_peer_wrappers()
    with _without_peer_import():
        return _FakeMode(allow_non_fake_inputs=False, shape_env=shape_env)


def load_symbolic_sizes() -> None:
    """Imports what fake modes and symbolic sizes import when they are first used, and what sympy's first sum does."""
    import sympy

    importlib.import_module("torch.fx.experimental.symbolic_shapes")
    a, b = sympy.symbols("a b")
    a + b  # pyright: ignore[reportUnusedExpression]


def _view_by_kernel(view: Any, x: Any, sizes: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """The view, of sizes or dimensions, with the strides of ATen's kernel.

    torch's rule in Python for ``view`` chooses others for dimensions of size 1; that for ``permute`` asks the fake tensor
    for its device, whereupon torch 2.13 imports its distributed tensors (.3 s), once in a process.
    """
    extents = (*sizes, *x.shape, *x.stride(), x.storage_offset())
    if not all(type(e) is int for e in extents):
        return None
    shaped = view(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), sizes)
    return torch.ops.aten.as_strided.default, (x, tuple(shaped.shape), shaped.stride(), x.storage_offset())


def nonnegative_dims(func: Any, x: Any, *args: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """A norm over dimensions counted from the front: torch 2.11 keeps those of size 1 that are counted from the end."""
    if len(args) < 2 or args[1] is None or all(d >= 0 for d in args[1]):
        return None
    return func, (x, args[0], [d % max(x.dim(), 1) for d in args[1]], *args[2:])


def _refused_for_integers(func: Any, x: Any, *args: Any) -> None:
    """Real kernels refuse to write floats to integers, torch's rules in Python for some of them do not."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        raise RuntimeError(f"result type Float can't be cast to the desired output type {x.dtype}")


def _refused_factor(func: Any, x: Any, other: Any) -> None:
    if not torch.can_cast(torch.result_type(x, other), x.dtype):
        _refused_for_integers(func, x)


def _refused_mask(func: Any, x: Any, mask: Any, source: Any) -> None:
    """The real kernel refuses masks of more dimensions than what it writes to."""
    if mask.dim() > x.dim():
        raise RuntimeError(f"expand: the mask has {mask.dim()} dimensions, the tensor {x.dim()}")


def _refused_shape(func: Any, *args: Any) -> None:
    """torch 2.11's rule gives this operator the shape that its result has where no values repeat."""
    raise private.needs_shape_error(func)


def _as_zeros(func: Any, size: Any) -> tuple[Any, tuple[Any, ...]]:
    """A zero tensor as a tensor of zeros: views of one without memory are made past the fake mode (autograd/zeros.py)."""
    return torch.ops.aten.zeros.default, (size,)


# Where torch's fake kernels differ from the real ones: the operator and arguments to run instead, None for the same.
_CORRECTIONS: dict[Any, Callable[..., tuple[Any, tuple[Any, ...]] | None]] = {
    torch.ops.aten.view.default: _view_by_kernel,
    torch.ops.aten.linalg_vector_norm.default: nonnegative_dims,
    torch.ops.aten.permute.default: _view_by_kernel,
    torch.ops.aten.logit_.default: _refused_for_integers,
    torch.ops.aten.ldexp_.default: _refused_for_integers,
    torch.ops.aten.mul_.Tensor: _refused_factor,
    torch.ops.aten.mul_.Scalar: _refused_factor,
    torch.ops.aten.div_.Tensor: _refused_for_integers,
    torch.ops.aten.div_.Scalar: _refused_for_integers,
    torch.ops.aten.true_divide_.Tensor: _refused_for_integers,
    torch.ops.aten.true_divide_.Scalar: _refused_for_integers,
    torch.ops.aten.masked_scatter_.default: _refused_mask,
    private.zero_tensor: _as_zeros,
    private.unique: _refused_shape,
}


def kernels_strides(
    func: Any, args: Any, kwargs: Any, result: torch.Tensor, position: int = 0
) -> tuple[Any, ...] | None:
    """The strides that eager gives the result at ``position``, whose fake is ``result``; None where the fake has them, or
    nothing else is known without the value of a number that only data decides."""
    empty = None if position else _empty_strides(func, args, kwargs, result)
    if empty is not None:
        return empty
    try:
        return result_layouts.strides(func, args, kwargs, result, position)
    except RuntimeError as error:
        if needs_data(error):
            return None
        raise


def _empty_strides(func: Any, args: Any, kwargs: Any, result: torch.Tensor) -> tuple[int, ...] | None:
    """The strides that an elementwise kernel gives a result without elements: asked from the kernel itself, as its
    rule depends on how many of the operands have which shape. None where they are those of ``result``."""
    if not any(type(n) is int and n == 0 for n in result.shape) or not result_layouts.is_elementwise(func):
        return None
    tensors = [t for t in PYTREE.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if not all(type(n) is int for t in tensors for n in (*t.shape, *t.stride())):
        return None
    with real_tensors(), torch.no_grad():

        def real(t: Any) -> Any:
            return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) if isinstance(t, torch.Tensor) else t

        found = func(*PYTREE.tree_map(real, args), **PYTREE.tree_map(real, kwargs))
    strides = (found[0] if isinstance(found, tuple) else found).stride()
    return None if strides == result.stride() else strides


def _unwrapped(mode: Any) -> Any:
    """A mode's handler without the wrapper that keeps the peer compiler out of it."""
    handler = getattr(mode, "__torch_dispatch__", None)
    return getattr(handler, "__wrapped__", handler)


class _FakeMode(FakeTensorMode):
    """torch's fake mode with its handler called as it is (torch wraps it, and imports the peer compiler to do so)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    __torch_dispatch__ = _unwrapped(FakeTensorMode)

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        correct = _CORRECTIONS.get(func)
        if correct is not None and (corrected := correct(func, *args)) is not None:
            func, args = corrected
        if self.shape_env is not None or not FAKE_RESULTS.suits(func):
            return self._as_by_kernel(func, args, kwargs, super().dispatch(func, types, args, kwargs))
        compute = functools.partial(self._dispatch_impl, func, types, args, kwargs)
        return FAKE_RESULTS.run(self, func, args, kwargs, lambda: self._as_by_kernel(func, args, kwargs, compute()))

    def _as_by_kernel(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        if func is private.cpu_attention and args[0].dtype == torch.float64:
            with self:  # the kernel keeps its sums in the precision that it computes in
                return result[0], result[1].to(torch.float64)
        if isinstance(result, tuple):
            made = [self._laid_out(func, args, kwargs, r, k) for k, r in enumerate(result)]
            same = all(a is b for a, b in zip(made, result, strict=True))
            return result if same else tuple(made)
        return self._laid_out(func, args, kwargs, result)

    def _laid_out(self, func: Any, args: Any, kwargs: Any, result: Any, position: int = 0) -> Any:
        if not isinstance(result, torch.Tensor):
            return result
        with self:
            strides = kernels_strides(func, args, kwargs, result, position)
            if strides is None:
                return result
            return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)

    def _dispatch_impl(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """As torch does. But out of its mode a fake tensor that is asked for more than its layout, its device to begin
        with, makes torch 2.13 import its distributed tensors (.2 s, .6 s with what they import), once in a process."""
        if self.shape_env is None and _runs_alone(func, self):
            result = self._by_meta_kernel(func, args, kwargs)
            if result is not NotImplemented:
                return result
        with self if func in _ASKS_FAKES else contextlib.nullcontext():
            return super()._dispatch_impl(func, types, args, kwargs)

    def _by_meta_kernel(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the kernel for meta tensors returns for those below the fake ones; NotImplemented where any is special,
        or changes its layout. torch gives that kernel the fake tensors themselves."""
        fakes = [t for t in PYTREE.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not fakes or not all(
            type(t) is FakeTensor and t.fake_mode is self and t.constant is None and t.layout is torch.strided
            and not (t.is_quantized or t.is_conj() or t.is_neg()) and t.fake_device == fakes[0].fake_device
            for t in fakes
        ):  # fmt: skip
            return NotImplemented
        metas: dict[int, Any] = {}
        fake_of: dict[int, Any] = {}

        def below(t: Any) -> Any:
            if not isinstance(t, torch.Tensor):
                return t
            if id(t) not in metas:
                with _inference_as_in(t):
                    meta = torch.empty(0, dtype=t.dtype, device="meta")
                    metas[id(t)] = meta.set_(t.untyped_storage(), t.storage_offset(), t.shape, t.stride())  # pyright: ignore[reportCallIssue, reportArgumentType]
                fake_of[id(meta)] = t
            return metas[id(t)]

        def above(t: Any) -> Any:
            return fake_of.get(id(t), t)

        with private.in_kernel_invocation(self):
            given = PYTREE.tree_map(below, (args, kwargs))
            try:
                result = func(*given[0], **given[1])
            except NotImplementedError:
                return NotImplemented
        if any((m.shape, m.stride()) != (fake_of[id(m)].shape, fake_of[id(m)].stride()) for m in metas.values()):
            return NotImplemented
        return private.wrap_meta_outputs(self, PYTREE.tree_map(above, result), func, fakes, fakes[0].fake_device)


# Torch's rules for these call operators on fake tensors out of their mode.
_ASKS_FAKES = frozenset({torch.ops.aten.native_layer_norm.default, torch.ops.aten.select.int})
# And for these they only see to operands on different devices.
_OF_ANY_DEVICES = frozenset({
    torch.ops.aten.copy.default, torch.ops.aten.copy_.default, torch.ops.aten.slice_scatter.default,
    torch.ops.aten.diagonal_scatter.default, private.index_put,
})  # fmt: skip


_RUN_ALONE: dict[Any, bool] = {}


def _runs_alone(func: Any, mode: FakeTensorMode) -> bool:
    """:func:`_is_kernel_alone`, found once for each operator; ``mode`` is any fake mode."""
    if (known := _RUN_ALONE.get(func)) is None:
        if isinstance(private.in_kernel_invocation, Missing) or isinstance(private.wrap_meta_outputs, Missing):
            return False
        try:
            known = _is_kernel_alone(func, mode)
        except MissingName:
            known = False
        _RUN_ALONE[func] = known
    return known


def _is_kernel_alone(func: Any, mode: FakeTensorMode) -> bool:
    """Whether all that fake modes do for ``func`` is to call its kernel for meta tensors, and that does not tell fake
    tensors from others."""
    if func.namespace != "aten" or torch.Tag.inplace_view in func.tags or not private.has_meta(func):
        return False
    if func in _OF_ANY_DEVICES:
        return True
    if any(a.is_out for a in func._schema.arguments) or any(check(func) for check, _ in private.fake_rules):
        return False
    if func in private.meta_table:
        return private.meta_table[func].__module__ != "torch._meta_registrations"
    if torch.Tag.view_copy in func.tags or private.supports_symint(mode, func):
        return True
    composite = private.dispatch_has_kernel(func.name(), "CompositeImplicitAutograd")
    return not composite and not (func in private.decomposition_table and private.fake_decompositions(func))


FAKE_RESULTS = FakeResults(
    FakeTensor,
    lambda: (torch.get_default_dtype(), private.default_device(), torch.is_inference_mode_enabled()),
    lambda a, b: private.dispatch_key_set(a) == private.dispatch_key_set(b),
)
"""What operators returned under fake modes without symbolic sizes."""


# What fake modes read of the peer compiler's settings, at their defaults.
_PEER_SETTINGS = {
    "fake_tensor_cache_enabled": True, "fake_tensor_cache_crosscheck_enabled": False, "_custom_ops_profile": None,
}  # fmt: skip


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keeps fake tensors from logging the errors of operators, which the program is about to raise, or to handle, itself."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


class _LazyModule(types.ModuleType):
    """Stands for a module of the peer compiler until somebody wants more of it than the settings above.

    Fake modes read those on every operator, and the first read imports the whole peer (1.1 s of processor time). torch
    loads that package on first attribute access anyway; this only makes the three settings not count as one.
    """

    def __getattr__(self, name: str) -> Any:
        found = sys.modules.get(self.__name__)
        if found in (None, self):
            if self.__name__ == "torch._dynamo" and name == "config":
                return _PEER_CONFIG
            if self.__name__ == "torch._dynamo.config" and name in _PEER_SETTINGS:
                return _PEER_SETTINGS[name]
        if found is self and name.startswith("__"):  # somebody asks each module where it came from
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
        return getattr(self._real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real(), name, value)

    def _real(self) -> types.ModuleType:
        if sys.modules.get(self.__name__) is self:
            sys.modules.pop(self.__name__, None)
        return importlib.import_module(self.__name__)


_PEER_CONFIG = _LazyModule("torch._dynamo.config")


@contextlib.contextmanager
def _without_peer_import() -> Iterator[None]:
    """Makes fake modes find the peer's settings without importing it; does nothing once it is imported."""
    if "torch._dynamo" in sys.modules:
        yield
        return
    torch.__dict__.setdefault("_dynamo", _LazyModule("torch._dynamo"))
    with _import_lock:  # the constructor has an import statement, which looks here first
        sys.modules["torch._dynamo.config"] = _PEER_CONFIG
        try:
            yield
        finally:
            if sys.modules.get("torch._dynamo.config") is _PEER_CONFIG:
                sys.modules.pop("torch._dynamo.config", None)


_import_lock = threading.Lock()


def methods_kept_from_peer(cls: type) -> Iterator[tuple[Any, str, Any]]:
    """Methods of ``cls`` that torch wraps to keep them out of the peer's graphs, whose first call imports the peer (2 s): each with
    the attribute, and its value, that has the wrapper call the method as it is."""
    for method in vars(cls).values():
        inner = getattr(method, "__wrapped__", None)
        code = getattr(method, "__code__", None)
        if inner is not None and code is not None and code.co_filename.endswith("_compile.py"):
            yield inner, "__dynamo_disable", inner


def fake_static(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``'s metadata as a fake tensor with integer sizes.

    Made directly: torch's converter logs a symbolised stack on its first use, which imports the peer compiler.
    """
    if (
        tensor.is_conj()
        or tensor.is_neg()
        or (tensor.requires_grad and not tensor.is_leaf and not result_layouts.is_dense(tensor))
    ):
        return mode.from_tensor(tensor, static_shapes=True, source=_source_class()("input"))
    return fake_of_layout(mode, tensor, tensor.shape, tensor.stride())


def fake_of_layout(mode: FakeTensorMode, tensor: torch.Tensor, sizes: Any, strides: Any) -> torch.Tensor:
    """A fake of ``mode`` like ``tensor``, with such sizes and strides, which may be symbolic."""
    with mode, _inference_as_in(tensor):
        fake = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
        if tensor.requires_grad and not tensor.is_leaf and _has_gaps(sizes, strides, fake):
            with torch.enable_grad():  # a write to nothing gives it a history; a clone would have other strides
                fake.narrow(0, 0, 0).add_(torch.zeros((), dtype=fake.dtype, device=fake.device, requires_grad=True))
        elif tensor.requires_grad:
            fake.requires_grad_()
            if not tensor.is_leaf:
                with torch.enable_grad():
                    fake = fake.clone(memory_format=torch.preserve_format)
    return fake


def _has_gaps(sizes: Any, strides: Any, fake: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*sizes, *strides)) and not result_layouts.is_dense(fake)


def _inference_as_in(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Inside, new tensors are inference tensors if ``tensor`` is one, whatever mode the program is in."""
    if torch.is_inference_mode_enabled() is tensor.is_inference():
        return contextlib.nullcontext()
    return torch.inference_mode(tensor.is_inference())


def as_inference_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """An inference tensor in the memory of ``tensor``."""
    with torch.inference_mode():
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


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
    with _import_lock:
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
def _source_class() -> type:
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


def fake_symbolic(mode: FakeTensorMode, tensor: torch.Tensor, dims: Mapping[int, bool], name: str) -> torch.Tensor:
    """``tensor`` as a fake of ``mode`` whose ``dims`` are symbols; sizes 0 and 1 stay.

    ``dims`` tells of each whether equal sizes are one symbol. Strides are expressions of sizes where they agree, else
    symbols of their own. Made directly, as in :func:`fake_static`: torch's converter imports the peer compiler.
    """
    return fake_of_layout(mode, tensor, *_symbolic_extents(mode.shape_env, tensor, dims, name))


def _symbolic_extents(env: Any, tensor: torch.Tensor, dims: Mapping[int, bool], name: str) -> tuple[Any, Any]:
    import sympy

    def symbol(value: int, what: str, shared: bool) -> Any:
        return env.create_symbol(
            value, _source_class()(what), private.DimDynamic.DUCK if shared else private.DimDynamic.DYNAMIC
        )

    def number(expression: Any, value: int, what: str) -> Any:
        return env.create_symintnode(sympy.sympify(expression), hint=value, source=_source_class()(what))

    have, steps = tuple(tensor.shape), tensor.stride()
    sizes: list[Any] = [
        symbol(size, f"{name}.shape[{d}]", dims[d]) if d in dims else size for d, size in enumerate(have)
    ]
    strides: list[Any] = list(steps)
    spans = {}  # what a dimension spans → its expression: the next outer dimension's stride
    for d in sorted(range(len(have)), key=lambda d: (steps[d], -d)):
        contiguous = d + 1 < len(have) and steps[d] == have[d + 1] * steps[d + 1]
        if steps[d] in spans and (contiguous or steps[d] > 1):
            strides[d] = spans[steps[d]]
        elif steps[d] > 1:
            strides[d] = symbol(steps[d], f"{name}.stride({d})", False)
        spans[have[d] * steps[d]] = sizes[d] * strides[d]
    return (
        [number(e, v, f"{name}.shape[{d}]") for d, (e, v) in enumerate(zip(sizes, have, strict=True))],
        [number(e, v, f"{name}.stride({d})") for d, (e, v) in enumerate(zip(strides, steps, strict=True))],
    )


@dataclasses.dataclass(frozen=True, slots=True)
class SizeMarks:
    """What the program said about a tensor's dimensions with ``mark_dynamic`` and its kin; ``ranges`` of the former."""

    dynamic: frozenset[int] = frozenset()
    weakly_dynamic: frozenset[int] = frozenset()
    static: frozenset[int] = frozenset()
    unbacked: frozenset[int] = frozenset()
    ranges: tuple[tuple[int, int | None, int | None], ...] = ()


_MARKED = "_has_dynamo_dim_marking"  # what torch sets on every tensor that it marks, from 2.13 on
_MARKS = {
    "dynamic": "_dynamo_dynamic_indices", "weakly_dynamic": "_dynamo_weak_dynamic_indices",
    "static": "_dynamo_static_indices", "unbacked": "_dynamo_unbacked_indices",
}  # fmt: skip
_RANGES = "_dynamo_dynamic_range"
MARKS: tuple[str, ...] = (_MARKED,) if TorchVersion(torch.__version__) >= (2, 13) else (_MARKED, *_MARKS.values())
"""A tensor that has none of these attributes is not marked."""


class DimRange(NamedTuple):
    """A range as torch's ``mark_dynamic`` attaches it."""

    dim: int
    min: int | None
    max: int | None


def size_marks(tensor: torch.Tensor) -> SizeMarks | None:
    """The marks on ``tensor``, torch's or our own; None when there are none."""
    said = tensor.__dict__
    if not any(mark in said for mark in MARKS):
        return None
    found = {kind: frozenset(said.get(attribute, ())) for kind, attribute in _MARKS.items()}
    ranges = tuple((r.dim, r.min, r.max) for r in said.get(_RANGES, ()) if r.min is not None or r.max is not None)
    return SizeMarks(**found, ranges=tuple(sorted(ranges, key=str)))


def mark_size(tensor: torch.Tensor, dim: int, kind: str, low: int | None = None, high: int | None = None) -> None:
    """Marks a dimension the way torch does; ``kind`` is a field of :class:`SizeMarks`."""
    said = tensor.__dict__
    for attribute in _MARKS.values():
        said.get(attribute, set()).discard(dim)
    said[_RANGES] = {r for r in said.get(_RANGES, ()) if r.dim != dim}
    said.setdefault(_MARKS[kind], set()).add(dim)
    if kind == "dynamic":
        said[_RANGES].add(DimRange(dim, low, high))
    said[_MARKED] = True


def symbolic_integer(env: Any, value: int, name: str, lower: int, upper: int) -> torch.SymInt:
    """A symbol for an integer that is ``value`` now, and always between ``lower`` and ``upper``."""
    source = _source_class()(name)
    symbol = env.create_unspecified_symbol(value, source, private.DimDynamic.DYNAMIC)
    env.constrain_symbol_range(symbol, lower, upper)
    return env.create_symintnode(symbol, hint=value, source=source)


def symbolic_float(env: Any, value: float, name: str) -> torch.SymFloat:
    """A symbol for a float that is ``value`` now."""
    source = _source_class()(name)
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

    return size.node._expr if isinstance(size, (torch.SymInt, torch.SymFloat)) else sympy.Integer(size)


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
    table = getattr(env, "backed_var_to_val", None) or env.var_to_val
    value = table.get(symbol)
    return None if value is None else int(value)


def bounds(env: Any, symbol: Any) -> tuple[int | None, int | None]:
    """The least and greatest value that ``symbol`` may have; None for no bound."""
    found = env.var_to_range.get(symbol)
    if found is None:
        return None, None
    lower = int(found.lower) if found.lower.is_Integer else None
    upper = int(found.upper) if found.upper.is_Integer and int(found.upper) < 2**62 else None
    return lower, upper


def rename_symbols(text: str, names: dict[str, str]) -> str:
    """``text`` with symbol names (s77) replaced."""
    return re.sub(r"\b[su]\d+\b", lambda m: names.get(m[0], m[0]), text) if names else text


ORIGINAL, ORIGINAL_MODULE = "_torchdynamo_orig_callable", "_orig_mod"
"""The attributes of what ``torch.compile`` returns that have what it was given, of a function and of a module."""


def unwrap_torch_compile(obj: Any) -> Any | None:
    """The function or module that ``torch.compile`` wrapped into ``obj``; None when it wrapped nothing."""
    if type(obj).__name__ == "OptimizedModule":
        return getattr(obj, ORIGINAL_MODULE, None)
    return getattr(obj, ORIGINAL, None)


def uncompiled_call(module: torch.nn.Module) -> Callable[..., Any]:
    """What a call of ``module`` does when the peer does not compile it: ``module.compile()`` changes that in place."""
    return module if module.__dict__.get("_compiled_call_impl") is None else module._call_impl


PEER_STANCE_MODULE, PEER_STANCE = "torch._dynamo.eval_frame", "_stance"
# sets the peer's evaluator of this thread (None: off) and returns what it was; C itself, or the peer would trace it
SWITCH_PEER: Callable[[Any], Any] = private.peer_evaluator
_PEER_DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "_dynamo", "")
_PEER_MARKS = {
    "graph_break": "break", "skip_frame": "break", "step_unsupported": "break", "set_stance": "forbidden",
}  # fmt: skip


def is_peer_code(code: types.CodeType) -> bool:
    """Whether ``code`` belongs to the peer compiler: what it calls is the peer's business."""
    return code.co_filename.startswith(_PEER_DIRECTORY)


def is_size_mark(function: types.FunctionType) -> bool:
    """Whether a call of ``function`` tells the peer, while it traces, that a size does not vary."""
    return function.__module__ == "torch._dynamo.decorators" and function.__name__ == "mark_static"


def peer_mark(obj: Any) -> str | None:
    """What the program said about ``obj`` with torch's spellings: one of the marks of ``capture.marks``, or None."""
    if type(obj) is types.FunctionType:
        if (obj.__module__, obj.__name__) == ("torch._dynamo.mutation_guard", "tag"):
            return "ignored"  # once the peer has run, every module that is made is entered into its books
        said = obj.__dict__
        if said.get("_dynamo_marked_constant"):
            return "constant"
        if said.get("_torchdynamo_disable") and (obj.__module__ or "").startswith("torch.optim."):
            return (
                "compiled"  # by the peer's hand, once it has run: it leaves optimisers out, the program did not say so
            )
        if said.get("_torchdynamo_disable") and said.get("_torchdynamo_wrapper_id", id(obj)) == id(obj):
            return "excluded"
        if said.get(ORIGINAL) is not None and is_peer_code(obj.__code__):
            return "compiled"
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None:
        return None
    if issubclass(type(obj), (types.FunctionType, type)) and obj.__module__ == "torch._dynamo.decorators":
        return _PEER_MARKS.get(obj.__name__)
    if id(obj) in getattr(rules, "_allowed_callable_ids", ()):  # a thread may be importing it right now
        return "node"
    return "excluded" if id(obj) in getattr(rules, "_disallowed_callable_ids", ()) else None


def set_grad_enabled(enabled: bool) -> None:
    """The function that graphs call to change grad mode (documented spellings are context managers)."""
    private.set_grad(enabled)


OPTIMIZER_VALUE: Callable[[Any], Any] = private.optimizer_value
SCALED = {
    name: getattr(torch, name)
    for name in ("add", "sub", "addcdiv", "addcmul", "_foreach_addcdiv_", "_foreach_addcmul_")
}
"""Functions that multiply by a number, which optimisers may have in a tensor."""
DISPATCH_MODES: Callable[[], int] = private.number_of_dispatch_modes
GROUP_TENSORS = private.group_tensors
CONSTANT_FUNCTIONS: tuple[Any, ...] = (private.privateuse_name, private.tracing_state)
HIGHER_ORDER: dict[str, Any] = {
    "while_loop": private.while_loop, "scan": private.scan, "map": private.map, "associative_scan": private.associative_scan,
}  # fmt: skip
ANNOTATE = private.annotate
FLEX_ATTENTION: Any = private.flex_attention
CHECK, ASSERT = private.check, private.assert_true
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
    private.fft_functions,
)
LOG_API_USAGE = private.log_usage
TRACING_STATE: Callable[[], Any] = private.tracing_state
VARIABLE_FUNCTIONS = private.variable_functions


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


# --- __torch_function__

ENABLED, SUBCLASSES_DISABLED, ALL_DISABLED = range(3)
"""Who handles torch functions: modes and classes, modes only, nobody."""
DISABLED_TORCH_FUNCTION = private.disabled_function
DEFAULT_TORCH_FUNCTION: Any = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
MAKE_SUBCLASS = private.make_subclass
DisableTorchFunction, DisableTorchFunctionSubclass = (
    private.DisableTorchFunction,
    private.DisableTorchFunctionSubclass,
)
PUSH_MODE, POP_MODE = private.push_function_mode, private.pop_function_mode
NUMBER_OF_MODES: Callable[[], int] = private.number_of_function_modes
DEVICE_MODE: Any = private.device_function
default_nowrap_functions = torch.overrides.get_default_nowrap_functions
device_constructors = private.device_constructors


def function_state() -> int:
    """Whose ``__torch_function__`` is asked now: :data:`ENABLED`, :data:`SUBCLASSES_DISABLED` or :data:`ALL_DISABLED`."""
    if private.function_enabled():
        return ENABLED
    return ALL_DISABLED if private.function_all_disabled() else SUBCLASSES_DISABLED


def function_state_flags(state: int) -> list[tuple[Callable[[], bool], bool]]:
    """The builtin functions that tell a :func:`function_state` from others, and what they give then."""
    every, none = private.function_enabled, private.function_all_disabled
    return [(every, state == ENABLED), (none, state == ALL_DISABLED)]


@functools.cache
def mode_at(depth: int) -> Callable[[Any], Any]:
    """A function that gives the mode at ``depth`` of the stack, whatever it is given."""

    def mode(_: Any) -> Any:
        return private.function_mode_at(depth)

    return mode


def without_torch_function() -> contextlib.AbstractContextManager[Any]:
    """Inside, no code of the program runs when torch functions are called: neither modes nor classes are asked."""
    return DisableTorchFunction() if NUMBER_OF_MODES() else DisableTorchFunctionSubclass()


def plainly(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``run``, in :func:`without_torch_function`."""

    def call(inputs: Any) -> Any:
        with without_torch_function():
            return run(inputs)

    return call


def change_modes(left: int, entered: tuple[Any, ...]) -> None:
    """Leaves some of the function modes that surround the call, and enters others."""
    for _ in range(left):
        POP_MODE()
    for mode in entered:
        PUSH_MODE(mode)


def takes_class(cls: type) -> bool:
    """Whether a plain tensor becomes an instance of ``cls`` by ``tensor.__class__ = cls``, which then behaves as one."""
    if cls.__torch_dispatch__ is not private.disabled_dispatch:  # type: ignore[attr-defined]
        return False
    if issubclass(cls, torch.nn.parameter.UninitializedTensorMixin):
        return False
    try:
        torch.empty(0, device="meta").__class__ = cls
    except TypeError:
        return False
    return True


def set_class(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """Makes ``tensor``, which nobody else has, an instance of ``cls`` (see :func:`takes_class`)."""
    tensor.__class__ = cls
    return tensor


def example(cls: type) -> torch.Tensor:
    """An empty tensor of the class ``cls``."""
    return set_class(torch.empty(0), cls)


class _Overheard(BaseException):
    """What a mode was asked about."""


class _Listening(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Overheard(func, types, args, kwargs)


def overheard(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], state: int) -> Any:
    """(function, types, args, kwargs) of the call's ``__torch_function__``; None when nobody would be asked."""
    disable = contextlib.nullcontext() if state == ENABLED else DisableTorchFunctionSubclass()
    with private.EnableTorchFunction(), disable, _Listening():
        try:
            function(*args, **kwargs)
        except _Overheard as found:
            return found.args
    return None


def shared_tensor(array: Any) -> torch.Tensor | None:
    """A tensor that shares the memory of a numpy array; None when there is none, or it may not be written to."""
    if not array.flags.writeable:
        return None
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return None


@functools.cache
def array_of(dtype: torch.dtype) -> Any:
    """An empty numpy array of a dtype."""
    return torch.empty(0, dtype=dtype).numpy()


def asks_class(given: Any) -> bool:
    """Whether torch functions that are given this object ask its class."""
    cls = type(given)
    if cls in (torch.Tensor, torch.nn.Parameter) or not issubclass(cls, torch.Tensor):
        return False
    return cls.__torch_function__ is not DISABLED_TORCH_FUNCTION


def grad_of(tensor: torch.Tensor) -> Any:
    """``tensor.grad``, without asking its class."""
    with DisableTorchFunctionSubclass():
        return tensor.grad


def is_leaf(tensor: torch.Tensor) -> bool:
    """``tensor.is_leaf``, without asking its class."""
    with DisableTorchFunctionSubclass():
        return tensor.is_leaf


def is_unwatched_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf on which no hooks are registered."""
    with DisableTorchFunctionSubclass():
        return tensor.is_leaf and not tensor._backward_hooks and not tensor._post_accumulate_grad_hooks


def is_no_leaf(tensor: torch.Tensor) -> bool:
    return not is_leaf(tensor)


# --- surroundings


def functorch_active() -> bool:
    """Whether a functorch transform (vmap, grad) is running around the call."""
    return private.innermost_transform() is not None


def dispatch_mode_active() -> bool:
    """Whether a TorchDispatchMode surrounds the call."""
    return DISPATCH_MODES() > 0


def leave_dispatch_modes() -> None:
    """Leaves all dispatch modes of this thread."""
    while dispatch_mode_active():
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

    None where somebody takes part in it whom a name does not tell: modes, transforms, and Python functions that were
    registered for torch's own operators.
    """
    if DISPATCH_MODES() or NUMBER_OF_MODES() or dual_level_active() or foreign_rules():
        return None
    if private.innermost_transform() is not None:
        return None
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    settings = (
        torch.get_default_dtype(), private.default_device(), torch.is_inference_mode_enabled(),
        [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        torch.is_autocast_cache_enabled(), torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(), torch.utils.deterministic.fill_uninitialized_memory,
        float32_precisions(), torch.backends.mkldnn.enabled, torch.backends.mkldnn.is_available(),
        cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled(),
        cuda.fp16_bf16_reduction_math_sdp_allowed(), private.attention_order(),
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic, torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cpu.get_cpu_capability(),
    )  # fmt: skip
    return tuple(map(str, settings))


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


class EnterContext:
    """What graphs call where the program enters a context manager of torch; ``maker`` makes a fresh one."""

    def __init__(self, maker: Callable[[], Any]) -> None:
        self.maker = maker
        self.__name__ = self.__qualname__ = "enter_context"

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


def real_of(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor with the metadata of ``tensor``, which may be fake (its data is then unspecified)."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    with private.unset_fake():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return made.requires_grad_(tensor.requires_grad)


def propagate(gm: torch.fx.GraphModule, mode: FakeTensorMode, fakes: list[Any]) -> None:
    """Sets ``meta["val"]`` of every node of ``gm`` by running it on ``fakes``."""

    class Propagate(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            n.meta["val"] = result = super().run_node(n)
            return result

    with mode:
        Propagate(gm).run(*fakes)


def graph_module(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A module that writes its Python code when it is first called: most graphs never are, and writing takes as long as
    splitting them."""
    return private.LazyGraphModule(root, graph)


# --- autograd


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Torch's core ATen decompositions, overload → function. Imports nothing of the peer compiler."""
    return private.core_decompositions()


def decompositions_for(names: list[str]) -> dict[Any, Callable[..., Any]]:
    """Every registered decomposition of the ATen packets ``names``; unknown names are skipped (older torch)."""
    packets = [getattr(torch.ops.aten, n) for n in names if hasattr(torch.ops.aten, n)]
    return private.get_decompositions(packets)


def backward_class(function: type) -> type:
    """The class of ``ctx`` in an autograd function."""
    return function._backward_cls  # type: ignore[attr-defined]


def writes_operands(target: Any) -> bool:
    """Whether the schema of an operator (or of one of its overloads) says that it writes to an operand."""
    if isinstance(target, private.OpOverloadPacket):
        return any(writes_operands(getattr(target, name)) for name in target.overloads())
    return isinstance(target, OpOverload) and target._schema.is_mutable


def writes_lists(target: Any) -> bool:
    """Whether a function is an operator on lists of tensors that writes to the first of them."""
    name = getattr(target, "__name__", "")
    return name.startswith("_foreach_") and name.endswith("_")


def written_operands(node: torch.fx.Node) -> list[Any] | None:
    """The arguments that a node of an operator writes to; None when it calls something else."""
    if not isinstance(node.target, OpOverload):
        return None
    arguments = list(enumerate(node.target._schema.arguments))
    written = [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]
    return [node.args[i] if i < len(node.args) else node.kwargs.get(name) for i, name in written]


def is_composite(op: OpOverload) -> bool:
    """Whether ``op`` is implemented in terms of other operators, autograd included."""
    if op.namespace == "prim":
        return False
    return private.dispatch_has_kernel(op.name(), "CompositeImplicitAutograd")


def is_symbolic_number(value: object) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def to_functional(tensor: torch.Tensor) -> torch.Tensor:
    """A wrapper of ``tensor`` whose in-place writes become functional operators below autograd."""
    return private.to_functional(tensor)


def from_functional(tensor: torch.Tensor) -> torch.Tensor:
    """The current value of a functional wrapper, pending writes applied; other tensors as they are."""
    if not private.is_functional(tensor):
        return tensor
    with private.below_autograd():  # autograd knows no views among values
        private.sync_functional(tensor)
    return private.from_functional(tensor)


def replace_value(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Gives a functional wrapper that is no view another value of its shape."""
    private.replace_functional(tensor, value)
    private.commit_functional(tensor)
    private.sync_functional(tensor)


def is_functional(tensor: torch.Tensor) -> bool:
    return private.is_functional(tensor)


@contextlib.contextmanager
def functionalization() -> Iterator[None]:
    """Inside, factory functions return functional wrappers and views are replayed, not copied."""
    private.enable_functional(reapply_views=True)
    try:
        yield
    finally:
        private.disable_functional()


@contextlib.contextmanager
def without_functionalization() -> Iterator[None]:
    """Inside :func:`functionalization`: back to plain tensors."""
    private.disable_functional()
    try:
        yield
    finally:
        private.enable_functional(reapply_views=True)


def python_rules() -> contextlib.AbstractContextManager[Any]:
    """Torch's Python rules for operators whose C++ form refuses symbolic sizes or hides what it writes. Slower."""
    return private.python_dispatcher()


SCRIPTED = "_torchdynamo_inline"  # the attribute of a TorchScript function that has the Python function it was made of


def needs_python_rules(error: RuntimeError) -> bool:
    """Whether an operator's C++ form failed because it takes no symbolic sizes."""
    text = str(error)
    return "SymIntArrayRef expected to contain only concrete integers" in text or "with symbolic sizes/strides" in text


def script_origin(function: torch.jit.ScriptFunction[Any, Any]) -> str | None:
    """The attribute of a scripted function that holds the Python function it was made of; None when it has none."""
    return "_torchdynamo_inline" if hasattr(function, "_torchdynamo_inline") else None


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors that share storage. Valid while either is alive."""
    return tensor.untyped_storage()._cdata


def tensor_base(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that ``tensor`` is a differentiable view of."""
    return tensor._base


def is_one_of_several_views(tensor: torch.Tensor) -> bool:
    """Whether an operator that returns several views made ``tensor``: eager refuses to write to it in place."""
    meta = private.several_views
    return tensor._is_view() and private.get_creation_meta(tensor) == meta


def is_plain_view(tensor: torch.Tensor) -> bool:
    """Whether a view may be written to under autograd, and nobody watches its gradients."""
    default = private.plain_view
    watched = tensor._backward_hooks or tensor.retains_grad
    return tensor._is_view() and private.get_creation_meta(tensor) == default and not watched


def mark_one_of_several_views(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, a view, as if an operator that returns several had made it."""
    private.set_creation_meta(tensor, private.several_views)
    return tensor


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """The view of ``tensor`` that is lazily negated; ``tensor``'s own memory again where it is that already."""
    return private.neg_view(tensor)


def gradient_node(tensor: torch.Tensor) -> Any:
    """The autograd node through which the tensor's gradient goes: of a leaf the one that accumulates it."""
    return torch.autograd.graph.get_gradient_edge(tensor).node


@functools.cache
def _saves_tensors(kind: type) -> bool:
    return any(name.startswith("_raw_saved_") for name in dir(kind))


def saves_tensors(node: Any) -> bool:
    """Whether an autograd node reads tensors that it saved."""
    return _saves_tensors(type(node)) or bool(getattr(node, "saved_tensors", ()))


def node_of(methods: Any) -> Callable[..., Any]:
    """``apply`` of a torch.autograd.Function with the ``forward`` and ``backward`` of ``methods``: its C part alone,
    as no function transform is active around a graph and no input is a transform's wrapper."""
    members = {"forward": staticmethod(methods.forward), "backward": staticmethod(methods.backward)}
    made = type("CompiledGraph", (torch.autograd.Function,), members)
    return super(torch.autograd.Function, made).apply


version_of: Callable[[torch.Tensor], int] = getattr(private.version, "__get__", private.version)
"""How many times the tensor's memory was written to, as autograd counts."""


def is_foreign(tensor: torch.Tensor) -> bool:
    """Whether the tensor has no memory of its own to read: sparse, a subclass' wrapper, a transform's, zeros."""
    return dispatch_key_bits(tensor) & ~_keys_of_memory(tensor.device.type) != 0


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements are in memory as they are: it is no ``meta`` tensor, not foreign, lazily conjugated
    or negated."""
    return not (tensor.is_meta or is_foreign(tensor) or tensor.is_conj() or tensor.is_neg())


def is_emptied(tensor: torch.Tensor) -> bool:
    """Whether the storage was resized to nothing, as FSDP does to parameters that are not needed now."""
    return tensor.layout is torch.strided and tensor.numel() > 0 and not tensor.untyped_storage().nbytes()


@functools.cache
def _keys_of_memory(device: str) -> int:
    """The dispatch keys of ordinary tensors, lazily conjugated and negated ones included."""
    with torch.inference_mode(False), private.without_modes():  # whatever surrounds the first call
        conjugate = torch.empty(0, dtype=torch.complex64, device=device).conj()
        return dispatch_key_bits(conjugate) | dispatch_key_bits(conjugate.imag)


RELEASE_SAVED: Callable[[Any], None] = private.release_saved
"""Drops what an autograd node saved, unless its backward was asked to keep the graph."""


def keeps_graph() -> bool:
    """Inside a backward: whether the caller asked to keep the graph (retain_graph or create_graph)."""
    return private.keeps_graph()


def fake_mode_of(tensor: torch.Tensor) -> FakeTensorMode | None:
    return tensor.fake_mode if isinstance(tensor, FakeTensor) else None


# --- lowering --------------------------------------------------------------------------------------------------


def integer_functions() -> dict[str, Any]:
    """The sympy functions of torch's size expressions, by class name (FloorDiv, Mod, PythonMod, Max, Min, …).

    They may appear in sizes, strides and indexes of the loop IR, so its text form prints and parses them by name.
    """
    names = ("FloorDiv", "CeilDiv", "CleanDiv", "Mod", "PythonMod", "ModularIndexing", "Max", "Min", "PowByNatural",
             "IntTrueDiv", "FloatTrueDiv", "ToFloat", "TruncToInt", "FloorToInt", "CeilToInt", "Identity")  # fmt: skip
    functions = private.integer_functions
    return {n: getattr(functions, n) for n in names if hasattr(functions, n)}


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


def run_on_meta(function: Callable[..., tuple[Any, ...]], args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The fake results of ``function`` on fake tensors, found without their mode; None unless all are on one device."""
    leaves, structure = PYTREE.tree_flatten(args)
    fakes = [t for t in leaves if isinstance(t, torch.Tensor)]
    if not fakes or not all(isinstance(t, FakeTensor) and t.device == fakes[0].device for t in fakes):
        return None

    def meta(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
        return made.requires_grad_(t.requires_grad)

    with private.unset_fake():
        results = function(*PYTREE.tree_unflatten([meta(t) for t in leaves], structure))
    mode, device = fakes[0].fake_mode, fakes[0].device
    with mode:
        return tuple(
            torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device=device, requires_grad=r.requires_grad)
            for r in results
        )


def real_tensors() -> contextlib.AbstractContextManager[Any]:
    """Inside, operators compute on real data although a fake mode is active."""
    return private.unset_fake()


class RecordingMode(private.TorchDispatchMode):
    """A dispatch mode whose handler is called as it is (by default torch wraps it, and imports the peer compiler)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True


def recording() -> bool:
    """Whether operators run under a :class:`RecordingMode`."""
    return any(isinstance(m, RecordingMode) for m in private.dispatch_modes())


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


def symint_may_be_negative(value: Any) -> bool:
    """Whether what is known of a SymInt leaves room for negative values."""
    return not value.node.shape_env.bound_sympy(value.node.expr).lower >= 0


def has_metadata_mutation(tensor: torch.Tensor) -> bool:
    """Whether a functional wrapper's sizes or strides were changed in place (``t_()``, ``resize_()``)."""
    return private.functional_metadata_changed(tensor)


@functools.cache
def bypass_peer_wrappers() -> None:
    """Call fake kernels and decompositions directly while the peer compiler is not loaded.

    Torch wraps some of them in a decorator that imports the peer (1.3 s) at the first call, to keep itself out of its
    graphs. Until something else loads the peer, its wrapped functions are called as they are; from then on torch's own
    wrapper works as if nothing had happened. Takes 10 ms; does nothing where torch has no such decorator.
    """
    for name in ("torch._decomp", "torch._prims", "torch._refs"):
        importlib.import_module(name)
    codes = getattr(getattr(private.peer_disable, "__code__", None), "co_consts", ())
    wrapper = next((c for c in codes if isinstance(c, types.CodeType) and c.co_name == "inner"), None)
    if wrapper is None or _peer_loaded():
        return
    places = ("torch._refs", "torch._decomp", "torch._prims", "torch._meta_registrations", "torch._subclasses")
    stack: list[Any] = [getattr(FakeTensorMode, "__torch_dispatch__", None)]
    for name, module in list(sys.modules.items()):
        if name.startswith(places):
            stack += [v for v in vars(module).values() if isinstance(v, types.FunctionType)]
    for rules in private.all_decompositions.values():
        stack += rules.values()
    seen: set[int] = set()
    while stack:
        f = stack.pop()
        if not isinstance(f, types.FunctionType) or id(f) in seen:
            continue
        seen.add(id(f))
        cells = [c.cell_contents for c in f.__closure__ or () if _is_filled(c)]
        if f.__code__ is wrapper:
            for raw in cells:
                if isinstance(raw, types.FunctionType) and not hasattr(raw, "__dynamo_disable"):
                    raw.__dynamo_disable = _direct_until_peer_loads(raw)  # type: ignore[attr-defined]
        stack += [*cells, getattr(f, "__wrapped__", None)]


def _peer_loaded() -> bool:
    return "__file__" in vars(sys.modules.get("torch._dynamo", types.SimpleNamespace()))  # a stand-in has none


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _direct_until_peer_loads(raw: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if _peer_loaded() and hasattr(raw, "__dynamo_disable"):
            del raw.__dynamo_disable
        return raw(*args, **kwargs)

    return call


def differs(fake: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether a fake tensor was written to, or made to require grad or not, since it was made for ``given``."""
    return times_written(fake) > 0 or fake.requires_grad != given.requires_grad


def times_written(tensor: torch.Tensor) -> int:
    """How often a tensor was written to in place; -1 when it does not count (inference tensors)."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def checkpoint_policy(context_fn: Callable[[], Any]) -> Callable[..., bool] | None:
    """``(function, args, kwargs, result) -> keep?`` of selective checkpointing's contexts; None for others."""
    forward = context_fn()[0]
    choose = getattr(forward, "policy_fn", None)
    if choose is None:
        return None
    from torch.utils import checkpoint

    saves = (True, checkpoint.CheckpointPolicy.MUST_SAVE, checkpoint.CheckpointPolicy.PREFER_SAVE)

    def keeps(function: Any, args: Any, kwargs: Any, result: Any) -> bool:
        context: Any = checkpoint.SelectiveCheckpointContext(is_recompute=False)
        context.op_output = result  # torch 2.11 has no such argument
        ignored = function in checkpoint.SAC_IGNORED_OPS
        return not ignored and choose(context, function, *args, **kwargs) in saves

    return keeps


# --- other libraries behind torch ----------------------------------------------------------------------------------


def _onednn(operator: str, overload: str = "default") -> Any:
    """An operator that calls oneDNN; None where torch was built without it."""
    return getattr(getattr(torch.ops.mkldnn, operator, None), overload, None)


ONEDNN_LINEAR = _onednn("_linear_pointwise")  # x, w, bias, "none", [], None
ONEDNN_LINEAR_ADD = _onednn("_linear_pointwise", "binary")  # x, other, w, bias, "add"
ONEDNN_CONVOLUTION = _onednn(
    "_convolution_pointwise"
)  # x, w, bias, padding, stride, dilation, groups, "none", [], None
# x, other, w, bias, padding, stride, dilation, groups, "add", None, None, [], None
ONEDNN_CONVOLUTION_ADD = _onednn("_convolution_pointwise", "binary")
# x, w, bias, padding, output_padding, stride, dilation, groups, "none", [], None
ONEDNN_TRANSPOSED_CONVOLUTION = _onednn("_convolution_transpose_pointwise")

# Weights in the layout that oneDNN computes with: operands of the operators above only.
ONEDNN_PACK_LINEAR = _onednn("_reorder_linear_weight")  # w, rows
ONEDNN_PACK_CONVOLUTION = _onednn("_reorder_convolution_weight")  # w, padding, stride, dilation, groups, input's size
# w, padding, output_padding, stride, dilation, groups, input's size
ONEDNN_PACK_TRANSPOSED_CONVOLUTION = _onednn("_reorder_convolution_transpose_weight")


def onednn_computes(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes convolutions and products of this dtype on this processor."""
    if ONEDNN_LINEAR is None:
        return False
    if dtype in (torch.bfloat16, torch.float16):
        supports = _onednn(f"_is_mkldnn_{'bf16' if dtype == torch.bfloat16 else 'fp16'}_supported")
        return supports is not None and bool(supports())
    return dtype == torch.float32


# what the reductions of torch.masked are made of
MASKED_PARTS: tuple[Any, ...] = (private.masked_mask, private.masked_identity, private.masked_where)
MASKED_INPUT = private.masked_input
MATMUL_FIXES_SIZES = TorchVersion(torch.__version__) < (2, 13)
"""Whether the C++ form of ``matmul`` takes the sizes of batches as plain numbers, and so fixes symbolic ones."""
SHRINKS_BY_ROUNDED = TorchVersion(torch.__version__) >= (2, 14)
"""Whether ``softshrink`` of halves rounds its limit to their precision first."""


# --- CUDA graphs ----------------------------------------------------------------------------------------------------


STORAGE_USES: Callable[[int], int] = private.storage_uses
"""How many references there are to the storage with this ``_cdata``: its tensors, and objects like ``untyped_storage()``."""


def storage_over(address: int, count: int, device: torch.device) -> torch.UntypedStorage:
    """A storage over memory that belongs to somebody else."""
    return private.storage_over(address, device, count)


def current_stream() -> int:
    """The address of the current device's current CUDA stream."""
    return private.cuda_stream(private.cuda_device())


@functools.cache
def largest_float8() -> int:
    """The bits that torch makes of numbers too large for float8_e4m3fn: those of the largest, or (until 2.12) of NaN."""
    with private.DisableTorchDispatch():
        return int(torch.tensor(1e6, device="cpu").to(torch.float8_e4m3fn).view(torch.uint8))


def current_queue() -> tuple[int, int]:
    """The current CUDA device, and the address of its current stream."""
    device = private.cuda_device()
    return device, private.cuda_stream(device)


@functools.cache
def watch_streams(noted: Callable[[torch.Tensor, Any], object]) -> None:
    """From now on ``noted`` is told when a program says that a stream uses a tensor (``record_stream``): torch's allocator
    ignores that for memory that is not its own."""
    told = torch.Tensor.record_stream

    @functools.wraps(told)
    def record_stream(self: torch.Tensor, s: Any) -> None:
        told(self, s)
        noted(self, s)

    torch.Tensor.record_stream = record_stream  # type: ignore[method-assign]


def stop_allocating(device: int, pool: Any) -> None:
    """After a recording that failed: torch may have left its allocator giving memory from ``pool``."""
    with contextlib.suppress(RuntimeError):
        private.end_pool(device, pool)
        private.release_pool(device, pool)


COPY_ALL: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None] = private.foreach_copy
"""Copies tensors to tensors, few kernels for many of them."""

_STATIC_ADDRESS = "_dynamo_static_input_type"


def mark_address(tensor: torch.Tensor, guard: bool) -> None:
    """Says that a tensor's memory stays where it is, as torch itself keeps it on the tensor."""
    setattr(tensor, _STATIC_ADDRESS, "guarded" if guard else "unguarded")


def has_marked_address(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, _STATIC_ADDRESS)
