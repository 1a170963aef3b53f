"""Compiles Triton kernels in parallel, in the background: ``python -m fuselens.runtime.gpu.triton_worker``.

It imports Triton once, which takes as long as dozens of kernels, then forks for each of the jobs that it reads on stdin (a line
of JSON has a list) and says when they are done (a line on stdout has a number, and the signal that its process died of, or 0).
Whoever takes longer than the job's limit is ended, by an alarm, with all that it started.
What it makes is in our cache, where the process that asked finds it. It ends with that one, and never touches a GPU.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...config import triton_variables
from ...system.generated_modules import module_of
from ..cache.store import Cache
from .triton_jobs import KIND, Binary, Job

_WARM_LIMIT = 60  # seconds
_PIPE_BYTES = 1 << 20  # who asks does not wait until the worker has imported Triton


def start() -> None:
    """Starts the worker, if it does not run, without waiting: importing Triton takes it a while."""
    with contextlib.suppress(OSError):
        _worker()


def submit(jobs: Sequence[Job], cache: Cache) -> None:
    """Has jobs compiled; returns at once."""
    try:
        _worker().submit(jobs, cache)
    except (OSError, ValueError):
        _worker.cache_clear()  # without it, kernels are compiled one after another


def wait(jobs: Sequence[Job], cache: Cache) -> list[int]:
    """Has jobs compiled; returns when that was tried: for each the signal that its process died of, or 0."""
    for _ in range(
        2
    ):  # the first may have ended, be that of the process which forked this one, or have another environment
        try:
            worker = _worker()
            worker.submit(jobs, cache)
            return [worker.wait(job, cache) for job in jobs]
        except (OSError, ValueError):
            _worker.cache_clear()
    return [0] * len(jobs)


def binary(job: Job, cache: Cache) -> Binary:
    """What becomes of a job. Waits for the worker, and compiles what that did not, unless it died of it. Raises what Triton
    raises."""
    (died,) = wait([job], cache)
    made = job.binary(cache)
    if made is not None:
        cache.offer(KIND, job.key)
    if made is None and died == signal.SIGALRM:
        raise RuntimeError(f"Triton's compiler took longer than {job.limit:g} s (option build_limit)")
    if made is None and died:
        raise RuntimeError(f"Triton's compiler died: {signal.strsignal(died)}")
    return made or job.make(cache)


class _Worker:
    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._asking, self._waiting = threading.Lock(), threading.Lock()
        self._numbers: dict[tuple[str, Path], int] = {}
        self._done: dict[int, int] = {}  # a job's number → the signal that its process died of, 0 without one
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            encoding="utf-8", errors="backslashreplace", process_group=0,  # an interrupt from the keyboard is for the program
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._pid, self._variables = os.getpid(), triton_variables(os.environ)
        atexit.register(self.close)

    def submit(self, jobs: Sequence[Job], cache: Cache) -> None:
        if self._pid != os.getpid():
            raise OSError("the worker is another process'")
        if self._variables != triton_variables(os.environ):
            raise OSError("the worker has the environment that was")
        with self._asking:
            new = [job for job in jobs if (job.key, cache.root) not in self._numbers]
            if new:
                first = len(self._numbers)
                texts = {job.name: job.text for job in new}
                fields = [dataclasses.asdict(dataclasses.replace(job, text="")) for job in new]
                request = {"cache": str(cache.root), "first": first, "texts": texts, "jobs": fields}
                self._requests.write(json.dumps(request) + "\n")
                self._requests.flush()
                self._numbers |= {(job.key, cache.root): first + k for k, job in enumerate(new)}

    def wait(self, job: Job, cache: Cache) -> int:
        """Returns when the worker has done with a job that was given to it, whatever came of it: the signal that its
        process died of, or 0."""
        number = self._numbers[job.key, cache.root]
        with self._waiting:
            while number not in self._done:
                line = self._answers.readline()
                if not line:
                    raise OSError("the worker ended")
                done, died = map(int, line.split())
                self._done[done] = died
            return self._done[number]

    def close(self) -> None:
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                self._process.terminate()  # it ends the compilers
                try:
                    self._process.wait(1)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()


@functools.cache
def _worker() -> _Worker:
    return _Worker()


# --- in the worker ----------------------------------------------------------------------------------------------------

_HANDLED = (signal.SIGCHLD, signal.SIGTERM)


def serve(requests: int, answer: Callable[[int, int], object], most: int) -> None:
    """Compiles what the jobs on the file descriptor ``requests`` say, ``most`` at a time, until that ends or SIGTERM comes."""
    running: dict[int, int] = {}  # process → number of its job
    try:
        _serve(requests, answer, most, running)
    finally:
        for pid in running:
            _end(pid)


def _serve(requests: int, answer: Callable[[int, int], object], most: int, running: dict[int, int]) -> None:
    signals, signalled = os.pipe()  # holds the numbers of those that came
    os.set_blocking(signalled, False)
    for number in _HANDLED:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(signalled)
    waiting: collections.deque[tuple[int, Job, Cache]] = collections.deque()
    unread = b""
    while True:
        ready, _, _ = select.select([requests, signals], [], [])
        if signals in ready:
            if signal.SIGTERM in os.read(signals, 4096):
                return
            while running and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
                if ended.si_code != os.CLD_EXITED:
                    _end(ended.si_pid)  # while it is waited for, its number is nobody else's
                _, status = os.waitpid(ended.si_pid, 0)
                answer(running.pop(ended.si_pid), os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
        if requests in ready:
            data = os.read(requests, _PIPE_BYTES)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                waiting += _jobs(json.loads(line))
        while waiting and len(running) < most:
            number, job, cache = waiting.popleft()
            pid = _forked()
            if not pid:
                with contextlib.suppress(BaseException):
                    _alone(job.limit)
                    _make(job, cache)
                os._exit(0)
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)  # whichever is first, it or this
            running[pid] = number


def _forked() -> int:
    """``os.fork``, which some kernels of containers interrupt when a child ends meanwhile."""
    while True:
        with contextlib.suppress(InterruptedError):
            return os.fork()


def _alone(limit: float) -> None:
    """Makes this process one that leads those which it starts, and has an alarm end it when the time is over, whatever it does."""
    signal.set_wakeup_fd(-1)
    for number in (*_HANDLED, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    os.setpgid(0, 0)
    signal.setitimer(signal.ITIMER_REAL, limit)


def _end(leader: int) -> None:
    """Ends a process and what it started."""
    with contextlib.suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def _jobs(request: dict[str, Any]) -> list[tuple[int, Job, Cache]]:
    """The numbered jobs of a request, those of long functions first."""
    cache, texts = Cache(Path(request["cache"]), fixed=True), request["texts"]
    jobs = [
        Job(**{**fields, "divisible": tuple(fields["divisible"]), "text": texts[fields["name"]]})
        for fields in request["jobs"]
    ]
    for name, text in texts.items():
        with contextlib.suppress(Exception):
            module_of(name, text)
    numbered = [(number, job, cache) for number, job in enumerate(jobs, request["first"])]
    return sorted(numbered, key=lambda made: -made[1].length)


def _make(job: Job, cache: Cache) -> None:
    """Compiles one job; Triton's own cache is a folder that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="fuselens-triton-", ignore_cleanup_errors=True) as directory:
        os.environ["TRITON_CACHE_DIR"] = directory
        job.make(cache)


