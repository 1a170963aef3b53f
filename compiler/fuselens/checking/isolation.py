"""Runs each request in a process of its own, so that nothing user code does can harm whoever asked.

:class:`Supervisor` is a single-threaded event loop around child processes: it enforces time and memory limits, drains
their output, and turns every way to die into a diagnostic at the best line. The worker and the command line share it.

On Linux a child is a fork of this process, which has torch imported but has never run a tensor operation: torch's
OpenMP pool does not survive a fork, so none may exist yet. Elsewhere a child is a new interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import importlib
import io
import json
import logging
import os
import pkgutil
import platform
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from .. import config, sandbox
from ..record import diagnostics, notices, plain, wire
from ..record.report import Diagnostic, FileReport, Proof, RunResult, Span
from ..source import discovery
from ..system import ownership, source_text

Deliver = Callable[[bytes], None]
"""Receives the framed events of one request; the last one is its result."""

FORKS = sys.platform == "linux"
_POLL_SECONDS = 0.05  # how often deaths and memory are looked at; results arrive at once
_COLLECTED_AFTER = 50_000  # allocations: compiling makes much that lives as long as the child
_GRACE_SECONDS = 0.5  # for the child to say where it hangs before it is killed
_SETTLE_SECONDS = 0.03  # a traceback that has not grown for so long is whole
_LAST_READS = 64
_TRIED_UNTIL = 0.6  # of a request's time: the fix, or the inputs, that are being tried out then have the rest
_START_SECONDS = 120.0  # for a new interpreter to import torch, from a cold network disk
_OUTPUT_KEPT = 64 * 1024
_READ = 256 * 1024
_TRACE_SIGNAL = getattr(signal, "SIGURG", None)  # ignored by default: harmless before the child has its handler
_PR_SET_PDEATHSIG = 1
_TRACE_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_EXIT_MARK = b"fuselens: os._exit "
_DOING = {"verify": "proving"}  # what a child was at, by its request
# What a compilation imports anyway; imported before the fork it costs nothing. So is all of this package.
_PRELOADED = (
    "torch.fx.experimental.proxy_tensor",
    "torch._decomp",
    "torch._decomp.decompositions",
    "torch._dispatch.python",
)
# Commands; and what imports Triton, or is needed where kernels are Triton's alone: see Preloads in worker.py.
_NOT_PRELOADED = (
    "fuselens.cli",
    "fuselens.worker",
    "fuselens.__main__",
    "fuselens.notebooks",
    "fuselens.codegen.triton",
    "fuselens.checking.edited.interpreted",
    "fuselens.runtime.gpu.recurrent",
)
_OPTIONS = frozenset(config.Config.__dataclass_fields__)
_real_exit = os._exit


# --- before the fork ------------------------------------------------------------------------------------------------


def preload(tell: Callable[[str], None] = lambda _: None) -> wire.Event:
    """Imports torch and the compiler. The ``ready`` event: versions, or FL907/FL911 that say what is missing. ``tell`` is
    told what takes long."""
    python = platform.python_version()
    os.environ.pop("FUSELENS_DEBUG", None)  # a folder for each function of a run; a check has `--dump`
    # Asked whether there is a GPU, torch would start CUDA, which then no forked child could start for itself.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    tell(" ".join(("importing torch", *_plain_version("torch"), "in Python", python)))
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # where it is not installed, nobody needs it
    try:
        import torch
    except BaseException as error:  # noqa: BLE001  a broken installation may raise anything
        return _not_ready("FL907", error)
    try:
        importlib.import_module("fuselens.checking.check")
    except BaseException as error:  # noqa: BLE001
        return _not_ready("FL911", error)
    tell(" ".join(("starting the compiler with torch", *_plain_version("torch"), "in Python", python)))
    package = importlib.import_module("fuselens")
    ours = [m.name for m in pkgutil.walk_packages(package.__path__, "fuselens.", onerror=lambda _: None)]
    for name in (*_PRELOADED, *(n for n in ours if not n.startswith(_NOT_PRELOADED))):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(Exception):  # what it would have filled, each child fills for itself
        importlib.import_module("fuselens.pipeline").warm()
    with contextlib.suppress(Exception):  # each request says what is wrong with the environment
        importlib.import_module("fuselens.runtime.cache.place").prepare(config.from_environment().cache_dir)
    sandbox.preload()
    gc.collect()
    gc.freeze()  # the collector of a child does not touch, and so does not copy, what it inherited
    versions = {"python": python, "torch": str(torch.__version__), "executable": sys.executable}
    versions["fuselens"] = fuselens_version()
    return wire.Event(0, "ready", message=json.dumps(versions))


def _temporary() -> str:
    """Where temporary folders are made; also where no file can be written, which ``tempfile`` wants to try."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return os.environ.get("TMPDIR", "/tmp")


