"""What a command is asked to look at: files, folders, functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..record import views
from ..record.printed.checked import DECORATE
from ..source import discovery
from ..source.files import python_files
from ..system import source_text


class UsageError(Exception):
    """What was asked for makes no sense; the message says why. Exit status 2."""


@dataclass(frozen=True, slots=True)
class Target:
    """A file and, when given as ``FILE.py::name``, one function of it."""

    path: Path
    function: str = ""


def targets(text: str) -> Iterator[Target]:
    """The files behind one argument; none for a folder in which nothing is compiled. Raises UsageError for what does not
    exist."""
    name, _, function = text.partition("::")
    path = Path(name)
    if path.is_dir():
        if function:
            raise UsageError(f"{name} is a directory: a function is given as FILE.py::function")
        yield from (Target(file) for file in python_files(path))
        return
    try:
        source_text.read_bytes(path)
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file or directory") from None
    except source_text.UnreadableError as error:
        raise UsageError(str(error)) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if path.suffix not in (".py", ".pyw"):
        raise UsageError(f"{name} is not a Python file")
    if function:
        known = functions(path)
        if function not in known:
            listed = f"it has {', '.join(known)}" if known else "it has none"
            raise UsageError(f"{name} has no annotated function {function!r}; {listed}")
    yield Target(path, function)


def functions(path: Path) -> list[str]:
    """Names of the annotated functions; empty when the file cannot be parsed, which compiling it will report."""
    try:
        return [a.qualname for a in discovery.discover(views.read_text(str(path)) or "", str(path))]
    except SyntaxError:
        return []


def named(text: str) -> list[Target]:
    """The functions that one argument names, or that its files have. Raises UsageError."""
    return [Target(t.path, f) for t in targets(text) for f in ([t.function] if t.function else functions(t.path))]


def nothing_in(names: list[str]) -> str:
    """What to do where folders and files compile nothing."""
    where = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{where}: {DECORATE}, or name a file with --preview"


def previewable(file: str) -> str:
    """What ``--preview`` would look at in a file that compiles nothing."""
    try:
        names = len(discovery.SourceModule(views.read_text(file) or "", file).previews())
    except SyntaxError:
        return ""
    return f"; `--preview` looks at {names} module{'s' * (names != 1)} as if it compiled them" if names else ""
