"""Diagnostics: findings of the last check and of the last run at their place in the text as it is now, and predictions
for what was edited since."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.record.diagnostics import told_as_cause
from fuselens.record.report import Diagnostic, Frame, Severity, Span
from fuselens.source.discovery import import_span
from fuselens_server.features import last_run, since
from fuselens_server.features.locations import user_location
from fuselens_server.texts.document_uri import CodeDocument
from fuselens_server.texts.tracked_text import TrackedText
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer
    from fuselens_server.texts.session import Document

SEVERITY: dict[Severity, lsp.DiagnosticSeverity] = {
    "error": lsp.DiagnosticSeverity.Error,
    "warning": lsp.DiagnosticSeverity.Warning,
    "information": lsp.DiagnosticSeverity.Information,
    "hint": lsp.DiagnosticSeverity.Hint,
}
ENVIRONMENT = frozenset({"FL907", "FL911", "FL914"})  # about the interpreter: shown where the file imports the library
_ENTERED = frozenset({"FL103", "FL113", "FL118"})  # what a context manager of C breaks with, and what makes it
_LIBRARIES = ("torch", "fuselens")
_SENTENCES = re.compile(r"(?<=[.:;]) (?=[A-Z`])")
_LONGEST = 130  # characters of a message's line, where its first sentence is no longer
_MOST_LINES = 5
_MOST_RELATED = 12


NOTHING = "nothing"  # the result of a document that is open no more


def register(server: FuselensServer) -> None:
    @server.feature(
        lsp.TEXT_DOCUMENT_DIAGNOSTIC,
        lsp.DiagnosticOptions(inter_file_dependencies=True, workspace_diagnostics=True, identifier="fuselens"),
    )
    def text_document_diagnostic(
        ls: FuselensServer, params: lsp.DocumentDiagnosticParams
    ) -> lsp.RelatedFullDocumentDiagnosticReport | lsp.RelatedUnchangedDocumentDiagnosticReport:
        if (kernel := ls.kernels.get(params.text_document.uri)) is not None:
            return lsp.RelatedFullDocumentDiagnosticReport(ls.kernels.findings(kernel))
        document = ls.session.get(params.text_document.uri)
        if document is None:
            return lsp.RelatedFullDocumentDiagnosticReport([])
        found = published(ls, document)
        document.given = result_id(found)
        document.published = True
        if document.given == params.previous_result_id:
            return lsp.RelatedUnchangedDocumentDiagnosticReport(document.given)
        return lsp.RelatedFullDocumentDiagnosticReport(found, result_id=document.given)

    @server.feature(lsp.WORKSPACE_DIAGNOSTIC)
    async def workspace_diagnostic(
        ls: FuselensServer, params: lsp.WorkspaceDiagnosticParams
    ) -> lsp.WorkspaceDiagnosticReport:
        """Of the open documents. Answers a client that knows all of it when something changes, not before: clients
        ask again as soon as they have an answer."""
        known = {previous.uri: previous.value for previous in params.previous_result_ids}
        while True:
            changed = ls.publisher.changed
            parcels = [parcel for d in ls.session.documents for parcel in d.parcels(ls.session, published(ls, d))]
            items = [workspace_item(parcel, known) for parcel in parcels]
            items += closed_items({parcel.uri for parcel in parcels}, known)
            if not known or any(isinstance(i, lsp.WorkspaceFullDocumentDiagnosticReport) for i in items):
                return lsp.WorkspaceDiagnosticReport(items)
            await changed.wait()


def published(ls: FuselensServer, document: Document) -> list[lsp.Diagnostic]:
    """What the client is told of a document. One that offers no code actions has no other way to what helps."""
    hints = not ls.client("text_document.code_action")
    return ls.encode(diagnostics(ls.session.findings_view(document), hints=hints))


WorkspaceItem = lsp.WorkspaceFullDocumentDiagnosticReport | lsp.WorkspaceUnchangedDocumentDiagnosticReport


def workspace_item(parcel: lsp.PublishDiagnosticsParams, known: dict[str, str]) -> WorkspaceItem:
    result = result_id(parcel.diagnostics)
    if known.get(parcel.uri) == result:
        return lsp.WorkspaceUnchangedDocumentDiagnosticReport(parcel.uri, result, parcel.version)
    return lsp.WorkspaceFullDocumentDiagnosticReport(parcel.uri, parcel.diagnostics, parcel.version, result_id=result)


def closed_items(open_uris: set[str], known: dict[str, str]) -> list[WorkspaceItem]:
    """Takes back what the client knows of documents that are closed by now."""
    gone = [uri for uri, result in known.items() if uri not in open_uris and result != NOTHING]
    return [lsp.WorkspaceFullDocumentDiagnosticReport(uri, [], None, result_id=NOTHING) for uri in gone]


def result_id(found: Sequence[lsp.Diagnostic]) -> str:
    """Equal for equal findings at equal places."""
    return hashlib.sha256(repr(found).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding, how it is shown, and the text that its spans refer to."""

    diagnostic: Diagnostic
    shown: lsp.Diagnostic
    text: TrackedText


