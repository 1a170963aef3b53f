"""The one record of a compilation.

A :class:`Report` is plain, serialisable, stdlib-only data. Every view (diagnostics, hovers, lenses, inlay hints,
virtual documents, ``explain()``, logs, dump folders) is a pure function of it, and nothing else crosses a process
boundary. This module imports nothing but the standard library, because the language server imports it and must never
import torch.

Positions follow CPython's ``co_positions``: lines count from 1, columns are UTF-8 *byte* offsets from 0, ends are
exclusive. The server converts to LSP's UTF-16 units.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

SCHEMA_VERSION = 1
PREVENTING = frozenset({"FL202", "FL402", "FL403"})  # findings of what keeps from being compiled what could be
FAR = 0.5  # of what a limit allows, below which it is not the limit that a kernel waits for
FORETOLD = frozenset({"FL207", "FL208"})  # findings of what the program's calls will compile
Severity = Literal["error", "warning", "information", "hint"]
Status = Literal["whole", "with breaks", "eager in part", "not compiled"]
Origin = Literal["fuselens.example", "example_inputs", "annotations", "defaults", "recorded", "call", "layers", "body"]
_SOURCES: dict[str, str] = {
    "fuselens.example": "those that its author states",
    "example_inputs": "those that its author states",
    "annotations": "made from its annotations",
    "defaults": "its parameters' defaults",
    "recorded": "like those of the last call of your own run",
    "layers": "the smallest that its layers take",
    "body": "small ones that its body takes",
}


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A range of source text. ``line``/``end_line`` count from 1; columns are UTF-8 byte offsets; end exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"

    def place(self, file: str) -> str:
        """Its line, for readers of what is about ``file``: ``line 12``, or ``model.py:12`` where it is in another."""
        if self.file == file:
            return f"line {self.line}"
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True, slots=True)
class Frame:
    """One user stack frame: the function's qualified name and the expression being evaluated in it."""

    function: str
    span: Span


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of text. The edits of one fix do not overlap, and all refer to the text before any of them."""

    span: Span
    replacement: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A change offered for a diagnostic; ``verified`` when it was compiled and agreed with eager, else a template."""

    title: str
    edits: tuple[Edit, ...]
    verified: bool = False
    trial: str = ""  # what trying it out found; "" before that
    base: tuple[Edit, ...] = ()  # those that it was proposed with, where others were added
    together: bool = False  # whether it holds with all others of its function that are marked so
    library: str = ""  # the installed file that its edits are of: no file of the project's
    patch: str = ""  # what accepting it writes, where it is of a library and verified: the text of a patch file


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A coded finding at a position. ``mode`` names the compile mode in which it holds (e.g. ``fullgraph=False``)."""

    code: str
    message: str
    span: Span | None
    severity: Severity = "warning"
    explanation: str = ""
    hints: tuple[str, ...] = ()
    stack: tuple[Frame, ...] = ()  # outermost first; the last frame holds ``span``
    mode: str = ""
    cost: str = ""  # what it costs, e.g. "splits the function into 2 graphs; 3 operations run eagerly"
    fixes: tuple[Fix, ...] = ()
    cause: str = ""  # the finding that this one follows from: code, place and message
    predicted: bool = False  # read off the source, not compiled


@dataclass(frozen=True, slots=True)
class Tensor:
    """Metadata of a tensor: no data. Symbolic sizes print as their symbol ("n"), static ones as integers."""

    dtype: str
    shape: tuple[str, ...]
    stride: tuple[str, ...] = ()
    device: str = "cpu"
    requires_grad: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(self.shape)}]"


@dataclass(frozen=True, slots=True)
class Shape:
    """A variable bound to a tensor on a line: the span is the assigned name."""

    name: str
    span: Span
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbolic size or integer: where it comes from, the example value and the range its guards leave open.

    ``specialised``: what the program made it equal to after all. ``span``: the expression that last restricted it.
    """

    name: str
    source: str
    hint: int | None = None
    lower: int | None = None
    upper: int | None = None
    specialised: str = ""
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition under which compiled code is reused. ``span`` is the line that made it necessary."""

    kind: str  # "TENSOR", "EQUALS", "TYPE", "IS", …
    source: str  # Python expression of what is checked, e.g. "self.linear.weight"
    expression: str  # the whole condition as Python text
    roots: tuple[
        str, ...
    ] = ()  # the parameters and globals it hangs on, e.g. "self"; those of two for `a.shape[0] == b.shape[0]`
    span: Span | None = None
    cost_ns: float | None = None  # of one evaluation, where somebody asked for it (option ``guard_costs``)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a stage's text (counted from 1) and the user spans that it came from."""

    line: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage produced, as text. ``suffix`` is the document's extension (py, loop, cpp, txt). The text of one that
    comes ``later`` is made when somebody asks for it (option ``assembly``)."""

    name: str
    suffix: str
    text: str
    lines: tuple[Line, ...] = ()
    later: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice of the compiler: code, verdict and reason, plus free-form plain fields (bytes saved, rule, …)."""

    code: str
    verdict: str  # "taken" | "refused" | "saved" | "recomputed" | "fallback" | …
    subject: str  # what it is about, e.g. "loop3 + loop4"
    reason: str
    span: Span | None = None
    data: dict[str, Any] = field(default_factory=dict)
    other: Span | None = (
        None  # of two operations that were, or were not, fused, the earlier one; ``span`` is the later one's
    )

    @property
    def candidates(self) -> list[tuple[str, float | None]]:
        """What was measured, the fastest first, with seconds of a call, or would be where there is a GPU; nothing for
        other decisions."""
        times = [(name, s) for name, s in self.data.items() if s is None or isinstance(s, float)]
        return sorted(times, key=lambda t: t[1] or 0.0) if self.code == "FL416" else []


