"""Reports as one HTML page that stands alone: the source with its kernels, breaks, guards, recompilations, decisions, every stage,
where time and memory went. It needs no server, no network and no other file, and its size is bounded.

Pure functions of reports. Standard library only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from .. import live_memory, views
from ..fusion_sentences import why_apart
from ..guard_sentences import recompiled_when
from ..report import Decision, Diagnostic, Graph, Guard, Kernel, Report, Span, Stage, Timing

_COLOURS = ("#4493f8", "#3fb950", "#d29922", "#db61a2", "#a371f7", "#f0883e", "#39c5cf", "#e5534b")
MOST_TEXT = 200_000  # characters of one stage
MOST_PAGE = 8_000_000  # characters of all stages together
_AROUND = 3  # lines above and below what a report is about
_MOST_LINES = 3000
_MOST_ROWS = 400  # of a table
_GOOD = {"whole": "good", "with breaks": "bad", "eager in part": "bad", "not compiled": "error"}
_HERE = Path(__file__).parent


def page(reports: Sequence[Report], source_of: views.SourceOf = views.read_text, title: str = "Fuselens") -> str:
    """The whole page. ``source_of`` gives the sources that it shows."""
    room = [MOST_PAGE]
    sections = [_function(number, report, source_of, room) for number, report in enumerate(reports)]
    listed = "".join(
        f'<li><a href="#f{number}">{escape(r.function)}</a> <span class="dim">{escape(r.summary())}</span></li>'
        for number, r in enumerate(reports)
    )
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return "\n".join((
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{escape(title)}</title><style>\n{style}</style></head><body>",
        f"<header><h1>{escape(title)}</h1><nav><ul>{listed}</ul></nav></header>",
        *sections,
        f"<script>\n{script}</script></body></html>\n",
    ))  # fmt: skip


def _function(number: int, report: Report, source_of: views.SourceOf, room: list[int]) -> str:
    colours = {_identity(g, k): _COLOURS[i % len(_COLOURS)] for i, (g, k) in enumerate(_kernels(report))}
    found = report.status
    chips = [
        f'<span class="chip {_GOOD[found]}">{found}</span>',
        *(f'<span class="chip">{escape(part)}</span>' for part in report.summary().split(" · ")),
    ]
    chips += (
        [f'<span class="chip">{escape(report.target)}</span>', f'<span class="chip">{escape(report.mode)}</span>']
        if report.mode
        else []
    )
    blocks = [
        _found("Graph breaks", report.breaks, report.file),
        _found("Recompilations", [d for d in report.diagnostics if d.code in ("FL201", "FL202", "FL205")], report.file),
        _found(
            "Other findings", [d for d in report.diagnostics if d.code not in ("FL201", "FL202", "FL205")], report.file
        ),
        _kernels_block(report, colours),
        _guards(report),
        _decisions(report),
        _times(report),
        _memory(report),
        _stages(report, room),
    ]
    return (
        f'<section class="function" id="f{number}"><h2>{escape(report.function)} '
        f'<span class="dim mono">{escape(str(report.span or report.file))}</span></h2><p>{"".join(chips)}</p>'
        f'<p class="dim">{escape(views.inputs_text(report))}</p>'
        f'<div class="two"><div class="source">{_source(report, source_of, colours)}</div><div>{"".join(blocks)}</div></div></section>'
    )


# --- the source -----------------------------------------------------------------------------------------------------


def _kernels(report: Report) -> list[tuple[Graph, Kernel]]:
    return [(graph, kernel) for graph in report.graphs for kernel in graph.kernels]


def _identity(graph: Graph, kernel: Kernel) -> str:
    return f"{graph.id}-{kernel.phase}-{kernel.name}"


def _source(report: Report, source_of: views.SourceOf, colours: dict[str, str]) -> str:
    """The lines that the report is about, file by file; its own file first."""
    kernels: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for graph, kernel in _kernels(report):
        for span in kernel.spans:
            if _identity(graph, kernel) not in kernels[span.file, span.line]:
                kernels[span.file, span.line].append(_identity(graph, kernel))
    findings: defaultdict[tuple[str, int], list[Diagnostic]] = defaultdict(list)
    for found in (*report.breaks, *report.diagnostics):
        if found.span is not None:
            findings[found.span.file, found.span.line].append(found)
    places = {*kernels, *findings, *((s.file, s.line) for s in ([report.span] if report.span else []))}
    places |= {(s.span.file, s.span.line) for s in report.shapes}
    out: list[str] = []
    for file in sorted({file for file, _ in places}, key=lambda f: (f != report.file, f)):
        lines = views.source_lines(file, source_of)
        wanted = [line for f, line in places if f == file]
        first, last = max(1, min(wanted) - _AROUND), min(len(lines), max(wanted) + _AROUND, min(wanted) + _MOST_LINES)
        out.append(f'<p class="dim mono">&nbsp; {escape(file)}</p><pre>')
        for line in range(first, last + 1):
            own = kernels.get((file, line), [])
            colour = f' style="--kernel: {colours[own[0]]}" data-kernels="{escape(" ".join(own))}"' if own else ""
            out.append(f'<span class="row" data-line="{line}"{colour}><i>{line}</i>{escape(lines[line - 1])}</span>')
            out += [_finding_html(found, "found") for found in findings.get((file, line), ())]
        out.append("</pre>")
    return "".join(out)


def _finding_html(found: Diagnostic, kind: str) -> str:
    hints = "".join(f"\n{hint}" for hint in found.hints)
    return f'<span class="{kind} {found.severity}"><b>{found.code}</b> {escape(found.message + hints)}</span>'


# --- what was found -------------------------------------------------------------------------------------------------


def _block(title: str, body: str, count: int | None = None, *, opened: bool = False) -> str:
    number = f' <span class="dim">{count}</span>' if count is not None else ""
    return (
        f"<details{' open' if opened else ''}><summary>{escape(title)}{number}</summary><div>{body}</div></details>"
        if body
        else ""
    )


def _found(title: str, found: Sequence[Diagnostic], file: str) -> str:
    rows = []
    for d in found:
        stack = "".join(f"<br>in {escape(f.function)}, {escape(f.span.place(file))}" for f in reversed(d.stack[:-1]))
        more = "<br>".join(escape(text) for text in (d.explanation, d.cost, *d.hints) if text)
        where = escape(d.span.place(file)) if d.span else ""
        rows.append((f"<b>{d.code}</b>", where, f'{escape(d.message)}<br><span class="dim">{more}{stack}</span>'))
    return _block(title, _table((), rows), len(found), opened=title == "Graph breaks")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of HTML."""
    if not rows:
        return ""
    top = f"<tr>{''.join(f'<th>{h}</th>' for h in head)}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows[:_MOST_ROWS])
    more = f'<p class="dim">and {len(rows) - _MOST_ROWS} more</p>' if len(rows) > _MOST_ROWS else ""
    return f"<table>{top}{body}</table>{more}"


