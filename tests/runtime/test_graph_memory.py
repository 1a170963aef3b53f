"""Who may write where, in memory that recordings share: against an allocator that is played, with real storages."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from fuselens.runtime.gpu.graph_memory import Group, Part, Pool, _inside, _merged, _overlaps, _without

GRAIN = 512


class Memory:
    """A device's memory: a real buffer, of which the played allocator knows what is given away."""

    def __init__(self, grains: int) -> None:
        self.buffer = torch.zeros((grains + 1) * GRAIN, dtype=torch.uint8)
        self.base = -(-self.buffer.data_ptr() // GRAIN) * GRAIN
        self.grains = grains

    def storage(self, start: int, grains: int) -> torch.UntypedStorage:
        return torch._C._construct_storage_from_data_pointer(
            self.base + start * GRAIN, torch.device("cpu"), grains * GRAIN
        )

    def address(self, grain: int) -> int:
        return self.base + grain * GRAIN


@dataclass(eq=False)
class Recording:
    """What a recording would do: the grains that it writes, those of its results."""

    part: Part
    touches: set[int]
    results: list[tuple[int, int]] = field(default_factory=list)


def tensor_over(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))  # type: ignore[call-overload]


def record(memory: Memory, pool: Pool, rng: random.Random) -> Recording | None:
    """Plays a recording: scratch and results in grains that the allocator takes to be free."""
    kept = pool.give_back()
    taken = {g for start, end in kept for g in range((start - memory.base) // GRAIN, (end - memory.base) // GRAIN)}
    touches: set[int] = set()
    busy: set[int] = set()
    results: list[tuple[int, int]] = []
    for _ in range(rng.randint(1, 6)):
        size = rng.randint(1, 4)
        places = [
            g for g in range(memory.grains - size + 1) if not (set(range(g, g + size)) & (taken | busy))
        ]  # fmt: skip
        if not places:
            continue
        at = rng.choice(places[:4])
        touches |= set(range(at, at + size))
        if rng.random() < 0.5:
            results.append((at, size))
            busy |= set(range(at, at + size))
    made = Recording(Part([tensor_over(memory.storage(a, n)) for a, n in results], graph=object()), touches, results)
    pool.add(made.part, kept, [(memory.address(0), memory.address(memory.grains))], made)
    return made


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_is_held_is_written_over(seed: int) -> None:
    rng = random.Random(seed)
    memory, pool = Memory(24), Pool("handle")
    recordings: list[Recording] = []
    held: list[tuple[torch.Tensor, int, int]] = []
    ran = blocked = 0
    for _ in range(300):
        action = rng.random()
        if action < 0.1 and len(recordings) < 12:
            if pool.open():
                made = record(memory, pool, rng)
                assert made is not None
                assert not list(pool.in_the_way(made.part)), "a new recording can run at once"
                recordings.append(made)
            else:
                assert any(not b.owned for p in pool.parts for b in p.held())
        elif action < 0.5 and recordings:
            one = rng.choice(recordings)
            used = {g for _, start, n in held for g in range(start, start + n)}
            if next(pool.in_the_way(one.part), None) is not None:
                blocked += 1
                continue
            assert not one.touches & used
            ran += 1
            pool.handed_out(one.part)
            for result, (start, n) in zip(one.part.results, one.results, strict=True):
                if rng.random() < 0.7:
                    held.append((result.detach()[: rng.randint(1, 9)], start, n))
        elif action < 0.9 and held:
            held.pop(rng.randrange(len(held)))
        elif recordings and rng.random() < 0.2:
            recordings.pop(rng.randrange(len(recordings)))
            pool.sweep()
    assert ran > 20
    assert blocked > 5
    one = made = result = None
    held.clear()
    recordings.clear()
    pool.sweep()
    assert pool.parts == []


def storages(memory: Memory, *places: tuple[int, int]) -> list[Any]:
    return [tensor_over(memory.storage(*place)) for place in places]


def test_results_of_another_recording_lie_in_scratch() -> None:
    memory, pool = Memory(16), Pool("handle")
    everything = [(memory.address(0), memory.address(16))]
    first = Recording(Part(storages(memory, (0, 2)), object()), set(range(6)))
    pool.add(first.part, pool.give_back(), everything, first)
    pool.handed_out(first.part)
    result = first.part.results[0].detach()
    second = Recording(Part(storages(memory, (2, 2)), object()), set(range(2, 8)))
    pool.add(second.part, pool.give_back(), everything, second)
    assert next(pool.in_the_way(second.part), None) is None, "it was made while the first one's result was held"
    pool.handed_out(second.part)
    other = second.part.results[0].detach()
    assert [p for p, _ in pool.in_the_way(first.part)] == [first.part, second.part]
    del result
    assert [p for p, _ in pool.in_the_way(first.part)] == [second.part]
    del other
    assert next(pool.in_the_way(first.part), None) is None


def test_what_nobody_holds_is_lent_and_what_is_held_is_not() -> None:
    memory, pool = Memory(16), Pool("handle")
    one = Recording(Part(storages(memory, (0, 2), (2, 2)), object()), set())
    pool.add(one.part, pool.give_back(), [(memory.address(0), memory.address(16))], one)
    memory.buffer.fill_(7)
    kept = one.part.results[1][3:9]
    assert pool.give_back() == [(memory.address(2), memory.address(4))]
    assert [b.owned for b in one.part.blocks] == [False, True]
    assert one.part.results[0].tolist() == [7] * (2 * GRAIN)
    assert pool.open()
    assert [b.start for b in one.part.held()] == [memory.address(2)]
    again = one.part.results[0].detach()
    assert not pool.open(), "the allocator would give away what is held"
    del kept
    assert pool.give_back() == []
    assert [b.start for b in one.part.held()] == [memory.address(0)]
    del again
    assert pool.open()
    assert one.part.held() == []


def test_results_that_share_memory_and_numbers_among_results() -> None:
    memory, pool = Memory(16), Pool("handle")
    (base,) = storages(memory, (0, 2))
    one = Recording(Part([base[:4].view(2, 2), 3, None, base[8:]], object()), set())
    del base
    pool.add(one.part, [], [(memory.address(0), memory.address(16))], one)
    assert [b.positions for b in one.part.blocks] == [(0, 3)]
    assert one.part.held() == []
    pool.give_back()
    first, number, nothing, second = one.part.results
    assert (first.shape, first.storage_offset(), number, nothing, second.storage_offset()) == ((2, 2), 0, 3, None, 8)
    del first, second
    assert one.part.held() == []


def test_a_result_that_was_resized_is_noticed() -> None:
    one = Part([torch.ones(1024)], object())
    assert one.intact()
    one.results[0].untyped_storage().resize_(0)
    assert not one.intact()


def test_results_elsewhere_are_refused() -> None:
    memory, pool = Memory(16), Pool("handle")
    one = Recording(Part(storages(memory, (8, 2)), object()), set())
    with pytest.raises(ValueError, match="memory of its own"):
        pool.add(one.part, [], [(memory.address(0), memory.address(8))], one)


def test_pools_of_a_group() -> None:
    memory, handles = Memory(16), iter(range(10))
    group = Group(0, 0, lambda: next(handles))
    everything = [(memory.address(0), memory.address(16))]
    pool = group.pool()
    one = Recording(Part(storages(memory, (0, 2)), object()), set())
    pool.add(one.part, pool.give_back(), everything, one, group.gone)
    assert group.pool() is pool
    pool.give_back()
    result = one.part.results[0].detach()
    other = group.pool()
    assert other is not pool, "its result is held, in memory that the allocator takes to be free"
    two = Recording(Part(storages(memory, (4, 2)), object()), set())
    other.add(two.part, other.give_back(), everything, two, group.gone)
    assert group.bytes == 2 * 16 * GRAIN
    assert group.pool(kept=True) not in (pool, other), "what is held while others run is apart"
    with group.lock:
        del one
    assert group.left, "who had the lock is to look"
    group.gone()
    assert not group.left
    assert pool in group.pools, "its memory is held"
    del result
    group.sweep()
    assert group.pools == [other]
    other.close()
    assert two.part.dropped
    assert group.pool() is not other
    group.sweep()
    assert group.pools == []


def test_streams_that_were_said_to_use_results() -> None:
    memory = Memory(16)
    group = Group(0, 0, object)
    pool = group.pool()
    everything = [(memory.address(0), memory.address(16))]
    one = Recording(Part(storages(memory, (0, 2)), object()), set())
    pool.add(one.part, pool.give_back(), everything, one)
    kept = one.part.results[0].detach()
    two = Recording(Part(storages(memory, (2, 2)), object()), set())
    pool.add(two.part, pool.give_back(), everything, two)
    group.used_by(kept[:3], "side")
    group.used_by(torch.ones(3), "side")
    assert pool.streams_of(two.part) == [], "it does not write there"
    assert pool.streams_of(one.part) == ["side"]
    assert pool.streams_of(one.part) == []


def test_ranges() -> None:
    rng = random.Random(0)
    for _ in range(300):
        some, taken = ([(a, a + rng.randint(1, 9)) for a in (rng.randrange(60) for _ in range(5))] for _ in range(2))
        points = {p for a, b in some for p in range(a, b)}
        merged, off = _merged(some), _merged(taken)
        assert {p for a, b in merged for p in range(a, b)} == points
        assert all(merged[k][1] < merged[k + 1][0] for k in range(len(merged) - 1))
        left = points - {p for a, b in off for p in range(a, b)}
        assert {p for a, b in _without(merged, off) for p in range(a, b)} == left
        start = rng.randrange(60)
        probe = range(start, start + rng.randint(1, 8))
        assert _overlaps(merged, probe.start, probe.stop) == bool(points & set(probe))
        assert _inside(merged, probe.start, probe.stop) == (set(probe) <= points)
