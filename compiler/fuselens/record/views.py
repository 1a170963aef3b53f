"""Text views of a compilation: pure functions of Report, RunResult and FileReport. Standard library only."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from ..system import source_text
from . import live_memory
from .fusion_sentences import why_apart
from .live_memory import bytes_text as bytes_text
from .live_memory import seconds_text as seconds_text
from .plain import to_plain
from .printed import distance, foreseen
from .report import Decision, Diagnostic, FileReport, Graph, Report, RunResult, Span, Symbol, Timing

SourceOf = Callable[[str], str | None]
"""The text of a file, None when it cannot be had. Views never open files by themselves."""

_TAB = 4
_MOST_GUARDS = 200


def read_text(file: str) -> str | None:
    """The usual SourceOf: what is on disk now."""
    return source_text.shown(file)


# --- positions ------------------------------------------------------------------------------------------------------


def excerpt(source: str, span: Span) -> str:
    """The line of ``span`` with its number, and carets under the expression::

         9 |     if b.sum() < 0:
           |        ^^^^^^^^^^^

    Tabs are expanded, wide characters count two cells; of a span over several lines the first is shown. "" when the
    source has no such line.
    """
    lines = source_text.lines(source)
    if not 0 < span.line <= len(lines):
        return ""
    text = lines[span.line - 1]
    data = text.encode()
    before = data[: span.column].decode(errors="ignore")
    end = span.end_column if span.end_line == span.line else len(text.rstrip().encode())
    marked = data[span.column : max(end, span.column)].decode(errors="ignore")
    number = str(span.line)
    gutter = " " * len(number)
    start = _cells(before)
    width = max(1, _cells(before + marked) - start)
    return f" {number} | {_expanded(text.rstrip())}\n {gutter} | {' ' * start}{'^' * width}"


def _expanded(text: str) -> str:
    return text.expandtabs(_TAB)


def _cells(text: str) -> int:
    """Columns of a terminal that ``text`` takes from the start of a line."""
    cells = 0
    for character in text:
        if character == "\t":
            cells += _TAB - cells % _TAB
        elif unicodedata.combining(character):
            continue
        else:
            cells += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return cells


# --- text -----------------------------------------------------------------------------------------------------------


def diagnostic_text(found: Diagnostic, source_of: SourceOf | None = None, *, full: bool = False) -> str:
    """``file:line:column: severity CODE: message`` with an excerpt; ``full`` adds explanation, hints, cost, stack."""
    place = f"{found.span}: " if found.span is not None else ""
    out = [f"{place}{found.severity} {found.code}: {found.message}"]
    source = source_of(found.span.file) if found.span is not None and source_of is not None else None
    if found.span is not None and source is not None:
        shown = excerpt(source, found.span)
        out += [shown] if shown else []
    if full:
        out += ["   = " + "\n     ".join(found.explanation.splitlines())] if found.explanation else []
        out += [f"   = holds for {found.mode}"] if found.mode else []
        out += [f"   = cost: {found.cost}"] if found.cost else []
        out += [f"   = follows from {found.cause}"] if found.cause else []
    out += [f"   = hint: {hint}" for hint in found.hints if full]
    library = next((fix for fix in found.fixes if fix.library), None)
    if library is not None:
        tried = f"{library.trial}; " if library.verified else ""
        how = f"`fuselens patches apply` {'' if tried else 'tries it out and '}keeps it as a patch of the project"
        out.append(f"   = fix in the library: {library.title} ({tried}{how})")
    if full and len(found.stack) > 1:
        out.append("   = called from:")
        out += [f"       {frame.span} in {frame.function}" for frame in reversed(found.stack[:-1])]
    return "\n".join(out)


def summary_lines(report: Report) -> list[str]:
    """What ``fuselens check`` says about one function, apart from its diagnostics: counts, kernels, where time went."""
    place = f"{report.span}: " if report.span is not None else f"{report.file}: "
    out = [f"{place}{report.function}: {report.summary()}"]
    out += [f"  {inputs_text(report)}"] if report.inputs else []
    if report.prevented is not None:
        out.append(f"  not compiled{' in whole' if report.compiled else ''}: {report.prevented.code}, see below")
    for graph in report.graphs:
        traits = [_operations_text(graph)]
        traits += ["with backward"] if graph.training else []
        traits += ["runs eagerly"] if graph.fallback else []
        traits += ["from the cache"] if graph.cached else []
        traits += [f"runs {graph.runs} times"] if graph.runs > 1 else []
        out.append(f"  graph {graph.id} {graph.frame}: {', '.join(traits)}")
        for kernel in graph.kernels:
            traffic = f"reads {bytes_text(kernel.bytes_read)}, writes {bytes_text(kernel.bytes_written)}"
            traffic += f"; {kernel.takes}" if kernel.takes else ""
            where = lines_text(kernel.spans, report.span.file if report.span else report.file)
            what = ", ".join(kernel.operations)
            out.append(
                f"    {kernel.phase} kernel {kernel.name} ({kernel.backend}, {kernel.kind}): {what}; {traffic}{where}"
            )
        if graph.externs:
            counted = Counter(graph.externs).items()
            out.append(f"    extern: {', '.join(name if n == 1 else f'{n} × {name}' for name, n in counted)}")
    if report.foreseen is not None:
        out += [f"  {line}" for line in foreseen.lines(report.foreseen, report.file)]
    if timings := _timings_text([*report.timings, *(t for g in report.graphs for t in g.timings)]):
        out.append(f"  {timings}")
    return out


def inputs_text(report: Report) -> str:
    """``inputs x: f32[4, 8] (those of its call at line 48)``; "" where nothing was called."""
    return f"inputs {report.inputs} ({report.inputs.source})" if report.inputs else ""


def _operations_text(graph: Graph) -> str:
    return f"{graph.operations} operation{'' if graph.operations == 1 else 's'}"


def lines_text(spans: Iterable[Span], file: str) -> str:
    """``; lines 3, 12; model.py:7, 8``: the other files' after those of ``file``."""
    found: dict[str, set[int]] = {}
    for span in spans:
        found.setdefault(span.file, set()).add(span.line)
    out = ""
    for path in sorted(found, key=lambda p: (p != file, p)):
        lines = sorted(found[path])
        name = f"line{'s' if len(lines) > 1 else ''} " if path == file else f"{Path(path).name}:"
        out += f"; {name}{', '.join(map(str, lines))}"
    return out


