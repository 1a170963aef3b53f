"""Workers: one process per interpreter, in the user's environment, where torch and user code run instead of here.

A worker that dies is started again with growing delays. Requests that were in flight are sent once more, because what
killed the worker may have been another file's; the second time their own file gets the blame.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from fuselens.record import diagnostics, wire
from fuselens.record.report import Diagnostic

from .sessions import end_session
from .turns import Turns, Urgency

logger = logging.getLogger(__name__)

READY_SECONDS = 180.0  # for the worker to import torch, from a cold network disk
GRACE_SECONDS = 30.0  # beyond twice a request's own limit, which the worker enforces once it has started it
GONE_SECONDS = 2.0  # for a killed worker's exit status, and for the end of what was cancelled
LONGEST_BACKOFF = 10.0
STABLE_SECONDS = 30.0  # a worker that lived this long did not fail at its start
_LARGE_BODY = 256 * 1024  # bytes; larger messages are decoded off the event loop
_STDERR_LINES = 20

WorkerState = Literal["starting", "ready", "error"]
ProgressCallback = Callable[[wire.Event], None]  # of every event before the result


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a worker is at; ``versions`` come from its ready message, ``diagnostic`` says why it is of no use."""

    interpreter: str
    state: WorkerState
    message: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    diagnostic: Diagnostic | None = None


class StartError(Exception):
    """There is no worker to be had; ``diagnostic`` says why."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


class WorkerDiedError(Exception):
    """The worker's process ended with requests in flight."""


