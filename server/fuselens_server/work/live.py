"""Live runs: listens, on a private socket, to the user's own processes; keeps what they say about each file."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import secrets
import socket
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fuselens.config import from_environment
from fuselens.live import Endpoint, Event, Hello, directory, endpoints
from fuselens.record import plain, wire
from fuselens.system import ownership

from ..texts.observed import Executed, Observed

_NUMBER = (int, float)
_KINDS = {
    "file": (str,), "function": (str,), "line": (int,), "graph": (int,), "calls": (int,), "seconds": _NUMBER,
    "fastest": _NUMBER, "text": (str,), "kernels": (tuple,),
}  # fmt: skip
T = TypeVar("T")
logger = logging.getLogger(__name__)

HELLO_SECONDS = 5.0  # for a process to say who it is
LARGEST_MESSAGE = 1024 * 1024  # bytes
MOST_FILES = 256  # about which something is kept
MOST_CELLS = 4096  # that ran
MOST_RUNS = 8  # at once that have to do with one file
_PREFIX = "fuselens-live-"


class LiveRuns:
    """``on_change`` is told of each file, by its path, about which there is something new. ``cell_of`` tells which cell of a
    notebook a text was that ran."""

    def __init__(
        self, on_change: Callable[[str, Event], None], cell_of: Callable[[str], Executed | None] = lambda _: None
    ) -> None:
        self._on_change = on_change
        self.cell_of = cell_of
        self._cells: OrderedDict[tuple[str, str], Executed] = OrderedDict()  # by run and the name of the file
        self._files: OrderedDict[str, list[Observed]] = OrderedDict()
        self._server: asyncio.Server | None = None
        self._endpoint: Endpoint | None = None
        self._home: Path | None = None
        self.connections: set[asyncio.StreamWriter] = set()

    def seen(self, path: str) -> Observed | None:
        """What the run that was the last to come to a file said about it."""
        runs = self._files.get(os.path.realpath(path))
        return runs[-1] if runs else None

    # --- listening ---

    async def start(self) -> None:
        """Without Unix sockets, or a place for one, there are no live runs."""
        if self._server is not None or not hasattr(asyncio, "start_unix_server"):
            return
        try:
            remove_abandoned()
            self._home = Path(tempfile.mkdtemp(prefix=_PREFIX))  # for this user only
            path = self._home / "socket"
            self._server = await asyncio.start_unix_server(self._serve, path, limit=LARGEST_MESSAGE)
            path.chmod(0o600)
            self._endpoint = Endpoint(str(path), secrets.token_hex(16))
            self.announce(())
        except OSError as error:
            logger.warning("no live runs: %s", error)
            self.stop()

    def announce(self, folders: Iterable[str]) -> None:
        """Tells processes where to report. Those that compile files in ``folders`` do so without being asked."""
        if self._endpoint is None or self._home is None:
            return
        self._endpoint = Endpoint(self._endpoint.socket, self._endpoint.token, tuple(folders))
        place = directory(from_environment().cache_dir)
        try:
            ownership.make_folder(place)
            place.chmod(0o700)
            write_privately(self._announcement, json.dumps(plain.to_plain(self._endpoint)))
        except OSError as error:
            logger.warning("no live runs: %s", error)

    @property
    def _announcement(self) -> Path:
        assert self._home is not None
        return directory(from_environment().cache_dir) / f"{self._home.name.removeprefix(_PREFIX)}.json"

    def stop(self) -> None:
        """Takes back the announcement, and ends every connection. Safe at any time, also without an event loop."""
        server, self._server = self._server, None
        if self._home is not None:
            forget(self._announcement, self._home / "socket")
            self._home = None
        with contextlib.suppress(RuntimeError):
            if server is not None:
                server.close()
            for writer in list(self.connections):
                writer.close()

    # --- hearing ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            hello = await asyncio.wait_for(_receive(reader, Hello), HELLO_SECONDS)
            if self._endpoint is None or not hmac.compare_digest(hello.token.encode(), self._endpoint.token.encode()):
                logger.warning("a process that does not know the token was turned away")
                return
            while True:
                self._take(hello, await _receive(reader, Event))
        except (asyncio.IncompleteReadError, TimeoutError, OSError, asyncio.CancelledError):
            pass  # the process ended, or the server does
        except wire.ProtocolError as error:
            logger.warning("a process spoke nonsense: %s", error)
        finally:
            self.connections.discard(writer)
            writer.close()

    def _take(self, hello: Hello, event: Event) -> None:
        if any(type(getattr(event, name)) not in kinds for name, kinds in _KINDS.items()):
            raise ValueError(event)
        if event.kind == "dropped":
            logger.info("process %d dropped %d events", hello.pid, event.calls)
            return
        if event.kind == "source":
            self._take_cell(hello.run, event)
            return
        cell = self._cells.get((hello.run, event.file))
        found = event.diagnostic.span.file if event.diagnostic and event.diagnostic.span else event.file
        if cell is not None:
            event = replace(event, recorded=False)  # a check knows the notebook by another name
        for path in dict.fromkeys(self._path(hello.run, p) for p in (event.file, found) if p):
            runs = self._files.setdefault(path, [])
            run = next((r for r in runs if r.run == hello.run), None)
            if run is None:
                run = Observed(hello.run, hello.program)
                runs.append(run)
                del runs[:-MOST_RUNS]
            if cell is not None:
                run.cells[event.file] = cell
            run.take(hello.pid, event)
            self._files.move_to_end(path)
            if len(self._files) > MOST_FILES:
                self._files.popitem(last=False)
            self._on_change(path, event)

    def _path(self, run: str, file: str) -> str:
        cell = self._cells.get((run, file))
        return os.path.realpath(cell.notebook if cell is not None else file)

    def _take_cell(self, run: str, event: Event) -> None:
        executed = self.cell_of(event.text)
        if executed is not None:
            self._cells[run, event.file] = executed
            if len(self._cells) > MOST_CELLS:
                self._cells.popitem(last=False)


async def _receive(reader: asyncio.StreamReader, cls: type[T]) -> T:
    length = wire.body_length(await reader.readexactly(wire.LENGTH_SIZE))
    if length > LARGEST_MESSAGE:
        raise wire.ProtocolError(f"a message of {length} bytes")
    return wire.decode(await reader.readexactly(length), cls)


def write_privately(file: Path, text: str) -> None:
    """Whole or not at all, and for nobody else to read."""
    beside = file.with_name(f".{file.name}")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
    beside.replace(file)


def remove_abandoned() -> None:
    """Removes what servers left that ended without a chance to clean up."""
    for file, endpoint in list(endpoints(from_environment().cache_dir)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
            trial.setblocking(False)
            try:
                trial.connect(endpoint.socket)
            except (ConnectionRefusedError, FileNotFoundError):
                forget(file, Path(endpoint.socket))
            except OSError:
                pass  # busy: somebody is there


def forget(announcement: Path, path: Path) -> None:
    for file in (announcement, path):
        with contextlib.suppress(OSError):
            file.unlink()
    if path.parent.name.startswith(_PREFIX):
        with contextlib.suppress(OSError):
            path.parent.rmdir()
