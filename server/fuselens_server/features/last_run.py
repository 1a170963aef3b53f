"""What the user's own last run said: findings at their lines, a function's heat, the shapes that a line has seen."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from lsprotocol import types as lsp

from fuselens.live import KernelTime
from fuselens.record import limits
from fuselens.record.report import Diagnostic, KernelRun, Machine, Report, Span, Stage
from fuselens.source.discovery import Annotated
from fuselens_server.features import summary
from fuselens_server.features.inlay_hints import tensor_text
from fuselens_server.features.markdown import code
from fuselens_server.texts.observed import Finding, Function
from fuselens_server.texts.view import View

MOST_REASONS = 3


def findings(view: View) -> Iterator[Diagnostic]:
    """One for each code and place: its most frequent message, how often it came, and what else was said there."""
    grouped: defaultdict[tuple[str, Span | None], list[Finding]] = defaultdict(list)
    for function in view.observed.functions.values() if view.observed else ():
        for finding in function.findings.values():
            grouped[finding.diagnostic.code, finding.diagnostic.span].append(finding)
    for same in grouped.values():
        same.sort(key=lambda f: -f.count)
        often, first = sum(f.count for f in same), same[0].diagnostic
        times = "" if often == 1 else f", {often} times"
        others = [f"also: {f.diagnostic.message}" for f in same[1 : 1 + MOST_REASONS]]
        others += [f"and {len(same) - 1 - MOST_REASONS} more"] if len(same) > 1 + MOST_REASONS else []
        explanation = "\n".join(filter(None, (*others, first.explanation)))
        yield replace(first, message=f"{first.message} (last run{times})", explanation=explanation)


def of(view: View, function: Annotated) -> Function | None:
    if view.observed is None:
        return None
    report = view.function(function.qualname)
    span = report.graphs[0].span if report and report.graphs else None
    return view.observed.function((function.qualname,), span.line if span and view.here(span) else None)


def title(view: View, function: Annotated) -> str:
    """``last run: 1,204 calls · 3 recompiles · 1.2 ms each``; empty when there was none."""
    seen = of(view, function)
    if seen is None:
        return ""
    parts = [f"{_count(seen.calls, 'call')}"]
    if seen.missed:
        parts.append(_count(seen.missed, "recompile"))
    if seen.calls:
        parts.append(f"{summary.duration(seen.seconds / seen.calls)} each")
    return "last run: " + " · ".join(parts)


def about(view: View, function: Annotated) -> list[str]:
    """The rows of the hover on a function's name."""
    seen = of(view, function)
    if seen is None:
        return []
    parts = [_count(seen.calls, "call"), _count(seen.missed, "recompile")]
    parts.append(f"{_count(len(seen.graphs), 'graph')} compiled in {summary.duration(seen.compiling)}")
    rows = ["**Last run**: " + " · ".join(parts)]
    for (_, number), graph in seen.graphs.items():
        if graph.calls:
            mean, fastest = summary.duration(graph.seconds / graph.calls), summary.duration(graph.fastest)
            rows.append(f"- graph {number}: {_count(graph.calls, 'call')}, {mean} each, the fastest {fastest}")
    return ["\n".join(rows)]


def shapes(view: View, position: lsp.Position, word: str) -> list[str]:
    """The rows of a hover on a line: what its variables were."""
    line = view.ran.line(position) if view.observed else None
    if line is None or view.observed is None:
        return []
    here: dict[str, list[str]] = defaultdict(list)
    latest: dict[str, tuple[Span, list[str]]] = {}
    for function in view.observed.functions.values():
        for (name, span), tensors in function.shapes.items():
            texts = [code(tensor_text(t)) for t in tensors]
            if view.here(span) and span.line <= line <= span.end_line:
                here[name] += [t for t in texts if t not in here[name]]
            elif name == word and view.here(span) and function.line <= span.line < line:
                latest[name] = max(latest.get(name, (span, texts)), (span, texts))
    if word in latest and word not in here:
        here[word] = latest[word][1]
    return ["Seen in last run: " + "; ".join(f"{code(n)}: {', '.join(t)}" for n, t in here.items())] if here else []


def kernels(view: View, position: lsp.Position) -> list[str]:
    """The rows of a hover on a line: how long the kernels took that it became."""
    line = view.ran.line(position) if view.observed else None
    if line is None or view.observed is None:
        return []
    rows = [
        f"`{kernel.name}` ({kernel.phase}) {kernel_time(kernel)}"
        for function in view.observed.functions.values()
        for kernel in function.kernels().values()
        if any(view.here(span) and span.line <= line <= span.end_line for span in kernel.spans)
    ]
    return ["Last run: " + "; ".join(rows[:MOST_REASONS])] if rows else []


def kernel_runs(function: Function, report: Report, machine: Machine | None) -> list[KernelRun]:
    """The kernels that the run timed, by their calls, with what they do where the report has them, and the limits of that."""
    known = {(work.phase, work.name, work.spans): work for graph in report.graphs for work in graph.work}
    found: list[KernelRun] = []
    for kernel in function.kernels().values():
        work = known.get((kernel.phase, kernel.name, kernel.spans))
        run = KernelRun(
            kernel.name, 0, kernel.phase, kernel.spans, kernel.bytes or None, seconds=kernel.seconds / kernel.calls
        )
        if work is not None and work.bytes and (work.bytes == kernel.bytes or not work.library):
            factor = kernel.bytes / work.bytes  # other sizes: our kernels do as much for each byte
            read, written = round(factor * work.read), round(factor * work.written)
            done = {kind: factor * count for kind, count in work.operations.items()}
            run = replace(run, read=read, written=written, operations=done, library=work.library)
            run = run if machine is None else limits.with_limit(run, machine)
        elif machine is not None and kernel.bytes:
            half = kernel.bytes / 2  # as a copy moves them
            run = replace(run, limits=limits.seconds(half, half, {}, machine))
        found.append(run)
    return found


def kernel_time(kernel: KernelTime) -> str:
    return f"took {summary.duration(kernel.seconds / kernel.calls)} a call ({_count(kernel.calls, 'call')} timed)"


def noted(view: View, report: Report, stage: Stage) -> str:
    """The text of a unit of kernels, with the time of each on the line that introduces it."""
    text = stage.text
    function = view.observed.function((report.function,), None) if view.observed else None
    for kernel in function.kernels().values() if function and stage.name.startswith("cpp") else ():
        if (kernel.phase == "backward") == stage.name.endswith(".backward"):
            head = re.compile(rf"^// (?:also .*\b)?{re.escape(kernel.name)}\b.*$", re.MULTILINE)
            text = head.sub(
                lambda found, k=kernel: f"{found.group()} · last run: {k.name} {kernel_time(k)}", text, count=1
            )
    return text


def argument(view: View, function: Annotated, name: str) -> list[str]:
    """The row of a parameter's hover: what the calls that it was compiled for passed."""
    seen = of(view, function)
    tensors = seen.arguments.get(name, []) if seen else []
    return ["Seen in last run: " + ", ".join(code(tensor_text(t)) for t in tensors)] if tensors else []


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
