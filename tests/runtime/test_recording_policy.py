"""Which sizes are recorded, and when recorded calls are not worth it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fuselens.runtime.gpu import recording_policy
from fuselens.runtime.gpu.cuda_graphs import Recorded
from fuselens.runtime.gpu.recording_policy import (
    MOST_MISSES,
    MOST_SIZES,
    NEVER,
    RECORDED_CALLS,
    WARM_CALLS,
    Size,
    Sizes,
    Trial,
)


class Stream:
    """A device that has come as far as ``reached``."""

    def __init__(self) -> None:
        self.now = self.reached = 0.0

    def mark(self) -> Point:
        return Point(self, self.now)


class Point:
    def __init__(self, stream: Stream, at: float) -> None:
        self.stream, self.at = stream, at

    def query(self) -> bool:
        return self.stream.reached >= self.at

    def elapsed_time(self, end: Point) -> float:
        assert self.query()
        assert end.query()
        return end.at - self.at


def test_a_trial_waits_for_nobody() -> None:
    stream = Stream()
    trial = Trial(stream.mark)
    for _ in range(2):
        start = stream.mark()
        stream.now += 3.0
        trial.took(start, recorded=False)
    assert trial.plain() is None
    for k in range(RECORDED_CALLS):
        start = stream.mark()
        stream.now += 9.0 if k == 0 else 2.0 + (k == 2)
        trial.took(start, recorded=True)
        assert trial.recorded() is None
    stream.reached = stream.now
    assert trial.plain() == 3.0
    assert trial.recorded() == 2.0


def test_the_first_recorded_call_does_not_count() -> None:
    stream = Stream()
    trial = Trial(stream.mark)
    for took in (1.0, *[5.0] * (RECORDED_CALLS - 1)):
        start = stream.mark()
        stream.now += took
        trial.took(start, recorded=True)
    stream.reached = stream.now
    assert trial.recorded() == 5.0


def test_sizes_that_are_not_called_any_more_lose_their_recordings() -> None:
    sizes = Sizes()
    for n in range(MOST_SIZES):
        size = sizes.of(n)
        size.recordings.append(f"recording {n}")
        assert not sizes.recorded(size)
    first, second = sizes.of(0), sizes.of(1)
    assert sizes.of(0) is first
    new = sizes.of("new")
    new.recordings.append("new")
    assert sizes.recorded(new)
    assert sizes.of(2).recordings == []
    assert sizes.of(2).wanted == 4 * WARM_CALLS
    assert first.recordings
    assert second.recordings
    sizes.forget(first, for_good=True)
    assert first.recordings == []
    assert first.wanted == NEVER
    assert sizes.of(0) is first


def test_sizes_in_turn_do_not_push_each_other_out_forever() -> None:
    sizes, made = Sizes(), 0
    for _ in range(200):
        for n in range(MOST_SIZES + 1):
            size = sizes.of(n)
            size.calls += 1
            if not size.recordings and size.calls > size.wanted:
                size.recordings.append(n)
                sizes.recorded(size)
                made += 1
    assert made < 6 * MOST_SIZES


def test_a_flood_of_sizes_is_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(recording_policy, "MOST_KNOWN", 8)
    sizes = Sizes()
    kept = sizes.of("kept")
    kept.recordings.append("recording")
    sizes.recorded(kept)
    for n in range(7):
        sizes.of(n)
    assert sizes.of("kept") is kept
    for n in range(100, 120):
        sizes.of(n)
    assert sizes.of("kept") is not kept


def test_calls_that_fit_no_recording_are_left_alone_ever_longer() -> None:
    size = Sizes().of(0)
    rests = []
    for _ in range(12):
        assert [size.missed() for _ in range(MOST_MISSES)] == [False] * (MOST_MISSES - 1) + [True]
        rests.append(size.rest)
    assert rests[:3] == [64, 128, 256]
    assert rests[-1] == rests[-2] == 64 << 8


def in_a_thread(work: Callable[[], Any]) -> Any:
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_with_the_number_of_one_that_ended_has_run_nothing() -> None:
    recorded = Recorded(lambda inputs: inputs, (), (), False, 0.5, lambda code, why: None, "")

    def run() -> int:
        recorded._as_it_is(Size(), ())
        assert recorded._ran_here()
        return threading.get_ident()

    number = in_a_thread(run)
    for _ in range(100):
        again, ran = in_a_thread(lambda: (threading.get_ident(), recorded._ran_here()))
        assert not ran
        if again == number:
            break
    else:
        raise AssertionError("numbers are not used again here")
