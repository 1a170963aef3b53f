"""The worker: ``python -m fuselens.worker`` in the user's interpreter, on behalf of the language server.

Reads :class:`fuselens.record.wire.Request` on stdin and writes :class:`fuselens.record.wire.Event` on stdout. torch, the compiler and
the third-party packages that the checked files import are loaded once, here; each request is a child process, see
:mod:`fuselens.checking.isolation`. The worker itself never executes a line of the workspace.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import os
import selectors
import shutil
import signal
import site
import socket
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from .checking import isolation
from .record import wire
from .source import discovery

_RETRY_SECONDS = 3.0
_OURS = frozenset({"torch", "fuselens", "fuselens_server"})


class Preloads:
    """The third-party packages imported before the fork, and whether what was imported is still what is installed.

    A package is only imported here after a child has imported it and survived, so that one that hangs or aborts costs
    a check and not the worker. One that starts Python threads is denied: its locks would be forked with it.
    """

    def __init__(self, denied: frozenset[str] = frozenset()) -> None:
        self.denied = set(denied)
        self._pending: set[str] = set()
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._tainted = False
        self._sites = [Path(p).resolve() for p in _site_directories()]

    def learn(self, source: str, also: Iterable[str] = ()) -> None:
        """Notes the packages that a successfully checked file imports, and others that its check did."""
        try:
            names = discovery.imported_modules(source).union(also)
        except SyntaxError:
            return
        candidates = names - sys.stdlib_module_names - _OURS - self.denied - sys.modules.keys()
        self._pending |= {name for name in candidates if self._is_installed(name)}

    def load(self) -> None:
        """Imports what was learnt. Call while no child is alive: an import may take seconds."""
        while self._pending:
            name = self._pending.pop()
            threads = threading.active_count()
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001  third-party code may raise anything
                print(f"fuselens.worker: preloading {name}: {type(error).__name__}: {error}", file=sys.stderr)
                self.denied.add(name)
            if threading.active_count() > threads:
                self.denied.add(name)
                self._tainted = True
        self.stamp()

    def stamp(self) -> None:
        """Remembers the state on disk of what is loaded."""
        for path in self._files():
            self._stamps.setdefault(path, _modified(path))

    def stale(self) -> bool:
        """Whether a loaded package was upgraded, removed or (fuselens itself) edited since, or must not be loaded."""
        return self._tainted or any(_modified(path) != stamp for path, stamp in self._stamps.items())

    def _files(self) -> Iterator[Path]:
        """Every file of fuselens; of each installed package its directory (an upgrade replaces it)."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not file:
                continue
            if name.partition(".")[0] == "fuselens" or ("." not in name and self._in_site(Path(file))):
                yield Path(file)

    def _is_installed(self, name: str) -> bool:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return False
        return bool(spec and spec.origin and self._in_site(Path(spec.origin)))

    def _in_site(self, path: Path) -> bool:
        return any(path.resolve().is_relative_to(directory) for directory in self._sites)


def _site_directories() -> set[str]:
    return {
        *site.getsitepackages(),
        site.getusersitepackages(),
        *(sysconfig.get_path(k) for k in ("purelib", "platlib")),
    }


def _modified(path: Path) -> tuple[int, int]:
    """Changes with the content; installers that link files from a cache keep old times, but not the inode."""
    try:
        status = path.stat()
        return status.st_mtime_ns, status.st_ino
    except OSError:
        return 0, 0


