"""What a tree shows of a file, as data: a pure function of a view, and over LSP."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp

from fuselens.live import Event, KernelTime
from fuselens.record import diagnostics as codes
from fuselens.record.report import Guard
from fuselens_server.client import messages
from fuselens_server.documents.overview import MOST_GUARDS, FunctionItem, Overview, overview
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.document_uri import parse
from fuselens_server.texts.observed import Observed
from fuselens_server.texts.tracked_text import TrackedText


def only(shown: Overview) -> FunctionItem:
    (function,) = shown.functions
    return function


def text_at(toy: Any, place: lsp.Location | None) -> str:
    assert place is not None
    assert place.uri == toy.uri
    source = SourceText(toy.text)
    return toy.text[source.offset(place.range.start) : source.offset(place.range.end)]


def test_a_function_with_a_break(toy: Any, view: Any):
    shown = overview(view)
    function = only(shown)
    assert (shown.uri, shown.compiling, shown.stale, shown.failures) == (toy.uri, False, False, [])
    assert (function.name, function.state) == ("toy", "broken")
    assert function.headline == "2 graphs · 1 break · 2 kernels"
    assert text_at(toy, function.place) == "toy"
    (found,) = function.findings
    assert (found.code, found.severity, found.breaks) == ("FL101", "warning", True)
    assert text_at(toy, found.place) == "b.sum() < 0"


def test_graphs_kernels_and_stages(toy: Any, view: Any):
    first, second = only(overview(view)).graphs
    (kernel,) = first.kernels
    assert (kernel.name, kernel.operations, kernel.lines) == ("fused_0", ["abs", "add", "div"], [5])
    assert (kernel.reads, kernel.writes, kernel.registers, kernel.seconds) == (4096, 2048, None, None)
    assert text_at(toy, kernel.place) == "a / (a.abs() + 1)"
    assert kernel.document is not None
    address = parse(kernel.document)
    assert address is not None
    assert (str(address), address.name) == (kernel.document, "cpp")  # type: ignore[union-attr]
    assert kernel.line == 1
    assert [(s.title, s.kind) for s in first.stages] == [("capture", "graph"), ("fuse", "loop"), ("cpp", "kernel")]
    assert text_at(toy, second.place) == "x * b", "a graph after a break begins at its first kernel's code"
    assert second.kernels[0].document is None, "its report has no text of it"


def test_guards_and_documents(toy: Any, view: Any):
    function = only(overview(view))
    assert [(g.expression, g.about) for g in function.guards] == [
        ("a: float32[*] on cpu", "a"), ("scale == 2.0", "scale"), ("helper is the same function", "helper"),
    ]  # fmt: skip
    assert text_at(toy, function.guards[0].place) == "a / (a.abs() + 1)"
    assert function.guards[1].place is None
    assert function.more_guards == 0
    assert [d.title for d in function.documents] == ["summary", "guards"]


def test_many_guards_are_counted(toy: Any):
    report = dataclasses.replace(
        toy.report(), guards=[Guard("EQUALS", "n", f"n != {n}") for n in range(MOST_GUARDS + 7)]
    )
    function = only(overview(toy.view(report=dataclasses.replace(toy.file(), functions=[report]))))
    assert (len(function.guards), function.more_guards) == (MOST_GUARDS, 7)


@pytest.mark.parametrize(
    ("changes", "state", "headline"),
    [
        ({"breaks": []}, "compiled", "2 graphs · 0 breaks · 2 kernels"),
        ({}, "broken", "2 graphs · 1 break · 2 kernels"),
        ({"graphs": [], "breaks": []}, "failed", "0 graphs · 0 breaks · 0 kernels"),
    ],
)
def test_states_of_a_report(toy: Any, changes: dict[str, Any], state: str, headline: str):
    report = dataclasses.replace(toy.report(), **changes)
    function = only(overview(toy.view(report=dataclasses.replace(toy.file(), functions=[report]))))
    assert (function.state, function.headline) == (state, headline)


def test_what_prevents_compiling_is_among_the_findings(toy: Any):
    prevented = codes.make("FL402", toy.span(toy.text, "helper(x, b)"), what="graph 0", why="it refused")
    report = dataclasses.replace(toy.report(), diagnostics=[prevented])
    function = only(overview(toy.view(report=dataclasses.replace(toy.file(), functions=[report]))))
    assert function.state == "failed"
    assert [(f.code, f.breaks) for f in function.findings] == [("FL101", True), ("FL402", False)]


def test_before_and_without_a_report(toy: Any):
    assert only(overview(toy.view())).state == "waiting"
    compiling = overview(toy.view(compiling=True))
    assert (compiling.compiling, only(compiling).state) == (True, "compiling")
    failure = codes.make("FL906", toy.span(toy.text, "import fuselens"), why="it died", where="")
    failed = overview(toy.view(failures=(failure,)))
    assert only(failed).state == "failed"
    assert [(f.code, text_at(toy, f.place)) for f in failed.failures] == [("FL906", "import fuselens")]


def test_places_follow_edits(toy: Any):
    moved = toy.view(report=toy.file(), edits=((0, 0, "# above\n"),))
    shown = overview(moved)
    assert shown.stale
    function = only(shown)
    assert function.place.range.start.line == 4
    (found,) = function.findings
    assert found.place is not None
    assert found.place.range.start.line == 6


def test_times_of_the_last_run(toy: Any):
    seen = Observed("run", "train.py")
    kernel = KernelTime("fused_0", "forward", (toy.span(toy.text, "a / (a.abs() + 1)"),), 4, 8e-6)
    for event in (Event("times", graph=0, calls=4, seconds=4e-3, fastest=1e-3), Event("kernels", kernels=(kernel,))):
        seen.take(1, dataclasses.replace(event, file=toy.path, function="toy", line=3))
    ran = TrackedText.unedited(SourceText(toy.text))
    function = only(overview(toy.view(report=toy.file(), observed=seen, ran=ran)))
    assert function.last_run == "last run: 4 calls · 1.0 ms each"
    assert function.graphs[0].kernels[0].seconds == pytest.approx(2e-6)
    assert function.graphs[1].kernels[0].seconds is None


@pytest.mark.asyncio(loop_scope="module")
async def test_over_the_protocol(editor: Any, good: str, tmp_path: Path):
    file, _ = await editor.open(tmp_path / "overview.py", good)
    send = editor.client.protocol.send_request_async

    async def ask(uri: str) -> Any:
        return await send(messages.OVERVIEW, {"uri": uri})

    shown = await ask(file.uri)
    while shown.compiling or shown.functions[0].state in ("waiting", "compiling"):
        shown = await ask(file.uri)
    (function,) = shown.functions
    assert (function.state, function.lastRun, function.moreGuards) == ("broken", "", 0)
    assert any(kernel.document for graph in function.graphs for kernel in graph.kernels)
    assert await ask((tmp_path / "absent.py").as_uri()) is None
    file.close()
