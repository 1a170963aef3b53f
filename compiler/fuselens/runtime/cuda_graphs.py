"""A compiled graph recorded as CUDA graphs, so that a call is one launch: ``mode="reduce-overhead"``.

A recording has addresses in it. Inputs that are where they were (parameters, what other recordings saved, most of what a
loop allocates the same way each time) are read in place; small ones that move are copied into memory of the recording.
Results lie in memory of the recording as well. It may run again when nobody holds results of its last run; while somebody
does, another recording runs, or the program as it is. So results stay what they are for as long as they live, and there is
no step to mark. Small results are copied out: a loss is usually held until the next one is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch

from .. import torch_private

Call = Callable[[Any], Sequence[Any]]
WARM_CALLS = 2  # as the program is: they load kernels and libraries, which cannot be done while recording
MOST_RECORDINGS = 4  # of one size: results of so many runs may be alive, or inputs be in so many places
MOST_SIZES = 16
MOST_MISSES = 16  # calls that no recording fits, before a graph is given up
COPIED_IN = 1 << 20  # bytes: larger inputs are read where they are or not at all
COPIED_OUT = 1 << 16


@dataclass(slots=True)
class _Recording:
    graph: Any
    copied: tuple[tuple[int, torch.Tensor], ...]  # input → memory of the recording
    fixed: Callable[[list[int]], Any]  # the addresses that must be the same
    addresses: Any
    results: tuple[Any, ...]
    small: tuple[bool, ...]
    storages: tuple[tuple[Any, int], ...]  # of results that are not copied out, and how often they are referred to

    def free(self) -> bool:
        return all(torch_private.storage_uses(s) == n for s, n in self.storages)

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        for position, memory in self.copied:
            memory.copy_(inputs[position])
        self.graph.replay()
        return tuple([
            r if type(r) is not torch.Tensor else r.clone() if small else r.detach()
            for r, small in zip(self.results, self.small, strict=True)
        ])  # fmt: skip


@dataclass(slots=True)
class _Size:
    """What is known of the calls of one size."""

    calls: int = 0
    misses: int = 0
    addresses: list[int] = field(default_factory=list)  # of the last call
    moved: set[int] = field(default_factory=set)  # inputs that have been in several places
    recordings: list[_Recording] = field(default_factory=list)


class Recorded:
    """``call`` with recordings. ``written`` are inputs that it writes, ``symbolic`` says that sizes vary, ``refused`` is told
    why it will not be recorded (any more)."""

    def __init__(self, call: Call, written: Sequence[int], symbolic: bool, refused: Callable[[str], None]) -> None:
        self.call = call
        self._written = frozenset(written)
        self._symbolic = symbolic
        self._refused = refused
        self._sizes: dict[Any, _Size] = {}
        self._given_up = False
        self._stream: int | None = None
        self._lock = threading.Lock()

    def __call__(self, inputs: Any) -> Sequence[Any]:
        if self._given_up or not self._lock.acquire(blocking=False):
            return self.call(inputs)
        try:
            recording = self._recording(inputs)
            if recording is None:
                return self.call(inputs)
            results = recording.run(inputs)
        finally:
            self._lock.release()
        if type(inputs) is list:
            inputs.clear()
        return results

    def _recording(self, inputs: Sequence[Any]) -> _Recording | None:
        stream = torch_private.current_stream()
        if self._stream is None:
            self._stream = stream
        if stream != self._stream or torch.cuda.is_current_stream_capturing():
            return None
        size = self._size(inputs)
        if size is None:
            return None
        addresses = [x.data_ptr() if isinstance(x, torch.Tensor) else 0 for x in inputs]
        size.calls += 1
        if size.calls > WARM_CALLS:
            for recording in size.recordings:
                if recording.fixed(addresses) == recording.addresses and recording.free():
                    return recording
        before, size.addresses = size.addresses, addresses
        size.moved |= {k for k, (a, b) in enumerate(zip(before, addresses, strict=False)) if a != b}
        if size.calls <= WARM_CALLS:
            return None
        if len(size.recordings) < MOST_RECORDINGS:
            return self._record(size, inputs, addresses)
        size.misses += 1
        if size.misses > MOST_MISSES and not any(r.fixed(addresses) == r.addresses for r in size.recordings):
            self._give_up("its inputs are in other places in each call, and too large to be copied")
        return None

    def _size(self, inputs: Sequence[Any]) -> _Size | None:
        """None for calls that are not recorded."""
        key = tuple(_measures(inputs, self._symbolic))
        found = self._sizes.get(key)
        if found is None:
            if any(isinstance(x, torch.Tensor) and not x.is_cuda for x in inputs):
                self._give_up("it reads a tensor on the CPU")
                return None
            if len(self._sizes) == MOST_SIZES:
                return None
            found = self._sizes[key] = _Size()
        return found

    def _record(self, size: _Size, inputs: Sequence[Any], addresses: list[int]) -> _Recording | None:
        copied = {
            k: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
            for k in sorted(size.moved - self._written)
            if isinstance(x := inputs[k], torch.Tensor) and x.numel() * x.element_size() <= COPIED_IN
        }
        given = [copied.get(k, x) for k, x in enumerate(inputs)]
        try:
            graph, results = capture(self.call, given)
        except Exception as error:  # noqa: BLE001  what cannot be recorded can be run
            self._give_up(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            return None
        fixed = [k for k, x in enumerate(inputs) if isinstance(x, torch.Tensor) and k not in copied]
        pick = itemgetter(*fixed) if fixed else _nothing
        small = tuple(_copied_out(r) for r in results)
        kept = {
            r.untyped_storage()._cdata: r.untyped_storage()
            for r, is_small in zip(results, small, strict=True)
            if type(r) is torch.Tensor and not is_small
        }
        storages = tuple((s, torch_private.storage_uses(s)) for s in kept.values())
        recording = _Recording(graph, tuple(copied.items()), pick, pick(addresses), tuple(results), small, storages)
        size.recordings.append(recording)
        return recording

    def _give_up(self, why: str) -> None:
        self._given_up = True
        self._sizes.clear()
        self._refused(why)


def capture(call: Call, inputs: list[Any]) -> tuple[Any, Sequence[Any]]:
    """A CUDA graph of one call, which is not executed, and the results that a replay will fill."""
    graph = torch.cuda.CUDAGraph()
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            results = call(inputs)
        finally:
            graph.capture_end()
    current.wait_stream(side)
    return graph, results


def _measures(inputs: Sequence[Any], symbolic: bool) -> Iterator[Any]:
    for x in inputs:
        if not isinstance(x, torch.Tensor):
            yield x
        elif symbolic:
            yield (*x.shape, *x.stride())


def _copied_out(result: Any) -> bool:
    return type(result) is torch.Tensor and result.numel() * result.element_size() <= COPIED_OUT


def _nothing(addresses: list[int]) -> tuple[()]:
    return ()
