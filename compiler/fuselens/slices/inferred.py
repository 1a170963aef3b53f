"""Inputs of a module that nobody states, inferred from its layers: the smallest that a trial on shapes alone accepts.

The first layer with parameters says the rank, the dtype and the channels; what comes later, the sizes: ``Conv2d(1, 32)`` …
``Linear(9216)`` takes images of 28 × 28. Nothing is computed: parameters, buffers and inputs are on the meta device.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator

import torch
from torch import nn

from ..signatures import signature

_BATCH, _LENGTH = 2, 16
_MOST_TRIALS = 400
_SIDES = (*range(4, 65), 72, 80, 96, 112, 128, 160, 192, 224, 227, 256, 299, 320, 384, 512)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_CONVOLUTIONS = {
    nn.Conv1d: 1,
    nn.Conv2d: 2,
    nn.Conv3d: 3,
    nn.ConvTranspose1d: 1,
    nn.ConvTranspose2d: 2,
    nn.ConvTranspose3d: 3,
}
_NORMALISED = {nn.BatchNorm1d: 0, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3, nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2}

Shape = tuple[tuple[int, ...], torch.dtype, int]
"""Sizes, dtype, and the bound of the integers."""


def inferred(module: nn.Module) -> tuple[torch.Tensor, ...] | None:
    """A tensor for each required parameter of ``forward``; None where no trial succeeds. One or two such parameters are tried:
    more than that, or the same twice, is a guess."""
    try:
        required = [
            p for p in signature(module.forward).parameters.values()
            if p.default is p.empty and p.kind not in _VARIADIC
        ]  # fmt: skip
    except (TypeError, ValueError):
        return None
    if not required or len(required) > 2 or any(p.kind is p.KEYWORD_ONLY for p in required):
        return None
    trial = _Trial(module)
    for shape in itertools.islice(_candidates(module), _MOST_TRIALS):
        shapes = [shape] * len(required)
        if trial.accepts(shapes):
            return tuple(_made(s, module) for s in shapes)
    return None


class _Trial:
    def __init__(self, module: nn.Module) -> None:
        self._module = module
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._state = {name: torch.empty_like(t, device="meta") for name, t in tensors.items()}

    def accepts(self, shapes: list[Shape]) -> bool:
        given = tuple(torch.empty(sizes, dtype=dtype, device="meta") for sizes, dtype, _ in shapes)
        training = [m for m in self._module.modules() if m.training]
        try:
            for module in training:
                module.training = False  # nothing is counted
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.func.functional_call(self._module, self._state, given)
        except Exception:  # noqa: BLE001 - whatever the module says to this input
            return False
        finally:
            for module in training:
                module.training = True
        return True


def _candidates(module: nn.Module) -> Iterator[Shape]:
    for first in _first_layers(module):
        yield from _of_layer(first)


def _first_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers that may see the input first: the first one that has parameters, and the next of other kinds."""
    kinds: set[type] = set()
    for layer in module.modules():
        if any(True for _ in layer.parameters(recurse=False)) and type(layer) not in kinds:
            kinds.add(type(layer))
            yield layer
        if len(kinds) == 4:
            return


def _of_layer(layer: nn.Module) -> Iterator[Shape]:
    dtype = next((p.dtype for p in layer.parameters(recurse=False) if p.is_floating_point()), torch.float32)
    for kind, rank in (_CONVOLUTIONS | _NORMALISED).items():
        if isinstance(layer, kind):
            channels = int(getattr(layer, "in_channels", 0) or getattr(layer, "num_features", 1))
            small = (1,) if kind.__name__.startswith("ConvTranspose") else ()  # noise, most often
            for side in (*small, *_SIDES) if rank else (0,):
                yield (_BATCH, channels, *[side] * rank), dtype, 0
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        yield (_BATCH, _LENGTH), torch.int64, layer.num_embeddings
        yield (_BATCH,), torch.int64, layer.num_embeddings
    if isinstance(layer, nn.Linear):
        yield (_BATCH, layer.in_features), dtype, 0
        yield (_BATCH, _LENGTH, layer.in_features), dtype, 0
        for side in (s for s in range(2, 513) if layer.in_features % (s * s) == 0):  # flattened images
            yield (_BATCH, layer.in_features // (side * side), side, side), dtype, 0
    if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)):
        width = int(layer.input_size) if isinstance(layer, nn.RNNBase) else layer.embed_dim
        yield (_BATCH, _LENGTH, width), dtype, 0
    if isinstance(layer, nn.RNNCellBase):
        yield (_BATCH, layer.input_size), dtype, 0
    if isinstance(layer, nn.LayerNorm):
        yield (_BATCH, *layer.normalized_shape), dtype, 0
        yield (_BATCH, _LENGTH, *layer.normalized_shape), dtype, 0


def _made(shape: Shape, module: nn.Module) -> torch.Tensor:
    sizes, dtype, bound = shape
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    made = torch.randint(bound, sizes, generator=generator) if bound else torch.randn(sizes, generator=generator)
    return made.to(device, dtype)
