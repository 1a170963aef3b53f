"""Code lenses above each annotated function: how it runs, what it became; above others, what they were compiled in."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.record.printed import proved
from fuselens.record.report import Proof, Report, Span
from fuselens.source.discovery import Annotated
from fuselens_server.client.messages import SERVER_ACTIONS, Actions
from fuselens_server.client.settings import LENSES
from fuselens_server.documents import stages as documents
from fuselens_server.features import distance, last_run, summary
from fuselens_server.features.locations import user_location
from fuselens_server.kernels import lenses as kernels
from fuselens_server.texts.document_uri import ReportDocument
from fuselens_server.texts.view import View
from fuselens_server.what_if import shown as what_if

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_CODE_LENS, lsp.CodeLensOptions(resolve_provider=True))
    def text_document_code_lens(ls: FuselensServer, params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
        uri = params.text_document.uri
        if (kept := ls.kernels.get(uri)) is not None:
            return kernels.of_kept(ls.kernels, kept, ls.settings.actions)
        if (shown := ls.documents.shown(uri)) is not None:
            return kernels.of_document(*shown)
        view = ls.view(uri)
        chosen = ls.configuration.of(view.path) if view else None
        if view is None or chosen is None or not chosen.code_lens:
            return []
        lenses = code_lenses(view, ls.settings.actions, chosen.code_lens_show)
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
_LIMITS = "How far each kernel is from what the machine allows."
_KERNELS = "Opens the kernels."
_STAGES = "Shows what the compiler made, stage by stage."
_DEBUG = "Steps through the function, uncompiled, with breakpoints."
_PREVIEW = (
    "Shows what Fuselens would make of it if it were compiled. The file is not changed, and the program does not run."
)


def code_lenses(
    view: View, actions: Actions = SERVER_ACTIONS, shown: Collection[str] = tuple(LENSES)
) -> list[lsp.CodeLens]:
    """Those of the kinds ``shown``, and what a file without any function to compile offers."""
    offers = [
        lsp.CodeLens(view.parsed.anchor(span), command, {"uri": view.uri, "function": "", "lens": index})
        for index, span in enumerate(() if view.borrowed else view.previews)
        for command in (lsp.Command("Preview compile", actions.preview, tooltip=_PREVIEW, arguments=[view.uri, True]),)
    ]
    found = [
        (function.name_span, function.qualname, lens)
        for function in view.annotated
        for lens in (*_of_function(view, function, actions), *_end_of_preview(view, actions))
    ]
    if "inlined" in shown:
        found += [(name, qualname, _Lens("inlined", command)) for name, qualname, command in _inlined(view, actions)]
    return offers + [
        lsp.CodeLens(view.parsed.anchor(name), lens.command, {"uri": view.uri, "function": qualname, "lens": lens.key})
        for name, qualname, lens in found
        if lens.kind in shown or not lens.kind
    ]


@dataclass(frozen=True, slots=True)
class _Lens:
    kind: str  # of ``LENSES``; "": always shown
    command: lsp.Command
    detail: str = ""  # tells two of a kind apart

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.detail}" if self.detail else self.kind


def _of_function(view: View, function: Annotated, actions: Actions) -> Iterator[_Lens]:
    report = view.function(function.qualname)
    if report is None:
        title = "compiling…" if view.compiling else "not compiled" if view.failures else "not compiled yet"
        yield _Lens("", lsp.Command(title, ""))
    else:
        yield from _of_report(view, function, report, actions)
    if title := last_run.title(view, function):  # how hot it was in the user's own last run
        yield _Lens("lastRun", lsp.Command(title, ""))


def _of_report(view: View, function: Annotated, report: Report, actions: Actions) -> Iterator[_Lens]:
    arguments = [view.uri, function.qualname]
    if report.graphs or not (report.diagnostics or report.refused):
        title = " · ".join(filter(None, ("▶ Run", _kept_run(view, function, report))))
        yield _Lens("run", lsp.Command(title, actions.run_function, tooltip=_ALLOWED, arguments=arguments))
    if report.proof is not None:
        yield _Lens("proof", _proof(view, report, report.proof, actions, arguments))
    if title := distance.title(view, report):
        address = str(ReportDocument(view.owner(report), report.function, "limits", "txt"))
        opened = [*arguments, address]
        yield _Lens("limits", lsp.Command(title, actions.open_document, tooltip=_LIMITS, arguments=opened))
    if report.what_if is not None and (command := what_if.lens(view, report, report.what_if, actions)) is not None:
        yield _Lens("whatIf", command)
    yield _Lens("graphs", _graphs(view, report, actions, arguments))
    if report.kernels:
        title = " · ".join(filter(None, (summary.count(len(report.kernels), "kernel"), summary.demand(report))))
        yield _Lens("kernels", lsp.Command(title, actions.open_kernel, tooltip=_KERNELS, arguments=arguments))
    for language, address, line in _code(view, report):
        tooltip = f"Opens the generated {language}."
        opened = [*arguments, str(address), line]
        yield _Lens("code", lsp.Command(language, actions.open_document, tooltip=tooltip, arguments=opened), language)
    if report.graphs:
        yield _Lens("ir", lsp.Command("IR", actions.open_document, tooltip=_STAGES, arguments=arguments))
        if actions.debug:
            yield _Lens("debug", lsp.Command("debug", actions.debug, tooltip=_DEBUG, arguments=arguments))


def _proof(view: View, report: Report, proof: Proof, actions: Actions, arguments: list[str]) -> lsp.Command:
    """``✓ equals eager (1.2e-07; float64 agrees)``, which leads to what was tried; or to the line that differs."""
    stale = " · stale" if view.stale else ""
    tooltip = "\n".join(proved.lines(proof, report.file))
    place = (
        user_location(view, view.compiled, proof.fault.span, nearest=True) if proof.fault and proof.fault.span else None
    )
    if place is not None:
        start = place.range.start
        shown = [place.uri, start.line, start.character]
        return lsp.Command(proved.headline(proof) + stale, actions.show_place, tooltip=tooltip, arguments=shown)
    address = str(ReportDocument(view.owner(report), report.function, "proof", "txt"))
    return lsp.Command(
        proved.headline(proof) + stale, actions.open_document, tooltip=tooltip, arguments=[*arguments, address]
    )


def _graphs(view: View, report: Report, actions: Actions, arguments: list[str]) -> lsp.Command:
    """``3 graphs · ⚠ 1 break``, which leads to the first break; without breaks to what there is to read."""
    title = " · ".join(filter(None, (summary.graphs(report), "stale" if view.stale else "")))
    place = break_place(view, report)
    if place is None:
        return lsp.Command(title, actions.open_document, tooltip=_STAGES, arguments=arguments)
    start = place.range.start
    shown = [place.uri, start.line, start.character]
    return lsp.Command(title, actions.show_place, tooltip="Goes to the break.", arguments=shown)


def break_place(view: View, report: Report) -> lsp.Location | None:
    """Where the first break is now: in this file, if any of the lines that lead to it is."""
    for found in sorted(report.breaks, key=lambda d: (d.span is None, d.span)):
        spans = [found.span, *(frame.span for frame in reversed(found.stack))]
        here = [span for span in spans if view.here(span)] or spans[:1]
        if here[0] is not None:
            return user_location(view, view.compiled, here[0], nearest=True)
    return None


def _code(view: View, report: Report) -> Iterator[tuple[str, ReportDocument, int]]:
    """Each language that kernels are written in, and where its first one stands."""
    seen: set[str] = set()
    for graph in report.graphs:
        for kernel in graph.kernels:
            place = None if kernel.backend in seen else view.correspondence.kernel_place(graph, kernel)
            if place is not None:
                seen.add(kernel.backend)
                stage, line = place
                language = summary.BACKENDS.get(kernel.backend, kernel.backend)
                yield language, documents.stage_document(view, report, graph.id, stage), line


def _kept_run(view: View, function: Annotated, report: Report) -> str:
    """How the last *Run* went: ``3.3× eager ✓``; stale when the function is another one by now."""
    kept = view.runs.get(function.qualname)
    mark = summary.run_mark(kept.result) if kept else ""
    if kept is None or not mark:
        return ""
    same = kept.fingerprint == report.fingerprint != "" and not view.stale
    return mark if same else f"{mark} · stale"


def _end_of_preview(view: View, actions: Actions) -> Iterator[_Lens]:
    if view.previewed:
        yield _Lens("", lsp.Command("End preview", actions.preview, arguments=[view.uri, False]), "end")


def _inlined(view: View, actions: Actions) -> Iterator[tuple[Span, str, lsp.Command]]:
    """Above functions that others call, and ``forward`` methods: which compiled function they became a part of."""
    if view.report is None or view.parsed.stale:
        return
    own = [function.span for function in view.annotated]
    for defined in view.definitions():
        first, last = _compiled_lines(view, defined.span)
        if first is None or last is None or any(_lies_in(defined.span, span) for span in own):
            continue
        holders = view.correspondence.reports(view.names, range(first, last + 1))
        places = [(r, user_location(view, view.compiled, r.span, nearest=True)) for r in holders if r.span]
        shown = [(r, place) for r, place in places if place is not None]
        if shown:
            report, place = shown[0]
            title = ", ".join(filter(None, (f"compiled in {report.function}", _line_of(view, report, place))))
            title += f" and {len(shown) - 1} more" if len(shown) > 1 else ""
            arguments = [place.uri, place.range.start.line, place.range.start.character]
            yield defined.name_span, defined.qualname, lsp.Command(title, actions.show_place, arguments=arguments)


def _compiled_lines(view: View, span: Span) -> tuple[int | None, int | None]:
    """The lines of ``span``, which counts in the text as it is, in the text that was compiled."""
    place = view.parsed.anchor(span)
    return view.compiled.line(lsp.Position(place.start.line, 0)), view.compiled.line(lsp.Position(place.end.line, 0))


def _lies_in(inner: Span, outer: Span) -> bool:
    return (outer.line, outer.column) <= (inner.line, inner.column) and (
        (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)
    )


def _line_of(view: View, report: Report, place: lsp.Location) -> str:
    line = place.range.start.line + 1
    if view.here(report.span):
        return f"line {line}" if view.uri.endswith(".py") else ""  # cells of notebooks count their own lines
    return f"{report.file.replace(chr(92), '/').rpartition('/')[2]}:{line}"
