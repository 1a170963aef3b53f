"""The hover on a line of a function's body: what it became, what it was fused with, and a few lines of its loops."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lsprotocol import types as lsp

from fuselens.record import live_memory
from fuselens.record.fusion_sentences import why_apart
from fuselens.record.printed import proved
from fuselens.record.report import Decision, Graph, Kernel, Report, Shape, Span, Stage
from fuselens_server.documents import stages as documents
from fuselens_server.features import summary
from fuselens_server.features.hovers.links import Links
from fuselens_server.features.inlay_hints import tensor_layout, tensor_text
from fuselens_server.features.markdown import block, bullets, code, escape, escape_but_code
from fuselens_server.texts.document_uri import ReportDocument
from fuselens_server.texts.view import View

_PLACE = re.compile(r"\s+# (?:\S+:\d+:\d+|line \d+)$")  # where an IR line comes from: the line hovered over
_WHY = re.compile(r" from [\w.]+ because \".*$")  # of a call of a library, which is told above
_HEAD = re.compile(r"^(\s*kernel \w+ \[.*?\]) of \[.*")  # which loops it fused is said elsewhere
_NUMBER = re.compile(r"_\d+$")
_OWN_LINE = {"FL310", "FL311", "FL401", "FL410", "FL411"}  # decisions that are told in other words
# All of a hover fits on one screen.
_MOST_FUNCTIONS = 3  # a helper inlined by many functions shows the first ones
_MOST_EXCERPT = 8  # lines of loop IR
_MOST_CALLS = 3  # of those, where they are calls of a library, which look alike
_MOST_ROWS = 2  # kinds of kernels of the forward
_MOST_NAMES = 3  # of what one row lists
_MOST_LINES = 6  # that the line was fused with
_MOST_REASONS = 2  # why it was not fused with others
_MOST_DECISIONS = 2
_MOST_SAID = 4  # of memory and decisions
_WIDEST = 88  # characters of a line of loop IR


def line_hover(view: View, line: int, word: str, position: lsp.Position, link: Links) -> list[str]:
    """The parts of the hover on ``line`` of the compiled text, at ``position`` of the text as it is."""
    shown = [r for r in view.reports() if _concerns(view, r, line, word)]
    parts: list[str] = []
    for report in shown[:_MOST_FUNCTIONS]:
        parts += [f"**in {code(report.function)}**"] if len(shown) > 1 else []
        parts += _Line(view, report, line).told(word, position, link, excerpt=len(shown) == 1)
    if len(shown) > _MOST_FUNCTIONS:
        parts.append(f"… and in {len(shown) - _MOST_FUNCTIONS} more functions")
    return parts


def _concerns(view: View, report: Report, line: int, word: str) -> bool:
    graphs = any(_touches(view, graph, line) for graph in report.graphs)
    return (
        graphs
        or any(_covers(view, (s.span,), line) for s in report.shapes)
        or any(_covers(view, (d.span,), line) for d in (report.proof.drift if report.proof else ()))
        or latest(view, report, line, word) is not None
    )


@dataclass(frozen=True, slots=True)
class _Alike:
    """Kernels of one kind: the layers of a model have the same one each, with another number, or share one."""

    name: str
    kernels: list[tuple[Graph, Kernel]]
    share: float  # how much of what they compute is the line's own

    @property
    def backward(self) -> bool:
        return self.kernels[0][1].phase == "backward"

    def short(self) -> str:
        count = sum(graph.runs for graph, _ in self.kernels)
        return f"{count} × {code(self.name)}" if count > 1 else code(self.kernels[0][1].name)

    def full(self) -> str:
        """``12 × `gelu` (C++, 256 KiB in, 256 KiB out)``; of kernels that differ, what they move at most."""
        kernels = [kernel for _, kernel in self.kernels]
        about = [summary.BACKENDS.get(kernels[0].backend, kernels[0].backend)]
        for way, counts in (
            ("in", [k.bytes_read for k in kernels]),
            ("out", [k.bytes_written for k in kernels]),
        ):
            known = [count for count in counts if count is not None]
            if known:
                about.append(f"{'≤ ' * (len(set(known)) > 1)}{live_memory.bytes_text(max(known))} {way}")
        about += [kernels[0].takes] if len(kernels) == 1 and kernels[0].takes else []
        pins = dict.fromkeys(
            unit.pin for graph, kernel in self.kernels for unit in graph.units
            if unit.pin and (unit.phase, unit.language) == (kernel.phase, kernel.backend)
        )  # fmt: skip
        about += [f"yours: {escape(pin)}" for pin in pins]
        return f"{self.short()} ({', '.join(about)})"


class _Line:
    """One line of one report."""

    def __init__(self, view: View, report: Report, line: int) -> None:
        self.view, self.report, self.line = view, report, line
        touched, in_parts = [graph for graph in report.graphs if _touches(view, graph, line)], report.in_parts
        self.graphs = [
            graph for graph in touched if graph.kernels or graph.id not in in_parts
        ]  # parts tell for the whole
        self.decided = [(g, d) for g in self.graphs for d in g.decisions if self.here(d.span) or self.here(d.other)]
        self.decisions = [d for _, d in self.decided]
        self.alike = self._alike()
        self.loops = self._loops()

    def here(self, span: Span | None) -> bool:
        return span is not None and _covers(self.view, (span,), self.line)

    def told(self, word: str, position: lsp.Position, link: Links, *, excerpt: bool) -> list[str]:
        parts = [self._became(word), self._step(), self._drift(), self._fusion()]
        if self.graphs:
            parts += [self._links(link, position), self._excerpt() if excerpt else "", self._others()]
        return [part for part in parts if part]

    # --- line 1: what it became --------------------------------------------------------------------------------------

    def _became(self, word: str) -> str:
        names = self._shapes(word)
        if not self.graphs:
            return names
        rows = [*self._kernel_rows(), *self._library_rows()]
        if not rows:
            rows = ["runs eagerly" if all(graph.fallback for graph in self.graphs) else "no kernel of its own"]
        if len(rows) == 1:
            return f"{names}{' → ' if names else ''}{rows[0]}{self._where()}"
        rows = [f"{rows[0]}{self._where()}", *rows[1:]]
        return f"{names} →\n{bullets(rows)}" if names else bullets(rows)

    def _where(self) -> str:
        """Which graphs, where the function has several."""
        if len(self.report.graphs) < 2:
            return ""
        return f" in graph{'s' if len(self.graphs) > 1 else ''} {_listed([str(g.id) for g in self.graphs])}"

    def _shapes(self, word: str) -> str:
        """The names bound on this line; of the one under the cursor, which may have been bound before, the layout, too."""
        shapes = [s for s in self.report.shapes if self.here(s.span)]
        used = latest(self.view, self.report, self.line, word)
        if used and all(s.name != word for s in shapes):
            shapes = [used]  # it is what is asked about
        texts = dict.fromkeys(
            code(f"{s.name}: {tensor_text(s.tensor)}") + f" ({escape(tensor_layout(s.tensor))})" * (s.name == word)
            for s in shapes
        )
        return ", ".join(_first(list(texts), _MOST_NAMES))

    def _alike(self) -> list[_Alike]:
        """The line's kernels by kind: the forward's first, and what is most its own."""
        groups: dict[tuple[str, str, str], list[tuple[Graph, Kernel]]] = defaultdict(list)
        for graph in self.graphs:
            for kernel in graph.kernels:
                if _covers(self.view, kernel.spans, self.line):
                    groups[_NUMBER.sub("", kernel.name), kernel.phase, kernel.backend].append((graph, kernel))
        found = [_Alike(key[0], kernels, self._share(kernels[0][1])) for key, kernels in groups.items()]
        return sorted(found, key=lambda alike: (alike.backward, -alike.share))

    def _share(self, kernel: Kernel) -> float:
        places = {(span.file, span.line) for span in kernel.spans}
        return 1 / len(places)

    def _kernel_rows(self) -> Iterator[str]:
        forward = [alike for alike in self.alike if not alike.backward]
        for alike in forward[:_MOST_ROWS]:
            yield alike.full()
        if others := forward[_MOST_ROWS:]:
            yield f"and {', '.join(_first([alike.short() for alike in others], _MOST_NAMES))}"
        if backward := self.alike[len(forward) :]:
            names = [backward[0].full()] if len(backward) == 1 else [alike.short() for alike in backward]
            yield f"in the backward: {', '.join(_first(names, _MOST_NAMES))}"

    def _library_rows(self) -> Iterator[str]:
        """Calls of operators that no loops were written for."""
        calls: dict[tuple[str, str], list[Decision]] = defaultdict(list)
        counts = Counter[tuple[str, str]]()
        for graph, d in self.decided:
            if d.code == "FL401":
                key = str(d.data.get("operator") or d.subject).removesuffix(".default"), d.verdict
                calls[key].append(d)
                counts[key] += graph.runs
        told = {key: f"{counts[key]} × {code(key[0])}" if counts[key] > 1 else code(key[0]) for key in calls}
        library = [text for (_, verdict), text in told.items() if verdict == "extern"]
        yield from [f"by a library: {', '.join(_first(library, _MOST_NAMES))}"] if library else []
        others = [f"{text} ({escape(calls[key][0].reason)})" for key, text in told.items() if key[1] != "extern"]
        yield from _first(others, _MOST_ROWS)

    # --- memory of a step ----------------------------------------------------------------------------------------------

    def _step(self) -> str:
        """What the line holds when a step of training holds most."""
        step, text = self.report.step, live_memory.bytes_text
        if step is None:
            return ""
        held = [one for one in step.held if self.here(one.span)]
        kinds = ", ".join(f"{text(one.bytes)} {one.kind}" for one in held)
        whole = f"of {text(step.peak)} at the peak of a step, in the {step.phase}"
        said = [f"holds **{text(sum(one.bytes for one in held))}** {whole}: {kinds}"] if held else []
        if self.here(step.span):
            said.append(f"the most is held here{'' if step.fits else ', and it does not fit'}")
        return "; ".join(said)

    # --- digits that half precision loses ------------------------------------------------------------------------------

    def _drift(self) -> str:
        """How far the line's values are from float64, and whether they leave it here most."""
        proof = self.report.proof
        found = [drift for drift in proof.drift if self.here(drift.span)] if proof is not None else []
        if proof is None or not found:
            return ""
        drift = max(found, key=lambda drift: drift.compiled)
        most = ": **it grows most here**" if drift is proved.steepest(proof) else ""
        return f"drift from float64: {escape(proved.drift_text(drift, self.report.file))}{most}"

    # --- line 2: fusion ----------------------------------------------------------------------------------------------

    def _fusion(self) -> str:
        """``fused with line 12; not with 14: they reduce over different axes``"""
        together = [k for alike in self.alike for _, k in alike.kernels if k.phase == "forward"]
        together = together or [k for alike in self.alike for _, k in alike.kernels]
        fused = dict.fromkeys(place for k in together for span in k.spans if (place := self._place(span)))
        apart: dict[str, dict[str, None]] = defaultdict(dict)
        for d in self._refused():
            place = self._place(d.other if self.here(d.span) else d.span)
            if place and place not in fused:
                apart[why_apart(d)][place] = None
        said = [f"fused with {_lines(list(fused))}"] if fused else []
        for k, (reason, places) in enumerate(list(apart.items())[:_MOST_REASONS]):
            lines = _lines(list(places), "" if fused or k else "line")
            said.append(f"{'not' if fused or k else 'not fused'} with {lines}: {escape(reason)}")
        return "; ".join(said)

    def _refused(self) -> list[Decision]:
        return [d for d in self.decisions if d.code == "FL411" and d.other is not None and d.span is not None]

    def _place(self, span: Span | None) -> str:
        """Another line, as it is numbered now."""
        if span is None or self.here(span):
            return ""
        now = self.view.compiled.anchor(span) if self.view.here(span) else None
        if now is not None:
            return str(now.start.line + 1)
        return span.place("")

    # --- more ----------------------------------------------------------------------------------------------------------

    def _others(self) -> str:
        """What it does to memory, and choices of other kinds."""
        rows = [escape_but_code(text) for graph in self.graphs for text in live_memory.at(graph, self.here)]
        alike: dict[str, list[Decision]] = defaultdict(list)
        for d in self.decisions:
            if d.code not in _OWN_LINE and self.here(d.span):
                alike[d.reason].append(d)
        rows += [_decision(found) for found in list(alike.values())[:_MOST_DECISIONS]]
        return bullets(list(dict.fromkeys(rows))[:_MOST_SAID])

    # --- line 3: links, and the loops ----------------------------------------------------------------------------------

    def _links(self, link: Links, position: lsp.Position) -> str:
        view, report = self.view, self.report
        found: list[str] = []
        if self.alike:
            graph, kernel = self.alike[0].kernels[0]
            if place := view.correspondence.kernel_place(graph, kernel):
                stage, first = place
                target = next((e.line for e in stage.lines if e.line >= first and self._covered(e.spans)), first)
                found.append(link("Kernel", documents.stage_document(view, report, graph.id, stage), target))
        if self.loops:
            graph, stage, lines = self.loops
            title = "Loops" if stage.suffix == "loop" else "Graph"
            found.append(link(title, documents.stage_document(view, report, graph.id, stage), min(lines)))
        if refused := self._refused():
            text = summary.explain(report, view.stale).split("\n")
            about = (n for n, row in enumerate(text, 1) if f"{refused[0].subject}: " in row)
            document = ReportDocument(view.owner(report), report.function, "summary", "txt")
            found.append(link("Why not fused", document, next(about, None)))
        found.append(link.peek("Peek stages", position))
        return " · ".join(filter(None, found))

    def _covered(self, spans: tuple[Span, ...]) -> bool:
        return _covers(self.view, spans, self.line)

    def _loops(self) -> tuple[Graph, Stage, list[int]] | None:
        """Where the loops of the line stand: in the kernel that is shown first, else in the first graph that has any."""
        graphs = [self.alike[0].kernels[0][0]] if self.alike else self.graphs
        for graph in graphs:
            found = self._of_stages(graph)
            found = [(s, lines) for s, lines in found if s.suffix == "loop"] or found
            forward = [(s, lines) for s, lines in found if not s.name.endswith(".backward")]
            for stage, lines in (forward or found)[-1:]:
                return graph, stage, self._in_kernel(stage, lines) or lines
        return None

    def _of_stages(self, graph: Graph) -> list[tuple[Stage, list[int]]]:
        own = [(s, sorted({e.line for e in s.lines if self._covered(e.spans)})) for s in graph.stages]
        return [(stage, lines) for stage, lines in own if lines]

    def _in_kernel(self, stage: Stage, lines: list[int]) -> list[int]:
        """Those of ``lines`` that are in the text of the kernel that is shown first."""
        if not self.alike:
            return []
        kernel = self.alike[0].kernels[0][1]
        text = stage.text.split("\n")
        head = next((n for n, row in enumerate(text, 1) if re.match(rf"\s*kernel {re.escape(kernel.name)}\b", row)), 0)
        if not head:
            return []
        indent = len(text[head - 1]) - len(text[head - 1].lstrip())
        after = (n for n in range(head + 1, len(text) + 1) if text[n - 1].strip() and _indent(text[n - 1]) <= indent)
        end = next(after, len(text) + 1)
        return [n for n in lines if head <= n < end]

    def _excerpt(self) -> str:
        stage, lines = self.loops[1:] if self.loops else (Stage("", "", ""), [])
        text = stage.text.split("\n")
        rows = [_HEAD.sub(r"\1", _WHY.sub("", _PLACE.sub("", text[n - 1]))) for n in lines if 1 <= n <= len(text)]
        if not rows:
            return ""
        rows = [row if len(row) <= _WIDEST else f"{row[: _WIDEST - 1]}…" for row in rows]
        most = _MOST_CALLS if rows[0].lstrip().startswith("extern ") else _MOST_EXCERPT
        shown = _dedent(rows if len(rows) <= most else rows[: most - 1])
        if len(rows) > len(shown):
            shown.append(f"… {len(rows) - len(shown)} more lines")
        return block(documents.language(stage.suffix) if stage.suffix in ("loop", "py") else "text", shown)