def _warm() -> None:
    """Imports Triton and compiles something, so that the processes that are forked have done that."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for name in ("triton.runtime.cache", "triton.compiler.compiler"):
        if hasattr(sys.modules.get(name), "triton_key"):  # a digest of 500 MB, for the cache that is thrown away
            sys.modules[name].triton_key = lambda: triton.__version__  # type: ignore[attr-defined]

    @triton.jit
    def nothing(a, XBLOCK: tl.constexpr):  # noqa: N803
        x = tl.arange(0, XBLOCK)
        v = tl.load(a + x, x < 7)
        tl.store(a + x, tl.where(v > 0, tl.exp(v), tl.sum(v) + tl.max(v)))

    with tempfile.TemporaryDirectory(prefix="fuselens-triton-") as directory:
        os.environ["TRITON_CACHE_DIR"] = directory
        source = ASTSource(fn=nothing, signature={"a": "*fp32", "XBLOCK": "constexpr"}, constexprs={"XBLOCK": 128})
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(_WARM_LIMIT)
        try:
            triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True})
        finally:
            signal.alarm(0)


def _late(*_: object) -> None:
    raise TimeoutError("Triton's compiler takes too long")


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever compilers print is no answer
    with contextlib.suppress(Exception):
        _warm()
    serve(0, lambda *done: os.write(answers, b"%d %d\n" % done), len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    main()
