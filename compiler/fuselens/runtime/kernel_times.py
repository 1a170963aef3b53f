"""Times of single kernels and operators: a copy of a graph's unit looks at the clock around each of them.

The copy is the unit's own text, built with the same flags, in which the calls that tell a profiler what begins and ends look
at the clock in its place; so it computes the same. It takes the unit's place for a few calls now and then (:mod:`fuselens.live`
says when): all others, and all runs that nobody follows, are as they were, without a look at a switch.
"""

from __future__ import annotations

import ctypes
import re
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import torch_private
from ..config import Config
from ..ir.contracts.native import address
from .build import BuildFailed, NoCompiler, build
from .cache.store import Cache
from .program import bind_imports

if TYPE_CHECKING:
    from ..ir.contracts.source import Generated
    from ._program import Program

_TELLING = re.compile(r"^static inline void event_(begins|ends)\(.*\) \{.*\}$", re.MULTILINE)
_CLOCKS = {"linux": 1, "darwin": 6}  # CLOCK_MONOTONIC
_TIMED = """
struct fuselens_Instant {{ long seconds, nanoseconds; }};
extern "C" int clock_gettime(int, fuselens_Instant*);
extern "C" {{ long fuselens_times[{count}]; }}  // of each event, in their order: how often, nanoseconds
static thread_local long fuselens_event, fuselens_begun;
static inline long fuselens_now() {{
  fuselens_Instant now;
  clock_gettime({clock}, &now);
  return now.seconds * 1000000000 + now.nanoseconds;
}}
static inline void event_begins(const Runtime*, void*, int event) {{ fuselens_event = event, fuselens_begun = fuselens_now(); }}
static inline void event_ends(const Runtime*, void*) {{
  __atomic_fetch_add(&fuselens_times[2 * fuselens_event + 1], fuselens_now() - fuselens_begun, __ATOMIC_RELAXED);
  __atomic_fetch_add(&fuselens_times[2 * fuselens_event], 1, __ATOMIC_RELAXED);
}}
"""


def timed(generated: Generated) -> str | None:
    """The unit's text with the clock around its events; None where it has no host program, or no clock."""
    source, program = generated.cpp, generated.program
    if source is None or program is None or not program.events or sys.platform not in _CLOCKS:
        return None
    text, found = _TELLING.subn("", source.text)
    place = text.find("\nnamespace {", text.find("void (*end)(void* call);"))
    if found != 2 or place < 0:
        return None
    return text[:place] + _TIMED.format(count=2 * len(program.events), clock=_CLOCKS[sys.platform]) + text[place:]


class Probe:
    """Puts the timed copy in the place of a program, and takes it away again. ``events`` are those that are asked for."""

    def __init__(
        self, program: Program, text: str, generated: Generated, events: Sequence[int], config: Config
    ) -> None:
        self._program, self._text, self._config = weakref.ref(program), text, config
        self._flags, self._made = generated.isa_flags, generated.program
        self._events = events
        self._library: ctypes.CDLL | None = None
        self._entry = self._usual = 0
        self.armed = False

    def arm(self) -> bool:
        """From now on calls are timed; False when they cannot be. The first time this takes as long as the compiler."""
        program = self._program()
        if program is None or (self._library is None and not self._build()):
            return False
        if not self.armed:
            self._usual = program.enter(self._entry)
            self.armed = True
        return True

    def disarm(self) -> None:
        program = self._program()
        if self.armed and program is not None:
            program.enter(self._usual)
        self.armed = False

    def read(self) -> list[tuple[int, float]]:
        """Of each event that is asked for, how many calls were timed, and their seconds."""
        if self._library is None or self._made is None:
            return [(0, 0.0)] * len(self._events)
        times = (ctypes.c_long * (2 * len(self._made.events))).in_dll(self._library, "fuselens_times")
        return [(times[2 * k], times[2 * k + 1] / 1e9) for k in self._events]

    def _build(self) -> bool:
        try:
            library = build(self._text, self._flags, self._config, Cache(self._config.cache_dir), patient=True).library
        except (NoCompiler, BuildFailed, OSError):
            return False
        assert self._made is not None
        bind_imports(library, self._made)
        self._library, self._entry = library, address(library, "fuselens_call")
        return True


class OperatorTimes:
    """A program without kernels of ours, and a :class:`Probe` of it: its operators, of these ``names`` in order, are timed where torch
    dispatches them. Of a single one the whole call is the time."""

    def __init__(self, call: Callable[[Any], Any], names: Sequence[str]) -> None:
        self._call, self._names = call, names
        self._times = [(0, 0.0)] * len(names)
        self.armed = False

    def __call__(self, inputs: Any) -> Any:
        if not self.armed:
            return self._call(inputs)
        if len(self._names) == 1:
            start = time.perf_counter()
            found = self._call(inputs)
            ((calls, total),) = self._times
            self._times = [(calls + 1, total + time.perf_counter() - start)]
            return found
        with _Watching(self._names) as watching:
            found = self._call(inputs)
        self._times = [
            (calls + (seconds is not None), total + (seconds or 0.0))
            for (calls, total), seconds in zip(self._times, watching.seconds, strict=True)
        ]
        return found

    def arm(self) -> bool:
        self.armed = True
        return True

    def disarm(self) -> None:
        self.armed = False

    def read(self) -> list[tuple[int, float]]:
        return self._times


class _Watching(torch_private.RecordingMode):
    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names, self._next = [name.lstrip("_") for name in names], 0
        self.seconds: list[float | None] = [None] * len(names)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter()
        found = func(*args, **(kwargs or {}))
        taken = time.perf_counter() - start
        name = func.overloadpacket.__name__.lstrip("_")
        if name in self._names[self._next :]:
            at = self._names.index(name, self._next)
            self.seconds[at], self._next = taken, at + 1
        return found