@dataclass(frozen=True, slots=True)
class Kernel:
    """A generated kernel. ``lines`` are the user lines it implements; ``bytes_read``/``written`` per call."""

    name: str
    backend: str  # "cpp" | "triton" | "user_triton", a kernel of the program's
    phase: str  # "forward" | "backward"
    kind: str  # "pointwise" | "reduction" | …
    operations: tuple[str, ...]
    spans: tuple[Span, ...]
    bytes_read: int | None = None
    bytes_written: int | None = None
    resources: dict[str, int] = field(default_factory=dict)  # registers, spills, shared memory, where known

    @property
    def takes(self) -> str:
        """The resources as ``48 registers, 128 B of shared memory, 64 B spilled``; "" where they are not known."""
        registers, shared, spills = (self.resources.get(name, 0) for name in ("registers", "shared", "spills"))
        said = [f"{registers} registers"] if registers else []
        amount = f"{shared / 1024:g} KiB" if shared >= 1024 else f"{shared} B"
        said += [f"{amount} of shared memory"] if shared else []
        said += [f"{spills} B spilled"] if spills else []
        return ", ".join(said)


@dataclass(frozen=True, slots=True)
class Unit:
    """The kernels of one program of a graph, as a text of their own. ``content`` names what they compute, the same on each machine,
    and ``outline`` says it, a line for each input and node. ``pin`` is the file of the project that is used in the place of ours."""

    phase: str  # "forward" | "backward"
    language: str  # "cpp" | "triton"
    content: str
    outline: tuple[str, ...] = ()
    pin: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel, or a call of an operator (of a ``library``), moves and does for the example inputs: bytes, and operations by their
    kind: ``exp``, …; ``plain`` for additions and the like; ``product float32`` for additions and multiplications of products."""

    name: str
    phase: str  # "forward" | "backward"
    read: int
    written: int
    operations: dict[str, float] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    library: bool = False

    @property
    def bytes(self) -> int:
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine, or a card, can do: bytes a second that kernels read, copy (both ways counted) and write, by how many they are, since
    caches hold few; operations a second by their kind (see :class:`Work`); ``start`` is what the smallest kernel takes. ``measured``
    says where."""

    name: str
    reads: tuple[tuple[int, float], ...]  # bytes of a kernel, bytes a second
    copies: tuple[tuple[int, float], ...]
    writes: tuple[tuple[int, float], ...]
    operations: dict[str, float]
    start: float
    measured: str = ""  # when, as 2026-01-31; "": of the maker's figures


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """A kernel or an operator call of a graph, in order, and the bytes that the graph holds while it runs: values on
    their way, results so far and what is saved for the backward; not the inputs, which are the caller's."""

    name: str
    phase: str  # "forward" | "backward"
    bytes: int
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """A node of a graph's picture: an operation as it was lowered, before fusion, or an input, which has no ``origin``.
    ``reads`` are its edges: names of others of the same phase. ``bytes`` is what its value takes up, with the example's
    sizes. ``kernels`` are what computes it, calls of operators among them; several where it is cheaper to compute it again."""

    name: str
    origin: str  # the ATen operator
    phase: str  # "forward" | "backward"
    type: str  # of its value: "f32[n, 64]"
    bytes: int
    reads: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    result: bool = False  # the graph returns it, or keeps it for the backward
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall-clock seconds that a stage took; nested stages are dotted ("build.cpp"). ``start`` is when it began, in seconds of a clock
    of the process; 0 where that is not known."""

    stage: str
    seconds: float
    start: float = 0.0


@dataclass(slots=True)
class Graph:
    """One captured graph and all that became of it. ``frame`` is the code object's name (resume functions say so)."""

    id: int
    frame: str
    span: Span | None
    operations: int
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    stages: list[Stage] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)  # those that can be edited
    externs: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    memory: list[MemoryStep] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)  # of its kernels and operators, in order
    structure: list[Operation] = field(default_factory=list)  # where texts are wanted
    timings: list[Timing] = field(default_factory=list)
    training: bool = False
    cached: bool = False  # its kernels were built before
    cache: str = ""  # "found", or why the cache did not have what becomes of it; "" where it was not asked
    fallback: bool = False  # True when the graph runs eagerly, as captured
    repro: str = ""  # a program that runs the graph compiled and eagerly; where texts of everything are wanted
    part_of: int | None = None  # the graph that this one is a part of
    device: str = "cpu"  # kind of device that its kernels are for: "cpu" or "cuda"
    runs: int = 1  # how often that graph runs it

    def stage(self, name: str) -> Stage | None:
        return next((s for s in self.stages if s.name == name), None)