def diagnostics(view: View, *, hints: bool = False) -> list[lsp.Diagnostic]:
    """What to publish, with ``hints`` in the message where they are wanted there."""
    found = findings(view)
    for finding in found if hints else ():
        advice = (f"Hint: {hint}" for hint in finding.diagnostic.hints)
        finding.shown.message = "\n".join((finding.shown.message, *advice))
    return [finding.shown for finding in found]


def findings(view: View) -> list[Finding]:
    """All there is to say: what compiling found, here and in the user's own last run, then what is only predicted."""
    found = _families(view, _once(_found(view)))
    found += _of_last_run(view, found)
    return _once([*found, *_predicted(view, found)])


def _of_last_run(view: View, checked: list[Finding]) -> list[Finding]:
    """What the last run found and the check did not."""
    known = {(f.diagnostic.code, _key(f.shown.range)) for f in checked}
    here = (d for d in last_run.findings(view) if any(view.here(s) for s in (d.span, *(f.span for f in d.stack))))
    seen = _once(_file_finding(view, view.ran, d) for d in here)
    return [f for f in seen if (f.diagnostic.code, _key(f.shown.range)) not in known]


def _found(view: View) -> Iterator[Finding | None]:
    """The last check's findings. A failed check shows its own only: earlier ones may be about code that is gone."""
    if view.failures:
        yield from (_file_finding(view, view.failed, d) for d in view.failures)
    elif view.report is not None and view.borrowed:
        for report in view.report.functions:
            about = (d for d in (*report.breaks, *report.diagnostics) if view.here(d.span))
            yield from (_finding(view, d, report.function) for d in about)
    elif view.report is not None:
        yield from (_file_finding(view, view.compiled, d) for d in view.report.diagnostics)
        for report in view.report.functions:
            yield from (_finding(view, d, report.function) for d in (*report.breaks, *report.diagnostics))


def _predicted(view: View, found: list[Finding]) -> Iterator[Finding]:
    """Predictions that compiling has not decided: not those that the compiled text had already, be they right or wrong,
    nor those of a break that is shown there. After a failed check, all that the text as it is gives."""
    if view.failures and view.parsed.stale:
        return
    decided = () if view.failures else view.decided
    known = {(d.code, _key(view.compiled.range(d.span))) for d in decided if d.span is not None}
    shown = [(f.diagnostic.code, f.shown.range) for f in found]
    for function, predictions in view.predicted.items():
        for prediction in predictions:
            place = view.parsed.range(prediction.span) if prediction.span is not None else None
            if place is None or (prediction.code, _key(place)) in known:
                continue
            if not any(code == prediction.code and _overlap(place, other) for code, other in shown):
                yield _encode(view, view.parsed, prediction, place, prediction.span, function)


