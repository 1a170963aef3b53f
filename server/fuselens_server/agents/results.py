"""What tools answer, as plain data. Findings, runs and proofs are those of the record; beside them stands what was executed."""

from __future__ import annotations

from dataclasses import dataclass, field

from fuselens.record import report as record
from fuselens.record.report import Decision, Diagnostic, Guard, Kernel, MemoryStep, Proof, RunResult, Shape, Status


def _(text: str) -> dict[str, str]:
    """What readers of the schema are told of a field."""
    return {"description": text}


@dataclass(frozen=True, slots=True)
class Host:
    """Where all experiments of an answer were made."""

    system: str
    processor: str
    processors: int
    versions: dict[str, str] = field(metadata=_("of Python, torch and fuselens, and the interpreter's path"))


@dataclass(frozen=True, slots=True)
class Evidence:
    """One experiment. Claims name it by its position in the answer's ``evidence``, counted from 0."""

    executed: str = field(
        metadata=_("what was executed: which function, with which inputs, how often, in how many processes")
    )
    command: str = field(metadata=_("the shell command that repeats it"))
    began: str = field(metadata=_("when, in UTC"))
    seconds: float = field(metadata=_("how long the answer took, with waiting for a free process"))
    file: str = ""
    sha256: str = field(default="", metadata=_("of the file that was executed; another one is another program"))
    imports: dict[str, str] = field(
        default_factory=dict, metadata=_("other files of the program that it ran, with their sha256")
    )
    not_tried: tuple[str, ...] = field(default=(), metadata=_("what this does not show"))


@dataclass(frozen=True, slots=True)
class Answer:
    """What every answer has."""

    summary: str = field(metadata=_("the answer in a few lines"))
    machine: Host | None = None
    evidence: tuple[Evidence, ...] = ()
    cut: tuple[str, ...] = field(default=(), metadata=_("what was left out, and how to get it"))


# --- check and explain ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OfferedFix:
    """An edit for a finding. ``apply_fix`` takes its ``id``, as long as the file is the one that was checked."""

    id: str
    title: str
    diff: str
    verified: bool = field(
        default=False,
        metadata=_("it was compiled, removed the finding, and gave eager's values on all inputs of the trial"),
    )
    trial: str = field(default="", metadata=_("what trying it out found; empty: it was not tried out"))
    evidence: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a reader should know. ``basis`` says whether executing the file showed it, or reading it suggests it."""

    basis: str = field(metadata=_("executed, or predicted"))
    found: Diagnostic
    excerpt: str = ""
    fixes: tuple[OfferedFix, ...] = ()
    evidence: int = 0


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """One graph of a function, in figures; ``stages`` are the texts that ``explain`` shows, with their characters."""

    id: int
    frame: str
    operations: int
    kernels: int
    runs_eagerly: bool = False
    training: bool = False
    stages: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckedFunction:
    """One compiled function, as its call with example inputs showed it."""

    function: str
    status: Status
    says: str
    line: int | None = None
    target: str = ""
    mode: str = ""
    inputs: str = field(default="", metadata=_("of the call, and who says that they are like this"))
    graphs: tuple[GraphCounts, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    findings: tuple[Finding, ...] = ()
    evidence: int = 0


@dataclass(frozen=True, slots=True)
class CheckedFile:
    file: str
    functions: tuple[CheckedFunction, ...] = ()
    findings: tuple[Finding, ...] = field(default=(), metadata=_("about the file as a whole"))


@dataclass(frozen=True, slots=True)
class Checked(Answer):
    """What ``check`` answers."""

    files: tuple[CheckedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class StageText:
    """A part of a stage's text; the next one begins at ``next_offset``, which is missing at the end."""

    graph: int
    stage: str
    text: str
    offset: int = 0
    total: int = 0
    next_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Explained(Answer):
    """What ``explain`` answers: of lists, the part that was asked for."""

    function: CheckedFunction | None = None
    guards: tuple[Guard, ...] = ()
    decisions: tuple[Decision, ...] = ()
    shapes: tuple[Shape, ...] = ()
    memory: tuple[MemoryStep, ...] = ()
    stage: StageText | None = None


# --- run, verify, what_if -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ran(Answer):
    """What ``run`` answers."""

    run: RunResult | None = None


@dataclass(frozen=True, slots=True)
class Verified(Answer):
    """What ``verify`` answers."""

    proof: Proof | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """The function as it is, or changed. Seconds are medians of ``runs``, each of which is a process of its own."""

    name: str
    runs: tuple[RunResult, ...] = ()
    compiled_seconds: float | None = None
    eager_seconds: float | None = None
    first_call_seconds: float | None = None
    status: Status | None = None
    says: str = ""
    diff: str = field(default="", metadata=_("how the file was changed for it, in memory only"))
    evidence: int = 0


@dataclass(frozen=True, slots=True)
class WhatIf(Answer):
    """What ``what_if`` answers. The first variant is the function as it is. Where no change was named, ``found`` are those that were
    searched for: offered where they agree with eager and gain, with their edits."""

    variants: tuple[Variant, ...] = ()
    found: record.WhatIf | None = None


# --- fixes and codes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Applied(Answer):
    """What ``apply_fix`` answers."""

    fix: OfferedFix | None = None
    written: bool = field(default=False, metadata=_("whether the file has the fix now; a dry run writes nothing"))
    file: str = ""
    sha256_before: str = ""
    sha256_after: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """A diagnostic code."""

    code: str
    title: str
    severity: str
    message: str
    explanation: str
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Codes(Answer):
    """What ``codes`` answers."""

    codes: tuple[Code, ...] = ()
