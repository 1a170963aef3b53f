"""Messages between the language server and the worker in the user's interpreter, and their framing.

Both ends import this module, so it is standard library only. A message is a JSON object behind a four-byte big-endian
length. The server writes :class:`Request` objects; the worker answers each with any number of ``progress`` events and
exactly one ``result``, in any order between requests (each compilation is a child process of its own).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

from . import plain, report

MAXIMUM_LENGTH = 256 * 1024 * 1024
_LENGTH = struct.Struct(">I")
LENGTH_SIZE = _LENGTH.size

Method = Literal[
    "check", "run", "values", "warm", "fix", "verify", "graphs", "probe", "kernel", "patch", "recompiles", "changes", "change",
    "machine", "cancel", "shutdown",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """What one compilation may use. A breach kills the child and yields FL905 or FL910. ``processor_seconds`` are those of the child
    and of the compilers that it started (0: no limit), where the system tells."""

    seconds: float = 60.0
    memory_mib: int = 8192
    processor_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Revision:
    """The program as it was, or is, at one time: its files are below ``folder``, and those of the working tree below ``top``.
    The report is slim, speaks of files below ``top``, and is kept under ``key``. Without a folder only a kept one is given."""

    top: str
    folder: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """``check`` compiles the annotated functions of ``path`` (all, or those named in ``functions`` by qualified name);
    ``run`` executes one of them compiled and eagerly; ``values`` runs one's graphs as they were captured and tells what
    each node computes; ``warm`` fills the cache for a program's own calls of them (its result is a file report of what
    could not be built); ``fix`` tries the fixes of one's ``findings`` out (its result is a report with all of those as
    ``breaks``); ``verify`` compares one with eager and float64 on many kinds of calls, or on the ``kinds`` of the
    options; ``graphs`` writes the graphs of one's call as programs into the folder ``dump`` of the options (of the last of the
    ``kinds``, after the others), and ``probe`` compares a part of such a program, named in the options, with eager (see
    :mod:`fuselens.bisecting`); ``kernel`` verifies or measures edited kernels of one (:mod:`fuselens.pins.trying`); ``patch`` verifies
    a patch of a library, the path ``patch`` of the options, with one (:mod:`fuselens.checking.patching`); ``recompiles``
    foretells the compilations of functions by the calls of their program (its result is a file report with no more than that);
    ``changes`` finds what may make one faster or smaller, and ``change`` measures the one of the options (:mod:`fuselens.source.changes`);
    ``machine`` says what the machine can do, which is measured once (or ``again``, see the options; it needs no file);
    ``cancel`` kills the child of request ``target``."""

    id: int
    method: Method
    path: str = ""
    source: str | None = None  # the text to compile; None reads the file
    functions: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)  # e.g. {"target": "cpu", "gradients": True}
    limits: Limits = field(default_factory=Limits)
    target: int = 0
    known: dict[str, str] = field(default_factory=dict)  # function → fingerprint of a report that the asker has
    findings: tuple[report.Diagnostic, ...] = ()  # every one of the function, in the report's order
    revision: Revision | None = None  # of a check or a run: the program as it was then


@dataclass(frozen=True, slots=True)
class Event:
    """What the worker says about request ``id`` (0: about itself).

    kinds: ``starting`` (``message`` says what it does before it is ready), ``ready`` (once; ``message`` is a JSON object of
    versions, or ``file``'s diagnostics say why there is no torch), ``progress`` (``message`` is a stage), ``early`` (``file``
    is what a check will say, but for what is not known before kernels are), ``refused`` (from a child to who started it:
    ``file`` has the effect that was refused, in case that nothing else comes), ``result`` (``file`` for check and fix, ``run``
    for run, ``text`` for values, as JSON for verify, graphs, probe, kernel, patch, changes, change and machine; none when the request was
    cancelled).
    Where a child was ended, ``processor_seconds`` are what it had used, and ``text`` is the answer as far as it was known: the
    ``text`` of its last ``progress`` that had one.
    """

    id: int
    kind: Literal["ready", "starting", "progress", "early", "refused", "result"]
    message: str = ""
    file: report.FileReport | None = None
    run: report.RunResult | None = None
    text: str = ""
    processor_seconds: float = 0.0


class ProtocolError(Exception):
    """The stream ended inside a message, announced an absurd length, or brought what is no message."""


def encode(message: Any) -> bytes:
    """One message, a dataclass, as it goes over the pipe, length included."""
    spans = plain.Spans()
    body = plain.to_plain(message, spans)
    if spans.rows:
        body["spans"] = spans.rows
    data = json.dumps(body, separators=(",", ":")).encode()
    return _LENGTH.pack(len(data)) + data


def decode(body: bytes, cls: type[Any]) -> Any:
    """The message of dataclass ``cls`` (Request or Event) in ``body``, which is without its length. Raises ProtocolError."""
    try:
        message = json.loads(body)
        return plain.from_plain(cls, message, [report.Span(*row) for row in message.pop("spans", ())])
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ProtocolError(f"no {cls.__name__}: {type(error).__name__}: {error}") from error


def body_length(header: bytes) -> int:
    """The length announced by the ``LENGTH_SIZE`` bytes before a body. Raises ProtocolError when it is absurd."""
    (length,) = _LENGTH.unpack(header)
    if length > MAXIMUM_LENGTH:
        raise ProtocolError(f"message of {length} bytes announced; the limit is {MAXIMUM_LENGTH}")
    return length


class Decoder:
    """Cuts a byte stream that arrives in arbitrary pieces into frames, for readers that must not block."""

    def __init__(self) -> None:
        self.rest = bytearray()  # what is not a whole frame yet

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that ``data`` completes, each with its length in front (a body is ``frame[LENGTH_SIZE:]``).

        Raises ProtocolError when an absurd length is announced.
        """
        self.rest += data
        frames: list[bytes] = []
        while len(self.rest) >= LENGTH_SIZE:
            end = LENGTH_SIZE + body_length(bytes(self.rest[:LENGTH_SIZE]))
            if len(self.rest) < end:
                break
            frames.append(bytes(self.rest[:end]))
            del self.rest[:end]
        return frames


def write(stream: BinaryIO, message: Request | Event) -> None:
    """Writes one message and flushes. Callers serialise writes themselves."""
    stream.write(encode(message))
    stream.flush()


def read(stream: BinaryIO, cls: type[Any]) -> Any | None:
    """Reads one message of dataclass ``cls`` (Request or Event); None at a clean end of stream."""
    header = _read_exactly(stream, LENGTH_SIZE)
    if header is None:
        return None
    body = _read_exactly(stream, body_length(header))
    if body is None:
        raise ProtocolError("the stream ended inside a message")
    return decode(body, cls)


def _read_exactly(stream: BinaryIO, n: int) -> bytes | None:
    chunks, have = [], 0
    while have < n:
        chunk = stream.read(n - have)
        if not chunk:
            if have:
                raise ProtocolError("the stream ended inside a message")
            return None
        chunks.append(chunk)
        have += len(chunk)
    return b"".join(chunks)
