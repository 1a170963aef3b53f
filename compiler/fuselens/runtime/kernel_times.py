"""Times of single kernels, in runs that are followed: a copy of a graph's unit looks at the clock around each kernel.

The copy is the unit's own text, built with the same flags, in which macros surround the calls of kernels; so it computes
the same. It takes the unit's place for a few calls now and then (:mod:`fuselens.live` says when): all others, and all
runs that nobody follows, are as they were, without a look at a switch.
"""

from __future__ import annotations

import ctypes
import re
import sys
import weakref
from typing import TYPE_CHECKING

from ..config import Config
from ..ir.contracts.native import address
from .build import BuildFailed, NoCompiler, build
from .cache.store import Cache
from .program import bind_imports

if TYPE_CHECKING:
    from ..ir.contracts.source import Generated
    from ._program import Program

_HOST = "\nunion Value {"  # where the unit's kernels end and its host program begins
_CLOCKS = {"linux": 1, "darwin": 6}  # CLOCK_MONOTONIC
_TIMED = """
struct fuselens_Instant {{ long seconds, nanoseconds; }};
extern "C" int clock_gettime(int, fuselens_Instant*);
extern "C" {{ long fuselens_times[{count}]; }}  // of each kernel, in the order of their calls: how often, nanoseconds
static inline long fuselens_now() {{
  fuselens_Instant now;
  clock_gettime({clock}, &now);
  return now.seconds * 1000000000 + now.nanoseconds;
}}
static inline void fuselens_took(long kernel, long begin) {{
  __atomic_fetch_add(&fuselens_times[2 * kernel + 1], fuselens_now() - begin, __ATOMIC_RELAXED);
  __atomic_fetch_add(&fuselens_times[2 * kernel], 1, __ATOMIC_RELAXED);
}}
"""
_SURROUND = "#define {0}(...) do {{ const long begin = fuselens_now(); {0}(__VA_ARGS__); fuselens_took(__COUNTER__, begin); }} while (0)"


def timed(generated: Generated) -> str | None:
    """The unit's text with the clock around the calls of its kernels; None where it has no host program, or no clock."""
    source = generated.cpp
    if source is None or source.program is None or sys.platform not in _CLOCKS or _HOST not in source.text:
        return None
    functions = dict.fromkeys(kernel.function for kernel in source.kernels)
    kernels, _, host = source.text.rpartition(_HOST)
    called = [name for name in re.findall(r"^\s*(\w+)\(", host, re.MULTILINE) if name in functions]
    if not called or called != [kernel.function for kernel in source.kernels]:
        return None
    head = _TIMED.format(count=2 * len(called), clock=_CLOCKS[sys.platform])
    return "\n".join((kernels, head, *map(_SURROUND.format, functions), _HOST)) + host


class Probe:
    """Puts the timed copy in the place of a program, and takes it away again."""

    def __init__(self, program: Program, text: str, generated: Generated, config: Config) -> None:
        self._program, self._text, self._config = weakref.ref(program), text, config
        self._flags, self._made = generated.isa_flags, generated.program
        self._kernels = len(generated.cpp.kernels) if generated.cpp is not None else 0
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
        """Of each kernel, how many calls were timed, and their seconds."""
        if self._library is None:
            return [(0, 0.0)] * self._kernels
        times = (ctypes.c_long * (2 * self._kernels)).in_dll(self._library, "fuselens_times")
        return [(times[2 * k], times[2 * k + 1] / 1e9) for k in range(self._kernels)]

    def _build(self) -> bool:
        try:
            library = build(self._text, self._flags, self._config, Cache(self._config.cache_dir), patient=True).library
        except (NoCompiler, BuildFailed, OSError):
            return False
        assert self._made is not None
        bind_imports(library, self._made)
        self._library, self._entry = library, address(library, "fuselens_call")
        return True