class Worker:
    """One worker process. Requests are answered in any order."""

    def __init__(
        self, interpreter: str, directory: str | None = None, on_starting: Callable[[wire.Event], None] = lambda _: None
    ) -> None:
        self.interpreter = interpreter
        self._on_starting = on_starting
        self.directory = directory
        self.versions: dict[str, str] = {}
        self.unusable: Diagnostic | None = None  # FL907: it runs, but has no torch
        self.started = time.monotonic()
        self._pending: dict[int, tuple[asyncio.Future[wire.Event], ProgressCallback]] = {}
        self._ended = False  # its output has ended, or it was killed: known before its exit status is
        self._killed = False
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._ready: asyncio.Future[wire.Event] = asyncio.get_running_loop().create_future()
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._folder: str | None = None  # its temporary files: gone with it, however it ends

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def killed(self) -> bool:
        """With its session: nothing is left of it."""
        return self._killed

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None and not self._ended

    async def start(self) -> None:
        """Returns when the worker is ready. Raises StartError, leaving no process behind."""
        with contextlib.suppress(OSError):  # it makes its folders where they can be made, or says why not
            self._folder = tempfile.mkdtemp(prefix="fuselens-worker-")
        try:
            # Its own session, so that whatever it starts can be ended with it. `-P`: the working directory may hold a
            # `random.py`, and must not come before the standard library.
            self._process = await asyncio.create_subprocess_exec(
                self.interpreter, "-P", "-m", "fuselens.worker",
                *(["--folder", self._folder] if self._folder else []),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
                cwd=self.directory, start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            self._killed = True  # there is nothing to be killed
            self._remove_folder()
            raise StartError(_cannot_start(self.interpreter, str(error))) from error
        if self._ended:  # while it was being started
            self.kill_now()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]
        try:
            ready = await asyncio.wait_for(asyncio.shield(self._ready), READY_SECONDS)
        except (WorkerDiedError, TimeoutError) as error:
            await self.kill()
            why = str(error) or f"not ready after {READY_SECONDS:.0f} s"
            raise StartError(self._start_failure(why)) from error
        except asyncio.CancelledError:
            self.kill_now()
            raise
        self.versions = _versions(ready.message)
        if ready.file is not None and ready.file.diagnostics:
            self.unusable = ready.file.diagnostics[0]

    async def exchange(
        self, request: wire.Request, progress: ProgressCallback, spent: Callable[[float], None] = lambda _: None
    ) -> wire.Event:
        """Sends ``request`` and returns its result. Cancelling the caller cancels the request in the worker, and returns when
        it was killed: what comes in its place would have to share the processors with it. ``spent`` is told the
        processor time that it had used then, where the worker knows. Raises
        WorkerDiedError, also when the worker overruns the request's limit by so much that it must be stuck."""
        if not self.alive:
            raise WorkerDiedError
        answer: asyncio.Future[wire.Event] = asyncio.get_running_loop().create_future()
        self._pending[request.id] = (answer, progress)
        try:
            await self._send(request)
            return await asyncio.wait_for(asyncio.shield(answer), 2 * request.limits.seconds + GRACE_SECONDS)
        except TimeoutError as error:
            self.kill_now()
            raise WorkerDiedError("it stopped answering") from error
        except asyncio.CancelledError:
            if self._tell(wire.Request(0, "cancel", target=request.id)):
                await asyncio.wait([answer], timeout=GONE_SECONDS)
                if answer.done() and not answer.cancelled() and answer.exception() is None:
                    spent(answer.result().processor_seconds)
            raise
        finally:
            self._pending.pop(request.id, None)
            answer.cancel()

    async def close(self) -> None:
        """Asks the worker to end, then makes it."""
        try:
            if self._process is not None and self._tell(wire.Request(0, "shutdown")):
                assert self._process.stdin is not None
                self._process.stdin.close()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), 0.5)
        finally:  # also where nobody waits for this any more
            self.kill_now()
        await self.kill()

    async def kill(self) -> None:
        """Also ends the waiting for a process that holds the worker's pipes but is none of its session."""
        self.kill_now()
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), GONE_SECONDS)
        self._remove_folder()  # its children may have written until now
        for task in self._tasks:
            task.cancel()

    async def exit_text(self) -> str:
        """How the process ended: "signal SIGKILL", "exit status 1"."""
        if self._process is None:
            return "it never started"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 2)
        return _exit_text(self._process.returncode)

    def kill_now(self) -> None:
        """Ends the process and whatever it started at once, without waiting: also for when the event loop is going away."""
        self._ended = True
        if self._killed:
            return
        if self._process is not None:
            self._killed = True
            if os.name == "posix":  # not its own kill(), which reaps a process that asyncio waits for
                end_session(self._process.pid)
            elif self._process.returncode is None:
                self._process.kill()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _tell(self, request: wire.Request) -> bool:
        """Sends without waiting for a worker that reads nothing, or is stopped. Whether it was there to be told."""
        if not self.alive or self._process is None or self._process.stdin is None:
            return False
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.write(wire.encode(request))
        return True

    async def _send(self, request: wire.Request) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(wire.encode(request))
            await self._process.stdin.drain()
        except (OSError, RuntimeError) as error:
            raise WorkerDiedError(str(error)) from error

    async def _read(self) -> None:
        """Hands events to whom they belong until the stream ends, then fails everything that still waits."""
        assert self._process is not None
        assert self._process.stdout is not None
        stdout = self._process.stdout
        why = ""
        try:
            while True:
                self._dispatch(await _event(stdout))  # kept in no variable: a report may be large
        except asyncio.IncompleteReadError:
            pass
        except wire.ProtocolError as error:
            why = f"it spoke nonsense: {error}"
        finally:
            self._fail(why)
        self.kill_now()
        code = await self._process.wait()
        self._remove_folder()
        logger.warning("worker %s of %s ended: %s", self.pid, self.interpreter, why or _exit_text(code))

    def _dispatch(self, event: wire.Event) -> None:
        if event.kind == "ready":
            if not self._ready.done():
                self._ready.set_result(event)
            return
        if event.kind == "starting":
            self._on_starting(event)
            return
        answer, progress = self._pending.get(event.id, (None, None))
        if answer is None or progress is None or answer.done():
            return  # cancelled here before the worker heard of it
        if event.kind == "result":
            answer.set_result(event)
        else:
            progress(event)

    def _fail(self, why: str) -> None:
        self._ended = True
        for future in (self._ready, *(answer for answer, _ in self._pending.values())):
            if not future.done():
                future.set_exception(WorkerDiedError(why))
                future.exception()  # retrieved: nobody may be waiting any more

    async def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(65536):
            for line in chunk.decode("utf-8", "replace").splitlines():
                self._stderr.append(line)
                logger.info("worker %s: %s", self.pid, line)

    def _start_failure(self, why: str) -> Diagnostic:
        code = self._process.returncode if self._process else None
        last = next((line.strip() for line in reversed(self._stderr) if line.strip()), "")
        if "No module named" in last and "fuselens" in last:
            return diagnostics.make("FL911", what=self.interpreter, why=last.removeprefix(f"{self.interpreter}: "))
        return _cannot_start(self.interpreter, last or why or _exit_text(code))