def _key(place: lsp.Range | None) -> tuple[int, ...] | None:
    return place and (place.start.line, place.start.character, place.end.line, place.end.character)


def _overlap(a: lsp.Range, b: lsp.Range) -> bool:
    return a.start <= b.end and b.start <= a.end


def _finding(view: View, diagnostic: Diagnostic, function: str) -> Finding | None:
    """A function's finding at its own span; when that is in another file, where this file leads to it."""
    shown = diagnostic.span
    if not view.here(shown):
        shown = next((f.span for f in reversed(diagnostic.stack) if view.here(f.span)), None)
    if shown is None or _in_header(view, shown, function):
        place = view.name_range(function) or _line(view.parsed, 1)
    else:
        found = view.compiled.range(_visible(view.compiled, shown))
        if found is None:
            return None  # the text was edited there: the next save tells
        place = found
    return _encode(view, view.compiled, diagnostic, place, shown, function)


def _in_header(view: View, span: Span, function: str) -> bool:
    """Whether ``span`` is an empty one in the function's decorators or ``def`` line: about the function as a whole."""
    if (span.line, span.column) != (span.end_line, span.end_column):
        return False
    spans = [(a.decorator_span.line, a.name_span.line) for a in view.annotated if a.qualname == function]
    return any(first <= span.line <= last for first, last in spans)


def _visible(text: TrackedText, span: Span) -> Span:
    """``span``, or what is on its line when it is empty: editors show nothing for an empty range."""
    if (span.line, span.column) != (span.end_line, span.end_column):
        return span
    content = text.origin.line(span.line)
    start = text.origin.line_start(span.line) + len(content) - len(content.lstrip())
    (line, column), (_, end) = (
        text.origin.bytes_at_offset(start),
        text.origin.bytes_at_offset(text.origin.line_start(span.line) + len(content.rstrip())),
    )
    return Span(span.file, line, column, line, end)


def _file_finding(view: View, text: TrackedText, diagnostic: Diagnostic) -> Finding | None:
    shown = diagnostic.span if view.here(diagnostic.span) else None
    if shown is None:
        shown = next((f.span for f in reversed(diagnostic.stack) if view.here(f.span)), None)
    place = text.range(_visible(text, shown)) if shown else _best_line(view, diagnostic.code)
    return _encode(view, text, diagnostic, place, shown, None) if place else None


def _best_line(view: View, code: str) -> lsp.Range:
    """Where a finding about the whole file is read best: the import it is about, else the first annotated function."""
    if code in ENVIRONMENT:
        imported = import_span(view.parsed.origin.text, view.path, _LIBRARIES)
        if imported is not None:
            return view.parsed.anchor(imported)
    if view.annotated:
        return view.parsed.anchor(view.annotated[0].name_span)
    return _line(view.parsed, 1)


def _line(text: TrackedText, number: int) -> lsp.Range:
    start = text.current.line_start(number)
    return text.current.range(start, start + len(text.current.line(number)))


def _encode(
    view: View, text: TrackedText, diagnostic: Diagnostic, place: lsp.Range, shown: Span | None, function: str | None
) -> Finding:
    encoded = lsp.Diagnostic(
        range=place,
        message=_message(diagnostic, since.added_by(view, diagnostic)),
        severity=SEVERITY.get(diagnostic.severity, lsp.DiagnosticSeverity.Warning),
        code=diagnostic.code,
        code_description=lsp.CodeDescription(str(CodeDocument(diagnostic.code))),
        source="fuselens",
        related_information=_related(view, text, diagnostic, shown) or None,
        data={"function": function, "stale": text.stale, **({"predicted": True} if diagnostic.predicted else {})},
    )
    return Finding(diagnostic, encoded, text)