class Worker:
    """One event loop: requests in, children, events out."""

    def __init__(
        self,
        requests: int,
        events: int,
        *,
        jobs: int,
        folder: Path | None = None,
        denied: frozenset[str] = frozenset(),
    ) -> None:
        self._requests = requests
        self._events = events
        self._folder = folder
        self._decoder = wire.Decoder()
        self._open = True
        self._preloads = Preloads(denied)
        self._supervisor = isolation.Supervisor(jobs=jobs, echo=lambda _, output: _write(2, output), folder=folder)
        self._supervisor.private |= {requests, events}
        self._problem: wire.Event | None = None
        self._started = time.monotonic()

    def serve(self, *, resumed: bytes = b"", announce: bool = True) -> None:
        """Works until stdin ends or a shutdown request. ``resumed`` is unread input of a predecessor."""
        ready = isolation.preload(self._tell if announce else lambda _: None)
        self._preloads.stamp()
        self._problem = ready if ready.file is not None else None
        try:
            if announce:
                _write(self._events, wire.encode(ready))
            self._listen()
            self._accept(resumed)
            while self._open:
                if not self._supervisor.busy:
                    self._preloads.load()
                self._supervisor.turn()
        except BrokenPipeError:
            pass  # the server is gone: nobody is left to tell
        finally:
            self._supervisor.close()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _tell(self, what: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the server is gone: that is seen soon
            _write(self._events, wire.encode(wire.Event(0, "starting", what)))

    def _listen(self) -> None:
        source: int | socket.socket = self._requests
        if sys.platform == "win32":
            source, far = socket.socketpair()
            threading.Thread(target=isolation.pump, args=(self._requests, far), daemon=True).start()

        def receive() -> None:
            data = os.read(source, 1 << 16) if isinstance(source, int) else source.recv(1 << 16)
            if data:
                self._accept(data)
            else:
                self._open = False

        self._supervisor.selector.register(source, selectors.EVENT_READ, receive)

    def _accept(self, data: bytes) -> None:
        frames = self._decoder.feed(data)
        for position, frame in enumerate(frames):
            request: wire.Request = wire.decode(frame[wire.LENGTH_SIZE :], wire.Request)
            if request.method not in ("cancel", "shutdown"):
                stale = isolation.FORKS and self._preloads.stale()
                if (stale or self._may_be_repaired()) and not self._supervisor.busy:
                    self._restart(b"".join(frames[position:]) + bytes(self._decoder.rest))
                self._submit(request, fresh=stale)
            elif request.method == "cancel":
                self._supervisor.cancel(request.target)
            else:
                self._open = False

    def _may_be_repaired(self) -> bool:
        """Without torch, every request after a while is a new try: it may have been installed since."""
        return self._problem is not None and time.monotonic() - self._started > _RETRY_SECONDS

    def _submit(self, request: wire.Request, *, fresh: bool) -> None:
        if self._problem is not None and self._problem.file is not None:
            answer = isolation.answer_not_ready(request, self._problem.file.diagnostics[0])
            _write(self._events, wire.encode(answer))
            return

        def deliver(frame: bytes) -> None:
            if b'"kind":"result"' in frame[:64] and b'"functions":[' in frame:
                compiles = b'"backend":"triton"' in frame
                self._preloads.learn(isolation.source_of(request), ["triton"] if compiles else [])
            _write(self._events, frame)

        self._supervisor.submit(request, deliver, fresh=fresh)

    def _restart(self, unread: bytes) -> NoReturn:
        """Becomes a new interpreter that loads what is installed now; the server notices nothing."""
        with tempfile.TemporaryFile() as rest:
            rest.write(unread)
            rest.flush()
            os.lseek(rest.fileno(), 0, os.SEEK_SET)
            descriptors = (self._requests, self._events, rest.fileno())
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            resume = ["--resume", *map(str, descriptors), "--deny", ",".join(sorted(self._preloads.denied))]
            if self._folder is not None:
                resume += ["--folder", str(self._folder)]
            self._supervisor.close()
            sys.stderr.flush()
            os.execv(sys.executable, [sys.executable, *_flags(), "-m", "fuselens.worker", *resume])


def _flags() -> list[str]:
    """The interpreter's own options, e.g. ``-P`` or ``-X utf8``."""
    arguments = sys.orig_argv[1:]
    return arguments[: arguments.index("-m")] if "-m" in arguments else []


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuselens.worker", description=__doc__)
    parser.add_argument(
        "--child", type=Path, metavar="FOLDER", help="answer one request, writing to FOLDER only, and exit"
    )
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="children alive at once")
    parser.add_argument("--folder", type=Path, help="where children get their private folders; removed at the end")
    parser.add_argument("--resume", type=int, nargs=3, metavar="FD", help=argparse.SUPPRESS)
    parser.add_argument("--deny", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    _leave_directory()
    if arguments.child:
        isolation.run_spawned(arguments.child)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(AttributeError, ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the editor's terminal sends it to its whole process group
    denied = frozenset(filter(None, arguments.deny.split(",")))
    worker = functools.partial(Worker, jobs=arguments.jobs, folder=arguments.folder, denied=denied)
    if arguments.resume:
        requests, events, rest = arguments.resume
        with os.fdopen(rest, "rb") as stream:
            unread = stream.read()
        for descriptor in (requests, events):
            os.set_inheritable(descriptor, False)
        worker(requests, events).serve(resumed=unread, announce=False)
    else:
        requests, events = isolation.protect_streams()
        worker(requests, events).serve()
    return 0


def _leave_directory() -> None:
    """``-m`` puts the working directory first on the path, where a workspace's ``random.py`` would replace the
    library's. Children append it: the workspace's own imports work."""
    here = str(Path.cwd())
    if sys.path and sys.path[0] in ("", here) and not sys.flags.safe_path:
        ours = str(Path(__file__).resolve().parent.parent)
        if here != ours:
            del sys.path[0]
    if here not in sys.path:
        sys.path.append(here)


if __name__ == "__main__":
    sys.exit(main())
