"""What a machine needs at least for what kernels do, and how far runs are from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuselens.record import limits
from fuselens.record.printed import distance
from fuselens.record.report import KernelRun, Machine, RunResult, Span

OPERATIONS = {"plain": 1e9, "exp": 1e8, "product float32": 1e11, "product bfloat16": 4e11}
MACHINE = Machine(
    "a machine", ((1 << 10, 1e11), (1 << 20, 2e10)), ((1 << 10, 8e10), (1 << 20, 1e10)), ((1 << 10, 4e10), (1 << 20, 5e9)),
    OPERATIONS, 1e-7, "2026-01-31",
)  # fmt: skip
LINES = [Span("model.py", line, 0, line, 10) for line in range(1, 5)]


def kernel(line: int, read: int = 0, written: int = 0, seconds: float | None = None, **operations: float) -> KernelRun:
    kinds = {name.replace("_", " "): count for name, count in operations.items()}
    return KernelRun(f"kernel{line}", 0, "forward", (LINES[line],), read, written, kinds, seconds=seconds)


def run(*kernels: KernelRun, seconds: float | None = None) -> RunResult:
    return limits.with_limits(RunResult("f", True, "", kernels=kernels, compiled_seconds=seconds), MACHINE)


@pytest.mark.parametrize(
    ("read", "written", "bandwidth"),
    [
        (1 << 20, 0, 2e10), (1 << 19, 1 << 19, 1e10), (0, 1 << 20, 5e9),
        (3 << 18, 1 << 18, 1 / (0.5 / 1e10 + 0.5 / 2e10)), (4 << 20, 0, 2e10),
    ],
)  # fmt: skip
def test_bytes_are_read_copied_and_written_at_speeds_of_their_own(read: int, written: int, bandwidth: float) -> None:
    found = limits.seconds(read, written, {}, MACHINE)
    assert found == {"start": 1e-7, "traffic": pytest.approx((read + written) / bandwidth)}


def test_caches_hold_few_bytes() -> None:
    curve = ((1 << 10, 100.0), (1 << 14, 50.0), (1 << 20, 10.0))
    assert [limits.at(curve, size) for size in (1, 1 << 10, 1 << 12, 1 << 14, 1 << 17, 1 << 20, 1 << 30)] == [
        100.0, 100.0, 75.0, 50.0, 30.0, 10.0, 10.0,
    ]  # fmt: skip


def test_operations_by_their_kind() -> None:
    found = limits.seconds(0, 0, {"plain": 1e6, "exp": 1e6, "unheard of": 1e6, "product bfloat16": 4e8}, MACHINE)
    assert found == {
        "start": 1e-7,
        "functions": pytest.approx(1e-3 + 1e-2 + 1e-3),
        "products": pytest.approx(1e-3),
    }
    assert limits.seconds(0, 0, {"product float8": 1e8}, MACHINE)["products"] == pytest.approx(1e-3)  # as float32


@pytest.mark.parametrize(
    ("timed", "share", "bound"),
    [
        (kernel(1, 1 << 20, 0, 1e-4), 0.524288, "traffic"),
        (kernel(1, 1 << 20, 0, 4e-5), 1.0, "traffic"),
        (kernel(1, 1 << 20, 0, 1e-3), 0.0524288, "latency"),
        (kernel(1, 64, 0, 1e-5), 0.01, "start"),
        (kernel(1, 1 << 20, 0, 2e-2, exp=1e6), 0.5, "functions"),
        (kernel(1, 1 << 20, 0, 2e-2, product_float32=1e9), 0.5, "products"),
    ],
)
def test_what_a_kernel_waits_for(timed: KernelRun, share: float, bound: str) -> None:
    (found,) = run(timed).kernels
    assert (found.share, found.bound) == (pytest.approx(share), bound)


def test_the_next_gain_is_where_most_is_lost() -> None:
    near, far = kernel(1, 1 << 20, 0, 6e-5), kernel(2, 1 << 20, 0, 1e-3)
    result = run(near, far, kernel(2, 1 << 20, 0, 2e-4), seconds=1.3e-3)
    found = limits.distance(result)
    assert found is not None
    assert found.seconds == 1.3e-3 and found.bound == "traffic"
    assert found.least == pytest.approx(3 * (1 << 20) / 2e10)
    place = limits.next_gain(found)
    assert place is not None and place.span == LINES[2] and place.seconds == pytest.approx(1.2e-3)
    assert distance.sentence(result) == (
        "1.3 ms, 12 % of what memory allows; the next gain is `kernel2` in line 3: 1.2 ms, where 105 µs would do"
    )


def test_what_is_between_kernels_is_told() -> None:
    result = run(kernel(1, 1 << 20, 0, 6e-5), seconds=1e-3)
    assert distance.sentence(result) == (
        "1 ms, 5 % of what memory allows; the next gain is what is between kernels: 940 µs for launches, allocations and checks"
    )


def test_nothing_to_gain() -> None:
    result = run(kernel(1, 1 << 20, 0, 5.3e-5), seconds=5.4e-5)
    assert distance.sentence(result) == "54 µs, 97 % of what memory allows; no kernel is far from its limit"


def test_a_call_is_told_without_what_only_training_runs() -> None:
    training = replace(kernel(2, 1 << 20, 0, 1.0), trains=True)
    backward = replace(kernel(3, 1 << 20, 0, 1e-4), phase="backward", trains=True)
    result = run(kernel(1, 1 << 20, 0, 5.3e-5), training, backward, seconds=5.4e-5)
    assert distance.sentence(result).startswith("54 µs, 97 % of what memory allows")
    assert distance.sentence(result, "backward").startswith("100 µs, 52 % of what memory allows")


def test_where_not_all_was_timed_nothing_is_said_of_the_whole() -> None:
    result = run(kernel(1, 1 << 20, 0, 5.3e-5), kernel(2, 1 << 20, 0), seconds=5.4e-5)
    assert limits.distance(result) is None
    assert distance.sentence(result) == ""
    assert distance.lines(result)[-1] == "  1 other could not be timed"


def test_a_limit_above_the_time_is_none() -> None:
    """A machine that was busy when it was measured."""
    found = limits.distance(run(kernel(1, 1 << 20, seconds=1e-6), seconds=4e-6))
    assert found is not None and found.share == pytest.approx(0.25)
    place = limits.next_gain(found)
    assert place is not None and place.names == (limits.BETWEEN,)
