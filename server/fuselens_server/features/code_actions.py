"""Code actions: fixes of findings, their codes' pages, and the kernel or the summary of what is at the cursor."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.patches import records
from fuselens.record import diagnostics
from fuselens.record.report import Diagnostic, Fix
from fuselens.source import fixes
from fuselens.source.discovery import Annotated
from fuselens_server.client import messages
from fuselens_server.client.messages import SERVER_ACTIONS, Actions
from fuselens_server.features import navigation
from fuselens_server.features.diagnostics import Finding, findings
from fuselens_server.texts.document_uri import CodeDocument, ReportDocument
from fuselens_server.texts.tracked_text import TrackedText
from fuselens_server.texts.view import View
from fuselens_server.what_if import shown as what_if

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

OPEN = "fuselens.open"  # the kind of actions that show something
FIX_ALL = f"{lsp.CodeActionKind.SourceFixAll.value}.fuselens"
FIX_ALL_TITLE = "Fix all graph breaks that have a verified fix"
_LONGEST_REASON = 60
_CODE = re.compile(r"\bFL\d+\b")
_FIXED_SIZE = re.compile(r"^[^\[]*\[(?:[^\]]*\W)?(?!0\b|1\b)\d+\b")  # sizes 0 and 1 are never symbolic
_ANY_SIZE = "Compile for any size: dynamic=True (if it agrees with eager)"
REWRITE = lsp.CodeActionKind.RefactorRewrite.value
_QUICK_FIX = lsp.CodeActionKind.QuickFix.value


def register(server: FuselensServer) -> None:
    kinds = [lsp.CodeActionKind.QuickFix, lsp.CodeActionKind.RefactorRewrite, FIX_ALL, OPEN]

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=kinds))
    def text_document_code_action(
        ls: FuselensServer, params: lsp.CodeActionParams
    ) -> list[lsp.CodeAction | lsp.Command]:
        view = ls.view(params.text_document.uri)
        if view is None:
            return []
        versioned = takes_versions(ls)
        found = list(code_actions(view, params.range, params.context, ls.settings.actions, versioned=versioned))
        if ls.client("text_document.code_action.code_action_literal_support"):
            return list(found)
        return [action.command for action in found if action.command]  # as before LSP 3.8


def takes_versions(ls: FuselensServer) -> bool:
    """Whether the client takes edits of a document's version."""
    return ls.client("workspace.workspace_edit.document_changes")


def code_actions(
    view: View,
    selected: lsp.Range,
    context: lsp.CodeActionContext,
    actions: Actions = SERVER_ACTIONS,
    *,
    versioned: bool = True,
) -> Iterator[lsp.CodeAction]:
    """What can be done about ``selected``. What only shows something is offered to those who asked: with every
    compiled line lit by a bulb, a bulb would mean nothing."""
    here = [found for found in findings(view) if _touches(found.shown.range, selected)]
    if _wanted(context, _QUICK_FIX):
        for found in here:
            yield from _fixes(view, found, versioned=versioned)
        for code in dict.fromkeys(found.diagnostic.code for found in here):
            about = [found.shown for found in here if found.diagnostic.code == code]
            yield _open(view, f"Explain {code}", str(CodeDocument(code)), actions, kind=_QUICK_FIX, about=about)
            if code in _WANT_INPUTS and actions.record_run and view.uri.endswith(".py") and not view.previewed:
                command = lsp.Command(_RECORD, actions.record_run, arguments=[view.uri])
                yield lsp.CodeAction(_RECORD, _QUICK_FIX, about, command=command)
    if _wanted(context, FIX_ALL) and context.only:
        edit = fix_all(view, versioned=versioned)
        if edit is not None:
            yield lsp.CodeAction(FIX_ALL_TITLE, FIX_ALL, edit=edit)
    if _wanted(context, REWRITE) and context.trigger_kind != lsp.CodeActionTriggerKind.Automatic:
        yield from _any_size(view, selected.start)
        for fix in what_if.at(view, selected):
            if edits := text_edits(view, view.compiled, fix):
                yield lsp.CodeAction(fix.title, REWRITE, edit=workspace_edit(view, edits, versioned=versioned))
    if _wanted(context, OPEN) and context.trigger_kind != lsp.CodeActionTriggerKind.Automatic:
        yield from _documents(view, selected.start, actions)