def latest(view: View, report: Report, line: int, word: str) -> Shape | None:
    """The last binding of ``word`` at or before ``line`` within the report's own function."""
    function = next((a for a in view.annotated if a.qualname == report.function), None)
    if not word or function is None or not function.span.line <= line <= function.span.end_line:
        return None
    bound = [s for s in report.shapes if s.name == word and view.here(s.span) and s.span.line <= line]
    return max(bound, key=lambda s: s.span, default=None)


def _decision(alike: list[Decision]) -> str:
    """Choices that were made for one reason."""
    first = alike[0]
    times = "; ".join(
        escape(name) if seconds is None else f"{escape(name)} {summary.duration(seconds)}"
        for name, seconds in first.candidates
    )
    count = f"{len(alike)} × " if len(alike) > 1 else ""
    return f"{count}{code(first.subject)}: {escape(first.reason)}{f' ({times})' if times else ''}"


def _lines(places: list[str], noun: str = "line") -> str:
    """``lines 12, 14 and model.py:3``; the lines of this file first, in order."""
    own = sorted((p for p in places if p.isdigit()), key=int)
    shown = _first([*own, *(p for p in places if not p.isdigit())], _MOST_LINES)
    word = f"{noun}{'s' if len(own) > 1 else ''} " if own and noun else ""
    return word + _listed(shown)


def _listed(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _first(texts: list[str], most: int) -> list[str]:
    """The first ones, and how many more there are."""
    return texts if len(texts) <= most else [*texts[:most], f"{len(texts) - most} more"]


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip())


def _dedent(rows: list[str]) -> list[str]:
    indent = min((_indent(row) for row in rows if row.strip()), default=0)
    return [row[indent:] for row in rows]


def _touches(view: View, graph: Graph, line: int) -> bool:
    def spans() -> Iterator[Iterable[Span]]:
        yield from (kernel.spans for kernel in graph.kernels)
        yield from (entry.spans for stage in graph.stages for entry in stage.lines)
        yield from ((d.span,) for d in graph.decisions if d.span is not None)
        yield from (step.spans for step in graph.memory)

    return any(_covers(view, found, line) for found in spans())


def _covers(view: View, spans: Iterable[Span], line: int) -> bool:
    return any(span.line <= line <= span.end_line and view.here(span) for span in spans)
