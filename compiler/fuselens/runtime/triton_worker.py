"""Compiles Triton kernels in parallel: ``python -m fuselens.runtime.triton_worker``, which never touches a GPU.

It imports Triton once, then forks for each of the jobs that it reads on stdin (a line of JSON has a list) and says when they
are done (a line on stdout). What it makes is in Triton's cache, where the process that asked finds it. It ends with that one.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from .cache import Cache, key_of

if TYPE_CHECKING:
    from ..codegen.source import KernelInfo

_FIRST_SIZE = 2


@dataclass(frozen=True, slots=True)
class Job:
    """A variant of a kernel: ``function`` of the module ``name`` at ``path``, for arguments of the kind ``key``."""

    path: str
    name: str
    function: str
    key: int
    signature: dict[str, str]
    blocks: dict[str, int]
    divisible: tuple[int, ...]  # arguments that are multiples of 16
    options: dict[str, Any]
    architecture: int

    @classmethod
    def of(cls, path: str, name: str, info: KernelInfo, key: int, architecture: int) -> Job:
        launch = info.launch
        names = list(launch["signature"])
        pointers = len(info.arguments)
        types = dict(launch["signature"])
        for size in names[pointers:]:
            types[size] = "i32" if key & 2 else "i64"
        divisible = list(range(pointers)) if key & 1 else []
        divisible += [pointers + k for k in range(len(names) - pointers) if key >> (_FIRST_SIZE + k) & 1]
        return cls(
            path,
            name,
            info.name,
            key,
            types,
            dict(launch["blocks"]),
            tuple(divisible),
            dict(launch["options"]),
            architecture,
        )

    def compiled(self, function: Any) -> Any:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        source = ASTSource(
            fn=function,
            signature={**self.signature, **dict.fromkeys(self.blocks, "constexpr")},
            constexprs=self.blocks,
            attrs={(k,): [["tt.divisibility", 16]] for k in self.divisible},
        )
        # kernels that hold assertions would otherwise check each sum of indices, too
        checks = {"debug": bool(getattr(function, "debug", False)), "sanitize_overflow": False}
        options = {**self.options, **checks}
        return triton.compile(source, target=GPUTarget("cuda", self.architecture, 32), options=options)


def compile_all(jobs: list[Job], cache: Cache) -> None:
    """Returns when Triton's cache has all of ``jobs``, but for those that fail: whoever compiles them again is told why."""
    key = key_of({"jobs": [dataclasses.asdict(job) for job in jobs]})
    mark = cache.path("triton", key, ".done")
    if mark.exists():
        return
    try:
        _worker().compile(jobs)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except (OSError, ValueError):
        _worker.cache_clear()  # without it, kernels are compiled one after another


def start() -> None:
    """Starts the worker, if it does not run, without waiting: importing Triton takes it a while."""
    with contextlib.suppress(OSError):
        _worker()


class _Worker:
    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self._pid = os.getpid()
        atexit.register(self.close)

    def compile(self, jobs: list[Job]) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if self._pid != os.getpid():
            raise OSError("the worker is another process'")
        with self._lock:
            process.stdin.write(json.dumps([dataclasses.asdict(job) for job in jobs]) + "\n")
            process.stdin.flush()
            if not process.stdout.readline():
                raise OSError("the worker ended")

    def close(self) -> None:
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                self._process.kill()
                self._process.wait()


@functools.cache
def _worker() -> _Worker:
    return _Worker()


# --- in the worker ----------------------------------------------------------------------------------------------------


def _loaded(job: Job) -> Any:
    spec = importlib.util.spec_from_file_location(job.name, job.path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[job.name] = module
    spec.loader.exec_module(module)
    return getattr(module, job.function)


def serve(requests: IO[str], most: int) -> None:
    """Answers lists of jobs until there are no more, with ``most`` processes at a time."""
    done = os.dup(1)
    os.dup2(2, 1)  # whatever compilers print is no answer
    for line in requests:
        running = 0
        for fields in json.loads(line):
            if running == most:
                os.wait()
                running -= 1
            if not os.fork():
                with contextlib.suppress(BaseException):
                    job = Job(**{**fields, "divisible": tuple(fields["divisible"])})
                    job.compiled(_loaded(job))
                os._exit(0)
            running += 1
        for _ in range(running):
            os.wait()
        os.write(done, b"done\n")


if __name__ == "__main__":
    import triton  # noqa: F401  before the first fork

    serve(sys.stdin, len(os.sched_getaffinity(0)))