_WANT_INPUTS = ("FL901", "FL921")  # nobody says what they are
_RECORD = "Run the program in a terminal, and record what it calls it with"


def _wanted(context: lsp.CodeActionContext, kind: str) -> bool:
    """Kinds are hierarchical: who asks for ``source`` gets ``source.fixAll.fuselens``."""
    wanted = [str(getattr(only, "value", only)) for only in context.only or [""]]
    return any(not only or kind == only or kind.startswith(only + ".") for only in wanted)


# --- fixes -----------------------------------------------------------------------------------------------------------


def _fixes(view: View, found: Finding, *, versioned: bool) -> Iterator[lsp.CodeAction]:
    """Fixes that were tried out come first, and the first of those is preferred; others say that they are not verified."""
    preferred = True
    for fix in sorted(_offered(view, found), key=lambda fix: not fix.verified):
        if fix.library:
            yield from _patching(view, found, fix)
            continue
        edits = text_edits(view, found.text, fix)
        if edits:
            title = fix.title if fix.verified else f"{fix.title} ({_unverified(fix)})"
            edit = workspace_edit(view, edits, versioned=versioned)
            first = fix.verified and preferred
            preferred = preferred and not first
            yield lsp.CodeAction(title, _QUICK_FIX, [found.shown], is_preferred=first or None, edit=edit)


def _patching(view: View, found: Finding, fix: Fix) -> Iterator[lsp.CodeAction]:
    """A fix of a library is kept as a patch of the project, once it was verified."""
    if not fix.patch:
        return
    patch = records.read(fix.patch)
    title = f"Patch {patch.distribution} {patch.version}: {fix.title} (verified)"
    command = lsp.Command(title, messages.PATCH_LIBRARY, arguments=[view.uri, records.hash_of(fix.patch)])
    yield lsp.CodeAction(title, _QUICK_FIX, [found.shown], is_preferred=True, command=command)


def _unverified(fix: Fix) -> str:
    """Why it is not verified, where that is short and says something in a menu: a finding that it leaves does not."""
    if not fix.trial:
        return "not tried out"
    told = len(fix.trial) <= _LONGEST_REASON and not _CODE.search(fix.trial)
    return f"not verified: {fix.trial}" if told else "not verified"


def _offered(view: View, found: Finding) -> Sequence[Fix]:
    """Those that came with the finding; for one that no check of this file made, what the text suggests."""
    finding = found.diagnostic
    if finding.code == "FL921":
        return tuple(_examples(view, found))
    if finding.span is None or finding.fixes or not (finding.predicted or view.borrowed or found.text is view.ran):
        return finding.fixes
    source = _source(found.text.origin.text, finding.span.file)
    return fixes.propose(source, finding) if source else ()


def _examples(view: View, found: Finding) -> Iterator[Fix]:
    """The assumed inputs, written down. They are not tried out: the check has called the function with such."""
    for report in view.reports():
        if report.inputs is not None and found.diagnostic in report.diagnostics and found.diagnostic.span is not None:
            source = _source(found.text.origin.text, found.diagnostic.span.file)
            yield from fixes.example_fixes(source, report.function, report.inputs) if source else ()


@lru_cache(maxsize=4)
def _source(text: str, path: str) -> fixes.Source | None:
    try:
        return fixes.Source(text, path)
    except (SyntaxError, RecursionError):
        return None


def fix_all(view: View, *, versioned: bool) -> lsp.WorkspaceEdit | None:
    """The fixes of each function that were tried out together: all of them, or none where one would touch another
    function's, or its text was edited."""
    chosen: list[lsp.TextEdit] = []
    for report in view.report.functions if view.report is not None and not view.failures else ():
        together = [fix for d in (*report.breaks, *report.diagnostics) for fix in d.fixes if fix.together]
        found = [text_edits(view, view.compiled, fix) for fix in together]
        edits = [edit for edits in found for edit in edits]
        fits = not any(new != old and _touches(new.range, old.range) for new in edits for old in chosen)
        if fits and all(found):
            chosen += [edit for k, edit in enumerate(edits) if edit not in (*chosen, *edits[:k])]
    return workspace_edit(view, chosen, versioned=versioned) if chosen else None


