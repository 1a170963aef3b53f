"""Code lenses above each annotated function: what it became, its kernel, a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.source.discovery import Annotated
from fuselens_server.client.messages import SERVER_ACTIONS, Actions
from fuselens_server.documents import stages as documents
from fuselens_server.features import last_run, summary
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_CODE_LENS, lsp.CodeLensOptions(resolve_provider=True))
    def text_document_code_lens(ls: FuselensServer, params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
        view = ls.view(params.text_document.uri)
        if view is None or not ls.settings.code_lens:
            return []
        lenses = code_lenses(view, ls.settings.actions)
        # clients that do not say that they resolve commands are given them at once
        resolves = "command" in ls.client.listed("text_document.code_lens.resolve_support.properties")
        return [lsp.CodeLens(lens.range, data=lens.data) for lens in lenses] if resolves else lenses

    @server.feature(lsp.CODE_LENS_RESOLVE)
    def code_lens_resolve(ls: FuselensServer, lens: lsp.CodeLens) -> lsp.CodeLens:
        """As the function is now. A lens of what is gone says so, because it must say something."""
        data = lens.data if isinstance(lens.data, dict) else {}
        view = ls.view(str(data.get("uri", "")))
        lenses = code_lenses(view, ls.settings.actions) if view else []
        found = next((new.command for new in lenses if new.data == data), None)
        return lsp.CodeLens(lens.range, found or lens.command or lsp.Command("not compiled yet", ""), lens.data)


_ALLOWED = (
    "Calls the function compiled and eagerly on its example inputs, and compares. As in a check it may read, but not write files, "
    "open connections, start processes or send signals."
)


_PREVIEW = (
    "Shows what Fuselens would make of it if it were compiled. The file is not changed, and the program does not run."
)


def code_lenses(view: View, actions: Actions = SERVER_ACTIONS) -> list[lsp.CodeLens]:
    offers = [
        lsp.CodeLens(view.parsed.anchor(span), command, {"uri": view.uri, "function": "", "lens": index})
        for index, span in enumerate(() if view.borrowed else view.previews)
        for command in (lsp.Command("Preview compile", actions.preview, tooltip=_PREVIEW, arguments=[view.uri, True]),)
    ]
    return offers + [
        lsp.CodeLens(place, command, {"uri": view.uri, "function": function.qualname, "lens": index})
        for function in view.annotated
        for place in (view.parsed.anchor(function.name_span),)
        for index, command in enumerate(_commands(view, function, actions))
    ]


def _commands(view: View, function: Annotated, actions: Actions) -> Iterator[lsp.Command]:
    report = view.function(function.qualname)
    if report is None:
        title = "compiling…" if view.compiling else "not compiled" if view.failures else "not compiled yet"
        yield lsp.Command(title, "")
        yield from _last_run(view, function)
        yield from _end_of_preview(view, actions)
        return
    arguments = [view.uri, function.qualname]
    stale = "stale" if view.stale else ""
    title = " · ".join(filter(None, (summary.headline(report), summary.demand(report), stale)))
    yield lsp.Command(title, actions.open_document, arguments=arguments)
    if any(documents.kind(stage) == "kernel" for graph in report.graphs for stage in graph.stages):
        yield lsp.Command("Open kernel", actions.open_kernel, arguments=arguments)
    if report.graphs or not report.diagnostics:
        yield lsp.Command("Run", actions.run_function, tooltip=_ALLOWED, arguments=arguments)
    yield from _last_run(view, function)
    yield from _end_of_preview(view, actions)


def _end_of_preview(view: View, actions: Actions) -> Iterator[lsp.Command]:
    if view.previewed:
        yield lsp.Command("End preview", actions.preview, arguments=[view.uri, False])


def _last_run(view: View, function: Annotated) -> Iterator[lsp.Command]:
    """How hot the function was in the user's own last run."""
    if title := last_run.title(view, function):
        yield lsp.Command(title, "")