@dataclass(frozen=True, slots=True)
class Input:
    """An argument of the call that was compiled: ``type`` in a few words, such as ``f32[64, 1, 28, 28]``."""

    parameter: str  # "" where it has no name
    type: str
    by_name: bool = False  # given as a keyword

    def __str__(self) -> str:
        return f"{self.parameter}: {self.type}" if self.parameter else self.type


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a function was compiled with, and who says so. ``line`` is that of the program's call, 0 elsewhere, and ``file`` where
    that is another file; ``completed`` says that parts of that call were not known, and are what the function takes."""

    origin: Origin
    values: tuple[Input, ...] = ()
    line: int = 0
    completed: bool = False
    file: str = ""

    @property
    def assumed(self) -> bool:
        """Whether nobody states them, and no run had them."""
        return self.origin in ("call", "layers", "body")

    @property
    def invented(self) -> bool:
        """Whether parts of them are as likely as others."""
        return self.completed or self.origin in ("layers", "body")

    @property
    def source(self) -> str:
        """Where they come from: ``those of its call at line 48``."""
        if self.origin != "call":
            return _SOURCES[self.origin]
        known = "; what is unknown there is the smallest that it takes" if self.completed else ""
        where = f" at line {self.line}" if self.line else ""
        other = f" of {self.file.replace(chr(92), '/').rpartition('/')[2]}" if self.file else ""
        return f"those of its call{where}{other}{known}"

    @property
    def types(self) -> str:
        return ", ".join(value.type for value in self.values) or "none"

    def __str__(self) -> str:
        return ", ".join(map(str, self.values)) or "none"


@dataclass(frozen=True, slots=True)
class Collective:
    """What ranks do together at one place of the program, ``calls`` times alike in a call of the function and its backward.
    Bytes and seconds are those of one of them: what rank 0 sends and receives, and how long it is predicted to take."""

    name: str  # "all_reduce"
    group: str  # the name of the mesh's dimension, "all ranks", or those of the group
    ranks: int  # of the group
    hosts: int  # that these are on
    of: str  # what a rank gives: "float32 [1024, 1024]"
    phase: str  # "forward" | "backward"
    sent: int
    received: int
    seconds: float
    span: Span | None = None
    calls: int = 1

    @property
    def text(self) -> str:
        """``all_reduce of float32 [4, 16, 64] over tensor (8 ranks)``."""
        group = f"all {self.ranks} ranks" if self.group == "all ranks" else f"{self.group} ({self.ranks} ranks)"
        times = f"{self.calls} × " if self.calls > 1 else ""
        return f"{times}{self.name}{f' of {self.of}' if self.of else ''} over {group}"


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes that one rank holds. ``buffers`` are parameters of other ranks that it has gathered, at most at a time, and those in which
    gradients are reduced; ``graphs`` is the most that each graph is predicted to hold, together, as of rank 0; ``whole`` are the
    parameters as one process alone would hold them."""

    rank: int
    parameters: int
    gradients: int
    buffers: int
    whole: int
    graphs: int = 0

    @property
    def peak(self) -> int:
        """The most at a time, where all of it is held at once."""
        return self.parameters + self.gradients + self.buffers + self.graphs