def _message(diagnostic: Diagnostic, added: str) -> str:
    """The headline and the cause. What helps is an action, and stands on the code's page with all that there is to say."""
    lines = [diagnostic.message, *map(_shortened, diagnostic.explanation.split("\n")[:_MOST_LINES])]
    if diagnostic.cost:
        lines.append(f"Cost: {diagnostic.cost}.")
    if diagnostic.cause:
        lines.append(f"Follows from {diagnostic.cause}.")
    return "\n".join(line for line in (*lines, added) if line)


@lru_cache(maxsize=4096)  # with each keystroke, of all that is shown
def _shortened(text: str) -> str:
    """The first sentence, and those that follow as long as it stays short."""
    shown = ""
    for sentence in _SENTENCES.split(text):
        if shown and len(shown) + len(sentence) >= _LONGEST:
            break
        shown = f"{shown} {sentence}".strip()
    return shown


def _related(
    view: View, text: TrackedText, diagnostic: Diagnostic, shown: Span | None
) -> list[lsp.DiagnosticRelatedInformation]:
    """The user's stack, outermost first, without the frame at which the diagnostic itself is shown."""
    frames = [f for f in diagnostic.stack if f.span != shown]
    if diagnostic.span is not None and diagnostic.span != shown and all(f.span != diagnostic.span for f in frames):
        frames.append(Frame("", diagnostic.span))
    related = []
    for frame in frames:
        location = user_location(view, text, frame.span)
        if location is not None:
            what = "here" if frame.span == diagnostic.span else "called here"
            message = f"in {frame.function}: {what}" if frame.function else what
            related.append(lsp.DiagnosticRelatedInformation(location, message))
    return related


def _families(view: View, found: list[Finding]) -> list[Finding]:
    """Findings with one root cause are one, with the others in its related places: those that say what they follow from, and
    breaks at a ``with`` whose own expression breaks, because what entering and leaving it does follows from what it is."""
    found = _caused(view, found)
    statements = [f.shown.range for f in found if f.diagnostic.code == "FL113"]
    entered = [f for f in found if f.diagnostic.code in _ENTERED]
    followers: set[int] = set()
    for follower in (f for f in entered if f.shown.range in statements):
        whole = follower.shown.range
        root = next((f for f in entered if f.shown.range != whole and _holds(whole, f.shown.range)), None)
        if root is not None:
            followers.add(id(follower))
            _relate(root, lsp.DiagnosticRelatedInformation(lsp.Location(view.uri, whole), follower.diagnostic.message))
    return [f for f in found if id(f) not in followers]


def _caused(view: View, found: list[Finding]) -> list[Finding]:
    """Without those that follow from others that are shown."""
    roots = {told_as_cause(f.diagnostic): f for f in found}
    kept = []
    for finding in found:
        root, seen = finding, set[int]()
        while root.diagnostic.cause in roots and id(root) not in seen:
            seen.add(id(root))
            root = roots[root.diagnostic.cause]
        if root is finding or id(root) in seen:
            kept.append(finding)
        else:
            place = lsp.Location(view.uri, finding.shown.range)
            _relate(root, lsp.DiagnosticRelatedInformation(place, finding.diagnostic.message))
    return kept


def _relate(root: Finding, *others: lsp.DiagnosticRelatedInformation) -> None:
    known = list(root.shown.related_information or ())
    new = [related for related in others if related not in known]
    root.shown.related_information = [*known, *new][:_MOST_RELATED] or None


def _holds(outer: lsp.Range, inner: lsp.Range) -> bool:
    """Whether ``inner`` is part of ``outer``, and on its first line."""
    return outer.start.line == inner.start.line and outer.start <= inner.start and inner.end <= outer.end


def _once(found: Iterable[Finding | None]) -> list[Finding]:
    """Without repetitions: two functions that inline one helper report its break twice. One entry has the places of all."""
    out: dict[object, Finding] = {}
    for finding in found:
        if finding is not None:
            shown = finding.shown
            first = out.setdefault((shown.code, shown.message, repr(shown.range)), finding)
            if first is not finding:
                _relate(first, *(shown.related_information or ()))
    return list(out.values())
