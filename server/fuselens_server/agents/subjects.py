"""What a tool is asked about: files below folders that it may look at, with the text that they have now."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fuselens.record import wire
from fuselens.source import discovery
from fuselens.source.discovery import Annotated
from fuselens.source.files import python_files
from fuselens.system import source_text

from ..work.worker_pool import Environment
from .arguments import ToolError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file's code runs: an interpreter and a working folder, with the options and limits that hold there."""

    environment: Environment
    options: dict[str, Any] = field(default_factory=dict)
    memory_mib: int = wire.Limits().memory_mib
    remarks: tuple[str, ...] = ()  # what a reader must know of the file, such as changes that are not saved
    locked: str = ""  # why the file must not be written now

    @property
    def folder(self) -> str:
        return self.environment.directory or os.getcwd()


class Places(Protocol):
    """Which files may be looked at, and where their code runs."""

    async def absolute(self, path: str) -> str:
        """A path that may be relative to the first folder."""
        ...

    async def of(self, path: str) -> Place:
        """Raises ToolError for a file whose code must not run."""
        ...


@dataclass(frozen=True, slots=True)
class Subject:
    """One file as it is on the disk now. ``functions`` are those that were asked for; none: all."""

    path: str
    data: bytes
    place: Place
    functions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return source_text.decode(self.data)

    @property
    def source(self) -> str:
        """The text without a byte order mark, as the worker takes it."""
        return self.text.removeprefix("\ufeff")

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def name(self) -> str:
        """As it is written in the folder that commands run in."""
        inside = self.path.startswith(self.place.folder.rstrip(os.sep) + os.sep)
        return os.path.relpath(self.path, self.place.folder) if inside else self.path

    @property
    def function(self) -> str:
        return self.functions[0] if self.functions else ""

    @property
    def annotated(self) -> list[Annotated]:
        """Raises ToolError for a text that cannot be parsed."""
        try:
            return discovery.discover(self.source, self.path)
        except SyntaxError as error:
            raise ToolError(f"{self.path}:{error.lineno or 1}: the file cannot be parsed: {error.msg}") from None

    def holds(self) -> bool:
        """Whether the file is still the same."""
        return digest_of(self.path) == self.sha256


def digest_of(path: str) -> str:
    """The sha256 of a file; "" where there is none to read."""
    try:
        return hashlib.sha256(source_text.read_bytes(path)).hexdigest()
    except (OSError, ValueError):
        return ""


async def subjects(target: str, places: Places, most: int) -> tuple[Sequence[Subject], list[str]]:
    """The files behind ``target`` (a file, a folder, FILE.py::function), and what is said of those of a folder that are left
    out. Raises ToolError."""
    name, _, function = target.partition("::")
    path = await places.absolute(name)
    if not os.path.isdir(path):
        return [await _subject(path, function, places)], []
    if function:
        raise ToolError(f"{name} is a folder: a function is given as FILE.py::function")
    await places.of(os.path.join(path, "any.py"))
    files = [str(file) for file in await asyncio.to_thread(lambda: list(python_files(Path(path))))]
    found: list[Subject] = []
    left_out = [f"{len(files) - most} more files; name a smaller folder"] if len(files) > most else []
    for file in files[:most]:
        try:
            found.append(await _subject(file, "", places))
        except ToolError as error:
            left_out.append(str(error))
    return found, left_out


async def function_of(target: str, places: Places) -> Subject:
    """The one function that ``target`` names. Raises ToolError."""
    name, _, function = target.partition("::")
    path = await places.absolute(name)
    if os.path.isdir(path):
        raise ToolError(f"{name} is a folder: give FILE.py::function")
    found = await _subject(path, function, places)
    names = [annotated.qualname for annotated in found.annotated]
    if not names:
        raise ToolError(f"{found.path} compiles no function: decorate one with @fuselens.compile")
    if not function and len(names) > 1:
        raise ToolError(f"which function of {found.path}? Give one of {', '.join(f'{name}::{n}' for n in names)}")
    return found if function else Subject(found.path, found.data, found.place, (names[0],))


async def _subject(path: str, function: str, places: Places) -> Subject:
    place = await places.of(path)
    try:
        found = Subject(path, source_text.read_bytes(path), place, (function,) if function else ())
        _ = found.text
    except FileNotFoundError:
        raise ToolError(f"{path}: no such file or folder") from None
    except source_text.UnreadableError as error:
        raise ToolError(str(error)) from None
    except (OSError, ValueError, LookupError, SyntaxError) as error:
        raise ToolError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if Path(path).suffix not in (".py", ".pyw"):
        raise ToolError(f"{path} is not a Python file")
    if function and function not in (names := [annotated.qualname for annotated in found.annotated]):
        raise ToolError(f"{path} compiles no function {function!r}; it compiles {', '.join(names) or 'none'}")
    return found
