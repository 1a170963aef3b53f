"""The readable account of one function's compilation: its summary document, and what ``explain`` answers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from fuselens.record import live_memory
from fuselens.record.diagnostics import TABLE
from fuselens.record.fusion_sentences import why_apart
from fuselens.record.printed import foreseen, proved
from fuselens.record.report import Diagnostic, Graph, Kernel, Report, RunResult, Timing

BACKENDS = {"cpp": "C++", "triton": "Triton", "user_triton": "your Triton"}
_OPERATOR = re.compile(r"^(?:aten|prims)\.(\w+)\.\w+$")
_TOTAL = "total"  # the timing of the whole compilation, which holds the stages'


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def headline(report: Report) -> str:
    """The counts of a compiled function, or why there are none."""
    if not report.graphs and not report.refused:
        for diagnostic in (*report.diagnostics, *report.breaks):
            entry = TABLE.get(diagnostic.code)
            return f"not compiled: {entry.title if entry else diagnostic.message}"
    return report.summary()


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def graphs(report: Report) -> str:
    """``3 graphs · ⚠ 1 break``, or why there are none."""
    if not report.graphs:
        return headline(report)
    breaks = f"⚠ {count(len(report.breaks), 'break')}" if report.breaks else ""
    return " · ".join(filter(None, (count(len(report.captured), "graph"), breaks)))


def demand(report: Report) -> str:
    """What the kernels take of a GPU at most: ``≤ 83 registers, 64 B spilled``; "" where that is not known."""
    registers, spills = (
        max((k.resources.get(name, 0) for k in report.kernels), default=0) for name in ("registers", "spills")
    )
    said = [f"≤ {registers} registers"] if registers else []
    return ", ".join([*said, f"{size(spills)} spilled"] if spills else said)


def stage_times(report: Report) -> list[Timing]:
    """Seconds per stage over all graphs, in the order in which stages first ran. Nested stages ("build.cpp") follow
    their parent and are not part of a total."""
    totals: dict[str, float] = defaultdict(float)
    for timing in (*report.timings, *(t for g in report.graphs for t in g.timings)):
        if timing.stage != _TOTAL:
            totals[timing.stage] += timing.seconds
    return [Timing(stage, seconds) for stage, seconds in totals.items()]


def total_time(report: Report) -> float:
    """The compilation's seconds: as measured around it, else the sum of its outermost stages (nested ones are part of
    their parents when those were timed too)."""
    measured = [t.seconds for t in report.timings if t.stage == _TOTAL]
    if measured:
        return measured[0]
    timings = stage_times(report)
    names = {t.stage for t in timings}
    return sum(t.seconds for t in timings if "." not in t.stage or t.stage.rpartition(".")[0] not in names)


def kernel_line(kernel: Kernel) -> str:
    """``fused_0 (cpp, forward pointwise: div, abs, add; reads 1.0 KiB, writes 512 B)``"""
    about = f"{kernel.backend}, {kernel.phase} {kernel.kind}"
    if kernel.operations:
        about += ": " + ", ".join(operators(kernel))
    traffic = [
        f"{verb} {size(count)}"
        for verb, count in (("reads", kernel.bytes_read), ("writes", kernel.bytes_written))
        if count is not None
    ]
    traffic += [kernel.takes] if kernel.takes else []
    return f"{kernel.name} ({about}{'; ' + ', '.join(traffic) if traffic else ''})"


def operators(kernel: Kernel) -> list[str]:
    """What it computes, in order and each once: ``div``, ``abs``."""
    return list(dict.fromkeys(_OPERATOR.sub(r"\1", name) for name in kernel.operations))


def run_mark(result: RunResult) -> str:
    """The outcome of a run in a few words, for a lens: ``3.3× eager ✓``; "" where it was cancelled."""
    if result.error is not None:
        return "✗ not run"
    if not result.compiled and result.agrees:
        return "not compiled"
    if not result.agrees and result.repeatable:
        return "" if result.eager_seconds is None else "✗ differs"
    if result.gradients_agree is False:
        return "✗ gradients differ"
    times = ""
    if result.eager_seconds and result.compiled_seconds:
        ratio = result.eager_seconds / result.compiled_seconds
        times = f"{ratio:.0f}× eager" if ratio >= 9.95 else f"{ratio:.1f}× eager"
    return " ".join(filter(None, (times, "✓" if result.repeatable else "(random, not compared)")))


def run_line(result: RunResult) -> str:
    """The outcome of a run, for a message."""
    if result.error is not None:
        return f"{result.function} was not run: {result.error.message}"
    if result.eager_seconds is None and result.compiled_seconds is None:
        return f"{result.function}: {result.detail}"
    if not result.compiled and result.agrees:
        return f"{result.function} was not compiled: {result.uncompiled}"
    why = "" if result.agrees else f": {result.detail}"
    parts = [f"{result.function} {result.verdict}{why}"]
    if result.gradients_agree is not None:
        parts.append(f"gradients {'agree' if result.gradients_agree else 'DIFFER'}")
    times = (("eager", result.eager_seconds), ("compiled", result.compiled_seconds))
    parts += [f"{name} {duration(seconds)}" for name, seconds in times if seconds is not None]
    parts += [result.instead] if result.instead else []
    parts += [f"not compiled in whole: {result.uncompiled}"] if result.uncompiled else []
    return " · ".join(parts)


def explain(report: Report, stale: bool = False) -> str:
    """Everything a person asks about a compilation, as text: breaks, graphs, kernels, decisions, guards, times."""
    out = [f"{report.function} — {headline(report)}"]
    where = str(report.span) if report.span else report.file
    out.append("  ".join(filter(None, (where, f"target {report.target}", report.mode))))
    if report.inputs:
        out.append(f"inputs {report.inputs} ({report.inputs.source})")
    if stale:
        out.append("From the last good check: the file has changed since.")
    if report.versions:
        out.append(", ".join(f"{name} {version}" for name, version in report.versions.items()))
    out += _section("Breaks", (line for d in report.breaks for line in _finding(d)))
    out += _section("Findings", (line for d in report.diagnostics for line in _finding(d)))
    for graph in report.graphs:
        out += _section(f"Graph {graph.id}", _graph(report, graph))
    out += _section("Guards", (f"{g.expression}{f'    # {g.span}' if g.span else ''}" for g in report.guards))
    if report.foreseen is not None:
        out += _section("Compilations", foreseen.lines(report.foreseen, report.file))
    out += _section("Symbols", (_symbol(s.name, s.source, s.hint, s.lower, s.upper) for s in report.symbols))
    timings = stage_times(report)
    if timings:
        rows = [f"{t.stage:<24}{duration(t.seconds):>12}" for t in timings]
        out += _section("Time", [*rows, f"{'total':<24}{duration(total_time(report)):>12}"])
    return "\n".join(out) + "\n"


def guards(report: Report) -> str:
    """The guards document: what must hold for the compiled code to be used again, by what it hangs on."""
    if not report.guards:
        return f"# {report.function} has no guards.\n"
    out = [f"# {report.function} is reused while all of these hold; otherwise it is compiled again."]
    by_root: dict[str, list[str]] = defaultdict(list)
    for guard in report.guards:
        fate = foreseen.fate(guard, report.foreseen, report.file)
        notes = [guard.span.place(report.file)] if guard.span else []
        because = f"    # {'; '.join([*notes, *([fate] if fate else [])])}" if notes or fate else ""
        about = ", ".join(guard.roots) or guard.source or "torch's state"
        by_root[about].append(f"{guard.kind:<12} {guard.expression}{because}")
    for root, lines in by_root.items():
        out += ["", f"# {root}", *lines]
    if report.foreseen is not None:
        out += ["", "# compilations foreseen", *(f"# {line}" for line in foreseen.lines(report.foreseen, report.file))]
    if report.symbols:
        out += ["", "# symbols", *(_symbol(s.name, s.source, s.hint, s.lower, s.upper) for s in report.symbols)]
    return "\n".join(out) + "\n"


def proof(report: Report) -> str:
    """The proof document: what was tried, and what came of it."""
    found = report.proof
    if found is None:
        return f"{report.function} is not proved yet.\n"
    out = [f"{report.function}, compiled, compared with eager and with float64", "", *proved.lines(found, report.file)]
    out += ["", *proved.drift_table(found, report.file)] if found.drift else []
    out += ["", *_finding(found.fault)] if found.fault is not None else []
    out += ["", f"Repeat it: fuselens verify {report.file}::{report.function}"]
    return "\n".join(out) + "\n"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    body = list(lines)
    return ["", title, *("  " + line for line in body)] if body else []


def _finding(diagnostic: Diagnostic) -> list[str]:
    where = f"{diagnostic.span}: " if diagnostic.span else ""
    out = [f"{diagnostic.code} {where}{diagnostic.message}"]
    if diagnostic.explanation:
        out.append(f"    {diagnostic.explanation}")
    if diagnostic.cost:
        out.append(f"    cost: {diagnostic.cost}")
    if diagnostic.cause:
        out.append(f"    follows from {diagnostic.cause}")
    if diagnostic.mode:
        out.append(f"    holds in: {diagnostic.mode}")
    out += [f"    hint: {hint}" for hint in diagnostic.hints]
    if len(diagnostic.stack) > 1:
        out += [f"    in {frame.function} at {frame.span}" for frame in diagnostic.stack]
    return out


def _graph(report: Report, graph: Graph) -> list[str]:
    kind = "forward and backward" if graph.training else "forward only"
    operations = f"{graph.operations} operation{'' if graph.operations == 1 else 's'}"
    out = [f"{graph.frame}: {operations}, {kind}{', from the cache' if graph.cached else ''}"]
    if graph.fallback:
        out.append("runs eagerly, as captured")
    if graph.runs > 1:
        out.append(f"runs {graph.runs} times")
    if graph.stages:
        out.append(f"stages: {', '.join(stage.name for stage in graph.stages)}")
    if graph.inputs or graph.outputs:
        out.append(
            f"{', '.join(map(str, graph.inputs)) or 'nothing'} → {', '.join(map(str, graph.outputs)) or 'nothing'}"
        )
    out += [f"kernel {kernel_line(kernel)}" for kernel in graph.kernels]
    out += [f"extern {name}" for name in graph.externs]
    out += live_memory.text(graph, report.file)[0].splitlines()
    for decision in graph.decisions:
        if decision.verdict in ("saved", "recomputed"):
            continue
        places = dict.fromkeys(s.place(report.file) for s in (decision.other, decision.span) if s is not None)
        where = f" ({' and '.join(places)})" if places else ""
        reason = why_apart(decision) if decision.code == "FL411" else decision.reason
        out.append(f"{decision.verdict}: {decision.subject}: {reason}{where}")
        out += [f"  {'–' if s is None else duration(s):>9}  {name}" for name, s in decision.candidates]
    return out


def _symbol(name: str, source: str, hint: int | None, lower: int | None, upper: int | None) -> str:
    low, high = "" if lower is None else f"{lower} ≤ ", "" if upper is None else f" ≤ {upper}"
    example = "" if hint is None else f" (example {hint})"
    return f"{low}{name}{high} = {source}{example}"
