"""Fake tensors of the inputs of graphs: with sizes that are known, or symbols."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch.utils.checkpoint

from . import result_layouts
from .autograd import times_written
from .fake_tensors import _inference_as_in
from .names import PYTREE, Missing, private
from .symbolic_sizes import source_class

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
else:
    FakeTensor, FakeTensorMode = private.FakeTensor, private.FakeTensorMode


def fake_static(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``'s metadata as a fake tensor with integer sizes.

    Made directly: torch's converter logs a symbolised stack on its first use, which imports the peer compiler.
    """
    if (
        tensor.is_conj()
        or tensor.is_neg()
        or (tensor.requires_grad and not tensor.is_leaf and not result_layouts.is_dense(tensor))
    ):
        return mode.from_tensor(tensor, static_shapes=True, source=source_class()("input"))
    return fake_of_layout(mode, tensor, tensor.shape, tensor.stride())


def fake_of_layout(mode: FakeTensorMode, tensor: torch.Tensor, sizes: Any, strides: Any) -> torch.Tensor:
    """A fake of ``mode`` like ``tensor``, with such sizes and strides, which may be symbolic."""
    with mode, _inference_as_in(tensor):
        if mode.shape_env is None and not isinstance(
            private.in_kernel_invocation, Missing
        ):  # torch's way to it imports sympy, for which a warm start has no use
            with private.in_kernel_invocation(mode):
                below = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")
            fake = FakeTensor(mode, below, tensor.device)
        else:
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
            value, source_class()(what), private.DimDynamic.DUCK if shared else private.DimDynamic.DYNAMIC
        )

    def number(expression: Any, value: int, what: str) -> Any:
        return env.create_symintnode(sympy.sympify(expression), hint=value, source=source_class()(what))

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


def real_of(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor with the metadata of ``tensor``, which may be fake (its data is then unspecified)."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    with private.unset_fake():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return made.requires_grad_(tensor.requires_grad)


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


def differs(fake: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether a fake tensor may have been written to, or was made to require grad or not, since it was made for ``given``."""
    return times_written(fake) != 0 or fake.requires_grad != given.requires_grad
