"""The memory layout of what ATen's kernels return, where torch's fake kernels and decompositions choose another.

Pointwise kernels choose once, by the strides of all operands; torch's rules in Python for them compose several
operations, and convert half precision to compute with it, and each step chooses a layout. Few others differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .operators import makes_new

Extents = Sequence[Any]  # ints, or symbolic ones
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def strides(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: torch.Tensor, position: int = 0
) -> tuple[Any, ...] | None:
    """The strides that the kernel of the operator ``func`` gives the result at ``position``, whose fake is ``result``;
    None where the fake has them, or nothing else is known."""
    rule = _rule(func, result.device.type)
    if rule is None or result.dim() == 0 or (position and func.overloadpacket.__name__ not in _ALIKE):
        return None
    if kwargs.get("memory_format", torch.preserve_format) not in (None, torch.preserve_format):
        return None
    if rule not in _OF_EMPTY and any(type(n) is int and n == 0 for n in result.shape):
        return None
    found = rule(args, result)
    if found is None or all(a is b or bool(a == b) for a, b in zip(found, result.stride(), strict=True)):
        return None
    return tuple(found)


def _tensors(args: Sequence[Any]) -> list[torch.Tensor]:
    flat = (b for a in args for b in (a if isinstance(a, (list, tuple)) else (a,)))
    return [t for t in flat if isinstance(t, torch.Tensor)]


Rule = Callable[[Sequence[Any], torch.Tensor], Extents | None]


def _iterated(args: Sequence[Any], result: torch.Tensor, *, mask: bool = False, number: bool = False) -> Extents:
    """All operands decide, the first of them first. With ``mask`` it is one, which no kernel converts. With ``number``
    one operand is that, of another shape than the tensors."""
    operands = _tensors(args)
    shape, common = result.shape, result.dtype
    if len(operands) == 2 and (common is torch.bool or common.is_complex):  # a comparison, or made of parts
        common = torch.result_type(*operands)
    kept = [t.dtype is common or (mask and t is operands[0]) for t in operands]
    steps = [t.stride() if k else _converted(t) for k, t in zip(kept, operands, strict=True)]
    if not number and all(t.dim() == len(shape) and t.shape == shape for t in operands):
        orders: list[Sequence[int]] = [range(len(shape) - 1, -1, -1)]
        if len(shape) == 4:
            orders.append(_channels_innermost(len(shape)))
        for order in orders:
            if all(_is_packed(shape, s, order) for s in steps):
                return _packed(shape, order)
        if all(tuple(s) == tuple(steps[0]) for s in steps) and (not kept[0] or is_dense(operands[0])):
            return steps[0]
    expanded = [_expanded(t, s, shape) for t, s in zip(operands, steps, strict=True)]
    return _packed(shape, _innermost_first(shape, expanded))


def _of_tensors_or_numbers(at: Sequence[int], args: Sequence[Any], result: torch.Tensor) -> Extents:
    """Of operators that take numbers for the operands ``at``."""
    return _iterated(args, result, number=any(not isinstance(args[i], torch.Tensor) for i in at if i < len(args)))


def _indexed(args: Sequence[Any], result: torch.Tensor) -> Extents | None:
    """What stays of the first operand decides, then the positions."""
    x, positions = args[:2]
    at = [d for d, p in enumerate(positions) if p is not None]
    given = [p for p in positions if p is not None]
    if any(p.dtype in (torch.bool, torch.uint8) for p in given):
        return None
    shape = torch.broadcast_shapes(*(p.shape for p in given))
    kept = [x.stride(d) for d in range(x.dim()) if d not in at]
    before = at[0] if at[-1] - at[0] + 1 == len(at) else 0
    whole = ((1,) * before, shape, (1,) * (len(kept) - before))
    steps = [_spread(p, whole, result.shape) for p in given]
    kept_steps = (*kept[:before], *(0,) * len(shape), *kept[before:])
    return _packed(result.shape, _innermost_first(result.shape, [kept_steps, *steps]))


def _spread(t: torch.Tensor, parts: tuple[Extents, Extents, Extents], shape: Extents) -> Extents:
    """Strides over the dimensions of ``shape`` of positions that are expanded to, and then viewed among, others of size 1.

    The view gives these a stride, which counts where the result has size 1 there, too.
    """
    before, own, behind = parts
    steps = _expanded(t, t.stride(), own)
    whole = (*before, *own, *behind)
    if not all(type(n) is int for n in (*whole, *steps)):
        return (*(0,) * len(before), *steps, *(0,) * len(behind))
    viewed = torch.empty_strided(tuple(own), tuple(steps), device="meta").view(whole).stride()
    return tuple(0 if n == 1 and s != 1 else step for n, s, step in zip(whole, shape, viewed, strict=True))


def _as_first(args: Sequence[Any], result: torch.Tensor) -> Extents:
    """As the first operand lies."""
    return _packed(result.shape, _innermost_first(result.shape, [args[0].stride()]))


def _scaled(args: Sequence[Any], result: torch.Tensor) -> Extents:
    """By powers of two: in single precision those of floats are contiguous tensors."""
    x, exponent = args
    if exponent.is_floating_point():
        power = exponent.new_empty(exponent.shape) if x.dtype is torch.float32 else exponent
        return _iterated((x, power), result)
    return _like_first(args, result) if x.shape == result.shape else _iterated((x, exponent), result)


def _like_first(args: Sequence[Any], result: torch.Tensor) -> Extents:
    """As ``empty_like`` of the first operand."""
    x = args[0]
    dense = is_dense(x) or any(type(n) is int and n == 0 for n in x.shape)
    return x.stride() if dense else _as_first(args, result)


def _written(args: Sequence[Any], result: torch.Tensor) -> Extents | None:
    """As the first operand lies, gaps included, unless its elements share memory."""
    x = args[0]
    shared = any(s == 0 and n != 1 for n, s in zip(x.shape, x.stride(), strict=True))
    return _as_first(args, result) if shared else x.stride()


def _contiguous(_: Sequence[Any], result: torch.Tensor) -> Extents:
    return _packed(result.shape, range(result.dim() - 1, -1, -1))


def _reversed(_: Sequence[Any], result: torch.Tensor) -> Extents:
    """The first dimension innermost."""
    return _packed(result.shape, range(result.dim()))


def _suggested(args: Sequence[Any], result: torch.Tensor) -> Extents:
    """Channels last where the first operand is, else contiguous."""
    return _in_format(result.shape, suggested_memory_format(args[0]))


def _rolled(args: Sequence[Any], result: torch.Tensor) -> Extents:
    """Put together of two parts, one dimension after the other, which keeps channels last; what is not moved is made contiguous."""
    shifts, dims = ([v] if isinstance(v, int) else list(v) for v in (*args[1:3], [])[:2])
    sizes = [result.shape[d] for d in dims]
    moved = dims and all(s % n if type(n) is int else s for s, n in zip(shifts, sizes, strict=True))
    return (_suggested if moved else _contiguous)(args, result)


def _in_format(shape: Extents, memory_format: torch.memory_format) -> Extents:
    rank = len(shape)
    contiguous = memory_format is torch.contiguous_format
    return _packed(shape, range(rank - 1, -1, -1) if contiguous else _channels_innermost(rank))


def _normalised(args: Sequence[Any], result: torch.Tensor) -> Extents:
    """By channels: in order, where all is contiguous in some order, whatever strides dimensions of size 1 have."""
    x, *parameters = _tensors(args)
    if x.dim() in CHANNELS_LAST and all(p.is_contiguous() for p in parameters):
        orders = range(x.dim() - 1, -1, -1), _channels_innermost(x.dim())
        for order in orders:
            if _is_packed(x.shape, x.stride(), order):
                return _packed(result.shape, order)
    return _suggested(args, result)


def _stacked(args: Sequence[Any], result: torch.Tensor) -> Extents:
    """Tensors are put together along a dimension that they have, which is then split, if there is such a one."""
    tensors, rank = args[0], result.dim()
    dim = (args[1] if len(args) > 1 else 0) % rank
    x = tensors[0]
    if dim == rank - 1:
        formats = {_format_of((*t.shape, 1), (*t.stride(), 1)) for t in tensors}
        return _in_format(result.shape, formats.pop() if len(formats) == 1 else torch.contiguous_format)
    formats = {suggested_memory_format(t) for t in tensors}
    shape = (*x.shape[:dim], x.shape[dim] * len(tensors), *x.shape[dim + 1 :])
    joined = _in_format(shape, formats.pop() if len(formats) == 1 else torch.contiguous_format)
    if all(type(n) is int for n in (*shape, *joined)):
        return torch.empty_strided(shape, joined, device="meta").view(result.shape).stride()
    return (*joined[:dim], joined[dim] * x.shape[dim], *joined[dim:])


def _gated(args: Sequence[Any], result: torch.Tensor) -> Extents:
    """Of the halves of one tensor."""
    half = result.new_empty_strided(result.shape, args[0].stride())
    return _iterated((half, half), result)


def _rotated(args: Sequence[Any], result: torch.Tensor) -> Extents:
    """It is flipped, then transposed in odd turns."""
    turns: Any = args[1] if len(args) > 1 else 1
    dims: Any = args[2] if len(args) > 2 else (0, 1)
    if turns % 4 == 0:
        return _contiguous(args, result)
    steps = list(_like_first(args, args[0]))
    if turns % 2:
        a, b = dims
        steps[a], steps[b] = steps[b], steps[a]
    return steps


def _exponential(args: Sequence[Any], result: torch.Tensor) -> Extents | None:
    """Of matrices of one element the function is one of elements."""
    return _iterated(args[:1], result) if result.shape[-1] == 1 else None


def _transformed(args: Sequence[Any], result: torch.Tensor) -> Extents | None:
    """MKL transforms the dimensions given, which lie innermost, the last of them first; the others are one batch.
    To reals it goes along the last one in the end, from what complex numbers the others gave."""
    x, dims = args[:2]
    if x.device.type != "cpu" or not torch.backends.mkl.is_available() or not dims:
        return None
    steps, to_complex = x.stride(), result.is_complex()
    if len(dims) > 1 and not to_complex:
        steps, dims = _transformed_along(x.shape, steps, _outer_first(dims[:-1], steps)), dims[-1:]
    inner = _outer_first(dims, steps) if x.is_complex() else [*_outer_first(dims[:-1], steps), dims[-1]]
    return _transformed_along(result.shape, steps, inner)


def _transformed_along(shape: Extents, steps: Extents, dims: Sequence[int]) -> Extents:
    batch, passed = list(range(len(shape))), len(shape)
    k = 0
    while True:  # partitioned as by the standard library, which keeps no order
        while k < passed and batch[k] not in dims:
            k += 1
        while k < passed and batch[passed - 1] in dims:
            passed -= 1
        if k >= passed:
            break
        batch[k], batch[passed - 1] = batch[passed - 1], batch[k]
    return _packed(shape, [*_outer_first(batch[:k], steps), *dims][::-1])


def _outer_first(dims: Iterable[int], steps: Extents) -> list[int]:
    return sorted(dims, key=lambda d: steps[d], reverse=True)


# Tagged as pointwise, but views, or laid out as their parts are.
_NOT_ITERATED = frozenset({"positive", "conj_physical", "mvlgamma", "clone"})
_PARAMETRIC = frozenset({"pow", "lerp"})  # they take a number, which is no operand of the kernel
_UNTAGGED = frozenset({
    "where", "native_layer_norm", "hardswish", "tril", "triu", "binary_cross_entropy_with_logits",
})  # fmt: skip
_ALIKE = frozenset({"sort", "frexp"})  # all their results lie alike
_OF_EMPTY = frozenset({_like_first, _contiguous, _suggested})  # rules for tensors without elements, too
_OTHERS: dict[str, Rule] = {
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "complex", "polar"), _iterated),
    "floor_divide": functools.partial(_of_tensors_or_numbers, (1,)),
    "rsub": lambda args, result: _iterated(args[1::-1], result, number=not isinstance(args[1], torch.Tensor)),
    "where": functools.partial(_iterated, mask=True),
    **dict.fromkeys(("_fft_r2c", "_fft_c2c", "_fft_c2r"), _transformed),
    **dict.fromkeys(("index", "_unsafe_index"), _indexed),
    "stack": _stacked,
    "glu": _gated,
    "binary_cross_entropy_with_logits": lambda args, result: _like_first(args[1:], result),
    "rot90": _rotated,
    "linalg_matrix_exp": _exponential,
    "roll": _rolled,
    "abs": lambda args, result: (_like_first if args[0].is_complex() else _iterated)(args, result),
    "angle": lambda args, result: (_contiguous if args[0].is_complex() else _iterated)(args, result),
    "threshold_backward": lambda args, result: _iterated(args[::-1], result),
    "ldexp": _scaled,
    **dict.fromkeys(("slice_scatter", "select_scatter", "diagonal_scatter"), _written),
    **dict.fromkeys((
        "hardtanh", "relu6", "nan_to_num", "_conj_physical", "deg2rad", "rad2deg", "huber_loss", "binary_cross_entropy",
        "frexp", "fill", "flip", "sort", "index_fill",
        "_to_copy", "ones_like", "zeros_like", "full_like", "rand_like", "randn_like", "randint_like", "index_put",
        "_prelu_kernel", "exponential", "cauchy", "geometric", "log_normal",
    ), _like_first),
    **dict.fromkeys(("isfinite", "isinf"), lambda args, result: (
        _iterated if args[0].is_floating_point() else _as_first if args[0].is_complex() else _like_first)(args, result)),
    **dict.fromkeys((
        "masked_fill", "rrelu", "rrelu_with_noise", "rrelu_with_noise_functional", "log_sigmoid_forward", "tril", "triu",
        "nll_loss2d_forward", "pow.Scalar", "native_layer_norm", "_softmax", "_log_softmax", "renorm", "isin", "diag_embed",
        "grid_sampler_2d", "grid_sampler_3d", "normal.Tensor_Tensor", "index_add", "index_copy", "bernoulli",
    ), _contiguous),
    **dict.fromkeys((
        "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_with_update_functional",
    ), _normalised),
    **dict.fromkeys((
        "reflection_pad2d", "reflection_pad3d", "replication_pad2d", "replication_pad3d", "channel_shuffle",
        "native_channel_shuffle", "max_unpool2d", "native_group_norm",
        "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
        "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    ), _suggested),
}  # fmt: skip


_ON: dict[str, dict[str, Rule]] = {  # where a device's kernel differs from the CPU's
    "cuda": {"max_unpool2d": _contiguous, "nonzero_static": _reversed, "roll": _contiguous},
}


@functools.cache
def _rule(func: Any, device: str) -> Rule | None:
    if not makes_new(func):
        return None
    name = func.overloadpacket.__name__
    if func.namespace == "aten" and (own := _ON.get(device, {}).get(name)):
        return own
    if func.namespace == "aten" and (other := _OTHERS.get(f"{name}.{func._overloadname}") or _OTHERS.get(name)):
        return other
    if torch.Tag.pointwise not in func.tags or name in _NOT_ITERATED:
        return None
    if "calar" in func._overloadname and name not in _PARAMETRIC:
        return functools.partial(_iterated, number=True)
    operands = [i for i, a in enumerate(func._schema.arguments) if str(a.type) == "Tensor"]
    return functools.partial(_of_tensors_or_numbers, operands)


@functools.cache
def is_elementwise(func: Any) -> bool:
    """Whether the operator computes a new tensor element by element, of elements or of rows."""
    return makes_new(func) and (func.overloadpacket.__name__ in _UNTAGGED or torch.Tag.pointwise in func.tags)


def suggested_memory_format(t: torch.Tensor) -> torch.memory_format:
    """The memory format in which many kernels return what they compute from a tensor, which may have gaps."""
    return _format_of(t.shape, t.stride())


def _format_of(shape: Extents, steps: Extents) -> torch.memory_format:
    if len(shape) not in CHANNELS_LAST or steps[1] == 0:
        return torch.contiguous_format
    least: Any = 0
    for d in _channels_innermost(len(shape)):
        size, step = shape[d], steps[d]
        if size == 0 or step < least or (d == 0 and least == steps[1]):
            return torch.contiguous_format
        least = step * size if size > 1 else step
    return CHANNELS_LAST[len(shape)]


def _is_packed(shape: Extents, steps: Extents, innermost_first: Iterable[int]) -> bool:
    """Whether elements lie in this order without gaps."""
    step: Any = 1
    for d in innermost_first:
        if shape[d] != 1:
            if steps[d] != step:
                return False
            step = step * shape[d]
    return True


def _channels_innermost(rank: int) -> list[int]:
    return [1, *range(rank - 1, 1, -1), 0]


def _converted(t: torch.Tensor) -> Extents:
    """The strides of a copy in another dtype."""
    return t.stride() if is_dense(t) else _packed(t.shape, _innermost_first(t.shape, [t.stride()]))


def is_dense(t: torch.Tensor) -> bool:
    """Whether the tensor fills its memory without gaps or overlap, so that its strides follow from its sizes."""
    expected: Any = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected = expected * size
    return True


def _expanded(t: torch.Tensor, steps: Extents, shape: Extents) -> Extents:
    """Strides over the dimensions of ``shape``: 0 along those that the tensor repeats."""
    missing = len(shape) - t.dim()
    own = (
        0 if size == 1 and whole != 1 else step
        for size, step, whole in zip(t.shape, steps, shape[missing:], strict=True)
    )
    return (*(0,) * missing, *own)


def _innermost_first(shape: Extents, steps: Sequence[Extents]) -> list[int]:
    """The dimensions in the order of the result's memory. The comparison is no order where operands disagree, so the
    way of sorting decides as well: by insertion."""
    order = list(reversed(range(len(shape))))
    for i in range(1, len(order)):
        inner = i
        for outer in reversed(range(i)):
            verdict = _compared(shape, steps, order[outer], order[inner])
            if verdict > 0:
                order[outer], order[inner] = order[inner], order[outer]
                inner = outer
            elif verdict < 0:
                break
    return order


def _compared(shape: Extents, steps: Sequence[Extents], a: int, b: int) -> int:
    for step in steps:
        if step[a] == 0 or step[b] == 0:
            continue
        if step[a] != step[b]:
            return -1 if step[a] < step[b] else 1
        if shape[a] > shape[b]:
            return 1
    return 0


def _packed(shape: Extents, innermost_first: Iterable[int]) -> Extents:
    """Strides of a tensor without gaps."""
    found: list[Any] = [1] * len(shape)
    step: Any = 1
    for d in innermost_first:
        found[d] = step
        step = step * (1 if shape[d] == 0 else shape[d])
    return tuple(found)
