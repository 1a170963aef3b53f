"""The state of the open documents: their text, and the last good results with the edits made since."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from urllib.parse import unquote

from lsprotocol import types as lsp
from pygls import uris

from fuselens.record import diagnostics
from fuselens.record.report import Diagnostic, FileReport, Report, RunResult, Span
from fuselens.source.discovery import Annotated, Defined, SourceModule
from fuselens.source.edited import EditedModule
from fuselens.source.predictions import not_executed, predict
from fuselens.system import source_text

from ..work.turns import Urgency
from .convert import Encoding, SourceText
from .correspondence import Correspondence
from .observed import Observed
from .rebase import rebased
from .tracked_text import Edit, TrackedText, changed, whole_change
from .view import KeptRun, SinceRevision, View

Predictions = Mapping[str, Sequence[Diagnostic]]  # by the annotated function
_OF_KERNELS = ("FL3", "FL4", "FL5")  # codes of what is found after capture
_COMPILED_NOTHING = frozenset({"FL901", "FL908", "FL912", "FL913", "FL923"})
_MAY_COMPILE = re.compile(r"compile|fuselens|torch")  # by a function of another file, too
_MENTIONS = re.compile(r"fuselens|torch\s*\.\s*compile|from\s+torch\s+import")
LARGEST_OTHER_FILE = 4 * 1024 * 1024  # bytes; larger files are not read for the columns of related information


@dataclass(frozen=True, slots=True)
class Parsed:
    """The annotated functions and their likely breaks, and the text in which they were found."""

    functions: tuple[Annotated, ...]
    predicted: Predictions
    text: TrackedText
    previews: tuple[Span, ...] = ()  # the names of what a preview would look at
    definitions: Callable[[], Sequence[Defined]] = tuple  # all functions, annotated or not


@dataclass(frozen=True, slots=True)
class Checked:
    """A report, and the text that it is about. ``decided``: the predictions of that text that compiling has confirmed
    or refuted."""

    report: FileReport
    text: TrackedText
    correspondence: Correspondence
    decided: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run of the user's own said about the file, and the text that it ran."""

    observed: Observed
    text: TrackedText


@dataclass(frozen=True, slots=True)
class Failed:
    """Why the last check gave no report, and the text it was about."""

    findings: tuple[Diagnostic, ...]
    text: TrackedText


