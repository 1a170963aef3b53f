"""The caching allocator, as an H200 was seen to do it, and the search for the largest size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fuselens.checking.steps.fitting import largest
from fuselens.footprint.allocator import Caching

MIB = 1 << 20


def test_a_rest_of_up_to_1_mib_counts_as_allocated() -> None:
    cuda = Caching()
    cuda.allocate(1, 51_380_224)  # 49 MiB: a segment of 50
    assert (cuda.allocated, cuda.reserved) == (52_428_800, 52_428_800)
    cuda.allocate(2, 4 * MIB)
    assert (cuda.allocated, cuda.reserved) == (56 * MIB - 2 * MIB, 70 * MIB)


def test_small_blocks_share_a_segment() -> None:
    cuda = Caching()
    cuda.allocate(1, 1)
    cuda.allocate(2, 513)
    assert (cuda.allocated, cuda.reserved) == (512 + 1024, 2 * MIB)


def test_freed_neighbours_become_one() -> None:
    cuda = Caching()
    for number in range(1, 5):
        cuda.allocate(number, 5 * MIB)
    assert cuda.reserved == 20 * MIB
    cuda.free(2)
    cuda.free(3)
    cuda.allocate(5, 9 * MIB)  # fits where two were; what is left is 1 MiB, and stays with it
    assert (cuda.allocated, cuda.reserved) == (20 * MIB, 20 * MIB)


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.booleans()), max_size=60))
def test_what_is_allocated_is_never_more_than_what_is_reserved(steps: list[tuple[int, bool]]) -> None:
    cuda, alive = Caching(), list[int]()
    for number, (size, frees) in enumerate(steps, start=1):
        cuda.allocate(number, size)
        alive.append(number)
        if frees:
            cuda.free(alive.pop(len(alive) // 2))
        assert 0 <= cuda.allocated <= (cuda.reserved or 0)
    for number in alive:
        cuda.free(number)
    assert cuda.allocated == 0


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 10**11), st.integers(1, 4096), st.integers(1, 700))
def test_the_largest_size_fits_and_the_next_does_not(fixed: int, each: int, limit: int, size: int, unit: int) -> None:
    def peak(n: int) -> int:
        return -(-(fixed + each * n) // unit) * unit  # rounded up, as an allocator does

    if peak(size) == peak(size // 2 or 2):
        return
    found = largest(peak, size, limit)
    assert found is not None
    assert found == 0 or peak(found) <= limit
    if found + 1 < 1 << 24:
        assert peak(found + 1) > limit


def test_a_step_that_does_not_depend_on_the_size() -> None:
    assert largest(lambda n: 100, 64, 10) is None