@dataclass(frozen=True, slots=True)
class Communication:
    """What a function's call and its backward do on several ranks. ``looked_at`` are the ranks that were compared."""

    ranks: int
    mesh: dict[str, int] = field(default_factory=dict)
    looked_at: tuple[int, ...] = ()
    collectives: tuple[Collective, ...] = ()  # of rank 0
    memory: tuple[RankMemory, ...] = ()

    @property
    def sent(self) -> int:
        return sum(c.calls * c.sent for c in self.collectives)

    @property
    def seconds(self) -> float:
        """Predicted, one collective after the other."""
        return sum(c.calls * c.seconds for c in self.collectives)


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that a step holds at its peak: of one ``kind``, made at one line."""

    kind: str  # "parameters" | "gradients" | "optimizer state" | "inputs" | "saved for backward" | "temporary" | "libraries"
    bytes: int
    span: Span | None = None
    what: str = ""  # the operator or kernel that made most of it

    def place(self, file: str) -> str:
        return "" if self.span is None else self.span.place(file)


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """What a step holds after one of its allocations."""

    phase: str  # "forward" | "backward" | "optimizer"
    bytes: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of the program that lowers the peak of a step, which was compiled again with it. ``slower`` is by how much of its time
    a step is predicted to take longer, 0.06 for 6 %; ``changes`` says what it changes beside memory and time; ``span`` is where."""

    title: str
    peak: int
    saves: int
    slower: float
    changes: str = ""
    span: Span | None = None
    edits: tuple[Edit, ...] = ()
    how: str = ""  # what to write, where there is no edit

    @property
    def cost(self) -> str:
        """``for +6 % time``."""
        percent = round(100 * self.slower)
        return "for no time" if percent == 0 else f"for {percent:+d} % time".replace("-", "−")


