"""What is shown of the changes that were tried: a lens, code actions, a document, and the list that a person chooses from."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from lsprotocol import types as lsp

from fuselens.record.printed import tried
from fuselens.record.report import Fix, Report, TriedChange, WhatIf
from fuselens.source import fixes
from fuselens.system import source_text
from fuselens_server.client.messages import Actions
from fuselens_server.texts.document_uri import ReportDocument
from fuselens_server.texts.view import View

DOCUMENT = "what-if"


def address(view: View, report: Report) -> str:
    return str(ReportDocument(view.owner(report), report.function, DOCUMENT, "txt"))


def lens(view: View, report: Report, found: WhatIf, actions: Actions) -> lsp.Command | None:
    """``3 changes gain up to 31 %``; none where no change does."""
    if not any(change.edits for change in found.offered):
        return None
    title = tried.headline(found) + (" · stale" if view.stale else "")
    tooltip = "\n".join(tried.title(change) for change in found.offered)
    if actions.what_if:
        return lsp.Command(title, actions.what_if, tooltip=tooltip, arguments=[view.uri, report.function])
    arguments = [view.uri, report.function, address(view, report)]
    return lsp.Command(title, actions.open_document, tooltip=tooltip, arguments=arguments)


def applicable(view: View, report: Report) -> list[TriedChange]:
    """The changes that can be made now, numbered from 0: the text is the one that was measured, but for what moved."""
    if report.what_if is None or view.stale:
        return []
    return [change for change in report.what_if.offered if change.edits]


def fix_of(change: TriedChange) -> Fix:
    return Fix(f"What if: {tried.title(change)}", change.edits, verified=True)


def at(view: View, selected: lsp.Range) -> Iterator[Fix]:
    """The changes of what is selected: of its lines, and on a function's name or decorator all of the function's."""
    for function in view.annotated:
        report = view.function(function.qualname)
        if report is None:
            continue
        heads = (view.parsed.anchor(span) for span in (function.name_span, function.decorator_span))
        on_head = any(_lines_touch(head, selected) for head in heads)
        for change in applicable(view, report):
            place = view.compiled.range(change.span) if change.span is not None and view.here(change.span) else None
            if on_head or (place is not None and _lines_touch(place, selected)):
                yield fix_of(change)


def _lines_touch(one: lsp.Range, other: lsp.Range) -> bool:
    return one.start.line <= other.end.line and other.start.line <= one.end.line


def text(report: Report, source: str) -> str:
    """The document: all that was tried, and what each change that is offered would write."""
    found = report.what_if
    if found is None:
        return f"Nothing was tried of {report.function} yet.\n"
    out = [f"{report.function}: what if", "", *tried.lines(found, report.file)]
    for number, change in enumerate((c for c in found.offered if c.edits), start=1):
        out += ["", f"{number}. {tried.title(change)}", ""]
        out += [f"    {line}" for line in _difference(source, fixes.applied(source, change.edits))]
    out += ["", f"Repeat it: fuselens what-if {report.file}::{report.function} --seconds {found.budget:g}"]
    return "\n".join(out) + "\n"


def _difference(before: str, after: str) -> Iterator[str]:
    """The lines that differ, with the line before and after them."""
    old, new = source_text.lines(before), source_text.lines(after)
    for line in difflib.unified_diff(old, new, n=1, lineterm=""):
        if not line.startswith(("---", "+++")):
            yield line


def listed(view: View, report: Report) -> dict[str, Any]:
    """What an editor offers a person to choose from."""
    found = report.what_if
    assert found is not None
    return {
        "headline": tried.headline(found) or f"nothing is known: {found.stopped or 'there was no time'}",
        "document": address(view, report),
        "offered": [_item(change, report) for change in applicable(view, report)],
    }


def _item(change: TriedChange, report: Report) -> dict[str, str]:
    place = change.span.place(report.file) if change.span is not None else ""
    detail = "; ".join(filter(None, (place, tried.differs(change))))
    return {"title": change.title, "gain": tried.gain(change), "detail": detail}
