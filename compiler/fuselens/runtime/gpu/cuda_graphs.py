"""A compiled graph recorded as CUDA graphs, so that a call is one launch: ``mode="reduce-overhead"``.

A recording has addresses in it. Inputs that are where they were (parameters, what other recordings saved, most of what a
loop allocates the same way each time) are read in place; those that move are copied into memory of the recording where
that takes little of the time of a call, and back where the graph writes to them. Results lie in memory that recordings
share (``graph_memory``). A recording may run when nobody holds what it would write over; while somebody does, another
recording runs, or the program as it is. So results stay what they are for as long as they live, and there is no step to
mark. Small results that are in the way are copied out from then on: a loss is usually held until the next one is there.

``recording_policy`` says which sizes are recorded, and whether recorded calls turned out faster.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from ... import torch_private
from ...ir.card import COPIED_A_MILLISECOND, REPLAY_MILLISECONDS
from ..memory import after_writing
from ..positions import picker
from .graph_memory import Group, Part, Pool
from .recording_policy import ENOUGH, MOST_SIZES, NEVER, WARM_CALLS, Size, Sizes, Trial

Call = Callable[[Any], Sequence[Any]]
Say = Callable[[str, str], None]  # a code and the reason
MOST_RECORDINGS = 4  # of one size: results of so many runs may be alive, or inputs be in so many places
COPIED = 1 << 20  # bytes of inputs of a call, while its time is not known; of results of a recording
COPIED_RESULTS = 8
COPY_SHARE = 0.25  # the part of a call's time that copies of its inputs may take

_groups: dict[tuple[int, int], Group] = {}
_ADDRESS: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Recording:
    part: Part
    pool: Pool
    memory: list[torch.Tensor]  # what inputs are copied into
    sources: list[Callable[[Sequence[Any]], torch.Tensor]]
    written: list[int]  # those of ``memory`` that the graph writes
    fixed: Callable[[Sequence[int]], Any]  # the addresses that must be the same
    addresses: Any
    size: Size

    def free(self) -> bool:
        return next(self.pool.in_the_way(self.part), None) is None

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        if self.pool.streams:
            for stream in self.pool.streams_of(self.part):
                torch.cuda.current_stream().wait_stream(stream)
        given = [source(inputs) for source in self.sources]
        if given:
            _copy(self.memory, given)
        self.part.graph.replay()
        with after_writing:
            if self.written:
                _copy([given[k].data for k in self.written], [self.memory[k] for k in self.written])
            self.pool.handed_out(self.part)
            copied = self.size.copied
            return [
                r if type(r) is not torch.Tensor else r.clone() if k in copied else r.detach()
                for k, r in enumerate(self.part.results)
            ]

    def make_way(self) -> bool:
        """Whether what is in the way now will not be from the next time on."""
        found = False
        for part, blocks in self.pool.in_the_way(self.part):
            owner = part.recording()
            if owner is None:
                continue
            if owner.copy_out(k for b in blocks for k in b.positions):
                found = True
            elif owner.size is not self.size and not self.pool.kept:
                owner.size.kept = found = True
                part.drop()  # the next one is made apart
        return found

    def copy_out(self, positions: Iterable[int]) -> bool:
        """Has these results copied out from now on, where that is new, and takes little."""
        wanted = self.size.copied | set(positions)
        count = sum(b.end - b.start for b in self.part.blocks if not wanted.isdisjoint(b.positions))
        if len(wanted) > COPIED_RESULTS or count > COPIED or wanted == self.size.copied:
            return False
        self.size.copied = wanted
        return True


class NotRecordable(Exception):
    """Why a call cannot be recorded."""


class Recorded:
    """``call`` with recordings. ``written`` are inputs that it writes, ``static`` those that stay where they are, ``symbolic``
    says that sizes vary. Recordings may hold ``share`` of the device's memory. ``say`` is told what is not recorded. ``title``
    is what profilers call a recorded call."""

    def __init__(
        self,
        call: Call,
        written: Iterable[int],
        static: Iterable[int],
        symbolic: bool,
        share: float,
        say: Say,
        title: str,
    ) -> None:
        self.call, self._title = call, title.encode(errors="backslashreplace").decode()
        self._written, self._static = frozenset(written), frozenset(static)
        self._symbolic = symbolic
        self._share = share
        self._say = say
        self._sizes = Sizes()
        self._slower = self._faster = 0
        self._said: set[str] = set()
        self._threads = (
            threading.local()
        )  # those that ran it as it is: libraries load for each, which cannot be recorded
        self._given_up = False
        self._device: int | None = None
        self._positions: list[int] = []  # of inputs that are tensors: the same in each call
        self._tensors = self._numbers = picker([])

    def __call__(self, inputs: Any) -> Sequence[Any]:
        if self._given_up or torch.cuda.is_current_stream_capturing():
            return self.call(inputs)
        if self._device is None and not self._begin(inputs):
            return self.call(inputs)
        queue = torch_private.current_queue()
        if queue[0] != self._device:
            self._tell("FL501", "another device than its own is the current one")
            return self.call(inputs)
        group = _groups.get(queue) or _groups.setdefault(queue, Group(*queue, torch.cuda.graph_pool_handle))
        if not group.lock.acquire(blocking=False):  # another thread's call, or one that this one interrupted
            return self.call(inputs)
        try:
            size = self._sizes.of((queue, self._key(inputs)))
            results = self._recorded(group, size, inputs)
        finally:
            group.lock.release()
        if group.left:
            group.gone()
        if results is None:
            return self._as_it_is(size, inputs)
        if type(inputs) is list:
            inputs.clear()
        return results

    def _begin(self, inputs: Sequence[Any]) -> bool:
        """Looks at the first call's inputs. Whether such calls can be recorded."""
        self._positions = [k for k, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        self._tensors = picker(self._positions)
        self._numbers = picker([k for k, x in enumerate(inputs) if not isinstance(x, torch.Tensor)])
        devices = {x.device for x in self._tensors(inputs)} or {torch.device("cuda", torch.cuda.current_device())}
        if any(d.type != "cuda" for d in devices):
            self._give_up("FL501", "it reads a tensor on the CPU")
        elif len(devices) > 1:
            self._give_up("FL501", "it reads tensors of several devices")
        else:
            self._device = devices.pop().index
        return not self._given_up

    def _key(self, inputs: Sequence[Any]) -> Any:
        mode = torch.is_inference_mode_enabled()
        if not self._symbolic:
            return mode, self._numbers(inputs)
        return mode, self._numbers(inputs), tuple([(x.shape, x.stride()) for x in self._tensors(inputs)])

    def _give_up(self, code: str, why: str) -> None:
        self._given_up = True
        self._sizes.clear()
        self._tell(code, why)

    def _tell(self, code: str, why: str) -> None:
        said = why if code == "FL501" else code
        if said not in self._said:
            self._said.add(said)
            self._say(code, why)

    def _as_it_is(self, size: Size, inputs: Any) -> Sequence[Any]:
        self._threads.ran = True
        if not 2 <= size.calls <= WARM_CALLS or size.wanted == NEVER:
            return self.call(inputs)
        trial = size.trial = size.trial or Trial(mark)
        start = mark()
        results = self.call(inputs)
        trial.took(start, recorded=False)
        return results

    def _ran_here(self) -> bool:
        return hasattr(self._threads, "ran")

    # --- under the group's lock

    def _recorded(self, group: Group, size: Size, inputs: Sequence[Any]) -> list[Any] | None:
        """The results of a recording; None where the call is not recorded."""
        size.calls += 1
        if size.rest or size.wanted == NEVER:
            size.rest = max(0, size.rest - 1)
            return None
        trial = size.trial if size.recordings else None
        if trial is not None and trial.complete:
            self._judge(size, trial)
            trial = None
        start = mark() if trial is not None else None
        tensors = self._tensors(inputs)
        addresses = tuple(map(_ADDRESS, tensors))
        recording = self._ready(group, size, inputs, addresses)
        if recording is None:
            return None
        if torch_private.profiler_listens():
            with torch.profiler.record_function(self._title):
                results = recording.run(inputs)
        else:
            results = recording.run(inputs)
        if trial is not None and start is not None:
            trial.took(start, recorded=True)
        return results

    def _ready(self, group: Group, size: Size, inputs: Sequence[Any], addresses: tuple[int, ...]) -> _Recording | None:
        if any(r.pool.closed for r in size.recordings):
            self._sizes.forget(size)
        if any(r.part.dropped for r in size.recordings):
            size.recordings = [r for r in size.recordings if not r.part.dropped]
        fitting = [r for r in size.recordings if r.fixed(addresses) == r.addresses]
        for recording in fitting:
            if recording.free():
                if recording.part.intact():
                    return recording
                recording.pool.close()
                return None
        size.moved |= {k for k, (a, b) in enumerate(zip(size.addresses, addresses, strict=False)) if a != b}
        size.addresses = addresses
        if size.calls <= size.wanted or not self._ran_here():
            return None
        if sum(r.make_way() for r in fitting):
            return None
        if len(size.recordings) < MOST_RECORDINGS:
            return self._record(group, size, inputs, addresses)
        if size.missed():
            if not fitting:
                self._sizes.forget(size)
            self._tell("FL501", "its results are held for long, by the program" if fitting else
                      "its inputs are in other places in each call, and too large to be copied")  # fmt: skip
        return None

    def _judge(self, size: Size, trial: Trial) -> None:
        plain, recorded = trial.plain(), trial.recorded()
        if plain is None or recorded is None:
            return
        size.trial = None
        if recorded + REPLAY_MILLISECONDS <= plain * ENOUGH:
            self._faster += 1
            return
        self._slower += 1
        why = f"a recorded call takes {1e3 * recorded:.0f} µs, one that is not {1e3 * plain:.0f} µs"
        self._sizes.forget(size, for_good=True)
        if not self._symbolic or (self._slower > 2 and not self._faster):
            self._give_up("FL503", why)
        else:
            self._tell("FL503", why)

    def _record(self, group: Group, size: Size, inputs: Sequence[Any], addresses: tuple[int, ...]) -> _Recording | None:
        copied = self._copied(group, size, inputs)
        memory, sources, given = [], [], list(inputs)
        for k in copied:
            source, made, given[k] = _copies(k, inputs[k])
            sources.append(source)
            memory.append(made)
        pool = group.pool(size.kept)
        kept = pool.give_back()
        try:
            if group.side is None:
                group.side = _own_stream(group.device)
                torch_private.watch_streams(_used)
            try:
                graph, results = capture(self.call, list(given), pool.handle, group.side)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()  # which torch does by itself, but not while recording
                graph, results = capture(self.call, list(given), pool.handle, group.side)
            part = Part(list(results), graph)
            fixed = [n for n, k in enumerate(self._positions) if k not in copied]
            pick = picker(fixed)
            recording = _Recording(
                part, pool, memory, sources, [n for n, k in enumerate(copied) if k in self._written], pick,
                pick(addresses), size,
            )  # fmt: skip
            pool.add(part, kept, _segments(pool.handle), recording, group.gone)
        except Exception as error:  # noqa: BLE001  what cannot be recorded can be run
            pool.full = True
            self._give_up("FL501", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            return None
        size.recordings.append(recording)
        if self._sizes.recorded(size):
            self._tell(
                "FL502", f"of more than {MOST_SIZES} sizes, those that were not called for longest are let go of"
            )
        return recording if self._fits(group, size, pool, recording) else None

    def _copied(self, group: Group, size: Size, inputs: Sequence[Any]) -> list[int]:
        """The inputs that a recording copies: those that move, while that takes little time. Parameters, and what other
        recordings left, are only copied by a size's last recording: they stay where they are, as a rule."""
        spent = size.trial and size.trial.plain()
        left = COPIED if spent is None else max(COPIED, spent * COPY_SHARE * COPIED_A_MILLISECOND)
        last = len(size.recordings) == MOST_RECORDINGS - 1
        moved = [n for n in size.moved if last or not (group.has(size.addresses[n]) or self._stays(n, inputs))]
        found: list[int] = []
        movable = [k for k in (self._positions[n] for n in moved) if self._may_be_copied(k, inputs)]
        for k in sorted(movable, key=lambda k: _extent(inputs[k])):
            left -= _extent(inputs[k]) * (2 if k in self._written else 1)
            if left < 0:
                break
            found.append(k)
        return sorted(found)

    def _stays(self, n: int, inputs: Sequence[Any]) -> bool:
        k = self._positions[n]
        return k in self._static or isinstance(inputs[k], torch.nn.Parameter)

    def _may_be_copied(self, k: int, inputs: Sequence[Any]) -> bool:
        x = inputs[k]
        if torch_private.has_marked_address(x):
            return False
        if k not in self._written:
            return True
        key = torch_private.storage_key(x)
        alone = sum(torch_private.storage_key(t) == key for t in self._tensors(inputs)) == 1
        return alone and (torch.is_inference_mode_enabled() or not x.is_inference())

    def _fits(self, group: Group, size: Size, pool: Pool, recording: _Recording) -> bool:
        """Whether recordings hold no more memory than they may; else some are let go of, or this one."""
        limit = self._share * torch.cuda.get_device_properties(group.device).total_memory
        held = sum(g.bytes for g in list(_groups.values()) if g.device == group.device)
        if held <= limit:
            return True
        alone = len(pool.parts) == 1
        loser = pool if alone else min(group.pools, key=lambda p: p.used)
        loser.close()
        what = f"{held >> 20} MiB were held, of {int(limit) >> 20} that recordings may hold (`cuda_graph_memory`)"
        if recording.part.dropped:
            self._sizes.forget(size, for_good=alone)
        self._tell("FL502", f"{what}: it is not recorded" if alone else f"{what}: recordings are let go of")
        group.sweep()
        return not recording.part.dropped


def step_begins() -> None:
    """A step of the program begins: memory of recordings that are gone is given back once nobody holds their results."""
    for group in list(_groups.values()):
        group.gone()


def _used(tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
    for group in list(_groups.values()):
        if group.device == tensor.get_device():
            group.used_by(tensor, stream)


def held_bytes() -> int:
    """What recordings hold of the memory of all devices."""
    return sum(group.bytes for group in list(_groups.values()))


def capture(call: Call, inputs: list[Any], pool: Any, side: torch.cuda.Stream) -> tuple[Any, Sequence[Any]]:
    """A CUDA graph of one call, which is not executed, and the results that a replay will fill."""
    graph = torch.cuda.CUDAGraph()
    current = torch.cuda.current_stream()
    side.wait_stream(current)
    collecting = gc.isenabled()
    gc.disable()  # finalisers of the program would be recorded
    try:
        with torch.cuda.stream(side):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                results = call(inputs)
            except BaseException:
                with suppress(Exception):
                    graph.capture_end()
                raise
            _end(graph)
    except BaseException:
        torch_private.stop_allocating(side.device_index, pool)
        _record_nothing(side)  # torch left its generator of random numbers recording
        raise
    finally:
        if collecting:
            gc.enable()
    current.wait_stream(side)
    return graph, results


def _own_stream(device: int) -> torch.cuda.Stream:
    """A stream that torch gives nobody: what libraries keep for its next call is used by recordings alone."""
    made = ctypes.c_void_p()
    error = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(made), 1)  # CU_STREAM_NON_BLOCKING
    if error:
        raise NotRecordable(f"a stream could not be made: CUDA error {error}")
    return torch.cuda.ExternalStream(made.value, device)


def _end(graph: torch.cuda.CUDAGraph) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")
        graph.capture_end()


def _record_nothing(side: torch.cuda.Stream) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        _end(graph)


def mark() -> torch.cuda.Event:
    """This point of the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _segments(handle: Any) -> list[tuple[int, int]]:
    return [(s["address"], s["address"] + s["total_size"]) for s in torch.cuda.memory_snapshot(handle)]


def _extent(x: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last."""
    if not x.numel():
        return 0
    return x.element_size() * (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)))


def _copies(k: int, x: torch.Tensor) -> tuple[Callable[[Sequence[Any]], torch.Tensor], torch.Tensor, torch.Tensor]:
    """How to take input ``k`` for copying, the memory it is copied into, and that memory in the input's place."""
    with torch.inference_mode(False), torch.no_grad():
        if x.is_contiguous():
            made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
            return itemgetter(k), made, made
        count = _extent(x) // x.element_size()
        made = torch.empty(count, dtype=x.dtype, device=x.device)
        return (lambda inputs: inputs[k].as_strided((count,), (1,))), made, made.as_strided(x.shape, x.stride())


def _copy(to: list[torch.Tensor], given: list[torch.Tensor]) -> None:
    with torch.no_grad():
        if len(to) == 1:
            to[0].copy_(given[0])
        else:
            torch_private.COPY_ALL(to, given)