@dataclass(frozen=True, slots=True)
class StepMemory:
    """What one step of training holds: a call of the function, its backward and the optimizer, from the second step on. Predicted for the
    ``target``; ``reserved`` is what a GPU's allocator has by then. ``largest`` is the largest size of ``axis`` that fits."""

    target: str
    peak: int
    phase: str
    span: Span | None = None
    what: str = ""
    reserved: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)  # of the axes that can be chosen
    phases: dict[str, int] = field(default_factory=dict)  # the most in each
    kinds: dict[str, int] = field(default_factory=dict)  # at the peak
    held: tuple[Held, ...] = ()  # at the peak, the most first
    curve: tuple[MemoryPoint, ...] = ()
    optimizer: str = ""
    seconds: float = 0.0  # that it is predicted to take: for comparison alone
    card: str = ""
    limit: int | None = None
    axis: str = ""
    largest: int | None = None
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()  # what is not known, or not counted

    @property
    def needed(self) -> int:
        """What a card must have: what is allocated at the peak, or reserved by then."""
        return max(self.peak, self.reserved or 0)

    @property
    def fits(self) -> bool:
        return self.limit is None or self.peak <= self.limit


@dataclass(frozen=True, slots=True)
class Passed:
    """What calls give for a parameter: each kind of value in a few words, in order; ``more`` that are not listed. ``sizes`` are the
    dimensions of a tensor that vary, with the sizes that they have."""

    parameter: str
    values: tuple[str, ...]
    more: int = 0
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call of a compiled function in the program: ``calls`` of it were looked at, which caused ``compilations``. ``unknown`` says
    what is not known of it; ``inside`` is the compiled function that makes it, which it becomes a part of. ``recorded``: no place, but
    calls of runs of the program."""

    span: Span | None
    passes: tuple[Passed, ...] = ()
    calls: int = 0
    compilations: int = 0
    unknown: str = ""
    inside: str = ""
    recorded: bool = False

    def place(self, file: str) -> str:
        return "recorded runs" if self.span is None else self.span.place(file)


@dataclass(frozen=True, slots=True)
class FailingGuard:
    """A guard that some call does not meet: at ``site``, the ``call``-th one that differs from those before. ``why`` says what it
    expects and finds, ``advice`` what would spare the compilation."""

    kind: str
    expression: str
    why: str
    span: Span | None = None
    site: Span | None = None
    call: int = 0
    advice: str = ""


@dataclass(frozen=True, slots=True)
class GuardCost:
    """What the guards of one kind take in a call, together."""

    kind: str
    guards: int
    ns: float


@dataclass(frozen=True, slots=True)
class Foreseen:
    """How often a function will be compiled in a first run, by the calls of its program. ``compilations`` were counted by making
    those calls; None where no call is known. It is ``certain`` where that were all calls, else ``doubts`` say what is not known.
    ``limited``: it reaches the limit, and runs eagerly from there. ``failing`` are the guards that cause compilations, ``proved`` the
    conditions of those of the first compilation that all calls meet. ``ns`` is what all guards take in a call, measured here."""

    sites: tuple[CallSite, ...] = ()
    compilations: int | None = None
    doubts: tuple[str, ...] = ()
    limited: bool = False
    failing: tuple[FailingGuard, ...] = ()
    proved: tuple[str, ...] = ()
    guards: int = 0
    ns: float | None = None
    costs: tuple[GuardCost, ...] = ()  # the most expensive kind first

    @property
    def certain(self) -> bool:
        return not self.doubts

    @property
    def places(self) -> tuple[CallSite, ...]:
        """The sites whose calls were made."""
        return tuple(site for site in self.sites if site.calls and not site.unknown and not site.inside)


@dataclass(frozen=True, slots=True)
class TriedChange:
    """A change of the program that was measured on a copy, in calls made in turn with the function as it is.

    ``time`` is how long it takes after it, as a part of what it takes before: of a ``call``, of a call and its ``backward``, of the
    program's ``first calls`` with their compilations, or of one row of a ``batch``; ``time_quartiles`` are those of pairs of calls. It is
    ``steady`` where so many pairs say the same that it is no noise.
    ``error`` is how far its values are from eager's where they are rounded otherwise, relative to their size. ``changes`` says what it
    changes beside time and memory, ``why`` why it is not offered; where that is empty, it agrees with eager, and gains."""

    kind: str  # "clone", "contiguous", "no_grad", "mode", "dynamic", "autocast", "channels_last", "checkpoint", "memory_budget", "batch"
    title: str
    span: Span | None = None
    edits: tuple[Edit, ...] = ()
    of: str = "call"
    time: float | None = None
    time_quartiles: tuple[float, float] | None = None
    steady: bool = True
    seconds_before: float | None = None
    seconds: float | None = None
    bytes_before: int | None = None
    bytes: int | None = None
    error: float | None = None
    compared: int = 0  # kinds of calls on which it gives eager's values
    changes: str = ""
    why: str = ""

    @property
    def offered(self) -> bool:
        return not self.why

    @property
    def saved(self) -> int:
        """Bytes of the peak."""
        return self.bytes_before - self.bytes if self.bytes is not None and self.bytes_before is not None else 0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Changes of a function that were tried: those that are offered first, the best of them before others. ``left`` are the titles of those
    for which there was no processor time; ``seconds`` of it were used, of ``budget``. ``stopped`` says why nothing is known."""

    function: str
    changes: tuple[TriedChange, ...] = ()
    left: tuple[str, ...] = ()
    seconds: float = 0.0
    budget: float = 0.0
    stopped: str = ""
    file: str = ""

    @property
    def offered(self) -> tuple[TriedChange, ...]:
        return tuple(change for change in self.changes if change.offered)