def _timings_text(timings: list[Timing]) -> str:
    totals: dict[str, float] = {}
    for timing in timings:
        totals[timing.stage] = totals.get(timing.stage, 0.0) + timing.seconds
    return " · ".join(f"{stage} {seconds_text(seconds)}" for stage, seconds in totals.items())


def explain(report: Report, source_of: SourceOf | None = None) -> str:
    """Everything that is known about one compilation, for a reader. ``source_of`` adds excerpts."""
    head = " · ".join(filter(None, (f"target {report.target}", report.mode)))
    out = [f"{report.function}  {report.span or report.file}", f"{report.summary()}  ({head})"]
    out += [inputs_text(report)] if report.inputs else []
    out += _section("Breaks", (diagnostic_text(b, source_of, full=True) for b in report.breaks))
    out += _section("Diagnostics", (diagnostic_text(d, source_of, full=True) for d in report.diagnostics))
    out += _section("Symbols", (symbol_text(s) for s in report.symbols))
    out += _section("Guards", _guards_text(report))
    if report.foreseen is not None:
        out += _section("Compilations", foreseen.lines(report.foreseen, report.file))
    out += _section("Shapes", (f"{s.span.place(report.file)}: {s.name} is {s.tensor}" for s in report.shapes))
    for graph in report.graphs:
        out += _section(f"Graph {graph.id}: {graph.frame}", _graph_text(graph, report.file))
    out += _section("Timings", (f"{t.stage:<16} {seconds_text(t.seconds)}" for t in report.timings))
    out += _section("Versions", (f"{name} {version}" for name, version in report.versions.items()))
    return "\n".join(out)


def _section(title: str, entries: Iterable[str]) -> list[str]:
    body = list(entries)
    if not body:
        return []
    return ["", title, *("\n".join(f"  {line}" for line in entry.splitlines()) for entry in body)]


def symbol_text(symbol: Symbol) -> str:
    lower, upper = ("" if bound is None else str(bound) for bound in (symbol.lower, symbol.upper))
    hint = f", here {symbol.hint}" if symbol.hint is not None else ""
    return f"{symbol.name} = {symbol.source} ({f'{lower} … {upper}'.strip()}{hint})"


def _guards_text(report: Report) -> list[str]:
    guards, file = report.guards, report.file
    fates = [foreseen.fate(g, report.foreseen, file) for g in guards[:_MOST_GUARDS]]
    costs = ["" if g.cost_ns is None else f"  ({g.cost_ns:.1f} ns)" for g in guards[:_MOST_GUARDS]]
    out = [
        g.expression + (f"  [{g.span.place(file)}]" if g.span else "") + cost + (f"  ({fate})" if fate else "")
        for g, cost, fate in zip(guards, costs, fates, strict=False)
    ]
    if len(guards) > _MOST_GUARDS:
        out.append(f"and {len(guards) - _MOST_GUARDS} more")
    return out