def _kernels_block(report: Report, colours: dict[str, str]) -> str:
    out = []
    for graph, kernel in _kernels(report)[:_MOST_ROWS]:
        name = _identity(graph, kernel)
        moved = (
            f"reads {views.bytes_text(kernel.bytes_read)}, writes {views.bytes_text(kernel.bytes_written)} in a call"
        )
        said = [
            ", ".join(kernel.operations),
            moved,
            kernel.takes,
            views.lines_text(kernel.spans, report.file).lstrip("; "),
        ]
        text = "<br>".join(escape(part) for part in said if part)
        head = f"{kernel.name} <span class='dim'>graph {graph.id} · {kernel.phase} · {kernel.backend} · {kernel.kind}</span>"
        out.append(
            f'<details class="kernel" data-kernel="{escape(name)}" style="--kernel: {colours[name]}">'
            f"<summary>{head}</summary><p>{text}</p></details>"
        )
    out += [
        f'<p class="dim">graph {graph.id} also calls {escape(", ".join(dict.fromkeys(graph.externs)))}</p>'
        for graph in report.graphs
        if graph.externs
    ]
    return _block("Kernels", "".join(out), len(report.kernels), opened=True)


def _guards(report: Report) -> str:
    by_root: defaultdict[str, list[Guard]] = defaultdict(list)
    for guard in report.guards:
        by_root[", ".join(guard.roots) or "torch's state"].append(guard)
    rows = [
        (
            escape(root) if first else "",
            f"<code>{escape(guard.expression)}</code>",
            escape(guard.span.place(report.file)) if guard.span else "",
            f'<span class="dim">compiled again when {escape(recompiled_when(guard, report.symbols))}</span>',
        )
        for root, guards in by_root.items()
        for first, guard in ((i == 0, g) for i, g in enumerate(guards))
    ]
    return _block("Guards", _table((), rows), len(report.guards))