@dataclass(slots=True)
class Report:
    """Everything that one compilation of one annotated function produced."""

    function: str
    file: str
    span: Span | None = None  # the ``def`` line's name
    mode: str = ""
    target: str = "cpu"
    graphs: list[Graph] = field(default_factory=list)
    breaks: list[Diagnostic] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)  # all but breaks
    guards: list[Guard] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA_VERSION
    fingerprint: str = ""  # of what it depends on; "" when that cannot be told
    unchanged: bool = (
        False  # the caller's report of this fingerprint holds: no more than ``inputs`` and FL921 is in this one
    )
    inputs: Inputs | None = None  # of the call that was compiled; None where there was none
    communication: Communication | None = None  # where ranks were asked for
    proof: Proof | None = None  # where it was compared with eager since
    machine: Machine | None = None  # what it is compiled for, where it is known what that can do
    step: StepMemory | None = None  # where the memory of a step was asked for
    foreseen: Foreseen | None = None  # where the calls of its program were looked at since
    what_if: WhatIf | None = None  # where changes of it were tried since

    @property
    def without_foreseen(self) -> Report:
        """The same without what is foreseen, which hangs on calls in other functions."""
        return replace(self, foreseen=None, diagnostics=[d for d in self.diagnostics if d.code not in FORETOLD])

    @property
    def kernels(self) -> list[Kernel]:
        return [k for g in self.graphs for k in g.kernels]

    @property
    def device(self) -> str:
        """The kind of device that it is compiled for: "cuda" where one of its graphs is, or its target says so."""
        return self.built_for.partition(":")[0]

    @property
    def built_for(self) -> str:
        """The target, with its architecture if it has one; where that is open, what its graphs are for."""
        on_gpu = any(g.device == "cuda" for g in self.graphs)
        return self.target if self.target.startswith("cuda") else "cuda" if on_gpu else "cpu"

    def summary(self) -> str:
        """The lens text: ``3 graphs · 1 break · 3 kernels``."""

        def count(n: int, noun: str) -> str:
            return f"{n} {noun}" + ("" if n == 1 else "s")

        if not self.graphs and self.refused:
            return "not compiled: fullgraph=True allows no graph break"
        return " · ".join(
            (count(len(self.captured), "graph"), count(len(self.breaks), "break"), count(len(self.kernels), "kernel"))
        )

    @property
    def captured(self) -> list[Graph]:
        """The graphs as they were captured, without parts of them that were compiled apart."""
        return [graph for graph in self.graphs if graph.part_of is None]

    @property
    def in_parts(self) -> set[int]:
        """The numbers of the graphs that are compiled in parts, which are graphs, too."""
        return {graph.part_of for graph in self.graphs if graph.part_of is not None}

    @property
    def refused(self) -> bool:
        """Whether a break is an error, as ``fullgraph=True`` makes it: there are no graphs then."""
        return any(found.severity == "error" for found in self.breaks)

    @property
    def prevented(self) -> Diagnostic | None:
        """What keeps from being compiled what could be: the compiler, or a limit."""
        return next((d for d in self.diagnostics if d.code in PREVENTING), None)

    @property
    def compiled(self) -> bool:
        """Whether any graph of it does not run eagerly."""
        return any(not graph.fallback for graph in self.graphs)

    @property
    def status(self) -> Status:
        """How far it is compiled."""
        if not self.compiled or self.refused:
            return "not compiled"
        if self.breaks:
            return "with breaks"
        return "eager in part" if any(graph.fallback for graph in self.graphs) or self.prevented else "whole"

    @property
    def uncompiled(self) -> str:
        """Why it is not compiled, or not in whole for a reason that is not its own; "" else."""
        found = self.prevented
        if found is None and self.compiled:
            return ""
        found = found or next(iter((*self.diagnostics, *self.breaks)), None)
        if found is None:
            return "it has no operation of torch"
        where = f", at {found.span}" if found.span is not None else ""
        return " ".join((f"{found.code}: {found.message}{where}.", found.explanation, *found.hints))


