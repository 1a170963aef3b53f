"""The scratch memory of libraries: it belongs to a step. NVIDIA's was measured on an H200 with torch 2.11 (cuBLAS 13, cuDNN 9).

cuBLAS keeps a workspace for each thread that calls it: a backward runs in a thread of its own. cuDNN takes what it needs
and gives it back: convolutions of images that are not channels-last copy operands and result. Backwards of attention sum the
gradient of queries in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "linear", "addbmm", "_scaled_mm"})
_CONVOLUTIONS = frozenset({"convolution", "convolution_backward", "cudnn_convolution", "_convolution"})
_ATTENTION_BACKWARDS = frozenset({
    "_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward", "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_flash_attention_backward", "_efficient_attention_backward",
})  # fmt: skip

Tensor = tuple[Sequence[int], Sequence[int], int]  # sizes, strides, bytes of an element


def kept(architecture: int) -> int:
    """Bytes of cuBLAS's workspace for one thread."""
    return 32 << 20 if 90 <= architecture < 100 else (2 * 4096 + 8 * 16) << 10


def multiplies(packet: str) -> bool:
    return packet in _PRODUCTS


def taken(packet: str, operands: Sequence[Tensor], results: Sequence[Tensor], *, settles: bool = False) -> int:
    """Bytes that an operator takes and gives back. ``settles``: its results are copied where they are laid out otherwise than is said."""
    if packet in _CONVOLUTIONS:
        images = [t for t in operands if len(t[0]) == 4]
        images = images[: len(images) - 1 if len(images) > 1 else None]  # the last one is the weight
        if any(map(_channels_last, images)):
            copied = sum(_bytes(t) for t in images if not _channels_last(t))
            return copied + sum(_bytes(t) for t in results if settles and len(t[0]) == 4 and not _channels_last(t))
        every = [t for t in (*operands, *results[:1]) if len(t[0]) == 4]
        if not every or all(n == 1 for n in _weight(packet, every)[2:]):
            return 0
        return sum(_bytes(t) for t in every[:3])
    if packet in _ATTENTION_BACKWARDS and len(operands) > 1:
        query = max((t for t in operands if len(t[0]) == 4), key=_bytes, default=None)
        return 0 if query is None else 4 * _count(query)
    return 0


def copied(packet: str, operands: Sequence[Tensor]) -> int:
    """Bytes that an operator of the CPU takes and gives back: oneDNN's product copies a first operand that is not contiguous."""
    if packet == "_linear_pointwise" and operands and not _contiguous(operands[0]):
        return _bytes(operands[0])
    return 0


def kept_by_layer(args: Sequence[Any], on_gpu: bool) -> int:
    """Bytes that a layer of an LSTM keeps for its backward beside its results, which rules for fake tensors do not know: those of
    ``mkldnn_rnn_layer``. oneDNN's are fitted to what it asks for, cuDNN's are gates, cells and states."""
    (steps, batch, width), hidden = args[0].shape, args[10]
    gates = {2: 4, 3: 3}.get(args[9], 1)
    if on_gpu:
        return int(4 * steps * batch * hidden * (gates + 1.5))
    return int(4 * batch * (steps * (2 * gates + 1) * hidden + (steps + 1) * 6.25 * max(hidden, width)))


def _contiguous(tensor: Tensor) -> bool:
    expected = 1
    for size, stride in zip(reversed(tensor[0]), reversed(tensor[1]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _weight(packet: str, images: list[Tensor]) -> Sequence[int]:
    return images[2 if packet == "convolution_backward" and len(images) > 2 else 1][0] if len(images) > 1 else ()


def _channels_last(image: Tensor) -> bool:
    sizes, strides, _ = image
    return strides[1] == 1 or all(n == 1 for n in sizes[2:]) or sizes[1] == 1


def _count(tensor: Tensor) -> int:
    total = 1
    for n in tensor[0]:
        total *= n
    return total


def _bytes(tensor: Tensor) -> int:
    return _count(tensor) * tensor[2]


def of_tensors(tensors: Sequence[Any]) -> list[Tensor]:
    return [(tuple(t.shape), tuple(t.stride()), t.element_size()) for t in tensors]