def _graph_text(graph: Graph, file: str) -> list[str]:
    out = [_operations_text(graph) + (", runs eagerly" if graph.fallback else "")]
    if graph.inputs or graph.outputs:
        out.append(f"({', '.join(map(str, graph.inputs))}) -> ({', '.join(map(str, graph.outputs))})")
    for kernel in graph.kernels:
        out.append(f"{kernel.phase} kernel {kernel.name} ({kernel.backend}, {kernel.kind})")
        out.append(f"  {', '.join(kernel.operations)}{lines_text(kernel.spans, file)}")
        out.append(f"  reads {bytes_text(kernel.bytes_read)}, writes {bytes_text(kernel.bytes_written)} per call")
        out += [f"  {kernel.takes}"] if kernel.takes else []
    out += [f"extern {name}" for name in graph.externs]
    out += live_memory.text(graph, file)[0].splitlines()
    for d in graph.decisions:
        if d.verdict in ("saved", "recomputed"):
            continue
        out += decision_text(d, file).splitlines()
    out += [f"{t.stage:<16} {seconds_text(t.seconds)}" for t in graph.timings]
    if graph.stages:
        out.append(f"stages: {', '.join(s.name for s in graph.stages)}")
    return out


def decision_text(made: Decision, file: str) -> str:
    """A choice, its reason, and what was measured for it."""
    line = f", {made.span.place(file)}" if made.span else ""
    why = why_apart(made) if made.code == "FL411" else made.reason
    out = [f"{made.verdict}: {made.subject} ({made.code}{line}): {why}"]
    out += [f"  {seconds_text(seconds):>9}  {name}" for name, seconds in made.candidates]
    return "\n".join(out)


def run_text(result: RunResult) -> str:
    """The outcome of ``fuselens run`` in a few lines."""
    if result.error is not None:
        return f"{result.function}: not run\n{diagnostic_text(result.error, full=True)}"
    if not result.compiled and result.agrees:
        return f"{result.function}: not compiled, so there is nothing to compare with eager\n  {result.uncompiled}"
    out = [f"{result.function}: {result.verdict}: {result.detail}"]
    out += [f"  {result.instead}"] if result.instead else []
    out += [f"  not compiled in whole: {result.uncompiled}"] if result.uncompiled else []
    if result.max_error is not None:
        out.append(f"  largest error {result.max_error:.3g}")
    if result.gradients_agree is not None:
        out.append(f"  gradients {'agree' if result.gradients_agree else 'DIFFER'}")
    times = f"  eager {seconds_text(result.eager_seconds)} · compiled {seconds_text(result.compiled_seconds)}"
    if result.eager_seconds and result.compiled_seconds:
        times += f" ({result.eager_seconds / result.compiled_seconds:.2f} ×)"
    if result.eager_seconds is not None or result.compiled_seconds is not None:
        out.append(f"{times} · compilation {seconds_text(result.compile_seconds)}")
    if result.eager_bytes is not None and result.compiled_bytes is not None:
        eager, compiled = (bytes_text(b) for b in (result.eager_bytes, result.compiled_bytes))
        out.append(f"  memory of a call at most: eager {eager} · compiled {compiled}")
    out += [f"  {line}" for line in distance.lines(result)]
    return "\n".join(out)


# --- stages ---------------------------------------------------------------------------------------------------------


def stages_text(report: Report, names: Iterable[str]) -> str:
    """The texts of the named stages of every graph (``all`` is every one), each under a heading."""
    wanted = frozenset(names)
    out: list[str] = []
    for graph in report.graphs:
        for stage in graph.stages:
            if not stage.later and not {stage.name, stage.name.partition(".")[0], "all"}.isdisjoint(wanted):
                out.append(f"--- {report.function} · graph {graph.id} {graph.frame} · {stage.name} ---")
                out.append(stage.text.rstrip("\n"))
    return "\n".join(out)


# --- machine-readable -----------------------------------------------------------------------------------------------


def json_text(files: list[FileReport]) -> str:
    """Every record, as written over the wire."""
    return json.dumps([to_plain(file) for file in files], indent=1)


def file_diagnostics(file: FileReport) -> list[tuple[str, Diagnostic]]:
    """All findings about a file in order of position, each with its function ("" for the whole file)."""
    found = [("", d) for d in file.diagnostics]
    found += [(report.function, d) for report in file.functions for d in (*report.breaks, *report.diagnostics)]
    return sorted(found, key=lambda entry: (entry[1].span is not None, entry[1].span or Span("", 0, 0, 0, 0)))


def source_lines(file: str, source_of: SourceOf) -> list[str]:
    """The lines of a file; none when it is not at hand."""
    return source_text.lines(source_of(file) or "")


def characters(lines: list[str], line: int, column: int) -> int:
    """A byte column in characters; unchanged when the source is not at hand."""
    if not 0 < line <= len(lines):
        return column
    return len(lines[line - 1].encode()[:column].decode(errors="ignore"))
