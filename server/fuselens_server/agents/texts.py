"""The short texts of answers: what a reader sees first, or alone."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from fuselens.record.printed import proved
from fuselens.record.report import Diagnostic, Guard, Proof, Report, RunResult
from fuselens.system import source_text

from .results import CheckedFile, CheckedFunction, Evidence, Finding, Host, StageText, Variant


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if seconds >= s), (1e-6, "µs"))
    return f"{seconds / scale:.3g} {unit}"


def difference(before: str, after: str, name: str) -> str:
    """As ``diff -u`` writes it."""
    old, new = (source_text.lines(text.replace("\r\n", "\n"), keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


def finding_line(found: Diagnostic) -> str:
    place = f"{found.span.line}:{found.span.column + 1} " if found.span else ""
    return f"{place}{found.severity} {found.code}: {found.message}"


def of_files(files: Sequence[CheckedFile]) -> str:
    functions = [function for file in files for function in file.functions]
    counts = Counter(function.status for function in functions)
    several = "s" * (len(functions) != 1)
    counted = ", ".join(f"{number} {name}" for name, number in counts.items())
    lines = [f"{len(functions)} function{several}: {counted}"] if functions else []
    for file in files:
        lines += [file.file, *(f"  {line}" for finding in file.findings for line in _finding(finding))]
        lines += [f"  {line}" for function in file.functions for line in _function(function)]
        if not file.functions and not file.findings:
            lines.append("  it compiles no function: decorate one with @fuselens.compile")
    return "\n".join(lines)


def _function(function: CheckedFunction) -> Iterator[str]:
    yield f"{function.function}: {function.status} ({function.says})"
    for finding in function.findings:
        if finding.found.severity != "hint" or finding.fixes:
            yield from (f"  {line}" for line in _finding(finding))


def _finding(finding: Finding) -> Iterator[str]:
    predicted = " (predicted from the source, not executed)" if finding.found.predicted else ""
    yield finding_line(finding.found) + predicted
    for fix in finding.fixes:
        state = "verified" if fix.verified else f"not verified: {fix.trial}" if fix.trial else "not tried out"
        yield f"  fix {fix.id}: {fix.title} ({state})"


def of_explained(report: Report, guards: Iterable[Guard], stage: StageText | None) -> str:
    lines = [f"{report.function}: {report.status} ({report.summary()})"]
    lines += [f"inputs {report.inputs} ({report.inputs.source})"] if report.inputs else []
    lines += [finding_line(d) for d in (*report.breaks, *report.diagnostics) if d.severity != "hint"]
    decided = sum(len(graph.decisions) for graph in report.graphs)
    lines.append(
        f"{len(report.guards)} guards, {decided} decisions, {len(report.kernels)} kernels, {len(report.graphs)} graphs"
    )
    lines += [guard.expression for guard in guards]
    if stage is not None:
        lines += [f"{stage.stage} of graph {stage.graph}:", stage.text]
    return "\n".join(lines)


def of_run(result: RunResult) -> str:
    if result.error is not None:
        return "\n".join((f"{result.function} was not run:", finding_line(result.error), *result.error.hints))
    if not result.compiled:
        return f"{result.function} is not compiled, so nothing was compared: {result.uncompiled}"
    lines = [f"{result.function} {result.verdict}: {result.detail}"]
    lines += [result.instead] if result.instead else []
    lines += [f"not compiled in whole: {result.uncompiled}"] if result.uncompiled else []
    lines += (
        [f"gradients {'agree' if result.gradients_agree else 'DIFFER'}"] if result.gradients_agree is not None else []
    )
    if result.eager_seconds is not None or result.compiled_seconds is not None:
        times = f"eager {seconds_text(result.eager_seconds)}, compiled {seconds_text(result.compiled_seconds)}"
        faster = f", {result.speedup:.2f} times as fast" if result.speedup else ""
        lines.append(f"{times}{faster}; first call {seconds_text(result.compile_seconds)}")
    return "\n".join(lines)


def of_proof(proof: Proof, file: str) -> str:
    found = [finding_line(proof.fault)] if proof.fault is not None else []
    return "\n".join((proof.function, *proved.lines(proof, file), *proved.drift_table(proof, file), *found))


def _failure(result: RunResult) -> str:
    return finding_line(result.error) if result.error is not None else of_run(result).replace("\n", "; ")


def of_variants(function: str, variants: Sequence[Variant]) -> str:
    lines = [f"{function}: medians of calls"]
    base = variants[0].compiled_seconds if variants else None
    for variant in variants:
        compared = (
            f", {base / variant.compiled_seconds:.2f} times as fast as now" if base and variant.compiled_seconds else ""
        )
        compared = "" if variant is variants[0] else compared
        failed = next((_failure(r) for r in variant.runs if not r.agrees or not r.compiled or r.error), "")
        said = failed or (
            f"compiled {seconds_text(variant.compiled_seconds)}{compared}, eager {seconds_text(variant.eager_seconds)}, "
            f"first call {seconds_text(variant.first_call_seconds)}; agrees with its own eager"
        )
        said = said if variant.runs else "compiled only, not run"
        lines.append(f"  {variant.name}: {said}{f'; {variant.status} ({variant.says})' if variant.status else ''}")
    return "\n".join(lines)


def with_evidence(summary: str, evidence: Sequence[Evidence], machine: Host | None, cut: Iterable[str]) -> str:
    """A whole answer as text, for readers that take no structured data."""
    lines = [summary]
    commands: dict[str, int] = {}
    for number, one in enumerate(evidence):
        first = commands.setdefault(one.command, number)
        repeat = one.command if first == number else f"by the command of evidence {first}"
        lines += ["", f"evidence {number}: {one.executed}.", f"  {one.began}, {one.seconds:.1f} s; repeat: {repeat}"]
        lines += [f"  not shown: {text}" for text in one.not_tried]
    if machine is not None:
        versions = ", ".join(f"{name} {v}" for name, v in machine.versions.items() if name != "executable")
        lines += ["", f"on {machine.system}, {machine.processor}, {machine.processors} processors; {versions}"]
    lines += [f"left out: {text}" for text in cut]
    return "\n".join(lines)