class Document:
    """One open file. Every text that results refer to is tracked through :meth:`change`."""

    def __init__(self, uri: str, path: str, version: int | None, text: SourceText) -> None:
        self.uri = uri
        self.path = path
        self.version = version
        self.text = text
        self.parsed = Parsed((), {}, TrackedText.unedited(text))
        self.checked: Checked | None = None
        self.runs: dict[str, KeptRun] = {}  # of the *Run* lens, by the function
        self.previous: Checked | None = None  # the last good outcome about another text, for who compares
        self.failed: Failed | None = None
        self.ran: Ran | None = None
        self.checking: TrackedText | None = None  # the text of the check in flight
        self.early: FileReport | None = None  # what that check has found so far
        self.offered: dict[str, Report] = {}  # to that check: reports that hold if their functions did not change
        self.cold: set[str] = set()  # functions whose code for the user's own run was not built since they changed
        self.on_disk = TrackedText.unedited(text)  # the text that other files' checks ran, as far as is known
        self.published = False  # the client was told about this file
        self.given = ""  # the result that the client has
        self.heard: set[tuple[str, str, str]] = set()  # runs that recorded a function, each checked for once
        self.since: SinceRevision | None = None  # what became of it since a revision
        self.compared_with = ""  # the revision that somebody asked for; "" for none
        self.preview = False  # looked at as if it compiled its modules
        self._parsed_version: object = None
        self._edited: EditedModule | None = None  # of the text that was last parsed, where that is parsed by pieces
        self._of_kernels: dict[str, list[Diagnostic]] = {}  # by function: what the last check found after capture
        self._foretold: Predictions = {}  # of the text of the check in flight

    def change(self, changes: list[lsp.TextDocumentContentChangeEvent], version: int | None) -> None:
        for change in changes:
            text, edit = changed(self.text, change)
            self._apply(edit, text)
        self.version = version

    def _apply(self, edit: Edit, text: SourceText) -> None:
        self.text = text
        self.on_disk = self.on_disk.after(edit, text)
        self.parsed = replace(self.parsed, text=self.parsed.text.after(edit, text))
        if self.checked:
            self.checked = replace(self.checked, text=self.checked.text.after(edit, text))
        if self.failed:
            self.failed = Failed(self.failed.findings, self.failed.text.after(edit, text))
        if self.checking:
            self.checking = self.checking.after(edit, text)
        if self.ran:
            self.ran = Ran(self.ran.observed, self.ran.text.after(edit, text))
        if self.since:
            self.since = replace(self.since, text=self.since.text.after(edit, text))

    def observe(self, observed: Observed) -> None:
        """Takes what a run says. It runs what is on disk when it is first heard of."""
        if self.ran is None or self.ran.observed is not observed:
            ran, shown = disk_text(self.path), self.text
            text = TrackedText.unedited(shown)
            if ran is not None and ran != shown.text:
                origin = TrackedText.unedited(SourceText(ran, shown.encoding))
                text = origin.after(whole_change(ran, shown.text), shown)
            self.ran = Ran(observed, text)

    @property
    def options(self) -> dict[str, bool]:
        """What requests about it say beside the settings."""
        return {"preview": True} if self.preview else {}

    def run_text(self) -> str | None:
        """The text that a *Run* takes now, as far as it can be read."""
        return disk_text(self.path) if self.source is None else self.source

    def ran_function(self, result: RunResult, text: str | None) -> None:
        """Keeps the outcome of a *Run* of a function in ``text``."""
        self.runs[result.function] = KeptRun(result, text)
        if self.checking is None:
            self._recognise_runs()

    def _recognise_runs(self) -> None:
        """Notes what the functions were that ran, where the last check was of the text that ran."""
        checked = self.checked
        for report in checked.report.functions if checked else ():
            kept = self.runs.get(report.function)
            if kept and kept.text is not None and checked and same_text(kept.text, checked.text.origin.text):
                self.runs[report.function] = KeptRun(kept.result, None, report.fingerprint)

    def last_run(self) -> Ran | None:
        """What a run said, about a text from which edits lead to the one that is shown."""
        return self.ran

    def saved(self) -> None:
        self.on_disk = TrackedText.unedited(self.text)

    @property
    def source(self) -> str | None:
        """The module's text where the file is something else."""
        return None

    def matches(self, on_disk: str) -> bool:
        """Whether the file, whose content is ``on_disk``, has what is shown."""
        return same_text(on_disk, self.text.text)

    def parcels(self, session: Session, found: list[lsp.Diagnostic]) -> list[lsp.PublishDiagnosticsParams]:
        """Diagnostics by the URI under which the client shows them."""
        return [lsp.PublishDiagnosticsParams(self.uri, found, self.version)]

    def parse(self) -> Diagnostic | None:
        """Finds the annotated functions in the text as it is. On a syntax error the ones found before stay, at their
        shifted places, and the FL902 for it is returned (None when the file is no business of ours)."""
        self._parsed_version, self._edited = self.text, None
        ours = self.parsed.functions or self.checked
        if not ours and not _MAY_COMPILE.search(self.text.text):
            self.parsed = Parsed((), {}, TrackedText.unedited(self.text))
            return None
        try:
            self.parsed = self._found()
        except SyntaxError as error:
            ours = ours or _MENTIONS.search(self.text.text)
            return _syntax_diagnostic(self, error) if ours else None
        return None

    def _found(self) -> Parsed:
        text = TrackedText.unedited(self.text)
        if not self.preview:
            edited = EditedModule(self.text.text, self.path)
            if edited.shown.annotated:  # else what a preview would look at depends on the whole
                self._edited = edited
                return Parsed(edited.shown.annotated, edited.shown.predicted, text, definitions=self._definitions())
        module = SourceModule(self.text.text, self.path, self.preview)
        return Parsed(
            tuple(module.annotated), predict(module), text, tuple(module.previews()), cache(module.all_functions)
        )

    def _parse_edit(self) -> None:
        """Like :meth:`parse`, after edits: by the pieces that changed."""
        if self._edited is None:
            self.parse()
            return
        self._parsed_version = self.text
        with contextlib.suppress(SyntaxError):
            shown = self._edited.update(self.text.text)
            if not shown.annotated:
                self.parse()
                return
            text = TrackedText.unedited(self.text)
            self.parsed = Parsed(shown.annotated, shown.predicted, text, definitions=self._definitions())

    def _definitions(self) -> Callable[[], Sequence[Defined]]:
        """All functions of the text as it is now, found when somebody asks."""
        text, path, preview = self.text.text, self.path, self.preview
        return cache(lambda: SourceModule(text, path, preview).all_functions())

    def previews(self) -> tuple[Span, ...]:
        """What a preview of the text as it is would look at."""
        self.annotated()
        return self.parsed.previews

    def annotated(self) -> tuple[Annotated, ...]:
        """The annotated functions of the text as it is, as far as it parses; found once per version."""
        if self._parsed_version is not self.text:
            self._parse_edit()
        return self.parsed.functions

    @property
    def names(self) -> frozenset[str]:
        """Every spelling of this file's path that spans may carry."""
        checked = {self.checked.report.file} if self.checked else set()
        return frozenset({self.path, _real_path(self.path)} | checked)

    def begin(self) -> None:
        self.checking, self.early = TrackedText.unedited(self.text), None
        self.annotated()
        self._foretold = self.parsed.predicted
        checked = self.checked
        reports = checked.report.functions if checked else []
        moved = (
            next((m for part in _parts(r) if (m := rebased(part, checked.text, self.names)) is not None), None)
            for r in reports
            if checked and r.fingerprint
        )
        self.offered = {r.function: r for r in moved if r is not None}
        self._of_kernels = {
            r.function: [
                moved for d in r.diagnostics if checked and d.code.startswith(_OF_KERNELS)
                if (moved := rebased(d, checked.text, self.names)) is not None
            ] for r in reports
        }  # fmt: skip

    def found_early(self, report: FileReport) -> None:
        """Takes what a check says before it knows the kernels: what it will say of those is taken to be as before."""
        unchanged = {r.function for r in report.functions if r.unchanged}
        report.functions = self._whole(report.functions)
        for r in report.functions:
            if r.function not in unchanged:
                r.diagnostics += self._of_kernels.get(r.function, ())
        self.early = report

    def finish(self, report: FileReport) -> None:
        """Takes a check's outcome. A report without functions but with errors is a failure: the last good one stays."""
        text, self.checking, self.early = self.checking or TrackedText.unedited(self.text), None, None
        self.cold = {r.function for r in report.functions if r.graphs or (r.unchanged and r.function in self.cold)}
        report.functions = self._whole(report.functions)
        errors = tuple(d for d in report.diagnostics if d.severity == "error")
        if errors and not report.functions:
            self.failed = Failed(errors, text)
        else:
            decided = self.decided(report)
            if self.checked is not None and self.checked.text.origin.text != text.origin.text:
                self.previous = self.checked
            self.checked, self.failed = Checked(report, text, Correspondence(report), decided), None
            self._recognise_runs()

    def _whole(self, reports: list[Report]) -> list[Report]:
        """With the offered reports in place of those that are unchanged, whose inputs may come from elsewhere now."""
        found: list[Report] = []
        for r in reports:
            old = self.offered.get(r.function, r) if r.unchanged else r
            if old is not r and r.inputs is not None and r.inputs != old.inputs:
                others = [d for d in old.diagnostics if d.code != "FL921"]
                old = replace(old, inputs=r.inputs, diagnostics=[*others, *r.diagnostics])
            found.append(old)
        return found

    def decided(self, report: FileReport) -> tuple[Diagnostic, ...]:
        """The predictions of the checked text that ``report`` confirms or refutes."""
        ran = [r.function for r in report.functions if _COMPILED_NOTHING.isdisjoint(d.code for d in r.diagnostics)]
        return tuple(d for name in ran for d in self._foretold.get(name, ()))

    def warmed(self, functions: Iterable[str], failures: Iterable[Report] = ()) -> bool:
        """Takes what building ``functions`` gave. True when there is something new to show."""
        self.cold.difference_update(functions)
        reports = {r.function: r for r in self.checked.report.functions} if self.checked else {}
        news = False
        for failure in failures:
            if report := reports.get(failure.function):
                new = [d for d in failure.diagnostics if d not in report.diagnostics]
                report.diagnostics += new
                report.fingerprint = ""  # another check may find that it can be built
                news |= bool(new)
        return news

    def may_take_inputs(self, path: str, program: str) -> bool:
        """Whether the last check did not know what to call something with, or assumed it, and a run of ``program`` that has
        recorded a function of the file ``path`` may tell."""
        if self.checked is None:
            return False
        report = self.checked.report
        lacks = any(d.code in ("FL901", "FL921") for r in report.functions for d in r.diagnostics)
        names = {_real_path(self.path), *map(_real_path, report.imports)}
        return lacks and (_real_path(path) in names or Path(program).name == Path(self.path).name)

    def fail(self, finding: Diagnostic) -> None:
        text, self.checking, self.early = self.checking or TrackedText.unedited(self.text), None, None
        self.failed = Failed((finding,), text)

    def not_executed(self) -> None:
        """Takes that nothing of the file may be executed: what there is to say comes from its text, and from runs."""
        text = self.checking.origin if self.checking else self.text
        self.finish(FileReport(self.path, not_executed(SourceModule(text.text, self.path, self.preview))))

    def clear(self) -> None:
        """Forgets all results: the file has no annotated functions any more."""
        self.checked = self.previous = self.failed = self.checking = self.early = None


