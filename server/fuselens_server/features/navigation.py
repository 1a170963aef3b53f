"""Definitions, implementations and references between the user's lines and those of graphs, loops and kernels.

In a virtual document everything is ours: a line's definition is the user code that it came from. In the user's file,
names belong to the Python language server beside us, so definitions and references answer on the rest of a line
(operators, keywords, literals, indentation; with the setting ``on_names`` everywhere), and implementations anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.record.report import Line, Span
from fuselens_server.documents import stages as documents
from fuselens_server.features.locations import (
    compiled_lines,
    find_stage,
    on_name,
    stage_location,
    stage_text,
    user_location,
)
from fuselens_server.texts.correspondence import Generated, innermost, outermost, runs
from fuselens_server.texts.document_uri import ReportDocument, parse
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

Answer = list[lsp.Location] | list[lsp.LocationLink]


@dataclass(frozen=True, slots=True)
class Targets:
    """Where something leads to, and the range that leads there."""

    origin: lsp.Range | None
    locations: list[lsp.Location]

    def encode(self, links: bool) -> Answer:
        """As links for clients that know them: those underline the whole origin."""
        if not links:
            return self.locations
        return [lsp.LocationLink(at.uri, at.range, at.range, self.origin) for at in self.locations]


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def text_document_definition(ls: FuselensServer, params: lsp.DefinitionParams) -> Answer:
        links = ls.client("text_document.definition.link_support")
        return _targets(ls, params, names=ls.settings.on_names).encode(links)

    @server.feature(lsp.TEXT_DOCUMENT_IMPLEMENTATION)
    async def text_document_implementation(ls: FuselensServer, params: lsp.ImplementationParams) -> Answer:
        links, uri = ls.client("text_document.implementation.link_support"), params.text_document.uri
        if (shown := ls.documents.shown(uri)) is not None and (made := assembly(shown[1])) is not None:
            await ls.documents.complete(str(made))
            shown = ls.documents.shown(uri) or shown
            if (found := instructions(*shown, params.position.line + 1)).locations:
                return found.encode(links)
        return _targets(ls, params, names=True).encode(links)

    @server.feature(lsp.TEXT_DOCUMENT_REFERENCES)
    def text_document_references(ls: FuselensServer, params: lsp.ReferenceParams) -> list[lsp.Location]:
        own, uri = params.context.include_declaration, params.text_document.uri
        if (view := ls.view(uri)) is not None:
            return references(view, params.position, own, names=ls.settings.on_names)
        if (shown := ls.documents.shown(uri)) is not None:
            return references_of_line(*shown, params.position.line + 1, own)
        return []


def _targets(ls: FuselensServer, params: lsp.DefinitionParams | lsp.ImplementationParams, *, names: bool) -> Targets:
    if (view := ls.view(params.text_document.uri)) is not None:
        return kernel_lines(view, params.position, names=names)
    if (shown := ls.documents.shown(params.text_document.uri)) is not None:
        return user_lines(*shown, params.position.line + 1)
    return Targets(None, [])


# --- from the user's file ----------------------------------------------------------------------------------------------


def kernel_lines(view: View, position: lsp.Position, *, names: bool = False) -> Targets:
    """What the expression at ``position`` became in the end: for each graph and phase, the kernel's lines that are most
    specific to it. All expressions of a line lead to the same stage, the last one that has any of them: one that has no
    line of its own there leads to those of the whole line."""
    made, span = became(view, position, names=names)
    place = view.compiled.place(position)
    whole = _by_phase(view.correspondence.of_line(view.names, place[0])) if place else {}
    locations = []
    for phase, lines in _by_phase(made).items():
        every = whole.get(phase, lines)
        rank = max(_finality(line) for line in every)
        stage = [line for line in every if _finality(line) == rank][-1].stage
        own = [line for line in lines if line.stage is stage]
        last = own or [line for line in every if line.stage is stage]
        widths = {line.line: _width(view, line) for line in last}
        first, end = runs(n for n, width in widths.items() if width == min(widths.values()))[0]
        locations.append(stage_location(view, last[0].report, last[0].graph, last[0].stage, first, end))
    return Targets(view.compiled.range(span) if span else None, locations)


def _by_phase(made: Iterable[Generated]) -> dict[tuple[str, int, bool], list[Generated]]:
    """What became of code, by function, graph, and whether it is its backward. Of a graph that is compiled in parts they tell."""
    phases: dict[tuple[str, int, bool], list[Generated]] = defaultdict(list)
    in_parts: dict[str, set[int]] = {}
    for line in made:
        name = line.report.function
        if name not in in_parts:
            in_parts[name] = line.report.in_parts
        if line.graph.id not in in_parts[name]:
            phases[name, line.graph.id, line.stage.name.endswith(".backward")].append(line)
    return phases


def title(location: lsp.Location) -> str:
    """What a location in a virtual document is, for a menu: ``toy, graph 0, cpp``."""
    address = parse(location.uri)
    if not isinstance(address, ReportDocument):
        return location.uri
    return ", ".join(filter(None, (address.qualname, f"graph {address.graph}", address.name)))


def references(
    view: View, position: lsp.Position, include_declaration: bool = True, *, names: bool = False
) -> list[lsp.Location]:
    """Every line of every stage that came from the expression at ``position``."""
    made, span = became(view, position, names=names)
    own = user_location(view, view.compiled, span) if span and made and include_declaration else None
    return [*([own] if own else []), *_stage_locations(view, made)]


def became(view: View, position: lsp.Position, *, names: bool = False) -> tuple[list[Generated], Span | None]:
    """What came from the innermost expression at ``position``, and that expression; from the whole line where it is
    in none. Nothing on names, unless ``names`` are wanted too."""
    if view.report is None or (not names and on_name(view.compiled.current, position)):
        return [], None
    place = view.compiled.place(position)
    if place is None:
        return [], None
    made = view.correspondence.of_line(view.names, place[0])
    span = innermost((line.span for line in made), *place)
    return [line for line in made if span in (None, line.span)], span


def _finality(line: Generated) -> int:
    """How far the stage is from the source: graphs, then loops, then kernels, those for the target last."""
    kind = documents.kind(line.stage)
    if kind == "kernel" and line.stage.name.partition(".")[0] in {kernel.backend for kernel in line.graph.kernels}:
        return 3
    return {"kernel": 2, "loop": 1}.get(kind, 0)


def _width(view: View, line: Generated) -> int:
    """How many user lines the generated line came from: a kernel's head stands for all of its lines."""
    return len({(span.file, span.line) for span in view.correspondence.spans(line.stage)[line.line]})


