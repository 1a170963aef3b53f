"""What every editor feature is a function of: one file's last good report, and the texts it refers to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lsprotocol import types as lsp

from fuselens.history.told import Told
from fuselens.record.report import Diagnostic, FileReport, Report, RunResult, Span
from fuselens.source.discovery import Annotated, Defined

from .convert import SourceText
from .correspondence import Correspondence
from .observed import Observed
from .tracked_text import TrackedText


def _nothing() -> TrackedText:
    return TrackedText.unedited(SourceText(""))


def _no_text(_: str) -> SourceText | None:
    return None


def _no_functions() -> Sequence[Defined]:
    return ()


@dataclass(frozen=True, slots=True)
class KeptRun:
    """The outcome of the last *Run* of a function, and what the function was then: the fingerprint that a check of the same
    ``text`` finds. Until one ends, the text is kept."""

    result: RunResult
    text: str | None = None
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class SinceRevision:
    """What became of a file's functions since a revision of git, and the text that this refers to: what was saved then."""

    told: Told
    text: TrackedText

    def span(self, path: str, span: Span | None) -> Span | None:
        """A place that was told, where it is in the file ``path``."""
        if span is None or not path.replace("\\", "/").endswith("/" + span.file):
            return None
        return replace(span, file=path)


@dataclass(frozen=True, slots=True)
class View:
    """Plain data. ``report`` is the last good one; ``failures`` are set when a later check gave none."""

    uri: str
    path: str
    names: frozenset[str]  # every spelling of this file's path that spans may carry
    annotated: tuple[Annotated, ...]
    parsed: TrackedText  # the text that ``annotated`` and ``predicted`` refer to
    report: FileReport | None
    compiled: TrackedText  # the text that ``report`` refers to
    failures: tuple[Diagnostic, ...]
    failed: TrackedText  # the text that ``failures`` refer to
    compiling: bool = False
    previews: tuple[Span, ...] = ()  # the names of what a preview would look at, in ``parsed``
    previewed: bool = False  # ``annotated`` are those of a preview
    version: int | None = None  # of the text that the user sees
    predicted: Mapping[str, Sequence[Diagnostic]] = field(default_factory=dict)  # by the annotated function
    decided: tuple[Diagnostic, ...] = ()  # predictions that ``report`` has confirmed or refuted, in ``compiled``
    observed: Observed | None = None  # what the user's own last run said
    ran: TrackedText = field(default_factory=_nothing)  # the text that ``observed`` refers to
    correspondence: Correspondence = field(default_factory=Correspondence)  # of ``report``
    owners: Mapping[str, str] = field(default_factory=dict)  # of borrowed reports, by their file: the document's URI
    other_text: Callable[[str], SourceText | None] = _no_text  # the text of another file, for its columns
    definitions: Callable[[], Sequence[Defined]] = _no_functions  # all functions of ``parsed``, found when asked for
    runs: Mapping[str, KeptRun] = field(default_factory=dict)  # by the annotated function
    since: SinceRevision | None = None

    @property
    def stale(self) -> bool:
        """True when what is shown is not about the text that the user sees."""
        return self.report is not None and (bool(self.failures) or self.compiled.stale)

    @property
    def borrowed(self) -> bool:
        """True for a file without functions of its own, which functions of other open files ran: ``report`` is theirs,
        and tells of this file's lines what became of them there."""
        return bool(self.owners)

    def owner(self, report: Report) -> str:
        """The URI of the document that the report's virtual documents are addressed by."""
        return self.owners.get(report.file, self.uri)

    def reports(self, qualname: str | None = None) -> list[Report]:
        """The functions' reports, or those of one function."""
        functions = self.report.functions if self.report else []
        return [r for r in functions if qualname is None or r.function == qualname]

    def function(self, qualname: str) -> Report | None:
        return next(iter(self.reports(qualname)), None)

    def here(self, span: Span | None) -> bool:
        return span is not None and span.file in self.names

    def name_range(self, qualname: str) -> lsp.Range | None:
        """Where the function's name is now: from the source as it is, else from the report."""
        for function in self.annotated:
            if function.qualname == qualname:
                return self.parsed.anchor(function.name_span)
        report = self.function(qualname)
        if report is not None and report.span is not None and self.here(report.span):
            return self.compiled.anchor(report.span)
        return None