def _parts(report: Report) -> Iterator[Report]:
    """The report, and what is left of it without what an edit elsewhere in the file may touch."""
    yield report
    yield replace(report, what_if=None)
    yield replace(report.without_foreseen, what_if=None)


class Session:
    """The open documents, by URI. URIs are compared decoded, because clients encode them in different ways."""

    def __init__(self) -> None:
        self.encoding: Encoding = "utf-16"
        self.focus: str | None = None  # the URI, decoded, of the file that the person works on
        self._documents: dict[str, Document] = {}
        self._parts: dict[str, Document] = {}  # the notebook of each cell

    def urgency(self, document: Document) -> Urgency:
        return Urgency.FOCUSED if self.focus == unquote(document.uri) else Urgency.OPEN

    def importers(self, path: str) -> list[Document]:
        """The open documents whose check ran the file ``path``."""
        real = _real_path(path)
        return [
            d for d in self._documents.values()
            if d.checked and any(_real_path(other) == real for other in d.checked.report.imports)
        ]  # fmt: skip

    @property
    def documents(self) -> list[Document]:
        return list(self._documents.values())

    def of_path(self, path: str) -> list[Document]:
        """The open documents of a file, which may have several names."""
        real = _real_path(path)
        return [d for d in self._documents.values() if _real_path(d.path) == real]

    def open(self, uri: str, version: int | None, text: str) -> Document | None:
        """A new document; None when it is not a file (there is nothing to compile from)."""
        path = uris.to_fs_path(uri) if uri.startswith("file:") else None
        if not path:
            return None
        return self.add(Document(uri, path, version, SourceText(text, self.encoding)))

    def add(self, document: Document, parts: Iterable[str] = ()) -> Document:
        """An open document, which the URIs ``parts`` are parts of."""
        self._documents[unquote(document.uri)] = document
        self._parts = {uri: whole for uri, whole in self._parts.items() if whole is not document}
        self._parts |= {unquote(uri): document for uri in parts}
        return document

    def get(self, uri: str) -> Document | None:
        """The document, or the notebook that ``uri`` is a cell of."""
        return self._documents.get(unquote(uri)) or self._parts.get(unquote(uri))

    def close(self, uri: str) -> Document | None:
        document = self._documents.pop(unquote(uri), None)
        self._parts = {uri: whole for uri, whole in self._parts.items() if whole is not document}
        return document

    def is_open(self, document: Document) -> bool:
        return self.get(document.uri) is document

    def view(self, document: Document) -> View:
        functions = document.annotated()
        checked, failed = document.checked, document.failed
        untouched, ran = TrackedText.unedited(document.text), document.last_run()
        view = View(
            uri=document.uri,
            path=document.path,
            names=document.names,
            annotated=functions,
            predicted=document.parsed.predicted,
            parsed=document.parsed.text,
            report=checked.report if checked else None,
            compiled=checked.text if checked else untouched,
            decided=checked.decided if checked else (),
            failures=failed.findings if failed else (),
            failed=failed.text if failed else untouched,
            compiling=document.checking is not None,
            previews=document.parsed.previews,
            previewed=document.preview,
            version=document.version,
            observed=ran.observed if ran else None,
            ran=ran.text if ran else untouched,
            correspondence=checked.correspondence if checked else Correspondence(),
            other_text=lru_cache(self._other_text),
            definitions=document.parsed.definitions,
            runs=document.runs,
            since=document.since,
        )
        return view if functions or checked else self._borrowed(document, view)

    def findings_view(self, document: Document) -> View:
        """:meth:`view`, for those who show findings only: what the check in flight has found so far goes before the last
        good report."""
        view = self.view(document)
        if document.early is None or document.checking is None:
            return view
        decided = document.decided(document.early)
        return replace(view, report=document.early, compiled=document.checking, decided=decided, failures=())

    def _borrowed(self, document: Document, view: View) -> View:
        """With what is known of a file that functions of other open files ran, say a model's under a training script's."""
        lenders = [(d.uri, d.checked) for d in self._documents.values() if d is not document and d.checked]
        lenders = [(uri, c) for uri, c in lenders if not c.correspondence.files.isdisjoint(document.names)]
        if not lenders:
            return view
        return replace(
            view,
            report=FileReport(document.path, [r for _, checked in lenders for r in checked.report.functions]),
            compiled=document.on_disk,
            correspondence=Correspondence(joined=[checked.correspondence for _, checked in lenders]),
            owners={r.file: uri for uri, checked in lenders for r in checked.report.functions},
        )

    def _other_text(self, path: str) -> SourceText | None:
        for document in self._documents.values():
            if document.path == path:
                return document.text
        text = disk_text(path)
        return None if text is None else SourceText(text, self.encoding)


