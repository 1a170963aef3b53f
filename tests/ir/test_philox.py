"""Random words: published values, positions, layouts, and that they look random."""

from __future__ import annotations

import pytest
import torch

from fuselens.ir import philox


def key(*numbers: int) -> torch.Tensor:
    return torch.tensor([n - 2**32 if n >= 2**31 else n for n in numbers], dtype=torch.int32)


def draw(seed: torch.Tensor, stream: int, *size: int) -> torch.Tensor:
    strides = torch.empty(size, device="meta").stride()
    return torch.ops.fuselens.random.default(seed, stream, size, strides)


def test_words_are_those_of_the_published_generator() -> None:
    zeros = key(0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)  # counter and key 0 (Random123's test vectors)
    assert torch.equal(draw(key(0, 0), 0, 4), zeros)
    assert torch.equal(philox.words(*key(0, 0), 0, torch.arange(4)), zeros)


def test_counters_have_64_bits() -> None:
    positions = torch.tensor([0, 2**31, 2**32, 2**33, 2**34, 2**35, 2**40, 2**62])
    assert philox.words(*key(1, 2), 3, positions).unique().numel() == len(positions)


def test_a_word_belongs_to_a_position_not_to_a_place_in_memory() -> None:
    seed = key(5, 6)
    rows = draw(seed, 2, 6, 10)
    columns = torch.ops.fuselens.random.default(seed, 2, [6, 10], [1, 6])
    assert columns.stride() == (1, 6)
    assert torch.equal(rows, columns)
    assert torch.equal(rows.view(-1), draw(seed, 2, 60))
    assert draw(seed, 2, 0, 3).shape == (0, 3)
    assert torch.equal(draw(seed, 2), rows[0, 0])


@pytest.mark.parametrize("stream", [0, 1, 77])
def test_words_are_uniform(stream: int) -> None:
    n = 1 << 18
    words = draw(key(123, 0xDEADBEEF), stream, n)
    u = words.double() * 2.0**-32 + 0.5
    assert abs(u.mean().item() - 0.5) < 4 * (1 / 12 / n) ** 0.5
    assert abs(u.var().item() - 1 / 12) < 0.001
    steps = torch.arange(1, n + 1) / n
    assert (u.sort().values - steps).abs().max() < 1.95 / n**0.5  # Kolmogorov and Smirnov, 0.1 %
    for bit in range(32):
        ones = ((words >> bit) & 1).sum().item()
        assert abs(ones - n / 2) < 4.5 * (n / 4) ** 0.5, bit


def test_streams_seeds_and_neighbours_are_independent() -> None:
    n = 1 << 16
    centred = [
        draw(key(*seed), stream, n).double() * 2.0**-32
        for seed, stream in (((1, 1), 0), ((1, 1), 1), ((1, 1), 2), ((2, 1), 0), ((1, 2), 0))
    ]
    for k, a in enumerate(centred):
        for b in centred[k + 1 :]:
            assert abs((a * b).mean().item()) < 4.5 / 12 / n**0.5
        for lag in (1, 2, 3, 4, 5):
            assert abs((a[lag:] * a[:-lag]).mean().item()) < 4.5 / 12 / n**0.5
