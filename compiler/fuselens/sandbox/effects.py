"""What Python tells audit hooks of operations that change something outside of the process: in words, and where.

An event that changes nothing (a file that is only read, a folder that is there already) is no effect. Paths are made real,
so that a link does not lead out of a folder.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple


class Effect(NamedTuple):
    """``paths`` are the real paths that change; "" among them: not known. Without any it is about something else."""

    what: str
    paths: tuple[str, ...] = ()
    kind: str = "file"


_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOST = 80  # characters of a command
_NAMELESS = re.compile(r"^/proc/\d+/fd/([a-z]+:\[?\w+\]?)$")


def _real(path: Any, folder: int = -1) -> str:
    """Of a path, or of what a descriptor has open. "": not known; without a leading "/" it is no file."""
    if isinstance(path, int):
        return _opened(path)
    text = os.fsdecode(path)
    if folder >= 0 and not os.path.isabs(text):
        base = _opened(folder)
        return followed(os.path.join(base, text)) if base else ""
    return followed(text)


def followed(path: str) -> str:
    """``/dev/stdout`` leads to a link whose text is no path, but names a pipe."""
    real = os.path.realpath(path)
    nameless = _NAMELESS.search(real)
    return nameless[1] if nameless else real


def _entry(path: Any, folder: int = -1) -> str:
    """The real path of an entry itself, also where it is a link."""
    head, tail = os.path.split(os.fsdecode(path).rstrip(os.sep) or os.sep)
    parent = _real(head or os.curdir, folder)
    return os.path.join(parent, tail) if parent else ""


def _opened(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    with contextlib.suppress(Exception):  # macOS
        import fcntl

        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, b"\0" * 1024).rstrip(b"\0"))  # type: ignore[attr-defined]
    return ""


def shown(path: Any) -> str:
    """As the program names it."""
    return f"`{os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else path}`"


def _open(path: Any, mode: Any, flags: Any) -> Effect | None:
    if not isinstance(flags, int) or not flags & _CHANGES or isinstance(path, int):
        return None
    return Effect(f"write the file {shown(path)}", (_real(path),))


def _mkdir(path: Any, mode: int = 0, folder: int = -1) -> Effect | None:
    entry = _entry(path, folder)
    return None if os.path.lexists(entry) else Effect(f"make the folder {shown(path)}", (entry,))


def _delete(path: Any, folder: int = -1) -> Effect | None:
    entry = _entry(path, folder)
    return None if entry and not os.path.lexists(entry) else Effect(f"delete {shown(path)}", (entry,))


def _rename(source: Any, target: Any, folder: int = -1, folder2: int = -1) -> Effect | None:
    entries = _entry(source, folder), _entry(target, folder2)
    if entries[0] and not os.path.lexists(entries[0]):
        return None
    return Effect(f"rename {shown(source)} to {shown(target)}", entries)


def _link(source: Any, target: Any, folder: int = -1, folder2: int = -1) -> Effect:
    return Effect(f"make the link {shown(target)}", (_entry(source, folder), _entry(target, folder2)))


def _symlink(source: Any, target: Any, folder: int = -1) -> Effect:
    return Effect(f"make the link {shown(target)}", (_entry(target, folder),))


def _truncate(path: Any, length: int = 0) -> Effect | None:
    return None if isinstance(path, int) else Effect(f"shorten the file {shown(path)}", (_real(path),))


def _change(path: Any, *_: Any) -> Effect | None:
    return _changed(path, _real(path))


def _change_at(path: Any, *given: Any) -> Effect | None:
    """The folder that the path is relative to comes last."""
    folder = given[-1] if given and isinstance(given[-1], int) and not isinstance(path, int) else -1
    return _changed(path, _real(path, folder))


def _changed(path: Any, real: str) -> Effect | None:
    if real and not os.path.lexists(real):
        return None
    return Effect(f"change the mode, owner or times of {shown(path)}", (real,))


def _process(*given: Any) -> Effect:
    """``subprocess.Popen`` gives the arguments second, ``os.system`` gives them alone, others an executable first."""
    command = given[1] if len(given) > 1 and given[1] else given[0] if given else ""
    words = command if isinstance(command, (list, tuple)) else [command]
    with contextlib.suppress(TypeError, ValueError):
        text = " ".join(os.fsdecode(word) for word in words)
        if text:
            return Effect(f"start the process `{text if len(text) <= _MOST else text[:_MOST] + '…'}`", kind="process")
    return Effect("start a process", kind="process")


def _spawn(mode: Any, path: Any, arguments: Any, environment: Any = None) -> Effect:
    return _process(path, arguments)


def _fork(*_: Any) -> Effect:
    return Effect("start a process", kind="process")


def _kill(process: int, number: int) -> Effect | None:
    return None if process == os.getpid() or not number else signalled(process)


def _kill_group(group: int, number: int) -> Effect | None:
    return signalled(group) if number else None


def signalled(target: Any) -> Effect:
    return Effect(f"send a signal to process {target}", kind="signal")


def _connect(socket: Any, address: Any) -> Effect:
    return Effect(f"open a connection to {shown(_address(address))}", kind="network")


def _bind(socket: Any, address: Any) -> Effect:
    return Effect(f"listen at {shown(_address(address))}", kind="network")


def _ask(host: Any, *_: Any) -> Effect:
    return Effect(f"ask the network for {shown(host)}", kind="network")


def _address(address: Any) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        return f"{address[0]}:{address[1]}"
    return os.fsdecode(address) if isinstance(address, (str, bytes)) else str(address)


EVENTS: dict[str, Callable[..., Effect | None]] = {
    "open": _open,
    "os.mkdir": _mkdir,
    "os.remove": _delete,
    "os.rmdir": _delete,
    "os.rename": _rename,
    "os.link": _link,
    "os.symlink": _symlink,
    "os.truncate": _truncate,
    "os.chmod": _change_at,
    "os.chown": _change_at,
    "os.utime": _change_at,
    "os.chflags": _change,
    "os.setxattr": _change,
    "os.removexattr": _change,
    "subprocess.Popen": _process,
    "os.system": lambda command: _process(command),
    "os.exec": _process,
    "os.posix_spawn": _process,
    "os.spawn": _spawn,
    "os.startfile": _process,
    "os.startfile/2": _process,
    "os.fork": _fork,
    "os.forkpty": _fork,
    "pty.spawn": lambda arguments: _process(arguments),
    "os.kill": _kill,
    "os.killpg": _kill_group,
    "socket.connect": _connect,
    "socket.bind": _bind,
    "socket.sendto": _connect,
    "socket.sendmsg": lambda socket, address: None if address is None else _connect(socket, address),
    "socket.getaddrinfo": _ask,
    "socket.gethostbyname": _ask,
    "socket.gethostbyaddr": _ask,
}
"""Audit event → its effect, None where it has none."""
