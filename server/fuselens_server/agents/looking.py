"""``check`` and ``explain``: what compiling a file shows."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuselens.config import ASSEMBLY
from fuselens.record import plain
from fuselens.record.report import Diagnostic, FileReport, Fix, Graph, Report
from fuselens.source import fixes
from fuselens.system import source_text

from . import texts
from .arguments import CheckArguments, ExplainArguments, ToolError
from .experiments import Experiments, Made, Progress, command, tool_command
from .results import (
    Checked,
    CheckedFile,
    CheckedFunction,
    Evidence,
    Explained,
    Finding,
    GraphCounts,
    OfferedFix,
    StageText,
)
from .subjects import Places, Subject, digest_of, function_of, subjects

MOST_FILES = 40
MOST_KERNELS = 20  # of each function, in a check
MOST_FINDINGS = 40
_FIRST = 10  # of each list, in an overview
_LIST = 100
_TEXT = 16_000  # characters
_MOST_KEPT = 32


@dataclass(frozen=True, slots=True)
class Looked:
    """What one check of a file found, with the trials of its fixes, and the digests of all that it depends on."""

    subject: Subject
    file: FileReport
    evidence: tuple[Evidence, ...]
    trials: dict[str, int]  # function → its trial, in ``evidence``
    imports: dict[str, str]

    def holds(self) -> bool:
        return self.subject.holds() and all(digest_of(path) == had for path, had in self.imports.items())


@dataclass(slots=True)
class Looking:
    experiments: Experiments
    kept: dict[tuple[str, str, str], Looked] = field(default_factory=dict)  # by path, function and digest

    async def check(self, asked: CheckArguments, places: Places, progress: Progress) -> Checked:
        found, cut = await subjects(asked.target, places, MOST_FILES)
        looked = await asyncio.gather(
            *(self.look(s, asked.seconds, asked.try_fixes, _of_file(s, found, progress)) for s in found)
        )
        files: list[CheckedFile] = []
        evidence: list[Evidence] = []
        for one in looked:
            files.append(_file(one, len(evidence), cut))
            evidence += one.evidence
        if not found:
            return Checked(
                f"{asked.target}: no file below it compiles a function; decorate one with @fuselens.compile",
                cut=tuple(cut),
            )
        machine = self.experiments.machine(found[0].place)
        return Checked(texts.of_files(files), machine, tuple(evidence), tuple(cut), tuple(files))

    async def look(
        self, subject: Subject, seconds: float, try_fixes: bool, progress: Progress, **options: Any
    ) -> Looked:
        """Compiles the functions of a file, and tries their fixes out."""
        made = await self.experiments.make(subject, "check", seconds, progress, **options)
        file, evidence = made.file, _evidence_of(made, seconds)
        trials: dict[str, int] = {}
        for number, report in enumerate(file.functions):
            if try_fixes and any(d.fixes for d in (*report.breaks, *report.diagnostics)):
                trials[report.function] = len(evidence)
                told, file.functions[number] = await self._tried(subject, report, seconds, progress)
                evidence.append(told)
        looked = Looked(subject, file, tuple(evidence), trials, made.imports)
        self.kept[subject.path, subject.function, subject.sha256] = looked
        while len(self.kept) > _MOST_KEPT:
            del self.kept[next(iter(self.kept))]
        return looked

    def known(self, subject: Subject) -> Looked | None:
        """What was found of the same text, with the same files that it imports; else None."""
        found = self.kept.get((subject.path, subject.function, subject.sha256))
        found = found or self.kept.get((subject.path, "", subject.sha256))
        return found if found is not None and found.holds() else None

    async def _tried(
        self, subject: Subject, report: Report, seconds: float, progress: Progress
    ) -> tuple[Evidence, Report]:  # fmt: skip
        findings = (*report.breaks, *report.diagnostics)
        alone = dataclasses.replace(subject, functions=(report.function,))
        made = await self.experiments.make(alone, "fix", seconds, progress, findings=findings)
        tried = [d for r in made.file.functions for d in r.breaks]
        if len(tried) != len(findings):
            why = next((d.message for d in made.file.diagnostics), "there was no answer")
            tried = [_not_tried(finding, why) for finding in findings]
        arguments = CheckArguments(f"{subject.name}::{report.function}", seconds=seconds)
        told = made.evidence(
            f"the file with each fix of `{report.function}`, in memory: compiled, and called on several inputs, eagerly and "
            "compiled; results, gradients and changed values were compared with those of the file as it is. One process",
            tool_command(subject.place, "check", arguments),
            "other inputs than those of the trial: verify tries many kinds",
        )
        count = len(report.breaks)
        return told, dataclasses.replace(report, breaks=tried[:count], diagnostics=tried[count:])

    # --- explain ----------------------------------------------------------------------------------------------------

    async def explain(self, asked: ExplainArguments, places: Places, progress: Progress) -> Explained:
        subject = await function_of(asked.target, places)
        wanted = asked.section == "stage"
        options: dict[str, Any] = (
            {"assembly": [asked.stage]} if wanted and asked.stage.partition(".")[0] in ASSEMBLY else {}
        )
        looked = self.known(subject) if asked.offset and not options else None
        if looked is None:
            looked = await self.look(subject, asked.seconds, False, progress, **options)
        report = next((r for r in looked.file.functions if r.function == subject.function), None)
        cut: list[str] = []
        if report is None:
            findings = [texts.finding_line(d) for d in looked.file.diagnostics]
            raise ToolError("\n".join((f"{subject.function} was not compiled:", *findings)))
        alone = _alone(looked, report)
        stage = _stage(report, asked, cut) if wanted else None
        evidence = alone.evidence
        if stage is not None:
            repeat = command(subject, "explain", "--print-after", asked.stage, seconds=asked.seconds)
            evidence = (dataclasses.replace(evidence[0], command=repeat.line), *evidence[1:])
        function = _function(report, alone, 0, 0, cut, MOST_KERNELS if asked.section == "overview" else 0)
        if asked.section == "kernels":
            function = dataclasses.replace(function, kernels=tuple(_part(report.kernels, "kernels", asked, cut)))
        lists = (
            tuple(_part(report.guards, "guards", asked, cut)),
            tuple(_part([d for g in report.graphs for d in g.decisions], "decisions", asked, cut)),
            tuple(_part(report.shapes, "shapes", asked, cut)),
            tuple(_part(_graph(report, asked.graph).memory, "memory", asked, cut)) if report.graphs else (),
        )
        summary = texts.of_explained(report, lists[0] if asked.section == "guards" else (), stage)
        machine = self.experiments.machine(subject.place)
        return Explained(summary, machine, evidence, tuple(cut), function, *lists, stage)


def _alone(looked: Looked, report: Report) -> Looked:
    """What was found of one function, with its own evidence."""
    number = next(k for k, r in enumerate(looked.file.functions) if r is report)
    trial = looked.trials.get(report.function)
    evidence = (looked.evidence[number], *((looked.evidence[trial],) if trial is not None else ()))
    file = dataclasses.replace(looked.file, functions=[report])
    return dataclasses.replace(
        looked, file=file, evidence=evidence, trials={} if trial is None else {report.function: 1}
    )  # fmt: skip


def _of_file(subject: Subject, all_: Sequence[Subject], progress: Progress) -> Progress:
    """Which of several files is meant."""
    return progress if len(all_) == 1 else lambda text: progress(f"{subject.name}: {text}")


# --- parts of answers -----------------------------------------------------------------------------------------------------


def _evidence_of(made: Made, seconds: float) -> list[Evidence]:
    """One for each function; one for the file where it has none."""
    subject = made.subject
    if not made.file.functions:
        return [
            made.evidence(
                "the file was opened, as far as the findings say", command(subject, "check", "--format", "json")
            )
        ]
    return [_evidence(made, report, seconds) for report in made.file.functions]


def _evidence(made: Made, report: Report, seconds: float) -> Evidence:
    alone = dataclasses.replace(made.subject, functions=(report.function,))
    repeat = command(alone, "check", "--format", "json", seconds=seconds)
    if report.inputs is None:
        return made.evidence(f"`{report.function}` was not called: the findings say why", repeat)
    called = (
        f"`{report.function}` was called once, compiled, with {report.inputs} ({report.inputs.source}). One process"
    )
    return made.evidence(
        f"{called}. Both sides of branches that data decides were captured", repeat,
        "values were not compared with eager's: verify does", "nothing was timed: run does",
        "other inputs may have other graphs, guards and breaks",
    )  # fmt: skip


def _not_tried(finding: Diagnostic, why: str) -> Diagnostic:
    tried = (dataclasses.replace(fix, trial=fix.trial or f"it could not be tried out: {why}") for fix in finding.fixes)
    return dataclasses.replace(finding, fixes=tuple(tried))


def _file(looked: Looked, first: int, cut: list[str]) -> CheckedFile:
    functions = [_function(r, looked, k, first + k, cut) for k, r in enumerate(looked.file.functions)]
    found = tuple(_finding(d, looked, first, None) for d in looked.file.diagnostics)
    return CheckedFile(looked.subject.path, tuple(functions), found)


def _function(
    report: Report, looked: Looked, number: int, evidence: int, cut: list[str], kernels: int = MOST_KERNELS
) -> CheckedFunction:  # fmt: skip
    """``number`` is its place in the file, ``evidence`` that of its experiment in the answer."""
    trial = looked.trials.get(report.function)
    trial = None if trial is None else evidence - number + trial
    findings = [*report.breaks, *report.diagnostics]
    if len(findings) > MOST_FINDINGS:
        cut.append(
            f"{len(findings) - MOST_FINDINGS} findings of {report.function}; the command of its evidence has all"
        )
    if len(report.kernels) > kernels and kernels:
        cut.append(f"{len(report.kernels) - kernels} kernels of {report.function}; explain has them (section kernels)")
    inputs = f"{report.inputs} ({report.inputs.source})" if report.inputs else ""
    says = report.summary() if report.graphs else report.uncompiled or report.summary()
    return CheckedFunction(
        report.function, report.status, says, report.span.line if report.span else None,
        report.target, report.mode, inputs, tuple(map(_counts, report.graphs)), tuple(report.kernels[:kernels]),
        tuple(_finding(d, looked, evidence, trial) for d in findings[:MOST_FINDINGS]), evidence,
    )  # fmt: skip


def _counts(graph: Graph) -> GraphCounts:
    stages = {stage.name: len(stage.text) for stage in graph.stages if not stage.later}
    return GraphCounts(
        graph.id, graph.frame, graph.operations, len(graph.kernels), graph.fallback, graph.training, stages
    )  # fmt: skip


def _finding(found: Diagnostic, looked: Looked, evidence: int, trial: int | None) -> Finding:
    own = (fix for fix in found.fixes if not fix.library)
    offered = tuple(offer(fix, found, looked.subject, trial) for fix in own)
    lines = source_text.lines(looked.subject.source)
    here = found.span is not None and found.span.file == looked.subject.path and 0 < found.span.line <= len(lines)
    excerpt = lines[found.span.line - 1].strip() if here and found.span else ""
    plainly = dataclasses.replace(found, fixes=())
    return Finding("predicted" if found.predicted else "executed", plainly, excerpt, offered, evidence)


def fix_id(fix: Fix, found: Diagnostic, subject: Subject) -> str:
    """The name of a fix of this text: of another one there is none of this name."""
    told = repr((subject.sha256, plain.to_plain(fix.edits))).encode()
    place = f"-{found.span.line}-{found.span.column + 1}" if found.span else ""
    return f"{found.code}{place}-{hashlib.sha256(told).hexdigest()[:8]}"


def offer(fix: Fix, found: Diagnostic, subject: Subject, trial: int | None) -> OfferedFix:
    after = fixes.applied(subject.source, fix.edits)
    diff = texts.difference(subject.source, after, subject.name)
    return OfferedFix(fix_id(fix, found, subject), fix.title, diff, fix.verified, fix.trial, trial)


def _graph(report: Report, number: int) -> Graph:
    found = next((graph for graph in report.graphs if graph.id == number), None)
    if found is None:
        raise ToolError(
            f"{report.function} has no graph {number}; it has {', '.join(str(g.id) for g in report.graphs) or 'none'}"
        )
    return found


def _stage(report: Report, asked: ExplainArguments, cut: list[str]) -> StageText:
    graph = _graph(report, asked.graph)
    found = graph.stage(asked.stage)
    names = [stage.name for stage in graph.stages if not stage.later]
    if found is None or found.later:
        raise ToolError(
            f"graph {graph.id} of {report.function} has no text of the stage {asked.stage!r}; it has {', '.join(names)}"
        )
    end = min(len(found.text), asked.offset + _TEXT)
    following = end if end < len(found.text) else None
    if following is not None:
        cut.append(f"{len(found.text) - end} characters of the stage; ask again with offset {end}")
    return StageText(graph.id, found.name, found.text[asked.offset : end], asked.offset, len(found.text), following)


def _part(every: Sequence[Any], section: str, asked: ExplainArguments, cut: list[str]) -> Iterable[Any]:
    """The beginning of a list in an overview, the part that was asked for in its section, and nothing in others."""
    if asked.section not in ("overview", section):
        return ()
    offset, most = (asked.offset, _LIST) if asked.section == section else (0, _FIRST)
    part = every[offset : offset + most]
    rest = len(every) - offset - len(part)
    if rest > 0:
        cut.append(
            f"{rest} of {len(every)} {section}; explain has them (section {section}, offset {offset + len(part)})"
        )
    return part
