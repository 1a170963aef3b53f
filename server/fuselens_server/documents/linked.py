"""The linked view: which lines of a file and of the stage beside it belong to each other, and to which kernel.

Lines are those of the texts that the person sees now, from 0. What an edit touched is left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fuselens.record.report import Graph, Kernel, Report, Span, Stage
from fuselens_server.client import messages
from fuselens_server.documents.stages import stage_document
from fuselens_server.features import since
from fuselens_server.features.locations import find_stage
from fuselens_server.features.summary import duration
from fuselens_server.texts.document_uri import ReportDocument
from fuselens_server.texts.tracked_text import TrackedText
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

COLOURS = 8
_FORMS = {  # what the pane can show of a graph: the first of these stages that there is
    "loops": ("order", "fuse", "lower"), "cpp": ("cpp",), "triton": ("triton",), "ttir": ("ttir",), "llvm": ("llir",),
    "ptx": ("ptx",), "sass": ("sass",), "joint": ("joint",),
}  # fmt: skip
_WHOLE = frozenset({"capture", "joint", "memory"})  # stages that have no backward of their own
_BACKWARD = ".backward"
_Rows = list[tuple[int, list[int], list[int]]]


def register(server: FuselensServer) -> None:
    @server.feature(messages.CORRESPONDENCE)
    async def correspondence(
        ls: FuselensServer, params: messages.CorrespondenceParams
    ) -> messages.CorrespondenceResult | None:
        view = ls.view(params.uri)
        shown = ls.documents.shown(params.document) if params.document else None
        if view is None:
            return None
        if shown is None or view.names.isdisjoint(shown[0].correspondence.files):
            shown = view, None  # what is beside the file is of another one
        return linked(view, *shown)


def linked(view: View, owner: View, document: ReportDocument | None) -> messages.CorrespondenceResult:
    """What belongs together in the file of ``view`` and in a ``document`` about the file of ``owner``, which ran code of
    the former. Without a document: what the file became, and where to look first."""
    lines, colours = _Lines(view), Colours(owner)
    found = find_stage(owner, document) if document else None
    shown = _shown(owner, colours, lines, *found) if found else []
    on_lines: dict[int, list[int]] = defaultdict(list)
    for report in owner.reports():
        for graph in report.graphs:
            for kernel in _by_height(graph.kernels):
                for line in lines.of(kernel.spans):
                    if (colour := colours.of(report, graph, kernel)) not in on_lines[line]:
                        on_lines[line].append(colour)
    if found is not None:  # the kernels that are shown first
        first = [colours.of(found[0], found[1], kernel) for kernel in _kernels(found[1], found[2])]
        on_lines = {line: sorted(ids, key=lambda id_: id_ not in first) for line, ids in on_lines.items()}
    documents, leads = _leads(owner, lines, document)
    source: list[tuple[int, list[int], list[int]]] = [
        (line, on_lines.get(line, []), leads.get(line, [])) for line in sorted({*on_lines, *leads})
    ]
    return messages.CorrespondenceResult(
        version=view.version,
        kernels=[messages.LinkedKernel(name=name, colour=n % COLOURS) for n, name in enumerate(colours.names)],
        source=source,
        shown=shown,
        documents=documents,
        forms=_forms(owner, document),
        breaks=sorted({line for report in view.reports() for d in report.breaks for line in lines.start(d.span)}),
        heat=_heat(view),
        since=since.lines(view),
    )


class _Lines:
    """The lines of a file where spans are now."""

    def __init__(self, view: View, text: TrackedText | None = None) -> None:
        self._view, self._text = view, text or view.compiled
        self._known: dict[Span, range] = {}

    def of_span(self, span: Span) -> range:
        found = self._known.get(span)
        if found is None:
            place = self._text.range(span) if self._view.here(span) else None
            found = self._known[span] = range(place.start.line, place.end.line + 1) if place else range(0)
        return found

    def of(self, spans: Iterable[Span]) -> list[int]:
        return sorted({line for span in set(spans) for line in self.of_span(span)})

    def start(self, span: Span | None) -> range:
        return self.of_span(span)[:1] if span else range(0)


class Colours:
    """A number for all kernels of a graph's phase that do the same lines: the layers of a model look alike."""

    def __init__(self, view: View) -> None:
        self.names: list[str] = []
        self._numbers: dict[tuple[str, int, str, frozenset[Span]], int] = {}
        for report in view.reports():
            for graph in report.graphs:
                for kernel in graph.kernels:
                    if self._numbers.setdefault(_family(report, graph, kernel), len(self.names)) == len(self.names):
                        self.names.append(kernel.name)

    def of(self, report: Report, graph: Graph, kernel: Kernel) -> int:
        return self._numbers[_family(report, graph, kernel)]


def _family(report: Report, graph: Graph, kernel: Kernel) -> tuple[str, int, str, frozenset[Span]]:
    return report.function, graph.id, kernel.phase, frozenset(kernel.spans)


