"""A run that shows itself: a user's own process tells the language server what its compiled functions do in it.

Each server leaves an :class:`Endpoint`, where it listens and a token, in a directory of the user's own. A process that
was asked to (``FUSELENS_LIVE=1``), or that compiles functions in a folder whose editor asks for it, sends
:class:`Event` objects there: a thread of its own per server takes them from a bounded queue, which drops what does not fit.
So a server that is slow, stopped or gone costs the run nothing. No tensor's data leaves the process.

Standard library only: the server imports this as well.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import linecache
import os
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import util as multiprocessing
from pathlib import Path
from typing import Any, Literal, Protocol

from .record import plain, wire
from .record.report import Diagnostic, Shape, Span
from .system import ownership

QUEUE = 1024  # events that wait for one server; what comes beyond is dropped
PERIOD = 0.25  # seconds between two looks at the times of calls
EXIT_SECONDS = 0.1  # that the end of the process waits for a server that takes nothing
FLUSH_SECONDS = 2.0  # that it waits for one that does
LARGEST_CELL = 1 << 18  # characters of a notebook's cell
MOST_KERNELS = 32  # of a graph, the slowest, whose times are told
WORTH = 32  # calls of a graph from which its kernels are timed
REST = 1.0  # seconds between two times at which kernels are
TURNS = (0.005, 0.02, 0.08, 0.32)  # seconds that they are, until a call came by
_QUIETLY = getattr(socket, "MSG_NOSIGNAL", 0)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens, and the word that it lets in. ``folders``: what is compiled from files in them is shown
    without being asked for."""

    socket: str
    token: str
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a process. Processes that forked from one ``run`` share its name."""

    token: str
    run: str
    pid: int
    program: str


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The calls of one kernel that were timed, and their seconds."""

    name: str
    phase: str
    spans: tuple[Span, ...]
    calls: int
    seconds: float
    bytes: int = 0  # that a call reads and writes, with the sizes that it was compiled for; 0 where that is not known


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a compiled function.

    kinds: ``finding`` (a recompilation, a graph break, …: ``diagnostic``), ``shapes`` (of variables in a frame that was
    compiled), ``graph`` (number ``graph`` was compiled in ``seconds``), ``times`` (of its calls so far), ``kernels`` (of
    some of them), ``call`` (it was compiled for one: ``shapes`` of its arguments), ``source`` (``file`` is a notebook's cell,
    whose ``text`` ran), ``dropped`` (``calls`` events were).
    """

    kind: Literal["finding", "shapes", "graph", "times", "kernels", "call", "source", "dropped"]
    file: str = ""
    function: str = ""
    line: int = 0  # the first of the function's code
    diagnostic: Diagnostic | None = None
    shapes: tuple[Shape, ...] = ()
    recorded: bool = False  # the call can be made again
    graph: int = 0
    resumed: bool = False  # the graph is not the first of a call: it comes after a break
    calls: int = 0
    seconds: float = 0.0
    fastest: float = 0.0
    kernels: tuple[KernelTime, ...] = ()
    text: str = ""


# --- where servers listen -------------------------------------------------------------------------------------------


def directory(cache: Path) -> Path:
    """Where endpoints are, below the user's cache directory."""
    return cache / "live"


def private(path: Path) -> bool:
    """Whether there is a folder that only this user can read and change, and nobody else what is above it."""
    with contextlib.suppress(OSError):
        return not ownership.objection(path) and not (hasattr(os, "getuid") and path.lstat().st_mode & 0o077)
    return False