def fuselens_version() -> str:
    """The version of this package; "0" when it runs from a tree that was never installed."""
    return _version("fuselens") or "0"


def _plain_version(package: str) -> list[str]:
    """Without what says how it was built."""
    return [found.partition("+")[0]] if (found := _version(package)) else []


def _version(package: str) -> str | None:
    """What is installed, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _not_ready(code: str, error: BaseException) -> wire.Event:
    why = f"{type(error).__name__}: {error}"
    found = diagnostics.make(code, None, what=sys.executable, why=why)
    return wire.Event(0, "ready", message=found.message, file=FileReport("", diagnostics=[found]))


def answer_not_ready(request: wire.Request, problem: Diagnostic) -> wire.Event:
    """The answer to every request while torch is missing: the problem, at the import of the file that needs it."""
    source = source_of(request)
    span = discovery.import_span(source, request.path, ("torch", "fuselens")) or _first_line(request.path, source)
    return result_event(request, _at(problem, span), 0.0)


# --- the supervisor -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Child:
    """A living child process and what it said so far."""

    request: wire.Request
    deliver: Deliver
    pid: int
    started: float
    private: Path  # the one folder that the program may write to
    popen: subprocess.Popen[bytes] | None = None
    decoder: wire.Decoder | None = field(default_factory=wire.Decoder)  # None once the result is there
    trace: bytearray = field(default_factory=bytearray)
    output: bytearray = field(default_factory=bytearray)  # the last of it
    printed: bytearray = field(default_factory=bytearray)  # the first of it
    dropped: int = 0
    stage: str = ""
    known: str = ""  # the answer as far as it is known, where it is a text
    readers: dict[Any, Callable[[bytes], None]] = field(default_factory=dict)
    refused: list[Diagnostic] = field(default_factory=list)
    stopping: str = ""  # the code of the limit that was passed
    kill_at: float = float("inf")
    traced: tuple[int, float] = (0, 0.0)  # length of the trace and when it was first seen: it comes in small writes
    exit_status: int | None = None  # as of waitpid: negative for a signal


class Supervisor:
    """Children, their limits and their results. Not thread-safe: one loop calls :meth:`turn`.

    ``echo`` receives the file and the first 64 KiB of what its child printed, in whole lines, when that has ended. ``jobs``
    children run at once; others queue. Their private folders are made in ``folder``; by default where temporary files are.
    """

    def __init__(
        self,
        *,
        jobs: int = 2,
        echo: Callable[[str, bytes], None] | None = None,
        folder: Path | None = None,
        spawn: bool = not FORKS,
        pumps: bool = sys.platform == "win32",
    ) -> None:
        selector = getattr(selectors, "PollSelector", selectors.DefaultSelector)  # poll takes any kind of file
        self.selector: selectors.BaseSelector = selector()
        self.private: set[int] = set()  # descriptors that a forked child must close
        self._jobs = max(1, jobs)
        self._echo = echo or (lambda *_: None)
        self._folder = folder
        self._spawn = spawn
        self._pumps = pumps
        self._queue: deque[tuple[wire.Request, Deliver, bool]] = deque()
        self._children: list[_Child] = []
        self._dying: list[_Child] = []  # killed; to give back a large process' memory takes longer than a small check

    @property
    def busy(self) -> bool:
        return bool(self._children or self._queue)

    def submit(self, request: wire.Request, deliver: Deliver, *, fresh: bool = False) -> None:
        """Starts or queues ``request``. ``fresh``: in a new interpreter, because this process' modules are stale."""
        self._queue.append((request, deliver, fresh))
        self._start_queued()

    def cancel(self, identity: int) -> None:
        """Ends request ``identity``: its result event is empty. Unknown and finished ones are ignored."""
        for entry in [e for e in self._queue if e[0].id == identity]:
            self._queue.remove(entry)
            entry[1](wire.encode(wire.Event(identity, "result")))
        for child in [c for c in self._children if c.request.id == identity]:
            used = processor_seconds(child.pid)
            self._finish(child, wire.encode(wire.Event(identity, "result", processor_seconds=used)))

    def turn(self, timeout: float | None = None) -> None:
        """Waits for at most ``timeout`` seconds for something to happen, and handles it."""
        if self._children or self._dying:
            timeout = _POLL_SECONDS if timeout is None else min(timeout, _POLL_SECONDS)
        for key, _ in self.selector.select(timeout):
            key.data()
        for child in list(self._children):
            self._supervise(child)
        self._start_queued()
        self._bury()

    def call(self, request: wire.Request, progress: Callable[[str], None] | None = None) -> wire.Event:
        """Runs one request to its end, and leaves nothing of it."""
        results: list[wire.Event] = []

        def deliver(frame: bytes) -> None:
            event: wire.Event = wire.decode(frame[wire.LENGTH_SIZE :], wire.Event)
            if event.kind == "result":
                results.append(event)
            elif event.kind == "progress" and progress is not None:
                progress(event.message)

        self.submit(request, deliver)
        while not results:
            self.turn()
        self._bury(wait=True)
        return results[0]

    def close(self) -> None:
        """Kills every child, and returns when they are dead."""
        self._queue.clear()
        for child in list(self._children):
            self._end(child)
        self._bury(wait=True)

    # --- starting ---

    def _start_queued(self) -> None:
        while self._queue and len(self._children) < self._jobs:
            request, deliver, fresh = self._queue.popleft()
            private: Path | None = None
            try:
                if self._folder is not None and not self._folder.exists():  # temporary folders are tidied
                    ownership.make_folder(self._folder)
                private = Path(tempfile.mkdtemp(prefix="fuselens-check-", dir=self._folder or _temporary()))
                start = self._spawned if fresh or self._spawn else self._forked
                child = start(request, deliver, private)
            except OSError as error:
                if private is not None:
                    shutil.rmtree(private, ignore_errors=True)
                found = diagnostics.make("FL906", None, why=f"it could not be started: {error}")
                deliver(wire.encode(result_event(request, found, 0.0)))
                continue
            self._children.append(child)

    def _forked(self, request: wire.Request, deliver: Deliver, private: Path) -> _Child:
        events, output, trace = os.pipe(), os.pipe(), os.pipe()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 counts OpenBLAS's threads, which know fork
            pid = os.fork()
        if pid == 0:
            try:
                for descriptor in (*self.private, events[0], output[0], trace[0]):
                    os.close(descriptor)
                _run_forked(request, parent, events[1], output[1], trace[1], private)
            finally:
                _real_exit(70)
        for pipe in (events, output, trace):
            os.close(pipe[1])
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # both sides do it: whichever comes first
        child = _Child(request, deliver, pid, time.monotonic(), private)
        self._listen(child, events[0], lambda data: self._on_events(child, data))
        self._listen(child, output[0], lambda data: self._on_output(child, data))
        self._listen(child, trace[0], child.trace.extend)
        return child

    def _spawned(self, request: wire.Request, deliver: Deliver, private: Path) -> _Child:
        popen = subprocess.Popen(
            [sys.executable, "-m", "fuselens.worker", "--child", str(private)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0 if os.name == "posix" else None,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(_import_path())},
        )
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        child = _Child(request, deliver, popen.pid, time.monotonic(), private, popen)
        with contextlib.suppress(BrokenPipeError):
            popen.stdin.write(wire.encode(request))
            popen.stdin.close()
        self._listen(child, os.dup(popen.stdout.fileno()), lambda data: self._on_events(child, data))
        self._listen(child, os.dup(popen.stderr.fileno()), lambda data: self._on_output(child, data))
        popen.stdout.close()
        popen.stderr.close()
        return child

    def _listen(self, child: _Child, descriptor: int, receive: Callable[[bytes], None]) -> None:
        """Calls ``receive`` with what arrives on a pipe; Windows cannot wait for pipes, so a thread moves it on."""
        source: Any = descriptor
        if self._pumps:
            source, far = socket.socketpair()
            threading.Thread(target=pump, args=(descriptor, far), daemon=True).start()
        os.set_blocking(source if isinstance(source, int) else source.fileno(), False)
        child.readers[source] = receive
        self.private.add(source if isinstance(source, int) else source.fileno())
        self.selector.register(source, selectors.EVENT_READ, lambda: self._receive(child, source))

    # --- listening ---

    def _receive(self, child: _Child, source: Any) -> bool:
        """Reads once; False when there was nothing to read. A closed pipe is forgotten."""
        receive = child.readers.get(source)
        if receive is None:
            return False
        try:
            data = os.read(source, _READ) if isinstance(source, int) else source.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._forget(child, source)
            return False
        receive(data)
        return True

    def _forget(self, child: _Child, source: Any) -> None:
        child.readers.pop(source, None)
        self.selector.unregister(source)
        self.private.discard(source if isinstance(source, int) else source.fileno())
        if isinstance(source, int):
            os.close(source)
        else:
            source.close()

    def _on_events(self, child: _Child, data: bytes) -> None:
        if child.decoder is None:
            return None
        try:
            frames = child.decoder.feed(data)
        except wire.ProtocolError:
            return self._died(child, "it wrote into its result pipe")
        for frame in frames:
            if b'"kind":"result"' in frame[:64]:
                return self._finish(child, frame)
            if child.popen is not None and not child.stage:
                child.started = time.monotonic()  # starting an interpreter is not the file's fault
            if b'"kind":"progress"' in frame[:64]:
                event = wire.decode(frame[wire.LENGTH_SIZE :], wire.Event)
                child.stage, child.known = event.message or child.stage, event.text or child.known
                if not event.message:
                    continue
            if b'"kind":"refused"' in frame[:64]:
                child.refused = wire.decode(frame[wire.LENGTH_SIZE :], wire.Event).file.diagnostics
            else:
                child.deliver(frame)
        return None

    def _on_output(self, child: _Child, data: bytes) -> None:
        kept = data[: _OUTPUT_KEPT - len(child.printed)]
        child.printed += kept
        child.dropped += len(data) - len(kept)
        child.output += data
        del child.output[:-_OUTPUT_KEPT]

    # --- limits and deaths ---

    def _supervise(self, child: _Child) -> None:
        now = time.monotonic()
        if self._has_exited(child):
            while any(self._receive(child, source) for source in list(child.readers)):
                if child not in self._children:
                    return  # the result was still in the pipe
            if child in self._children:
                self._died(child, "")
            return
        if child.stopping:
            if len(child.trace) != child.traced[0]:
                child.traced = len(child.trace), now
            if now >= child.kill_at or (child.trace and now - child.traced[1] > _SETTLE_SECONDS):
                self._report(child, child.stopping)
            return
        limits = child.request.limits
        starting = _START_SECONDS if child.popen is not None and not child.stage else 0.0
        if (limits.seconds and now - child.started >= limits.seconds + starting) or (
            limits.processor_seconds and processor_seconds(child.pid) >= limits.processor_seconds
        ):
            self._stop(child, "FL905", now)
        elif limits.memory_mib and _resident_mib(child.pid) > limits.memory_mib:
            self._stop(child, "FL910", now)

    def _stop(self, child: _Child, code: str, now: float) -> None:
        """Asks the child where it is (its answer comes through the trace pipe), and kills it soon."""
        child.stopping = code
        child.kill_at = now + _GRACE_SECONDS
        if child.popen is None and _TRACE_SIGNAL is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, _TRACE_SIGNAL)

    def _has_exited(self, child: _Child, *, wait: bool = False) -> bool:
        if child.exit_status is None:
            if child.popen is not None:
                child.exit_status = child.popen.wait() if wait else child.popen.poll()
            else:
                try:
                    pid, status = os.waitpid(child.pid, 0 if wait else os.WNOHANG)
                except ChildProcessError:
                    return True  # somebody else reaped it
                child.exit_status = os.waitstatus_to_exitcode(status) if pid else None
        return child.exit_status is not None

    def _died(self, child: _Child, why: str) -> None:
        status = child.exit_status
        exits = _EXIT_MARK in child.trace or _EXIT_MARK in child.output
        if child.stopping:
            self._report(child, child.stopping)
        elif exits and not why:
            self._report(child, "FL904", what=f"`os._exit({status})`")
        else:
            self._report(child, "FL906", why=why or _cause_of_death(status))

    def _report(self, child: _Child, code: str, **fields: Any) -> None:
        while any(self._receive(child, source) for source in list(child.readers)):
            if child not in self._children:
                return  # it finished after all
        request = child.request
        source = source_of(request)
        trace = bytes(child.trace or child.output).decode(errors="replace")
        line = deepest_line(trace, request.path)
        where = f" at line {line}" if line else ""
        span = _line(request.path, source, line) if line else None
        function, _, stage = child.stage.partition(": ")
        if span is None and stage:
            where = f" while {_DOING.get(request.method, 'compiling')} `{function}` ({stage})"
            span = name_span(request.path, source, function)
        limits, used = request.limits, processor_seconds(child.pid)
        of_processor = 0 < limits.processor_seconds <= used
        seconds = f"{limits.processor_seconds:.3g} s of processor time" if of_processor else f"{limits.seconds:g} s"
        limit = limits.memory_mib if code == "FL910" else seconds
        span = span or _first_line(request.path, source)
        found = diagnostics.make(code, span, where=where, limit=limit, **fields)
        event = result_event(request, found, time.monotonic() - child.started, child.refused)
        self._finish(child, wire.encode(replace(event, processor_seconds=used, text=child.known)))

    def _finish(self, child: _Child, result: bytes) -> None:
        child.decoder = None
        for source in list(child.readers):  # what it printed before; a process that it started may print for ever
            for _ in range(_LAST_READS):
                if not self._receive(child, source):
                    break
        self._end(child)
        if child.printed:
            end = f"[output beyond {_OUTPUT_KEPT} bytes is dropped]\n".encode() if child.dropped else b""
            self._echo(child.request.path, bytes(child.printed).rstrip(b"\n") + b"\n" + end)
        child.deliver(result)

    def _end(self, child: _Child) -> None:
        """Kills the child's process group: user code may have started processes of its own. :meth:`_bury` has the rest."""
        if child in self._children:
            self._children.remove(child)
        for source in list(child.readers):
            self._forget(child, source)
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        elif child.popen is not None:
            child.popen.kill()
        if child.popen is None and child.exit_status is None:  # perhaps it left its group
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        self._dying.append(child)

    def _bury(self, *, wait: bool = False) -> None:
        """Reaps who died of those that were killed, and removes what they wrote. ``wait``: until all have."""
        for child in list(self._dying):
            if self._has_exited(child, wait=wait):
                self._dying.remove(child)
                shutil.rmtree(child.private, ignore_errors=True)


