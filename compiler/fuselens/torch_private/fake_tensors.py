"""Fake tensors: modes, their errors and rules, and what is made to look like one."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import builtins
import contextlib
import functools
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.utils.checkpoint

from . import result_layouts
from .fake_results import FakeResults
from .names import PYTREE, Missing, MissingName, private
from .operators import CLASS_QUESTIONS
from .peer import bypass_peer_wrappers, without_peer_import

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
else:
    FakeTensor, FakeTensorMode = private.FakeTensor, private.FakeTensorMode


FAKE_DATA_ERRORS = (private.needs_data_error,)
FAKE_SHAPE_ERRORS = (private.needs_shape_error,)
FAKE_OPERATOR_ERRORS = (private.no_rule_error,)


def needs_data(error: Exception) -> bool:
    """Whether ``error`` says that the trace needs the value of a number that only data decides."""
    reasoning = sys.modules.get("torch.fx.experimental.symbolic_shapes")
    return reasoning is not None and isinstance(error, reasoning.GuardOnDataDependentSymNode)


FAILED_CHECK = "a check of values failed in a compiled graph"


def check_values(condition: torch.Tensor, error: str, message: str) -> None:
    """Raises (or warns) where the condition is false. A graph of this operator raises only, and a frame follows."""
    try:
        private.assert_async(condition, FAILED_CHECK)
    except RuntimeError:
        kind = getattr(builtins, error)
        if not issubclass(kind, Warning):
            raised = kind(message)
            raised.failed_check = True
            raise raised from None
        warnings.warn(message, kind, stacklevel=2)


def is_failed_check(error: BaseException) -> bool:
    """Whether a graph raised because one of its checks of values failed."""
    return getattr(error, "failed_check", False) or (
        isinstance(error, RuntimeError) and str(error).startswith(FAILED_CHECK)
    )


def check_number(condition: bool, message: str | None) -> None:
    """``torch._check`` as a node of a graph: raises RuntimeError, and a frame follows."""
    try:
        private.check(condition, None if message is None else lambda: message)
    except RuntimeError as error:
        error.failed_check = True  # type: ignore[attr-defined]
        raise


def fake_mode(shape_env: Any | None = None) -> FakeTensorMode:
    """A fresh fake mode; with ``shape_env`` (see :func:`new_shape_env`) sizes may be symbolic."""
    bypass_peer_wrappers()
    with without_peer_import():
        return _FakeMode(allow_non_fake_inputs=False, shape_env=shape_env)


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


def _refused_dim(func: Any, x: Any, dim: Any, index: Any) -> None:
    """torch's rule takes a dimension that is not there for another."""
    if type(dim) is int and x.dim() and not -x.dim() <= dim < x.dim():
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-x.dim()}, {x.dim() - 1}], but got {dim})"
        )


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
    torch.ops.aten.select.int: _refused_dim,
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

    @functools.cached_property
    def avoid_device_init(self) -> bool:
        """As torch finds, which asks for each device whenever the mode is entered."""
        return super().avoid_device_init

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        correct = _CORRECTIONS.get(func)
        if correct is not None and (corrected := correct(func, *args)) is not None:
            func, args = corrected
        if self.shape_env is not None or not FAKE_RESULTS.suits(func):
            return self._as_by_kernel(func, args, kwargs, super().dispatch(func, types, args, kwargs))
        if (view := FAKE_RESULTS.view(self, func, args, kwargs)) is not None:
            return view
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
    if (
        func.namespace != "aten"
        or torch.Tag.inplace_view in func.tags
        or func in CLASS_QUESTIONS
        or not private.has_meta(func)
    ):
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


def propagate(gm: torch.fx.GraphModule, mode: FakeTensorMode, fakes: list[Any]) -> None:
    """Sets ``meta["val"]`` of every node of ``gm`` by running it on ``fakes``."""

    class Propagate(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            n.meta["val"] = result = super().run_node(n)
            return result

    with mode:
        Propagate(gm).run(*fakes)


def fake_mode_of(tensor: torch.Tensor) -> FakeTensorMode | None:
    return tensor.fake_mode if isinstance(tensor, FakeTensor) else None


def real_tensors() -> contextlib.AbstractContextManager[Any]:
    """Inside, operators compute on real data although a fake mode is active."""
    return private.unset_fake()