def _stage_locations(view: View, made: Iterable[Generated]) -> list[lsp.Location]:
    stages: dict[int, list[Generated]] = defaultdict(list)
    for line in made:
        stages[id(line.stage)].append(line)
    return [
        stage_location(view, lines[0].report, lines[0].graph, lines[0].stage, first, last)
        for lines in stages.values()
        for first, last in runs(line.line for line in lines)
    ]


# --- from a virtual document -------------------------------------------------------------------------------------------


def user_lines(view: View, document: ReportDocument, line: int) -> Targets:
    """The user code that a line of a stage's text came from; of an instruction that came from none its line of Triton."""
    entry, place = _line_of(view, document, line)
    found = [user_location(view, view.compiled, span, nearest=True) for span in outermost(entry.spans)]
    if not found and assembly(document) is None:
        found = [at[0] for stage, at in _compiled(view, document, line) if stage.partition(".")[0] == "triton"]
    return Targets(place, [location for location in found if location is not None])


def assembly(document: ReportDocument) -> ReportDocument | None:
    """A document of what a Triton module becomes; None for other documents."""
    form, dot, phase = document.name.partition(".")
    return replace(document, name=f"ptx{dot}{phase}", suffix="ptx") if form == "triton" else None


def instructions(view: View, document: ReportDocument, line: int) -> Targets:
    """What a line of a Triton module became, at each step where it first stands there."""
    found = _compiled(view, document, line)
    first = [at[0] for stage, at in found if at and stage.partition(".")[0] != "triton"]
    return Targets(_line_of(view, document, line)[1], first)


def _compiled(view: View, document: ReportDocument, line: int) -> list[tuple[str, list[lsp.Location]]]:
    """By stage, what belongs to a line of a Triton module, or of what was compiled from it."""
    found = find_stage(view, document)
    return [
        (stage.name, [stage_location(view, found[0], found[1], stage, *run) for run in runs(lines)])
        for stage, lines in compiled_lines(view, document, line) if found
    ]  # fmt: skip


def references_of_line(
    view: View, document: ReportDocument, line: int, include_declaration: bool = True
) -> list[lsp.Location]:
    """The user code that a line of a stage's text came from, and all else that became of that code; of what Triton's
    compilers make just what belongs to this line."""
    entry, _ = _line_of(view, document, line)
    own = user_lines(view, document, line).locations if include_declaration and entry.spans else []
    exact = _compiled(view, document, line)
    graph = document.graph if exact else None
    wanted = set(entry.spans)
    made = [
        g
        for span in dict.fromkeys(wanted)
        for g in view.correspondence.of_line({span.file}, span.line)
        if g.span == span and not (g.graph.id == graph and g.stage.name in dict(exact))
    ]
    others = _stage_locations(view, sorted(made, key=lambda g: (g.report.function, g.graph.id)))
    return [*own, *others, *(at for _, found in exact for at in found)]


def _line_of(view: View, document: ReportDocument, line: int) -> tuple[Line, lsp.Range | None]:
    found = find_stage(view, document)
    entries = [entry for entry in found[2].lines if entry.line == line] if found else []
    if not found or not entries:
        return Line(line, ()), None
    text = stage_text(view, found[2])
    return entries[0], text.range(text.line_start(line), text.line_start(line) + len(text.line(line)))