def pump(descriptor: int, far: socket.socket) -> None:
    with contextlib.suppress(OSError), far:
        while data := os.read(descriptor, _READ):
            far.sendall(data)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _import_path() -> Iterator[str]:
    """Where this fuselens was imported from, so that a new interpreter finds the same one."""
    yield str(Path(__file__).resolve().parents[2])
    if inherited := os.environ.get("PYTHONPATH"):
        yield inherited


def _resident_mib(pid: int) -> float:
    """Anonymous memory of a process; 0 where there is no /proc."""
    try:
        with Path(f"/proc/{pid}/status").open(encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("RssAnon"):
                    return int(line.split()[1]) / 1024
    except (OSError, ValueError):
        pass
    return 0.0


def processor_seconds(pid: int) -> float:
    """What a process, and those that it started and waited for, have used of processors; 0 where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def _cause_of_death(status: int | None) -> str:
    if status is None:
        return "it vanished"
    if status >= 0:
        return f"it exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"{name}, perhaps out of memory" if name == "SIGKILL" else name


# --- in the child ---------------------------------------------------------------------------------------------------


def execute(request: wire.Request, send: Callable[[wire.Event], None]) -> None:
    """Answers one request in this process."""
    from .. import live, torch_private
    from . import check, trials
    from .parsing import FileRefused
    from .revisions.placed import placed

    live.switch_off()
    notices.switch_off()
    log = logging.getLogger("fuselens")  # what it says is in the report
    log.propagate = False
    log.addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", module=r"fuselens\.")  # what torch says to us
    logging.getLogger(torch_private.FAKES_LOG).setLevel(logging.CRITICAL)  # of calls that raise in eager, too
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # what a library compiles by itself runs as it is

    def progress(stage: str) -> None:
        send(wire.Event(request.id, "progress", message=stage))

    def known(proof: Proof) -> None:
        send(wire.Event(request.id, "progress", text=json.dumps(dataclasses.asdict(proof))))

    options = dict(request.options)
    gradients = bool(options.pop("gradients", True))
    chosen = config_of(options)
    if request.method == "run":
        (function,) = request.functions
        with placed(request.revision):
            run = check.run_function(request.path, function, request.source, chosen, gradients, progress)
        send(wire.Event(request.id, "result", run=run))
    elif request.method in _TEXTS:
        try:
            send(wire.Event(request.id, "result", text=_text_of(request, chosen, gradients, progress, known)))
        except FileRefused as refused:
            send(wire.Event(request.id, "result", file=FileReport(request.path, [], [refused.diagnostic])))
    elif request.method == "patch":
        from .patching.answers import of_patch

        (function,) = request.functions
        text = of_patch(request.path, function, request.options["patch"], chosen, progress)
        send(wire.Event(request.id, "result", text=text))
    elif request.method == "warm":
        _step_back()
        file = check.warm_file(request.path, request.source, request.functions, progress, chosen)
        send(wire.Event(request.id, "result", file=file))
    elif request.method == "recompiles":
        from .recompiles.foresee import foresee_file

        if request.options.get("idle"):
            _step_back()
        until = time.monotonic() + (request.limits.seconds * _TRIED_UNTIL or float("inf"))
        file = foresee_file(request.path, request.source, request.functions, chosen, progress, until)
        send(wire.Event(request.id, "result", file=file))
    elif request.method == "fix":
        _step_back()
        (function,) = request.functions
        seconds = request.limits.seconds * _TRIED_UNTIL or float("inf")
        tried = trials.try_fixes(request.path, request.source, function, request.findings, chosen, progress, seconds)
        send(wire.Event(request.id, "result", file=tried))
    else:

        def early(file: FileReport) -> None:
            send(wire.Event(request.id, "early", file=file))

        until = time.monotonic() + (request.limits.seconds * _TRIED_UNTIL or float("inf"))

        def checked() -> FileReport:
            tell = early if request.revision is None else None
            return check.check_file(
                request.path, request.source, request.functions, chosen, progress, request.known, tell, until
            )

        if request.revision is not None:
            from .revisions import kept

            if request.options.get("background"):
                _step_back()
            send(wire.Event(request.id, "result", file=kept.checked(request, chosen, checked)))
        else:
            send(wire.Event(request.id, "result", file=checked()))


_TEXTS = ("values", "verify", "graphs", "probe", "kernel", "machine", "changes", "change")


def _text_of(
    request: wire.Request, chosen: config.Config, gradients: bool, progress: Callable[[str], None], known: Callable[[Proof], None]
) -> str:  # fmt: skip
    """The answer to what is answered by a text, mostly JSON; ``known`` hears a proof as far as it is known. Raises FileRefused."""
    from . import check

    if request.options.get("idle"):
        _step_back()
    seconds = request.limits.seconds * _TRIED_UNTIL or float("inf")
    if request.method == "probe":
        from ..bisecting import probing

        return probing.of_probe(request, chosen)
    if request.method == "machine":
        from ..limits import measuring

        device, again = request.options.get("device", "cpu"), bool(request.options.get("again"))
        if device == "cuda" and not measuring.has_card():
            return ""
        return json.dumps(plain.to_plain(measuring.machine(device, chosen, progress, again=again)))
    (function,) = request.functions
    if request.method == "values":
        return check.node_values(request.path, function, request.source, chosen)
    if request.method == "kernel":
        from .edited import answers as edited

        return edited.of_kernel(request.path, function, request.options, chosen, progress, seconds)
    if request.method in ("changes", "change"):
        from .changes import answers as changes

        return changes.answered(request, chosen, progress, seconds)
    asked = request.path, function, request.source, chosen, gradients, progress, request.options.get("kinds", ())
    if request.method == "graphs":
        return json.dumps(dataclasses.asdict(check.write_graphs(*asked, request.options.get("where", ""))))
    found = check.verify_function(*asked, seconds, known, request.options.get("left_out", ()))
    return json.dumps(dataclasses.asdict(found))


def _step_back() -> None:
    """Leaves the processor to others: nobody waits for this."""
    with contextlib.suppress(AttributeError, OSError):
        os.nice(10)


def config_of(options: dict[str, Any]) -> config.Config:
    """The configuration that a request's options describe. Options of other purposes are ignored."""
    values = {name: value for name, value in options.items() if name in _OPTIONS}
    # A check opens no connections, so the cache that machines share is none of its own.
    return config.with_options(config.from_environment(explore=True), {**values, "remote_cache": ""})


def _run_forked(request: wire.Request, parent: int, events: int, output: int, trace: int, private: Path) -> NoReturn:
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    die_with_parent(parent)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    gc.set_threshold(_COLLECTED_AFTER)
    _open_standard_streams()
    _trace_into(trace)
    assert _TRACE_SIGNAL is not None
    faulthandler.register(_TRACE_SIGNAL, file=trace, all_threads=True)
    _serve(request, events, private)


def run_spawned(private: Path) -> NoReturn:
    """The life of a child that is a new interpreter: the request on stdin, events on stdout, the rest on stderr. ``private``
    is the folder that the program may write to."""
    requests, events = protect_streams()
    parent = os.getppid() if hasattr(os, "getppid") else 0
    die_with_parent(parent)
    with os.fdopen(requests, "rb") as stream:
        request = wire.read(stream, wire.Request)
    if request is None:
        _real_exit(0)
    _trace_into(2)
    if Path.cwd().as_posix() not in sys.path:
        sys.path.append(str(Path.cwd()))
    ready = preload()
    if ready.file is not None:
        _send(events, answer_not_ready(request, ready.file.diagnostics[0]))
        _real_exit(0)
    if request.limits.seconds:
        faulthandler.dump_traceback_later(request.limits.seconds, file=2)
    _serve(request, events, private)


def _serve(request: wire.Request, events: int, private: Path) -> NoReturn:
    try:
        if not request.options.get("allow_effects"):
            _enter_sandbox(request, events, private)
        execute(request, lambda event: _send(events, event))
    except BaseException as error:  # noqa: BLE001  whatever it is, the request gets its answer
        import traceback

        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
        span = _first_line(request.path, source_of(request))
        _send(events, result_event(request, diagnostics.make("FL906", span, why=why), 0.0))
    _flush_streams()
    _real_exit(0)


def _enter_sandbox(request: wire.Request, events: int, private: Path) -> None:
    """From here on the program has no effects. Caches and dumps of ours are kept."""

    def tell(found: Diagnostic) -> None:
        _send(events, wire.Event(request.id, "refused", file=FileReport(request.path, [], [found])))

    def give_up(found: Diagnostic) -> NoReturn:
        _send(events, result_event(request, found, 0.0))
        _real_exit(0)

    chosen = config_of(request.options)
    writable = [chosen.cache_dir, *([chosen.dump] if chosen.dump is not None else [])]
    if chosen_by_user := os.environ.get("TRITON_CACHE_DIR"):
        writable.append(Path(chosen_by_user))
    elif not os.path.isdir(os.path.expanduser("~/.triton")):  # Triton cannot make it from here
        os.environ["TRITON_CACHE_DIR"] = str(chosen.cache_dir / "triton")
    for folder in writable:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _start_cuda(request, chosen)
    sandbox.enter(request.path, private, writable, tell, give_up)


def _start_cuda(request: wire.Request, chosen: config.Config) -> None:
    """CUDA's driver makes folders and links of devices when it starts, which is an effect. For what may use it, it starts before."""
    import torch

    named = request.options.get("device") == "cuda" or "cuda" in source_of(request)
    if named or chosen.target.startswith("cuda"):
        with contextlib.suppress(Exception):  # who uses it hears why it does not start
            if torch.cuda.is_available():
                torch.cuda.init()


def _send(descriptor: int, event: wire.Event) -> None:
    data = memoryview(wire.encode(event))
    if event.kind == "result":
        _flush_streams()  # what was printed comes first: the result ends this process
    while data:
        data = data[os.write(descriptor, data) :]


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # user code may have replaced or closed them
            stream.flush()


def _open_standard_streams() -> None:
    """Text streams over the descriptors: the inherited ones may be the parent's captured or buffered objects."""
    encoding = io.text_encoding(None)  # the user's
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", 8192, encoding, "backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding, "backslashreplace", closefd=False)  # noqa: SIM115


