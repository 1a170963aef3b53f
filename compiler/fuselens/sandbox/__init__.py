"""Looking at a program must not run its effects: what a check's own process refuses to the program that it evaluates.

The file is imported and its functions are called, but nothing outside of a private folder is written, made, renamed or
deleted, no connection is opened, no process started, no signal sent. Reading is free. Two things see to it:

- an audit hook, which knows what Python is about to do, in the program's words, before it is done;
- the kernel (``_wall.c``; Linux), for code in C, and for whatever the hook's events leave out.

What the program's own line does ends its evaluation: ``Refused``, which ``except Exception`` does not catch, and one finding
(FL915). A library gets a PermissionError, because it may do without (a cache, a font list); only where that comes out of
the program it is a finding. A program that catches both and goes on trying is ended.

Who asked is told by the frames: the innermost one that is not of the standard library, torch or numpy, which do what they
are told. Frames of this compiler are free to write its cache and to start compilers.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import functools
import glob
import itertools
import linecache
import os
import re
import signal
import site
import sys
import sysconfig
import tempfile
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from ..record import diagnostics
from ..record.report import Diagnostic, Frame, Span
from .effects import EVENTS, Effect, followed, shown, signalled

_MOST_REFUSED = 8  # caught ones, then the process ends
_MOST_DENIED = 100  # errors that libraries get during calls of the program, then they are refused like its own lines
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_SHARED = (
    "/dev/shm",
    "/dev/dri",
    "/dev/kfd",
    "~/.nv",
    "~/.triton",
)  # locks of multiprocessing, GPUs, caches of their compilers
_IMPORTS = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_PACKAGES = {"torch": "obedient", "numpy": "obedient", "triton": "ours"}  # Triton is a compiler, whoever calls it
# Parts of the standard library whose own affair it is: they ask programs of the system, and share memory.
_TRUSTED = ("platform.py", "uuid.py", os.path.join("ctypes", "util.py"), os.path.join("multiprocessing", "heap.py"))

_TRACE_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)

Whose = Literal["user", "library", "ours"]
_Line = tuple[str, int, str]  # file, line and function


class Refused(BaseException):
    """Ends the evaluation of a program that was about to do what ``finding`` says."""

    def __init__(self, finding: Diagnostic) -> None:
        super().__init__(finding.message)
        self.finding = finding


class _DeniedError(PermissionError):
    """What a library gets instead."""

    def __init__(self, effect: Effect, finding: Diagnostic) -> None:
        super().__init__(errno.EACCES, f"a check by Fuselens does not {effect.what}")
        self.finding = finding


_DeniedError.__name__ = _DeniedError.__qualname__ = "PermissionError"  # as programs print it
_DeniedError.__module__ = "builtins"


@dataclass(slots=True)
class _Sandbox:
    """What this process refuses, and what came of it since the last :func:`take`."""

    path: str  # the file that is evaluated: findings are at its lines
    private: str
    tell: Callable[[Diagnostic], None]
    give_up: Callable[[Diagnostic], NoReturn]
    found: Diagnostic | None = None
    silent: Diagnostic | None = None  # refused by the kernel to a library, which perhaps does without
    refusals: int = 0
    denials: int = 0
    interrupts: bool = True  # where the kernel refuses: Python tells of that later, anywhere
    main: int = field(default_factory=threading.get_native_id)
    traces: list[int] = field(default_factory=list)  # files in memory

    def on_event(self, event: str, given: tuple[Any, ...]) -> None:
        """The audit hook."""
        read = EVENTS.get(event)
        if read is None:
            return
        effect = read(*given)
        if effect is None or (effect.paths and all(map(self.is_free, effect.paths))):
            return
        frame = sys._getframe(1)
        whose, within = _whose(_files(frame), obedient=True)
        if whose == "ours":
            _grant(effect.kind)
            return
        finding = self.finding(effect, list(_lines(frame)))
        if whose == "library" and not (within and self.denials >= _MOST_DENIED):
            self.denials += within
            raise _DeniedError(effect, finding)
        self.refuse(finding)

    def on_call_refused(self, number: int, frame: types.FrameType | None) -> None:
        """SIGSYS: the kernel has refused system calls, and who made them has been told so."""
        from . import _wall

        try:
            self.look_at(_wall.refused(), frame)
        finally:
            _wall.looked()

    def look_at(self, refused: list[tuple[int, str, bytes, bytes]], frame: types.FrameType | None) -> None:
        here, elsewhere = self.at_the_calls()
        for thread, kind, path, path2 in refused:
            effect = _effect_of(kind, os.fsdecode(path), os.fsdecode(path2))
            at = frame if thread == self.main else _frame_of(thread)
            lines = list(_lines(at, sys.exception() if thread == self.main else None))
            finding = self.finding(effect, lines)
            ended = at is None and thread != self.main
            whose, within = _whose(
                (line[0] for line in elsewhere) if ended else _files(at), obedient=effect.kind == "file"
            )
            self.denials += whose == "library" and within
            seen = self.frames(elsewhere if ended else here)
            if (thread == self.main or ended) and [f.span.line for f in finding.stack] != [f.span.line for f in seen]:
                finding = replace(finding, span=seen[-1].span if seen else None, stack=seen)
            if whose != "user" and self.denials < _MOST_DENIED:
                self.silent = finding
            elif thread == self.main and self.interrupts:
                self.refuse(finding)
            else:
                self.keep(finding)

    def watch(self) -> None:
        """Python is only told when the main thread next looks for signals: by then an exception may have left the frames that
        did it, or another thread have ended. So they are written down when the system call returns."""
        signal.signal(signal.SIGSYS, self.on_call_refused)
        for number, chain in ((signal.SIGSYS, True), (signal.SIGSTKFLT, False)):  # the main thread's and others'
            self.traces.append(os.memfd_create("fuselens-trace"))
            faulthandler.register(number, file=self.traces[-1], all_threads=False, chain=chain)

    def at_the_calls(self) -> Iterator[list[_Line]]:
        """Where the main thread was when its system call returned, and where another one was, innermost first."""
        for trace in self.traces:
            os.lseek(trace, 0, os.SEEK_SET)
            text = os.read(trace, 1 << 16).decode(errors="replace")
            os.ftruncate(trace, 0)
            os.lseek(trace, 0, os.SEEK_SET)
            _, _, first = text.partition("\n")  # the first refusal is the one that is reported
            yield [(m[1], int(m[2]), m[3]) for m in _TRACE_FRAME.finditer(first.partition("\nStack")[0] + "\n")]

    def frames(self, lines: Sequence[_Line]) -> tuple[Frame, ...]:
        """Those of the program, outermost first."""
        names = self.path, self.path.encode("ascii", "backslashreplace").decode()
        return tuple(Frame(name, _line_span(self.path, line)) for file, line, name in reversed(lines) if file in names)

    def is_free(self, path: str) -> bool:
        """Whether anybody may change it: the private folder, devices, and what is no file (pipes)."""
        if os.name == "posix" and path and not path.startswith("/"):
            return True
        return path in _DEVICES or path == self.private or path.startswith(self.private + os.sep)

    def keep(self, finding: Diagnostic) -> None:
        """The first one is what is reported. After many the program is ended."""
        if self.found is None:
            self.found = finding
            self.tell(finding)
        self.refusals += 1
        if self.refusals >= _MOST_REFUSED:
            self.give_up(self.found)

    def refuse(self, finding: Diagnostic) -> NoReturn:
        self.keep(finding)
        raise Refused(self.found or finding)

    def stack(self, lines: Sequence[tuple[types.CodeType, int]]) -> tuple[Frame, ...]:
        return tuple(
            Frame(code.co_qualname, instruction_span(code, at)) for code, at in lines if code.co_filename == self.path
        )

    def finding(self, effect: Effect, lines: Sequence[tuple[types.CodeType, int]]) -> Diagnostic:
        stack = self.stack(lines)
        return diagnostics.make("FL915", stack[-1].span if stack else None, stack=stack, what=effect.what)


_entered: list[_Sandbox] = []  # one at most


def preload() -> None:
    """What takes a while, before the process is forked."""
    _library_folders()
    with contextlib.suppress(ImportError):
        from . import _wall  # noqa: F401


def enter(
    path: str,
    private: Path,
    writable: Sequence[Path],
    tell: Callable[[Diagnostic], None],
    give_up: Callable[[Diagnostic], NoReturn],
) -> None:
    """Nothing that this process does from now on on behalf of the program ``path`` has an effect outside of ``private``.
    For ever: neither hook nor kernel can be told otherwise.

    Our own code may change what is below ``writable``. ``tell`` hears of the first finding at once, as what comes after may
    not end; ``give_up`` ends the process.
    """
    sys.dont_write_bytecode = True
    real = os.path.realpath(private)
    os.environ["TMPDIR"] = tempfile.tempdir = real
    sandbox = _Sandbox(path, real, tell, give_up)
    _entered.append(sandbox)
    with contextlib.suppress(ImportError, AttributeError, ValueError, OSError):
        from . import _wall

        sandbox.watch()
        free = real, *writable, *_DEVICES, *_SHARED, *glob.glob("/dev/nvidia*"), f"/proc/{os.getpid()}"
        paths = tuple(os.fsencode(os.path.realpath(os.path.expanduser(path))) for path in free)
        _wall.enclose(paths)
        _wall.watch(paths)
    sys.addaudithook(sandbox.on_event)


def take() -> list[Diagnostic]:
    """What was refused to the program's own lines since the last call: the first of it, if anything."""
    for sandbox in _entered:
        found = [sandbox.found] if sandbox.found is not None else []
        sandbox.found = sandbox.silent = None
        sandbox.refusals = sandbox.denials = 0
        return found
    return []


