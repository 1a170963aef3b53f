"""What is known of a kernel file, as it is kept beside it: which program it computes, and what verifying it found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ..record.plain import from_plain, to_plain
from . import place
from .place import Unreadable

T = TypeVar("T")
FORMAT = 1
SAME = 0.05  # of the time: what two builds of one text may differ by


@dataclass(frozen=True, slots=True)
class Unit:
    """The kernels of one program, forward or backward. ``content`` names what the program computes, and ``outline`` says it (see
    ``ir/graphs/content.py``); ``file`` is relative to the project's root. The function has this unit where it is compiled with
    ``options``, and with symbols for ``axes``."""

    content: str
    phase: str  # "forward" | "backward"
    language: str  # "cpp" | "triton"
    function: str
    file: str
    frame: str = ""
    graph: int = 0
    outline: tuple[str, ...] = ()
    kernels: dict[str, str] = field(default_factory=dict)  # name → its parameters
    options: dict[str, str] = field(default_factory=dict)
    axes: dict[str, dict[str, str]] = field(default_factory=dict)  # sizes that vary: parameter → dimension → name
    owner: str = ""  # what a run calls the function, where that is another name: the class of a module

    def is_of(self, function: str) -> bool:
        return function in (self.function, self.owner)

    @property
    def title(self) -> str:
        """``score, graph 0, backward``."""
        return f"{self.function}, graph {self.graph}{', backward' if self.phase == 'backward' else ''}"

    @property
    def stem(self) -> str:
        return f"{self.content}/{self.phase}"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of calls of a unit, with its host program: the median and the quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Verified:
    """That a text, of this hash, gave what the graph gives, on a ``target``: an instruction set, a GPU's architecture, or Triton's
    interpreter."""

    text: str
    target: str
    inputs: tuple[str, ...] = ()
    left: int = 0  # kinds of inputs that there was no time for
    gradients: bool = False
    threads: int = 0
    processor: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    yours: Times | None = None
    ours: Times | None = None
    kernels: dict[str, list[float]] = field(default_factory=dict)  # seconds of each, yours and ours
    unmeasured: str = ""  # why there are no times

    @property
    def slower(self) -> bool:
        """Whether it takes longer than ours, by more than what varies between calls, and between two that are the same."""
        return bool(self.yours and self.ours and self.yours.low > self.ours.high and self.change > SAME)

    @property
    def change(self) -> float:
        """-0.25: it takes a quarter less."""
        return self.yours.median / self.ours.median - 1 if self.yours and self.ours and self.ours.median else 0.0


@dataclass(frozen=True, slots=True)
class Pin:
    """``replaces`` is the hash of our text, and ``difference`` what was changed in it."""

    unit: Unit
    replaces: str = ""
    difference: tuple[str, ...] = ()
    verified: tuple[Verified, ...] = ()
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Found:
    """A finding in a kernel file: ``line`` counts from 1, ``column`` from 0."""

    line: int
    message: str
    column: int = 0
    code: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verifying a draft of this hash found. ``found`` is why it is refused."""

    text: str
    verified: Verified | None = None
    found: tuple[Found, ...] = ()

    @property
    def agrees(self) -> bool:
        return self.verified is not None and not self.found


@dataclass(frozen=True, slots=True)
class Draft:
    unit: Unit
    ours: str = ""  # the hash of our text
    verdict: Verdict | None = None
    format: int = FORMAT


def read(path: Path, kind: type[T], owner: str = "") -> T:
    """Raises Unreadable."""
    try:
        plain = json.loads(place.read(path, owner))
        if not isinstance(plain, dict) or plain.get("format", FORMAT) != FORMAT:
            raise Unreadable(f"{path.name} is of another version of fuselens")
        return from_plain(kind, plain)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable(f"{path.name} is damaged: {error}") from None


def write(path: Path, value: Pin | Draft) -> None:
    """Raises OSError."""
    place.write(path, json.dumps(to_plain(value), indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def kinds(names: Sequence[str]) -> str:
    return f"{len(names)} kind{'s' * (len(names) != 1)} of inputs"