@dataclass(frozen=True, slots=True)
class Compared:
    """A value that both calls gave: a tensor of the result, a gradient, or an input or variable that was written. Differences
    are the largest of finite elements. ``first`` is the index of the first element that differs, ``eager`` and ``compiled``
    are the elements there; of what is no tensor they are the whole values."""

    name: str  # "result[0]", "gradient of x", "x afterwards"
    kind: str  # "value" | "gradient" | "state"
    agrees: bool
    dtype: str = ""
    shape: tuple[int, ...] = ()
    elements: int = 0
    differing: int = 0
    max_absolute: float | None = None
    max_relative: float | None = None
    first: tuple[int, ...] | None = None
    eager: str = ""
    compiled: str = ""
    note: str = ""  # what keeps it from being compared, or why its difference does not count


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A kernel, or an operator of a library, that a run called. ``seconds`` is the median of its calls, measured apart from all other
    figures, None where nothing can tell. ``limits`` are the seconds that the machine needs at least, by what takes them: ``traffic`` of
    its bytes, ``functions`` and ``products`` of its operations, and the ``start`` of a kernel."""

    name: str
    graph: int
    phase: str  # "forward" | "backward"
    spans: tuple[Span, ...] = ()
    read: int | None = None
    written: int | None = None
    operations: dict[str, float] = field(default_factory=dict)
    library: bool = False
    trains: bool = False  # it runs in calls that a backward follows, and in no others
    seconds: float | None = None
    limits: dict[str, float] = field(default_factory=dict)

    @property
    def bytes(self) -> int | None:
        return None if self.read is None else self.read + (self.written or 0)

    @property
    def least(self) -> float | None:
        """The seconds that the machine needs for it at least; None where that is not known."""
        return max(self.limits.values(), default=None)

    @property
    def share(self) -> float | None:
        """How much of what the machine can do it reaches, up to 1; None where that is not known."""
        return min(1.0, self.least / self.seconds) if self.least is not None and self.seconds else None

    @property
    def lost(self) -> float:
        """The seconds that it takes longer than the machine needs; 0 where that is not known."""
        return max(0.0, self.seconds - self.least) if self.least is not None and self.seconds else 0.0

    @property
    def bound(self) -> str:
        """What it waits for: the limit that takes longest, or ``latency``, where all of them are far; "" where that is not known."""
        if self.share is None:
            return ""
        most = max(self.limits, key=lambda name: self.limits[name])
        return most if most == "start" or self.share >= FAR else "latency"


@dataclass(slots=True)
class RunResult:
    """The outcome of running a function compiled and eagerly on its example inputs. Times are medians, seconds; memory is
    how much more the process held at most during a call, gradients included, than before it."""

    function: str
    agrees: bool
    detail: str  # first difference, or what was compared
    max_error: float | None = None
    gradients_agree: bool | None = None
    eager_seconds: float | None = None
    compiled_seconds: float | None = None
    compile_seconds: float | None = None
    eager_bytes: int | None = None
    compiled_bytes: int | None = None
    error: Diagnostic | None = None
    instead: str = ""  # what did not run, and what ran in its place
    uncompiled: str = ""  # why nothing was compiled, or (``compiled``) not all
    compiled: bool = True
    repeatable: bool = True  # whether eager gives the same result twice: where it does not, nothing is compared
    # first and third quartiles of the same measurements; of the speed-up, those of calls made in turn
    eager_quartiles: tuple[float, float] | None = None
    compiled_quartiles: tuple[float, float] | None = None
    speedup: float | None = None  # the median of eager by compiled, call by call
    speedup_quartiles: tuple[float, float] | None = None
    values: tuple[Compared, ...] = ()
    more_values: int = 0  # that agree, too, and are not among them
    kernels: tuple[KernelRun, ...] = ()
    machine: Machine | None = None  # that ``limits`` of kernels are of
    span: Span | None = None  # where the value is made that differs: what the function returns there, or its name

    @property
    def verdict(self) -> str:
        if not self.repeatable:
            return "cannot be compared with eager"
        return "agrees with eager" if self.agrees else "DIFFERS from eager"


@dataclass(frozen=True, slots=True)
class Tried:
    """One kind of call that a function was compared with eager on. ``error`` is the largest difference from eager, ``exact_error`` and
    ``eager_error`` are those of both from float64: root mean squares, relative to those of the values; None where nothing is known.
    ``how`` it does not agree: it "differs", is "unsteady" (differs in some calls), "raised", or has "drawn" random numbers of another
    distribution. ``where`` names what differs first: a result, an input afterwards."""

    inputs: str
    agrees: bool
    detail: str = ""  # the first difference, or what else there is to say
    error: float | None = None
    exact_error: float | None = None
    eager_error: float | None = None
    how: str = ""
    raises: bool = False  # both do
    where: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What a proof does with one kind of call: ``what`` is "run eagerly", "call 1 of 3, compiled". ``eager``: the compiler has no part."""

    inputs: str
    what: str
    eager: bool


