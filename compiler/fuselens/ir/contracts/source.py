"""What a code generator returns: text, the user lines behind each line of it, and what a caller must know to run it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ...record.report import Line, Span

if TYPE_CHECKING:
    from sympy import Expr


class Unsupported(Exception):
    """The graph holds something this generator cannot express. The message names it; the graph then runs eagerly."""


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """How to call one generated kernel.

    ``arguments`` are storage names, in order (pointers or tensors); ``sizes`` are the names of the size symbols that
    follow them. ``bytes_read``/``bytes_written`` are expressions in the size symbols, per call. ``launch`` holds what
    the target needs beyond that (Triton: grid, block sizes, options of its compiler).
    """

    name: str
    kind: str
    arguments: tuple[str, ...]
    written: tuple[str, ...]
    sizes: tuple[str, ...]
    operations: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    bytes_read: Expr | int | None = None
    bytes_written: Expr | int | None = None
    checks: bool = False  # may set the unit's error flag: an integer divided by zero, an index out of range
    launch: dict[str, Any] = field(default_factory=dict)
    same_as: str | None = None  # an earlier kernel whose text, but for names, is this one's: its function serves both

    @property
    def function(self) -> str:
        """The exported function to call."""
        return self.same_as or self.name

    @property
    def pointers(self) -> int:
        """How many addresses a Triton function declares. It may be given one more (``triton.choices.product_plan.descriptors_of``)."""
        return sum(kind.startswith("*") for kind in self.launch["signature"].values())


def operator_place(target: str, spans: Iterable[Span]) -> str:
    """An operator as errors name it: ``aten.mm.default, model.py:12``."""
    return ", ".join((target, *dict.fromkeys(f"{s.file}:{s.line}" for s in spans)))


def checked(kernels: Iterable[KernelInfo]) -> tuple[str, ...]:
    """What those kernels compute that look at values, as errors name it."""
    return tuple(dict.fromkeys(operator_place(", ".join(k.operations), k.spans) for k in kernels if k.checks))


@dataclass(frozen=True, slots=True)
class PythonOperator:
    """An operator that a C++ host program calls through Python: ``def name(parameters): return call``.

    The first ``tensors`` parameters are tensors, the next ``numbers`` integers; ``results`` is the length of the
    sequence that it returns, -1 for a tensor. ``where`` names the operator and the user's line, for errors.
    Without a name it is only called where torch's function has failed: it raises torch's own error.
    """

    name: str
    parameters: tuple[str, ...]
    call: str
    tensors: int
    numbers: int
    results: int
    where: str = ""


@dataclass(frozen=True, slots=True)
class Steps:
    """A host program as data (see ``codegen/steps.py``): words, numbers (64-bit integers both), how many slots it has for
    tensors and for memory, the kernels that it launches and the functions of torch's C shim that it calls."""

    words: bytes
    numbers: bytes
    slots: int
    memories: int
    kernels: tuple[str, ...]
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostProgram:
    """How to run a host program without Python: a unit's host function ``fuselens_call``, or ``steps`` (see
    runtime/_program.c).

    ``inputs`` has a letter per graph input: tensor, integer, double (a Python float), or other (not looked at); tensors of
    the graph's ``constants`` follow. ``results`` has one per result. ``outputs`` say where each output comes from: a result,
    input or constant k as -1 - k, or None. ``checks`` are the operations that may find a wrong value, and their lines. ``imports`` are functions of torch's C shim whose addresses go into the unit. ``events`` are what a profiler calls the kernels and the
    operators, in the order in which they run.
    """

    inputs: str
    constants: tuple[str, ...]
    results: str
    outputs: tuple[int | None, ...]
    operators: tuple[PythonOperator, ...] = ()
    checks: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    releases_lock: bool = False
    steps: Steps | None = None
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """Generated text of ``language`` ("cpp", "triton", "host"; the program's "user_triton") with its line map (lines count from 1)."""

    language: str
    text: str
    lines: tuple[Line, ...] = ()
    kernels: tuple[KernelInfo, ...] = ()
    makers: dict[str, tuple[str, str]] = field(default_factory=dict)  # host: allocation functions → (dtype, device)
    constants: dict[str, str] = field(default_factory=dict)  # host: variables of graph constants → their buffers
    program: HostProgram | None = None  # cpp: the host function in the unit; host: the same program as steps

    @property
    def checks(self) -> tuple[str, ...]:
        """What kernels that look at values compute, as errors name it."""
        return checked(self.kernels)

    def kernel(self, name: str) -> KernelInfo | None:
        return next((k for k in self.kernels if k.name == name), None)