def same_text(disk: str, shown: str) -> bool:
    """Editors hide the byte order mark and may show other line ends than they keep."""

    def plain(text: str) -> str:
        return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")

    return disk == shown or plain(disk) == plain(shown)


def disk_text(path: str) -> str | None:
    """The file's text, decoded as Python would and with its line ends; None when it cannot be read."""
    try:
        return source_text.decode(source_text.read_bytes(path, LARGEST_OTHER_FILE))
    except (OSError, SyntaxError, ValueError, LookupError):
        return None


@lru_cache(maxsize=256)
def _real_path(path: str) -> str:
    return str(Path(path).resolve())


def _syntax_diagnostic(document: Document, error: SyntaxError) -> Diagnostic:
    """FL902 where the parser stopped. A SyntaxError counts lines and *characters* from 1 and may lack its end."""
    text = document.text
    line = min(max(error.lineno or 1, 1), text.line_count)
    start = text.line_start(line) + min(max((error.offset or 1) - 1, 0), len(text.line(line)))
    end = start
    if error.end_lineno and error.end_offset and error.end_offset > 0:
        last = min(error.end_lineno, text.line_count)
        end = text.line_start(last) + min(error.end_offset - 1, len(text.line(last)))
    if end <= start:  # a caret: show the character there, or the last one of the line; for indentation, the statement
        content_end = text.line_start(line) + len(text.line(line).rstrip())
        start = max(min(start, content_end - 1), text.line_start(line))
        end = min(start + 1, content_end)
        while start < content_end - 1 and text.text[start].isspace():
            start, end = start + 1, content_end
    (first, column), (last, end_column) = text.bytes_at_offset(start), text.bytes_at_offset(end)
    span = Span(document.path, first, column, last, end_column)
    return diagnostics.make("FL902", span, why=error.msg or "invalid syntax")
