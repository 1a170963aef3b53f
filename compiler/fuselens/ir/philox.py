"""Counter-based random numbers: what a random word is, and the operator that makes words in a graph.

Philox 4x32 with 10 rounds turns a key and a counter of 128 bits into four words of 32 bits (Salmon et al., 2011). Word
``i`` of a stream is number ``i % 4`` of the four that belong to the counter ``(i / 4, i / 4 >> 32, stream, 0)``; the key
is the two words of a seed. So a word depends on nothing but seed, stream and position: any thread, device or later call
computes it again. For stream 0 these are the words of Triton's ``tl.randint4x(seed, i / 4)``.

``fuselens.random`` is that as an operator of a graph: pure, hence free to be repeated. It is registered when this
module is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # of counter words 0 and 2
STEPS = (0x9E3779B9, 0xBB67AE85)  # what a round adds to the key
_MASK = 0xFFFFFFFF


def words(key0: Tensor, key1: Tensor, stream: int, index: Tensor) -> Tensor:
    """The int32 words at the positions ``index`` (int64) of a stream; keys are int32."""
    k0, k1 = key0.to(torch.int64) & _MASK, key1.to(torch.int64) & _MASK
    block = index >> 2
    c0, c1, c2, c3 = block & _MASK, (block >> 32) & _MASK, torch.full_like(block, stream), torch.zeros_like(block)
    for _ in range(ROUNDS):
        a, b = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # bit 63 is a bit like others
        c0, c1 = ((b >> 32) & _MASK) ^ c1 ^ k0, b & _MASK
        c2, c3 = ((a >> 32) & _MASK) ^ c3 ^ k1, a & _MASK
        k0, k1 = (k0 + STEPS[0]) & _MASK, (k1 + STEPS[1]) & _MASK
    place = index & 3
    word = torch.where(place < 2, torch.where(place == 0, c0, c1), torch.where(place == 2, c2, c3))
    return (((word + 2**31) & _MASK) - 2**31).to(torch.int32)


def random(seed: Tensor, stream: int, size: Sequence[Any], stride: Sequence[Any]) -> Tensor:
    """A tensor of words: the element at row-major position i holds word i, wherever it lies in memory."""
    out = torch.empty_strided(size, stride, dtype=torch.int32, device=seed.device)
    return out.copy_(words(seed[0], seed[1], stream, torch.arange(out.numel(), device=seed.device)).view(size))


def _random_meta(seed: Tensor, stream: int, size: Sequence[Any], stride: Sequence[Any]) -> Tensor:
    return torch.empty_strided(size, stride, dtype=torch.int32, device=seed.device)


_library = torch.library.Library("fuselens", "DEF")
_library.define("random(Tensor seed, int stream, SymInt[] size, SymInt[] stride) -> Tensor")
_library.impl("random", random, "CompositeExplicitAutograd")
_library.impl("random", _random_meta, "Meta")
