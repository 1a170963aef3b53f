"""The table of tools: what each is called, what it takes, what it answers and who does it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fuselens.record import diagnostics, plain
from fuselens.record.printed import schema

from ..work.worker_pool import WorkerPool
from . import arguments, results, texts
from .arguments import CodesArguments, ToolError
from .experiments import Experiments, Progress
from .fixing import Fixing
from .looking import Looking
from .measuring import Measuring
from .results import Answer, Code, Codes
from .subjects import Places

INSTRUCTIONS = (
    "Fuselens compiles PyTorch functions that are decorated with @fuselens.compile or @torch.compile, and shows what becomes of "
    "them. Begin with `check`. Each claim of an answer names its evidence: what was executed, when, on which versions, what was not "
    "tried, and the shell command that repeats it. A claim holds for the file with the sha256 that its evidence gives: ask again "
    "after an edit. Findings whose basis is `predicted` were read off the source. Fields at their default are left out."
)


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    title: str
    description: str
    takes: type[Any]
    answers: type[Answer]
    writes: bool = False

    @property
    def input_schema(self) -> dict[str, Any]:
        return arguments.schema(self.takes)

    @property
    def output_schema(self) -> dict[str, Any]:
        return schema.of(self.answers)


_SANDBOX = (
    "The file is executed in a process of its own that must not write files, start processes or open connections."
)
TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "check", "Check compiled functions",
            "Compile the functions of a file or folder that are decorated for it, each on its example inputs. Says how far each is "
            "compiled, where its graph breaks and why, which kernels it becomes, and which fixes were tried out and verified. "
            + _SANDBOX,
            arguments.CheckArguments, results.Checked,
        ),
        Tool(
            "explain", "Explain one compilation",
            "All that is known of the compilation of one function: guards, decisions of the compiler with reasons, kernels, shapes, "
            "memory, and the text of any stage, such as capture, lower, fuse, cpp or triton. " + _SANDBOX,
            arguments.ExplainArguments, results.Explained,
        ),
        Tool(
            "run", "Run compiled and eagerly",
            "Call one function compiled and eagerly on its example inputs, compare all values and gradients, and time both. "
            + _SANDBOX,
            arguments.RunArguments, results.Ran,
        ),
        Tool(
            "verify", "Prove that values are eager's",
            "Compare one function with eager and float64 on many kinds of calls: special values, other sizes, strides, settings. "
            "Where it differs, the line, the stage and the kernel are looked for. " + _SANDBOX,
            arguments.VerifyArguments, results.Verified,
        ),
        Tool(
            "what_if", "Measure changes without making them",
            "Measure one function as it is and changed, in turn, each time in a process of its own: another mode, dynamic sizes, "
            "without gradients, under autocast, or with edits of the text. Another target is compiled for only. Where no change is "
            "named, changes are searched for, and those offered, with edits, that agree with eager and gain. The file is not "
            "changed. " + _SANDBOX,
            arguments.WhatIfArguments, results.WhatIf,
        ),
        Tool(
            "apply_fix", "Apply a verified fix",
            "Write a fix that `check` offered into its file, if the file is still the one that was checked. Without `write` it shows the "
            "difference only. Nothing else is written.",
            arguments.ApplyFixArguments, results.Applied, writes=True,
        ),
        Tool(
            "codes", "Explain a diagnostic code",
            "What a code such as FL101 means, and what to do about it. Executes nothing.",
            CodesArguments, Codes,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as data and as text; ``failed`` where the tool could not do what was asked."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    failed: bool = False


class Tools:
    """The tools of one server, over its workers."""

    def __init__(self, pool: WorkerPool, places: Places) -> None:
        experiments = Experiments(pool)
        self._places = places
        self._looking = Looking(experiments)
        self._measuring = Measuring(experiments)
        self._do: dict[str, Callable[[Any, Places, Progress], Awaitable[Answer]]] = {
            "check": self._looking.check,
            "explain": self._looking.explain,
            "run": self._measuring.run,
            "verify": self._measuring.verify,
            "what_if": self._measuring.what_if,
            "apply_fix": Fixing(self._looking).apply_fix,
            "codes": _codes,
        }

    async def call(
        self, name: str, given: Any, progress: Progress = lambda _: None, places: Places | None = None
    ) -> Answered:  # fmt: skip
        """What a tool answers to ``given``, JSON; ``places`` are those of this call, where it has its own. Never raises for what
        was asked wrongly; that is an answer, too."""
        try:
            tool = TOOLS.get(name)
            if tool is None:
                raise ToolError(f"there is no tool {name!r}; there are {', '.join(TOOLS)}")
            asked = arguments.read(tool.takes, {} if given is None else given)
            answer = await self._do[name](asked, places or self._places, progress)
        except ToolError as error:
            return Answered(str(error), failed=True)
        text = texts.with_evidence(answer.summary, answer.evidence, answer.machine, answer.cut)
        return Answered(text, _finite(plain.to_plain(answer)))


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: null stands for them, and the texts beside them say what they are."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value


async def _codes(asked: CodesArguments, _: Places, __: Progress) -> Codes:
    wanted = asked.code.strip().upper()
    found = [entry for entry in diagnostics.TABLE.values() if not wanted or entry.code == wanted]
    if not found:
        raise ToolError(f"unknown code {asked.code!r}; without a code, all are listed")
    if not wanted:
        listed = tuple(Code(e.code, e.title, e.severity, e.message, "") for e in found)
        return Codes("\n".join(f"{e.code} {e.title} ({e.severity})" for e in found), codes=listed)
    entry = found[0]
    lines = [f"{entry.code} {entry.title} ({entry.severity})", entry.message, entry.explanation]
    lines += [f"- {hint}" for hint in entry.hints]
    code = Code(entry.code, entry.title, entry.severity, entry.message, entry.explanation, entry.hints)
    return Codes("\n".join(lines), codes=(code,))