@dataclass(frozen=True, slots=True)
class Environment:
    """Where user code runs: an interpreter, and the workspace folder that is its working directory."""

    interpreter: str
    directory: str | None = None


@dataclass(slots=True)
class _Slot:
    """One environment's worker, and how its starts have gone."""

    turns: Turns
    worker: Worker | None = None
    starting: asyncio.Task[Worker] | None = None
    failures: int = 0  # deaths in a row without a result in between
    waiting: list[ProgressCallback] = field(default_factory=list)  # for its worker to be ready


class WorkerPool:
    """The workers of all environments. ``on_status`` is told of every change of a worker's state."""

    def __init__(self, on_status: Callable[[WorkerStatus], None], concurrent: int = 1) -> None:
        self._on_status = on_status
        self._concurrent = concurrent
        self._slots: dict[Environment, _Slot] = {}
        self._workers: list[Worker] = []  # all that may live, those that are being ended too
        self._closed = False
        self._ids = itertools.count(1)

    @property
    def concurrent(self) -> int:
        """Requests at once per environment."""
        return self._concurrent

    @concurrent.setter
    def concurrent(self, places: int) -> None:
        self._concurrent = places
        for slot in self._slots.values():
            slot.turns.places = places

    async def submit(
        self,
        environment: Environment,
        request: wire.Request | Callable[[], wire.Request],
        progress: ProgressCallback,
        urgency: Callable[[], int] = lambda: Urgency.FOCUSED,
        spent: Callable[[float], None] = lambda _: None,
    ) -> wire.Event:
        """Runs ``request`` (its id is set here) in ``environment``'s worker, when nothing more urgent wants to, and again
        from its beginning when it had to give way: then ``spent`` is told what processor time it had used, and a request that is
        a function is asked for anew. Raises StartError, or WorkerDiedError when the request's worker died
        twice. Cancelling the caller cancels the request."""
        slot = self._slot(environment)
        return await slot.turns.run(urgency, lambda: self._run(environment, slot, request, progress, spent))

    async def _run(
        self, environment: Environment, slot: _Slot, asked: wire.Request | Callable[[], wire.Request],
        progress: ProgressCallback, spent: Callable[[float], None],
    ) -> wire.Event:  # fmt: skip
        request = asked() if callable(asked) else asked
        for last in (False, True):
            slot.waiting.append(progress)
            try:
                worker = await self._worker(environment, slot)
            finally:
                slot.waiting.remove(progress)
            try:
                event = await worker.exchange(dataclasses.replace(request, id=next(self._ids)), progress, spent)
            except WorkerDiedError as error:
                slot.failures += 1
                if last:
                    raise WorkerDiedError(str(error) or await worker.exit_text()) from error
            else:
                slot.failures = 0
                return event
        raise AssertionError("unreachable")

    def reconsider(self) -> None:
        """What is urgent may have changed."""
        for slot in self._slots.values():
            slot.turns.reconsider()

    def typed(self) -> None:
        """The person types. What is idle ends, and begins again when they pause."""
        for slot in self._slots.values():
            slot.turns.typed()

    async def restart(self) -> None:
        """Ends every worker; the next request of each environment starts its own anew."""
        for environment, slot in list(self._slots.items()):
            slot.failures = 0
            if slot.worker is not None and slot.starting is None:
                worker, slot.worker = slot.worker, None
                await worker.close()
                logger.info("worker of %s ended on request", environment.interpreter)

    async def close(self) -> None:
        """For good: what was in flight, or comes later, starts no other worker."""
        self._closed = True
        await asyncio.gather(*(worker.close() for worker in self._workers))

    def kill_now(self) -> None:
        """Ends every worker at once, for good. Safe at any time, also without an event loop."""
        self._closed = True
        for worker in list(self._workers):
            worker.kill_now()

    def versions(self, environment: Environment) -> dict[str, str]:
        """What the worker of an environment said of itself; nothing before there was one."""
        slot = self._slots.get(environment)
        return slot.worker.versions if slot is not None and slot.worker is not None else {}

    @property
    def pids(self) -> list[int]:
        return [
            slot.worker.pid for slot in self._slots.values() if slot.worker and slot.worker.pid and slot.worker.alive
        ]

    def _slot(self, environment: Environment) -> _Slot:
        if environment not in self._slots:
            self._slots[environment] = _Slot(Turns(self._concurrent))
        return self._slots[environment]

    async def _worker(self, environment: Environment, slot: _Slot) -> Worker:
        """The running worker of ``slot``, started when there is none. A start goes on when its caller is cancelled:
        saves in quick succession must not each begin to import torch again."""
        if slot.worker is not None and slot.worker.alive and slot.starting is None:
            return slot.worker
        if slot.starting is None:
            slot.starting = asyncio.create_task(self._start(environment, slot))
            slot.starting.add_done_callback(lambda task: task.cancelled() or task.exception())  # retrieved
        return await asyncio.shield(slot.starting)

    async def _start(self, environment: Environment, slot: _Slot) -> Worker:
        """A worker without torch is not kept: torch may be installed by the next save, and such a start is quick."""
        interpreter = environment.interpreter
        try:
            if slot.worker is not None and time.monotonic() - slot.worker.started > STABLE_SECONDS:
                slot.failures = min(slot.failures, 1)
            if slot.failures > 1:
                await asyncio.sleep(min(LONGEST_BACKOFF, 0.1 * 2**slot.failures))
            if self._closed:
                raise WorkerDiedError("the server is ending")

            def tell(event: wire.Event) -> None:
                self._on_status(WorkerStatus(interpreter, "starting", event.message))
                for progress in slot.waiting:
                    progress(event)

            tell(wire.Event(0, "starting", f"starting {interpreter}"))
            slot.worker = worker = Worker(interpreter, environment.directory, tell)
            # known before it is ready, so that kill_now() finds it
            self._workers = [*(w for w in self._workers if not w.killed), worker]
            await worker.start()
            if worker.unusable is not None:
                await worker.close()
                raise StartError(worker.unusable)
        except StartError as error:
            slot.worker = None
            self._on_status(WorkerStatus(interpreter, "error", error.diagnostic.message, {}, error.diagnostic))
            raise
        finally:
            slot.starting = None
        self._on_status(WorkerStatus(interpreter, "ready", "ready", worker.versions))
        return worker


async def _event(stream: asyncio.StreamReader) -> wire.Event:
    body = await stream.readexactly(wire.body_length(await stream.readexactly(wire.LENGTH_SIZE)))
    if len(body) > _LARGE_BODY:
        return await asyncio.to_thread(wire.decode, body, wire.Event)
    return wire.decode(body, wire.Event)


def _cannot_start(interpreter: str, why: str) -> Diagnostic:
    return diagnostics.make("FL914", what=interpreter, why=why)


def _exit_text(code: int | None) -> str:
    if code is None:
        return "no exit status"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"


def _versions(message: str) -> dict[str, str]:
    try:
        plain: Any = json.loads(message or "{}")
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in plain.items()} if isinstance(plain, dict) else {}