def _trace_into(descriptor: int) -> None:
    """Fatal signals and ``os._exit`` leave a traceback in ``descriptor``."""
    faulthandler.enable(file=descriptor, all_threads=True)
    mine = os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() == mine:
            os.write(descriptor, _EXIT_MARK + str(status).encode() + b"\n")
            faulthandler.dump_traceback(file=descriptor, all_threads=False)
        _real_exit(status)

    os._exit = leave


def die_with_parent(parent: int) -> None:
    """Linux: this process is killed when its parent dies, however that dies."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        _real_exit(0)


def protect_streams() -> tuple[int, int]:
    """Duplicates of stdin and stdout for the protocol. Whatever else reads finds nothing; whatever prints, prints to
    stderr: one stray line on the protocol's stream would end it."""
    requests, events = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, events


# --- words about deaths ---------------------------------------------------------------------------------------------


def deepest_line(trace: str, path: str) -> int | None:
    """The innermost line of ``path`` in a traceback that faulthandler wrote (threads in it: the current one first)."""
    escaped = path.encode("ascii", "backslashreplace").decode()
    found: list[tuple[bool, int]] = []
    current = True
    looking = True
    for line in trace.splitlines():
        if line.endswith("(most recent call first):"):
            current, looking = not line.startswith("Thread"), True
        elif looking and (match := _TRACE_FRAME.match(line)) and match[1] in (path, escaped):
            found.append((current, int(match[2])))
            looking = False  # outer frames of the same thread follow
    found.sort(key=lambda entry: not entry[0])
    return found[0][1] if found else None