@contextlib.contextmanager
def without_interruption() -> Iterator[None]:
    """In the block, what the kernel refuses is kept for :func:`take`; whoever asked was told so and goes on."""
    for sandbox in _entered:
        sandbox.interrupts = False
    try:
        yield
    finally:
        for sandbox in _entered:
            sandbox.interrupts = True


def may_write(path: str | os.PathLike[str]) -> bool:
    """Whether what a program writes there is kept: in the private folder, and to devices."""
    return any(sandbox.is_free(followed(os.fspath(path))) for sandbox in _entered)


def behind(error: BaseException) -> Diagnostic | None:
    """The refusal that ``error``, which left the program, came of. None where it is another error."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, (Refused, _DeniedError)):
            return link.finding
        link = link.__cause__ or link.__context__
    for sandbox in _entered:
        silent, stack = sandbox.silent, sandbox.stack(list(_raised(error.__traceback__)))
        span = stack[-1].span if stack else None
        if silent is not None and silent.span is None:  # it came out of the program before it was looked at
            return replace(silent, span=span, stack=stack)
        if silent is not None and silent.span is not None and span is not None and silent.span.line == span.line:
            return silent
    return None


# --- who asked ------------------------------------------------------------------------------------------------------


def _files(frame: types.FrameType | None) -> Iterator[str]:
    """Of each frame's code, innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _whose(files: Iterable[str], *, obedient: bool) -> tuple[Whose, bool]:
    """Who does what is done in code of ``files``, innermost first, and whether it is during a call of the program.
    ``obedient``: torch and numpy do what they are told."""
    found: Whose | None = None
    importing = False
    for file in files:
        kind = _kind(file)
        importing = importing or kind == "import"
        if kind == "user":
            return found or ("library" if importing else "user"), not importing
        if kind == "ours":
            return found or "ours", False
        if found is None and (kind == "library" or (kind == "obedient" and not obedient)):
            found = "library"
    return "library", False


