"""A cache that machines share: entries that are not here are fetched from it, and those that are made here are given to it.

Off by default, because entries are code: whoever can write there can run code here. ``FUSELENS_REMOTE_CACHE`` is an address of
fsspec (``s3://…``, ``gs://…``, a folder of a shared file system) or of Redis. With ``FUSELENS_REMOTE_CACHE_SECRET`` each entry
carries an HMAC-SHA256 over its name and content, and one without it, or of another name, is not believed. Without a secret an
entry's own SHA-256 tells damage alone.

What the other side does wrong, or that it is not there, never stops a compilation: after the first failure it is one finding
(FL926), and this process goes on without it. Entries are given away by a thread, for which the end of the process waits a little.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import hmac
import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...record.report import Diagnostic

_SIGNED = b"fuselens-hmac:"
_WAITING = 256  # entries that wait to be given away; what comes beyond is not
_EXIT_SECONDS = 10.0
_SECONDS = 10.0  # that one answer may take


class Store(Protocol):
    """Where bytes are kept under names. Anything may be raised."""

    def get(self, name: str) -> bytes | None: ...
    def put(self, name: str, data: bytes) -> None: ...


class _Files:
    """Whatever fsspec reaches."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self._system, self._root = url_to_fs(url)
        protocols = self._system.protocol
        self._moves = "file" in ((protocols,) if isinstance(protocols, str) else protocols)

    def get(self, name: str) -> bytes | None:
        try:
            return self._system.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
        made = (
            f"{path}.{os.getpid()}-{threading.get_ident()}" if self._moves else path
        )  # object stores show whole objects only
        self._system.pipe_file(made, data)
        if self._moves:
            os.replace(made, path)


class _Redis:
    """A server of Redis, through its own client."""

    def __init__(self, url: str) -> None:
        import redis

        self._client: Any = redis.Redis.from_url(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS)

    def get(self, name: str) -> bytes | None:
        return self._client.get(f"fuselens/{name}")

    def put(self, name: str, data: bytes) -> None:
        self._client.set(f"fuselens/{name}", data)


def _store(url: str) -> Store:
    return _Redis(url) if url.split("://")[0] in ("redis", "rediss", "unix") else _Files(url)


class Remote:
    """The shared cache at ``url``. Nothing is raised."""

    def __init__(self, url: str, secret: str = "", connect: Callable[[str], Store] = _store) -> None:
        self.url = url
        self._finding: Diagnostic | None = None
        self._secret, self._connect = secret.encode(), connect
        self._found: Store | None = None
        self._failed = False
        self._process = 0
        self._waiting: queue.Queue[tuple[str, bytes] | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._one_at_a_time = threading.Lock()

    def fetch(self, name: str) -> bytes | None:
        """The sealed entry ``name``; None where there is none, or it is not believed."""
        data = self._tried(lambda store: store.get(name))
        if data is None or not self._secret:
            return data
        head, _, entry = data.partition(b"\n")
        return entry if hmac.compare_digest(head, self._signed(name, entry)) else None

    def give(self, name: str, entry: bytes) -> None:
        """Has a sealed entry kept there, later."""
        if self._failed:
            return
        with contextlib.suppress(queue.Full, RuntimeError):  # no more threads
            self._serve()
            self._waiting.put_nowait((name, entry))

    def told(self) -> Diagnostic | None:
        """What keeps it from being used, once."""
        found, self._finding = self._finding, None
        return found

    def finish(self) -> None:
        """Waits a little for what was not given away yet."""
        if self._thread is not None and self._process == os.getpid():
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=_EXIT_SECONDS)
                self._thread.join(_EXIT_SECONDS)

    def _signed(self, name: str, entry: bytes) -> bytes:
        digest = hmac.new(self._secret, name.encode() + b"\0" + entry, hashlib.sha256).hexdigest()
        return _SIGNED + digest.encode()

    def _serve(self) -> None:
        """Starts the thread; again in a forked process, which has none."""
        with self._one_at_a_time:
            if self._process != os.getpid():
                self._process, self._waiting = os.getpid(), queue.Queue(_WAITING)
                self._thread = threading.Thread(target=self._give, name="fuselens remote cache", daemon=True)
                self._thread.start()
                atexit.register(self.finish)

    def _give(self) -> None:
        waiting = self._waiting
        while (one := waiting.get()) is not None:
            name, entry = one
            data = self._signed(name, entry) + b"\n" + entry if self._secret else entry
            self._tried(lambda store, name=name, data=data: store.put(name, data))

    def _tried(self, call: Callable[[Store], Any]) -> Any:
        if self._failed:
            return None
        try:
            if self._found is None:
                self._found = self._connect(self.url)
            return call(self._found)
        except Exception as error:  # noqa: BLE001 - clients raise what they like
            from ...record.diagnostics import make, raised

            self._failed = True
            self._finding = make("FL926", what=self.url, why=raised(error))
            return None


@functools.cache
def remote(url: str, secret: str = "") -> Remote:
    """The shared cache of this process at ``url``."""
    return Remote(url, secret)