def text_edits(view: View, text: TrackedText, fix: Fix) -> list[lsp.TextEdit]:
    """The edits where their places are now; none when the text of any was edited, or when it is not this file's."""
    places = [text.range(edit.span) if view.here(edit.span) else None for edit in fix.edits]
    return [
        lsp.TextEdit(place, edit.replacement)
        for place, edit in zip(places, fix.edits, strict=True)
        if place is not None and None not in places
    ]


def workspace_edit(view: View, edits: Sequence[lsp.TextEdit], *, versioned: bool) -> lsp.WorkspaceEdit:
    """With the version where the client knows it, so that an edit of a text that changed since is refused."""
    if not versioned:
        return lsp.WorkspaceEdit(changes={view.uri: list(edits)})
    identifier = lsp.OptionalVersionedTextDocumentIdentifier(view.uri, view.version)
    return lsp.WorkspaceEdit(document_changes=[lsp.TextDocumentEdit(identifier, list(edits))])


# --- sizes -----------------------------------------------------------------------------------------------------------


def for_any_size(view: View, function: Annotated, parameter: str = "") -> Diagnostic | None:
    """A finding whose fix compiles the function for any size; None where no size (of ``parameter``) is fixed, or nothing in
    this file can be changed to that end."""
    report = view.function(function.qualname)
    if report is None or report.span is None or not view.here(report.span) or "dynamic" in function.arguments:
        return None
    fixed = [g for g in report.guards if g.kind == "TENSOR" and (g.source == parameter or not parameter)]
    if not any(_FIXED_SIZE.search(guard.expression) for guard in fixed):
        return None
    source = _source(view.compiled.origin.text, report.span.file)
    finding = diagnostics.make("FL202", report.span, what=f"`{function.qualname}`", count="several")
    proposed = fixes.propose(source, finding) if source else ()
    return dataclasses.replace(finding, fixes=proposed) if proposed else None


def _any_size(view: View, position: lsp.Position) -> Iterator[lsp.CodeAction]:
    for function in view.annotated:
        for parameter in function.parameters:
            place = view.parsed.range(parameter.span)
            if (
                place
                and _touches(place, lsp.Range(position, position))
                and for_any_size(view, function, parameter.name)
            ):
                command = lsp.Command(_ANY_SIZE, messages.MARK_DYNAMIC, arguments=[view.uri, function.qualname])
                yield lsp.CodeAction(_ANY_SIZE, REWRITE, command=command)


# --- documents -------------------------------------------------------------------------------------------------------


def _documents(view: View, position: lsp.Position, actions: Actions) -> Iterator[lsp.CodeAction]:
    for location in navigation.kernel_lines(view, position, names=True).locations:
        title = f"Open what this became: {navigation.title(location)}"
        yield _open(view, title, location.uri, actions, line=location.range.start.line + 1)
    for function in view.annotated:
        first, last = view.parsed.anchor(function.decorator_span).start.line, view.parsed.anchor(function.span).end.line
        if first <= position.line <= last and view.function(function.qualname):
            summary = ReportDocument(view.uri, function.qualname, "summary", "txt")
            yield _open(view, f"Explain the compilation of {function.qualname}", str(summary), actions)


def _open(
    view: View,
    title: str,
    address: str,
    actions: Actions,
    *,
    line: int | None = None,
    kind: str = OPEN,
    about: list[lsp.Diagnostic] | None = None,
) -> lsp.CodeAction:
    command = lsp.Command(title, actions.open_document, arguments=[view.uri, None, address, line])
    return lsp.CodeAction(title, kind, about, command=command)


def _touches(one: lsp.Range, other: lsp.Range) -> bool:
    return one.start <= other.end and other.start <= one.end