@dataclass(frozen=True, slots=True)
class Drift:
    """How far the values of a line are from float64, eagerly and compiled: the norm of the difference, relative to that of the values.
    ``worst_eager`` and ``worst`` are the largest differences of one element, relative to the root mean square of the values. ``source``
    is the line that the farthest of its operands comes from, and ``growth`` how many times as far as that the compiled values are. Where
    that is less than what rounding to ``dtype`` makes alone, there is no ``source``, and ``growth`` is beside such a rounding."""

    span: Span
    dtype: str
    eager: float
    compiled: float
    worst_eager: float
    worst: float
    growth: float
    source: Span | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """A function compared with eager and float64 on many kinds of calls. ``left`` is how many there was no time for; ``uncompiled``
    says what runs eagerly, and why; ``fault`` is what is wrong, in which line; ``stopped`` says which limit ended it before all
    were tried, or a crash, and ``at`` the step of it. ``drift`` is that of each line, in the order in which they run, where values
    have half precision."""

    function: str
    tried: tuple[Tried, ...] = ()
    left: int = 0
    uncompiled: str = ""
    compiled: bool = True
    fault: Diagnostic | None = None
    stopped: str = ""
    drift: tuple[Drift, ...] = ()
    at: Step | None = None

    @property
    def agrees(self) -> bool:
        return all(tried.agrees for tried in self.tried)


@dataclass(slots=True)
class FileReport:
    """What checking one file gave: a report per annotated function, and findings about the file as a whole."""

    file: str
    functions: list[Report] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    seconds: float = 0.0
    imports: tuple[str, ...] = ()  # other files of the user's that it ran, whose changes may change the reports