def _by_height(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Those that do the least of the text first: of kernels on one line, it is theirs more than the others'."""
    return sorted(kernels, key=lambda k: sum(s.end_line - s.line + 1 for s in set(k.spans)))


def _kernels(graph: Graph, stage: Stage) -> list[Kernel]:
    """The kernels that the stage may be about."""
    phase = "backward" if stage.name.endswith(_BACKWARD) else "forward"
    return [k for k in graph.kernels if stage.name in _WHOLE or k.phase == phase]


def _shown(view: View, colours: Colours, lines: _Lines, report: Report, graph: Graph, stage: Stage) -> _Rows:
    """By line of the stage's text its kernels and its lines of the file; a kernel's lines that came from nothing else
    belong to all that the kernel does."""
    rows: _Rows = []
    kernels, spans = _kernels(graph, stage), view.correspondence.spans(stage)
    inside = enclosing(stage, kernels)
    by_span: dict[Span, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        for span in set(kernel.spans):
            by_span[span].append(kernel)
    for number in sorted({*spans, *inside}):
        own = spans.get(number, ())
        of = inside.get(number) or [kernel for span in own for kernel in by_span.get(span, ())]
        numbers = list(dict.fromkeys(colours.of(report, graph, kernel) for kernel in of))
        user = lines.of(own or (span for kernel in of for span in kernel.spans))
        if numbers or user:
            rows.append((number - 1, numbers, user))
    return rows


_HEAD = re.compile(
    r"(?://|;) (?:kernel )?(?P<comment>\w+): |@triton\.jit$|def (?P<function>\w+)\(| *kernel (?P<loops>\w+) "
)
_FUNCTION = re.compile(r"def (\w+)\(")
_CALL = re.compile(r"\b(\w+?)(?:_part)?\(")


def enclosing(stage: Stage, kernels: Iterable[Kernel]) -> dict[int, list[Kernel]]:
    """The kernels that lines of a stage's text (from 1) are in, or call, where the text says so."""
    by_name: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        by_name[kernel.name].append(kernel)
    out: dict[int, list[Kernel]] = {}
    current: list[Kernel] = []
    column = 0
    spans = {line.line for line in stage.lines}
    texts = stage.text.split("\n")
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        indent = len(text) - len(text.lstrip())
        if head := _HEAD.match(text):
            name = head["comment"] or head["function"] or head["loops"]
            if name is None:  # a decorator
                name = next((m[1] for m in map(_FUNCTION.match, texts[number : number + 8]) if m), "")
            current, column = by_name.get(name, []), indent
        elif text.startswith(("// also ", "; also ")):
            current = [*current, *(k for word in re.findall(r"\w+", text) for k in by_name.get(word, ()))]
        elif _ends(stage, text, indent, column):
            current = []
        if current:
            out[number] = current
        elif number in spans and (called := [k for m in _CALL.finditer(text) for k in by_name.get(m[1], ())]):
            out[number] = called
    return out


def _ends(stage: Stage, text: str, indent: int, column: int) -> bool:
    """Whether the line is past the kernel whose head was indented by ``column``."""
    if stage.suffix == "cpp":
        return text.startswith(("union ", "struct ", "namespace ", "// Host program"))
    return stage.suffix in ("py", "loop") and indent <= column


def _leads(view: View, lines: _Lines, document: ReportDocument | None) -> tuple[list[str], dict[int, list[int]]]:
    """By line of the file the documents, of the form that is shown, which have something of it: those of other graphs,
    too."""
    documents: list[str] = []
    leads: dict[int, list[int]] = defaultdict(list)
    for report, graph, stage in _alike(view, document):
        number = len(documents)
        documents.append(str(stage_document(view, report, graph.id, stage)))
        spans = {span for line in stage.lines for span in line.spans}
        spans |= {span for kernel in _kernels(graph, stage) for span in kernel.spans}
        for line in lines.of(spans):
            leads[line].append(number)
    return documents, leads


def _alike(view: View, document: ReportDocument | None) -> Iterator[tuple[Report, Graph, Stage]]:
    for report in view.reports():
        for graph in report.graphs:
            names = (document.name,) if document and document.graph is not None else ("cpp", "triton", "order", "fuse")
            stage = next(filter(None, map(graph.stage, names)), None)
            if stage is not None:
                yield report, graph, stage


def _forms(view: View, document: ReportDocument | None) -> dict[str, str]:
    """The other documents that the place of ``document`` may show, by what a person calls them."""
    report = view.function(document.qualname) if document else None
    if document is None or report is None or not report.graphs:
        return {}
    graph = next((g for g in report.graphs if g.id == document.graph), report.graphs[0])
    end = _BACKWARD if document.name.endswith(_BACKWARD) else ""
    out = {}
    for form, names in _FORMS.items():
        stages = (graph.stage(name + (end if name not in _WHOLE else "")) for name in names)
        if stage := next(filter(None, stages), None):
            out[form] = str(stage_document(view, report, graph.id, stage))
    out["guards"] = str(ReportDocument(view.owner(report), report.function, "guards", "txt"))
    name = document.name.removesuffix(_BACKWARD)
    if document.graph is not None and (other := graph.stage(name if end else name + _BACKWARD)):
        out["forward" if end else "backward"] = str(stage_document(view, report, graph.id, other))
    return out


def _heat(view: View) -> list[messages.Heat]:
    """Where the last run of the user's own spent its time, as far as its kernels were timed, and where it compiled again. Where none
    was timed, it is the time of *Run*."""
    lines = _Lines(view, view.ran)
    seconds: dict[int, float] = defaultdict(float)
    again: dict[int, int] = defaultdict(int)
    total = 0.0
    for function in view.observed.functions.values() if view.observed else ():
        for kernel in function.kernels().values():
            total += kernel.seconds
            for line in lines.of(kernel.spans):
                seconds[line] += kernel.seconds
        for finding in function.findings.values():
            for line in lines.start(finding.diagnostic.span) if finding.diagnostic.code == "FL201" else ():
                again[line] += finding.count
    if not total:
        lines = _Lines(view)
        for kernel in (k for kept in view.runs.values() for k in kept.result.kernels if k.seconds and not k.trains):
            total += kernel.seconds or 0.0
            for line in lines.of(kernel.spans):
                seconds[line] += kernel.seconds or 0.0
    return [
        messages.Heat(
            line=line,
            share=round(seconds[line] / total, 4) if total else 0.0,
            seconds=duration(seconds[line]) if seconds[line] else "",
            recompiles=again[line],
        )
        for line in sorted({*seconds, *again})
    ]