def _decisions(report: Report) -> str:
    rows = [
        (
            f"<b>{d.code}</b>",
            d.verdict,
            escape(d.subject),
            escape(d.span.place(report.file)) if d.span else "",
            _reason(d),
        )
        for graph in report.graphs
        for d in graph.decisions
    ]
    return _block("Decisions: fusion, memory, libraries, measurements", _table((), rows), len(rows))


def _reason(made: Decision) -> str:
    text = escape(why_apart(made) if made.code == "FL411" else made.reason)
    return text + "".join(f"<br>{escape(views.seconds_text(s))} {escape(name)}" for name, s in made.candidates)


# --- time and memory ------------------------------------------------------------------------------------------------


def _times(report: Report) -> str:
    """A row of the stages of each graph, as wide as they took."""
    graphs = [
        (f"graph {g.id} {g.frame}", [t for t in g.timings if "." not in t.stage.removesuffix(".backward")])
        for g in report.graphs
    ]
    longest = max((sum(t.seconds for t in timings) for _, timings in graphs), default=0.0)
    if not longest:
        return ""
    out = []
    for name, timings in graphs:
        seconds = views.seconds_text(sum(t.seconds for t in timings))
        out.append(f"<h3>{escape(name)}: {seconds}</h3>{_flame(timings, longest)}")
    total = [t for t in report.timings if t.stage == "total"]
    out += [f'<p class="dim">the call, compilation included: {views.seconds_text(t.seconds)}</p>' for t in total]
    return _block("Where compile time went", "".join(out))


def _flame(timings: Iterable[Timing], longest: float) -> str:
    parts = []
    for number, timing in enumerate(timings):
        text = f"{timing.stage} {views.seconds_text(timing.seconds)}"
        width = 100 * timing.seconds / longest
        parts.append(
            f'<span title="{escape(text)}" style="width: {width:.3f}%; --kernel: {_COLOURS[number % len(_COLOURS)]}">{escape(text)}</span>'
        )
    return f'<div class="flame">{"".join(parts)}</div>'


def _memory(report: Report) -> str:
    out = []
    for graph in report.graphs:
        highest = max((step.bytes for step in graph.memory), default=0)
        if not highest:
            continue
        out.append(f"<h3>graph {graph.id} {escape(graph.frame)}: at most {views.bytes_text(highest)} at once</h3>")
        for step in graph.memory[:_MOST_ROWS]:
            where = escape(views.lines_text(step.spans, report.file).lstrip("; "))
            name = escape(f"{step.phase} {step.name}")
            text = f"{name}: {views.bytes_text(step.bytes)} <span class='dim'>{where}</span>"
            width = 100 * step.bytes / highest
            out.append(f'<div class="bar"><b style="width: {width:.2f}%"></b><span>{text}</span></div>')
        if saved := live_memory.saved_bytes(graph):
            out.append(f'<p class="dim">saved for the backward: {views.bytes_text(saved)}</p>')
    return _block("Memory, step by step", "".join(out))


# --- stages ---------------------------------------------------------------------------------------------------------


def _stages(report: Report, room: list[int]) -> str:
    out = []
    for graph in report.graphs:
        cache = f" · cache: {graph.cache}" if graph.cache else ""
        traits = f"{graph.operations} operations{', runs eagerly' if graph.fallback else ''}{cache}"
        texts = "".join(_stage(stage, report.file, room) for stage in graph.stages if not stage.later)
        out.append(f"<h3>graph {graph.id} {escape(graph.frame)} <span class='dim'>{escape(traits)}</span></h3>{texts}")
    return f"<h3>Graphs and their stages</h3>{''.join(out)}" if out else ""


def _stage(stage: Stage, file: str, room: list[int]) -> str:
    text = stage.text[: min(MOST_TEXT, max(room[0], 0))]
    room[0] -= len(text)
    spans: dict[int, tuple[Span, ...]] = {line.line: line.spans for line in stage.lines}
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        numbers = sorted({span.line for span in spans.get(number, ()) if span.file == file})
        lines = f' data-lines="{" ".join(map(str, numbers))}"' if numbers else ""
        rows.append(f'<span class="row"{lines}>{escape(line)}</span>')
    left = len(stage.text) - len(text)
    cut = f'<p class="dim">{left} characters more are in the file of the stage</p>' if left else ""
    head = f"<summary>{escape(stage.name)} <span class='dim'>{stage.suffix}</span></summary>"
    return f"<details>{head}<pre>{''.join(rows)}</pre>{cut}</details>"