def endpoints(cache: Path) -> Iterator[tuple[Path, Endpoint]]:
    """The endpoints that servers left, with their files; some of these servers may be gone."""
    place = directory(cache)
    if not hasattr(socket, "AF_UNIX") or not place.exists() or not private(place):
        return
    for file in sorted(place.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            yield file, plain.from_plain(Endpoint, json.loads(_read(file)))


def _read(file: Path) -> bytes:
    descriptor = ownership.opened(file)
    try:
        if hasattr(os, "getuid") and os.fstat(descriptor).st_mode & 0o077:
            raise PermissionError(f"others may read the token in {file}")
        return ownership.content(descriptor)
    finally:
        os.close(descriptor)


def _require_own(channel: socket.socket) -> None:
    """Raises OSError where another user listens: what a server left in a common folder, anybody may take the place of."""
    if hasattr(socket, "SO_PEERCRED"):
        _, user, _ = struct.unpack(
            "3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        if user != os.geteuid():
            raise PermissionError(f"user {user} listens")


# --- the run --------------------------------------------------------------------------------------------------------


class Times:
    """How often a graph ran, and how long: written by the calls, read by the senders."""

    __slots__ = ("calls", "fastest", "seconds", "what")

    def __init__(self, what: Event) -> None:
        self.what = what
        self.calls, self.seconds, self.fastest = 0, 0.0, float("inf")


class Probe(Protocol):
    """Times the kernels of a graph's calls while it is armed. ``read``: of each kernel, the calls and their seconds."""

    def arm(self) -> bool: ...
    def disarm(self) -> None: ...
    def read(self) -> list[tuple[int, float]]: ...


@dataclass(eq=False, slots=True)
class _Kernels:
    """The kernels of one graph; ``times`` are the graph's."""

    times: Times
    kernels: list[tuple[str, str, tuple[Span, ...], int]]  # name, phase, spans, bytes of a call
    probe: Probe
    taken: list[tuple[int, float]]
    calls: int = 0  # of the graph, when they were last timed

    @property
    def due(self) -> bool:
        return self.times.calls >= WORTH and self.times.calls != self.calls

    def came_by(self) -> bool:
        """Takes what the probe has, and the probe away, once there is something new."""
        taken = self.probe.read()
        if taken == self.taken:
            return False
        self.probe.disarm()
        self.taken, self.calls = taken, self.times.calls
        return True

    def event(self) -> Event:
        what = self.times.what
        found = [
            KernelTime(name, phase, spans, calls, seconds, moved)
            for (name, phase, spans, moved), (calls, seconds) in zip(self.kernels, self.taken, strict=True)
        ]
        found.sort(key=lambda k: -k.seconds / max(k.calls, 1))
        return Event(
            "kernels", what.file, what.function, what.line, graph=what.graph, kernels=tuple(found[:MOST_KERNELS])
        )


class _Clock:
    """A thread that has kernels timed, for a few calls of each graph in a second."""

    def __init__(self) -> None:
        self.graphs: list[_Kernels] = []
        self._thread: threading.Thread | None = None

    def watch(self, kernels: _Kernels) -> None:
        self.graphs.append(kernels)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="fuselens kernel times", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads
                self._thread.start()

    def reset(self) -> None:
        """In a forked child, which has no such thread, nothing is timed but what it compiles itself."""
        for kernels in self.graphs:
            kernels.probe.disarm()
        self.graphs, self._thread = [], None

    def _serve(self) -> None:
        while True:
            time.sleep(REST)
            armed: list[_Kernels] = []
            for kernels in [k for k in self.graphs if k.due]:
                if kernels.probe.arm():
                    armed.append(kernels)
                else:
                    self.graphs.remove(kernels)
            for seconds in TURNS:
                if armed:
                    time.sleep(seconds)
                    armed = [k for k in armed if not k.came_by()]
            for kernels in armed:
                kernels.probe.disarm()


class _Sender:
    """The thread that talks to one server, and what waits for it."""

    def __init__(self, endpoint: Endpoint, run: str, times: list[Times], clock: _Clock) -> None:
        self.endpoint = endpoint
        self.dropped = 0
        self._run = run
        self._times = times
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """As at the beginning; in a forked child nothing of the parent's thread is left but its socket."""
        if (channel := getattr(self, "_channel", None)) is not None:
            with contextlib.suppress(OSError):
                channel.close()
        self._waiting: deque[Event] = deque()
        self._wake, self._ending = threading.Event(), False
        self._thread: threading.Thread | None = None
        self._channel: socket.socket | None = None
        self._gone = self._sending = False
        self._sent = 0
        self._told: dict[Times | _Kernels, int] = {}
        self._cells: set[str] = set()

    def put(self, event: Event) -> None:
        """Never waits."""
        if self._gone:
            return
        if len(self._waiting) >= QUEUE:
            self.dropped += 1
            return
        self._waiting.append(event)
        if self._thread is None:
            self._start()
        self._wake.set()

    def cell(self, file: str, text: str) -> None:
        """Says, once, what text a file is that is none: a cell."""
        if file not in self._cells:
            self._cells.add(file)
            self.put(Event("source", file, text=text))

    def finish(self) -> None:
        """Gives what waits a moment to leave. A forked child that only ran what its parent compiled says so now."""
        if self._thread is None and not self._gone and any(times.calls for times in self._times):
            self._start()
        if self._thread is not None and not self._gone:
            self._ending = True
            self._wake.set()
            end = time.monotonic() + FLUSH_SECONDS
            while self._thread.is_alive() and time.monotonic() < end:
                sent = self._sent
                self._thread.join(EXIT_SECONDS)
                if self._sending and self._sent == sent:
                    return

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="fuselens live", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads
            self._gone = True

    def _serve(self) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                self._channel, self._sending = channel, True
                channel.connect(self.endpoint.socket)
                _require_own(channel)
                program = sys.argv[0] if sys.argv else ""
                self._send(channel, Hello(self.endpoint.token, self._run, os.getpid(), program))
                last = False
                while not last:
                    self._wake.wait(PERIOD)
                    self._wake.clear()
                    last = self._ending
                    for event in self._news():
                        self._send(channel, event)
        except (OSError, ValueError):
            pass
        finally:
            self._gone = True
            self._waiting.clear()

    def _send(self, channel: socket.socket, message: Hello | Event) -> None:
        self._sending = True
        channel.sendall(wire.encode(message), _QUIETLY)
        self._sending = False
        self._sent += 1

    def _news(self) -> Iterator[Event]:
        while self._waiting:
            yield self._waiting.popleft()
        for times in list(self._times):
            if times.calls != self._told.get(times, 0):
                self._told[times] = times.calls
                what = times.what
                yield Event("times", what.file, what.function, what.line, graph=what.graph, calls=times.calls,
                            seconds=times.seconds, fastest=times.fastest)  # fmt: skip
        for kernels in list(self._clock.graphs):
            if kernels.calls != self._told.get(kernels, 0):
                self._told[kernels] = kernels.calls
                yield kernels.event()
        if dropped := self.dropped:
            self.dropped -= dropped
            yield Event("dropped", calls=dropped)


class _Run:
    """This process, and those that it forks."""

    def __init__(self) -> None:
        self.name = os.urandom(8).hex()
        self.times: list[Times] = []
        self.clock = _Clock()
        self._senders: dict[Endpoint, _Sender] = {}
        atexit.register(self._finish)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
            multiprocessing.register_after_fork(self, _Run._follow_worker)

    def _follow_worker(self) -> None:
        """Workers of pools and data loaders end without the exit of a process."""
        multiprocessing.Finalize(self, self._finish, exitpriority=0)

    def sender(self, endpoint: Endpoint) -> _Sender:
        return self._senders.setdefault(endpoint, _Sender(endpoint, self.name, self.times, self.clock))

    def _finish(self) -> None:
        for sender in self._senders.values():
            sender.finish()

    def _forked(self) -> None:
        self.clock.reset()
        for times in self.times:
            times.calls, times.seconds, times.fastest = 0, 0.0, float("inf")
        for sender in self._senders.values():
            sender.reset()


_run = functools.cache(_Run)
_found = functools.cache(lambda cache: tuple(endpoint for _, endpoint in endpoints(cache)))
_off = False


def switch_off() -> None:
    """Nothing that is compiled in this process from now on is shown: it is an editor's own."""
    global _off
    _off = True


@dataclass(slots=True)
class Follower:
    """Tells of one compiled function, by its code's name and first line."""

    file: str
    function: str
    line: int
    senders: tuple[_Sender, ...] = field(default=(), repr=False)
    graphs: dict[int, Times] = field(default_factory=dict, repr=False)

    def finding(self, diagnostic: Diagnostic) -> None:
        self._tell("finding", diagnostic=diagnostic)

    def shapes(self, shapes: tuple[Shape, ...]) -> None:
        if shapes:
            self._tell("shapes", shapes=shapes)

    def call(self, shapes: tuple[Shape, ...], recorded: bool) -> None:
        self._tell("call", shapes=shapes, recorded=recorded)

    def graph(self, number: int, frame: str, seconds: float) -> None:
        resumed = frame != self.function.rpartition(".")[2]
        self._tell("graph", graph=number, resumed=resumed, seconds=seconds)

    def timed(self, call: Callable[[Any], Any], number: int) -> Callable[[Any], Any]:
        """``call``, a graph, with its times taken. The clock stops when it returns, which on a GPU is before its end."""
        times = self._times(number)
        _run().times.append(times)
        clock = time.perf_counter

        def run(inputs: Any) -> Any:
            start = clock()
            result = call(inputs)
            seconds = clock() - start
            times.calls += 1
            times.seconds += seconds
            if seconds < times.fastest:
                times.fastest = seconds
            return result

        return run

    def kernels(self, number: int, kernels: list[tuple[str, str, tuple[Span, ...], int]], probe: Probe) -> None:
        """Kernels of graph ``number``, by name, phase, spans and bytes of a call, that ``probe`` times."""
        if self.senders:
            _run().clock.watch(_Kernels(self._times(number), kernels, probe, probe.read()))

    def _times(self, number: int) -> Times:
        what = Event("times", self.file, self.function, self.line, graph=number)
        return self.graphs.setdefault(number, Times(what))

    def _tell(self, kind: Any, **fields: Any) -> None:
        event = Event(kind, self.file, self.function, self.line, **fields)
        for sender in self.senders:
            sender.put(event)


def follower(asked: bool | None, cache: Path, file: str, function: str, line: int) -> Follower | None:
    """Who tells of a function that is compiled now; None when nobody wants to know. ``asked``: what ``FUSELENS_LIVE``
    says of this process, None when it says nothing."""
    if _off or asked is False or not file:
        return None
    cell = _cell(file)
    where = Path.cwd() if cell else Path(file)
    wanted = [e for e in _found(cache) if asked or any(where.is_relative_to(f) for f in e.folders)]
    if not wanted and not asked:
        return None
    senders = tuple(_run().sender(e) for e in wanted)
    for sender in senders if cell else ():
        sender.cell(file, cell)
    return Follower(file, function, line, senders)


def _cell(file: str) -> str:
    """The text that ran under the name of a file that there is not: a cell's, which Jupyter leaves for tracebacks."""
    if os.path.exists(file):
        return ""
    text = "".join(linecache.getlines(file))
    return text if len(text) <= LARGEST_CELL else ""