def source_of(request: wire.Request) -> str:
    """The text that a request is about; "" when it cannot be read."""
    return request.source if request.source is not None else source_text.shown(request.path) or ""


def result_event(
    request: wire.Request, found: Diagnostic, seconds: float, refused: Sequence[Diagnostic] = ()
) -> wire.Event:
    """The result of a request that ended in one finding. An effect that was ``refused`` before comes first."""
    if request.method == "run":
        name = request.functions[0] if request.functions else ""
        first = next(iter(refused), found)
        return wire.Event(request.id, "result", run=RunResult(name, False, first.message, error=first))
    return wire.Event(request.id, "result", file=FileReport(request.path, [], [*refused, found], seconds))


def _at(found: Diagnostic, span: Span) -> Diagnostic:
    return replace(found, span=span)


def _line(path: str, source: str, line: int) -> Span | None:
    lines = source_text.lines(source)
    if not 0 < line <= len(lines):
        return None
    text = lines[line - 1].rstrip()
    indent = len(text) - len(text.lstrip())
    return Span(path, line, indent, line, max(len(text.encode()), indent + 1))


def _first_line(path: str, source: str) -> Span:
    return _line(path, source, 1) or Span(path, 1, 0, 1, 1)


def name_span(path: str, source: str, function: str) -> Span | None:
    """Where the name of an annotated function stands."""
    try:
        return next((a.name_span for a in discovery.discover(source, path) if a.qualname == function), None)
    except SyntaxError:
        return None
