"""The memory layout of what ATen's kernels return, where torch's fake kernels and decompositions choose another.

Pointwise kernels choose once, by the strides of all operands; torch's rules in Python for them compose several
operations, and convert half precision to compute with it, and each step chooses a layout. Few others differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

Extents = Sequence[Any]  # ints, or symbolic ones
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def strides(func: Any, args: Sequence[Any], result: torch.Tensor) -> tuple[Any, ...] | None:
    """The strides that the kernel of the operator ``func`` gives its (first) result, whose fake is ``result``; None
    where the fake has them, or nothing else is known."""
    rule = _rule(func)
    if rule is None or result.dim() == 0 or any(type(n) is int and n == 0 for n in result.shape):
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
        if len(shape) in _CHANNELS_LAST:
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


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """A stand-in for 2 to the power of a tensor: of floats it is contiguous."""
    return exponent.new_empty(exponent.shape) if exponent.is_floating_point() else exponent


def _like_first(args: Sequence[Any], result: torch.Tensor) -> Extents:
    """As ``empty_like`` of the first operand."""
    return args[0].stride() if is_dense(args[0]) else _as_first(args, result)


def _written(args: Sequence[Any], result: torch.Tensor) -> Extents | None:
    """As the first operand lies, gaps included, which is what torch's rules say, unless its elements share memory."""
    return _as_first(args, result) if 0 in result.stride() else None


def _contiguous(_: Sequence[Any], result: torch.Tensor) -> Extents:
    return _packed(result.shape, range(result.dim() - 1, -1, -1))


def _suggested(args: Sequence[Any], result: torch.Tensor) -> Extents:
    """Channels last where the first operand is, else contiguous."""
    contiguous = suggested_memory_format(args[0]) is torch.contiguous_format
    return _contiguous(args, result) if contiguous else _packed(result.shape, _channels_innermost(result.dim()))


def _transformed(args: Sequence[Any], result: torch.Tensor) -> Extents | None:
    """MKL transforms the dimensions given, which lie innermost, the last of them first; the others are one batch."""
    x, dims = args[:2]
    if x.device.type != "cpu" or not torch.backends.mkl.is_available():
        return None

    def outer_first(some: Iterable[int]) -> list[int]:
        return sorted(some, key=x.stride, reverse=True)

    order = [*outer_first(d for d in range(x.dim()) if d not in dims), *outer_first(dims[:-1]), dims[-1]]
    return _packed(result.shape, order[::-1])


# Tagged as pointwise, but views, or laid out as their parts are.
_NOT_ITERATED = frozenset({"positive", "conj_physical", "mvlgamma", "clone", "fill"})
_PARAMETRIC = frozenset({"pow", "lerp"})  # they take a number, which is no operand of the kernel
_SCALED = frozenset({"deg2rad", "rad2deg"})  # they multiply by one
_UNTAGGED = frozenset({
    "where", "native_layer_norm", "hardswish", "tril", "triu", "binary_cross_entropy_with_logits",
})  # fmt: skip
_OTHERS: dict[str, Rule] = {
    **dict.fromkeys(("floor_divide", "mse_loss", "smooth_l1_loss", "complex", "polar"), _iterated),
    "where": functools.partial(_iterated, mask=True),
    "_fft_r2c": _transformed,
    **dict.fromkeys(("index", "_unsafe_index"), _indexed),
    "stack": lambda args, result: _contiguous(args, result) if all(t.is_contiguous() for t in _tensors(args)) else None,
    "threshold_backward": lambda args, result: _iterated(args[::-1], result),
    "ldexp": lambda args, result: _iterated((args[0], _power_of_two(args[1])), result),
    **dict.fromkeys(("huber_loss", "binary_cross_entropy"), _as_first),
    **dict.fromkeys(("slice_scatter", "select_scatter", "diagonal_scatter"), _written),
    **dict.fromkeys(("hardtanh", "relu6", "nan_to_num", "_conj_physical"), _like_first),
    **dict.fromkeys(("isfinite", "isinf"), lambda args, result: (
        _iterated if args[0].is_floating_point() else _like_first)(args, result)),
    **dict.fromkeys(("masked_fill", "rrelu", "rrelu_with_noise", "rrelu_with_noise_functional"), _contiguous),
    **dict.fromkeys(("log_sigmoid_forward", "nll_loss2d_forward", "pow.Scalar"), _contiguous),
    **dict.fromkeys((
        "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_with_update_functional",
        "reflection_pad2d", "reflection_pad3d", "replication_pad2d", "replication_pad3d", "channel_shuffle", "max_unpool2d",
    ), _suggested),
}  # fmt: skip


@functools.cache
def _rule(func: Any) -> Rule | None:
    if not _makes_new(func):
        return None
    name = func.overloadpacket.__name__
    if func.namespace == "aten" and (other := _OTHERS.get(name) or _OTHERS.get(f"{name}.{func._overloadname}")):
        return other
    if torch.Tag.pointwise not in func.tags or name in _NOT_ITERATED:
        return None
    if name in _SCALED or ("calar" in func._overloadname and name not in _PARAMETRIC):
        return functools.partial(_iterated, number=True)
    operands = [i for i, a in enumerate(func._schema.arguments) if str(a.type) == "Tensor"]
    return functools.partial(_of_tensors_or_numbers, operands)


def _makes_new(func: Any) -> bool:
    """Whether it is an operator whose results are no operands or views of them."""
    schema = getattr(func, "_schema", None)
    return schema is not None and all(r.alias_info is None for r in schema.returns)


@functools.cache
def is_elementwise(func: Any) -> bool:
    """Whether the operator computes a new tensor element by element, of elements or of rows."""
    return _makes_new(func) and (func.overloadpacket.__name__ in _UNTAGGED or torch.Tag.pointwise in func.tags)


def suggested_memory_format(t: torch.Tensor) -> torch.memory_format:
    """The memory format in which many kernels return what they compute from a tensor, which may have gaps."""
    if t.dim() not in _CHANNELS_LAST or t.stride(1) == 0:
        return torch.contiguous_format
    least: Any = 0
    for d in _channels_innermost(t.dim()):
        size, step = t.shape[d], t.stride(d)
        if size == 0 or step < least or (d == 0 and least == t.stride(1)):
            return torch.contiguous_format
        least = step * size if size > 1 else step
    return _CHANNELS_LAST[t.dim()]


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