@functools.cache
def _kind(filename: str) -> str:
    """Of the code in a file: user, ours (or as good as), library, obedient, import, standard."""
    if filename in _IMPORTS:
        return "import"
    if filename.startswith("<frozen "):
        return "standard"
    ours, standard, packages = _library_folders()
    if filename.startswith(ours):  # the slices call what a program calls, on its behalf
        return "standard" if filename.startswith(f"{ours}slices{os.sep}") else "ours"
    for folder in packages:
        if filename.startswith(folder):
            return _PACKAGES.get(filename[len(folder) :].split(os.sep)[0], "library")
    for folder in standard:
        if filename.startswith(folder):
            return "ours" if filename[len(folder) :] in _TRUSTED else "standard"
    return "user"


@functools.cache
def _library_folders() -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """This package, the standard library and installed packages."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    packages = {
        *site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"),
        *([os.path.dirname(os.path.dirname(torch))] if torch else ()),
    }  # fmt: skip
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__)}
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return ours + os.sep, tuple(f + os.sep for f in standard), tuple(f + os.sep for f in packages)


def _lines(frame: types.FrameType | None, error: BaseException | None = None) -> Iterator[tuple[types.CodeType, int]]:
    """Code and instruction of each frame, outermost first. Where ``error`` is being handled in ``frame``, which a system call
    that was refused led to, as it was when that was raised."""
    outer: list[types.FrameType] = []
    at = frame
    while at is not None:
        outer.append(at)
        at = at.f_back
    raised = error.__traceback__ if error is not None else None
    while raised is not None and raised.tb_frame is not frame:
        raised = raised.tb_next
    for at in reversed(outer if raised is None else outer[1:]):
        yield at.f_code, at.f_lasti
    yield from _raised(raised)


def _raised(traceback: types.TracebackType | None) -> Iterator[tuple[types.CodeType, int]]:
    while traceback is not None:
        yield traceback.tb_frame.f_code, traceback.tb_lasti
        traceback = traceback.tb_next


def instruction_span(code: types.CodeType, instruction: int) -> Span:
    """The expression that an instruction of ``code`` computes."""
    line, end_line, column, end_column = next(
        itertools.islice(code.co_positions(), max(instruction, 0) // 2, None), (None,) * 4
    )
    line = line or code.co_firstlineno
    column = column or 0
    return Span(code.co_filename, line, column, end_line or line, column + 1 if end_column is None else end_column)


def _line_span(path: str, line: int) -> Span:
    text = linecache.getline(path, line).rstrip()
    indent = len(text) - len(text.lstrip())
    return Span(path, line, indent, line, max(len(text.encode()), indent + 1))


def _frame_of(native: int) -> types.FrameType | None:
    frames = sys._current_frames()
    return next((frames.get(t.ident or 0) for t in threading.enumerate() if t.native_id == native), None)


# --- the kernel's part ----------------------------------------------------------------------------------------------


def _grant(kind: str) -> None:
    """The system call that follows is ours."""
    if kind in ("process", "signal"):
        with contextlib.suppress(ImportError):
            from . import _wall

            _wall.grant(kind)


def _effect_of(kind: str, path: str, path2: str) -> Effect:
    """In words, as for audit events."""
    match kind:
        case "write":
            return Effect(f"write the file {shown(path)}")
        case "make":
            return Effect(f"make {shown(path)}")
        case "delete":
            return Effect(f"delete {shown(path)}")
        case "rename":
            return Effect(f"rename {shown(path)} to {shown(path2)}")
        case "link":
            return Effect(f"make the link {shown(path2)}")
        case "change":
            return Effect(f"change the mode, owner or times of {shown(path)}")
        case "process":
            return Effect("start a process", kind="process")
        case "signal":
            return signalled(path)
    return Effect("open a connection", kind="network")