@dataclass(frozen=True, slots=True)
class Generated:
    """The sources of a graph. ``isa_flags`` are compiler flags that the C++ needs; unused languages are None.

    ``host`` is the Python host program; of a C++ unit with a host program of its own, the operators that it calls
    through Python (None without any). ``user`` are the program's own Triton kernels, to look at.
    """

    host: Source | None
    cpp: Source | None = None
    triton: Source | None = None
    isa_flags: tuple[str, ...] = ()
    user: Source | None = None

    @property
    def program(self) -> HostProgram | None:
        """The host program in the C++ unit, where it has one."""
        return self.cpp.program if self.cpp is not None else None

    def sources(self) -> tuple[Source, ...]:
        return tuple(s for s in (self.cpp, self.triton, self.user, self.host) if s is not None)

    def counted(self, hint: Callable[[Any], int]) -> Generated:
        """The same with the bytes that kernels move as numbers, and without grids, which the host program has."""

        def of(source: Source | None) -> Source | None:
            if source is None:
                return None
            kernels = tuple(
                replace(
                    k,
                    bytes_read=None if k.bytes_read is None else hint(k.bytes_read),
                    bytes_written=None if k.bytes_written is None else hint(k.bytes_written),
                    launch={name: value for name, value in k.launch.items() if name != "grid"},
                )
                for k in source.kernels
            )
            return replace(source, kernels=kernels)

        return replace(self, host=of(self.host), cpp=of(self.cpp), triton=of(self.triton))


_WORD = re.compile(r"[A-Za-z_]\w*")


def user_lines(spans: Iterable[Span]) -> str:
    """``model.py:12,14`` for a comment: base names and first lines of the spans, each once."""
    return _user_lines(tuple(spans))


@functools.lru_cache(maxsize=4096)
def _user_lines(spans: tuple[Span, ...]) -> str:
    files: dict[str, dict[int, None]] = {}
    for span in spans:
        files.setdefault(PurePath(span.file).name, {})[span.line] = None
    return "; ".join(f"{f}:{','.join(str(l) for l in sorted(ls))}" for f, ls in files.items())


class Writer:
    """Collects indented lines of text, remembering which user spans each came from."""

    def __init__(self, comment: str, indent: str = "  ") -> None:
        self._comment, self._indent = comment, indent
        self._lines: list[str] = []
        self._spans: list[tuple[Span, ...]] = []
        self._depth = 0
        self._last = ""

    def put(self, text: str = "", spans: tuple[Span, ...] = (), note: bool = True) -> None:
        """Appends ``text`` (one or more lines). A comment names the user's lines where they change."""
        for line in text.split("\n"):
            where = user_lines(spans) if note else ""
            if where and where != self._last:
                line = f"{line}  {self._comment} {where}"
                self._last = where
            self._lines.append(self._indent * self._depth + line if line else "")
            self._spans.append(spans)

    def open(self, text: str, spans: tuple[Span, ...] = ()) -> None:
        self.put(text, spans, note=False)
        self._depth += 1

    def close(self, text: str = "}") -> None:
        self._depth -= 1
        if text:
            self.put(text)

    def forget(self) -> None:
        """The next line is commented with its user lines even if they are those of the line before."""
        self._last = ""

    def extend(self, text: str) -> None:
        for line in text.split("\n"):
            self._lines.append(line)
            self._spans.append(())

    def include(self, other: Writer) -> None:
        """Appends what another writer holds, at this one's depth."""
        self._lines += [self._indent * self._depth + line if line else "" for line in other._lines]
        self._spans += other._spans

    def also(self, other: Writer) -> None:
        """Adds the user lines of another writer's text, which has the same lines but for names."""
        pairs = zip(self._spans, other._spans, strict=True)
        self._spans = [(*a, *(s for s in b if s not in a)) for a, b in pairs]

    def anonymous(self, names: Iterable[str]) -> str:
        """The text without comments, with ``names`` numbered."""
        numbers = {name: f"${k}" for k, name in enumerate(names)}
        bare = (line.partition(self._comment)[0].rstrip() for line in self._lines)
        return _WORD.sub(lambda m: numbers.get(m[0], m[0]), "\n".join(bare))

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def lines(self) -> tuple[Line, ...]:
        return tuple(Line(i, s) for i, s in enumerate(self._spans, 1) if s)


class Functions:
    """The functions of a unit: kernels whose texts differ in names only, as a network's layers have them, are one."""

    def __init__(self) -> None:
        self.kernels: list[KernelInfo] = []
        self._by_text: dict[Hashable, tuple[Writer, list[KernelInfo]]] = {}

    def add(self, text: Hashable, out: Writer, info: KernelInfo) -> None:
        """A kernel, written to ``out``; ``text`` is equal for those that are one function."""
        first, same = self._by_text.setdefault(text, (out, []))
        if same:
            first.also(out)
            info = replace(info, same_as=same[0].name)
        same.append(info)
        self.kernels.append(info)

    def __iter__(self) -> Iterator[tuple[Writer, list[KernelInfo]]]:
        """Each function's text, and the kernels that it serves."""
        return iter(self._by_text.values())
