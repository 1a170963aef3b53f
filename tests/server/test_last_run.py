"""What a last run said, as plain events, and how diagnostics, lenses and hovers show it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from lsprotocol import types as lsp

from fuselens.live import Event, KernelTime
from fuselens.record import diagnostics as codes
from fuselens.record.report import Shape, Span, Stage, Tensor
from fuselens_server.features import last_run
from fuselens_server.features.code_lens import code_lenses
from fuselens_server.features.diagnostics import diagnostics
from fuselens_server.features.hover import hover
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.observed import MOST_FINDINGS, MOST_SHAPES, Observed
from fuselens_server.texts.session import Document
from fuselens_server.texts.tracked_text import TrackedText

LINE = 3  # of the toy's decorator: where its code begins


def ran(toy: Any, *events: Event) -> Observed:
    seen = Observed("run", "train.py")
    for event in events:
        seen.take(1, dataclasses.replace(event, file=toy.path, function="toy", line=event.line or LINE))
    return seen


def recompiled(toy: Any, found: str, needle: str = "a.abs()") -> Event:
    what = f"`toy`, because of a: expected f32[3], found {found}"
    return Event("finding", diagnostic=codes.make("FL201", toy.span(toy.text, needle), what=what))


def messages(view: Any) -> list[str]:
    return [d.message.split("\n")[0] for d in diagnostics(view) if d.code == "FL201"]


def titles(view: Any) -> list[str]:
    return [lens.command.title for lens in code_lenses(view) if lens.command]


def text_of(found: lsp.Hover | None) -> str:
    return found.contents.value if found is not None and isinstance(found.contents, lsp.MarkupContent) else ""


def test_what_is_recompiled_again_and_again_is_shown_with_its_last_count(toy: Any):
    where = toy.span(toy.text, "a.abs()")
    counts = [
        Event("finding", diagnostic=codes.make("FL205", where, what="`toy`, because of n", count=n)) for n in (2, 4, 8)
    ]
    view = toy.view(report=toy.file(), observed=ran(toy, *counts), ran=TrackedText.unedited(SourceText(toy.text)))
    (shown,) = [d for d in diagnostics(view) if d.code == "FL205"]
    assert shown.message.startswith("recompiled 8 times for one reason: `toy`, because of n")
    assert "also:" not in shown.message and shown.severity == lsp.DiagnosticSeverity.Warning


def test_recompilations_are_at_the_line_of_the_guard(toy: Any):
    events = [recompiled(toy, f"f32[{n}]") for n in (4, 4, 5)]
    view = toy.view(report=toy.file(), observed=ran(toy, *events), ran=TrackedText.unedited(SourceText(toy.text)))
    (shown,) = [d for d in diagnostics(view) if d.code == "FL201"]
    first, *others = shown.message.split("\n")
    assert first == "recompiled: `toy`, because of a: expected f32[3], found f32[4] (last run, 3 times)"
    assert others[0] == "also: recompiled: `toy`, because of a: expected f32[3], found f32[5]"
    assert shown.range.start.line == 4
    assert shown.severity == lsp.DiagnosticSeverity.Information


def test_many_reasons_are_counted(toy: Any):
    events = [recompiled(toy, f"f32[{n}]") for n in range(4, 300)]
    seen = ran(toy, *events)
    assert len(seen.functions["toy", LINE].findings) == MOST_FINDINGS
    assert seen.functions["toy", LINE].missed == 296
    view = toy.view(observed=seen, ran=TrackedText.unedited(SourceText(toy.text)))
    (shown,) = diagnostics(view)
    assert f"and {MOST_FINDINGS - 4} more" in shown.message


def test_what_the_check_says_is_not_said_again(toy: Any):
    same = Event("finding", diagnostic=toy.report().breaks[0])
    text = TrackedText.unedited(SourceText(toy.text))
    checked = toy.view(report=toy.file())
    assert diagnostics(toy.view(report=toy.file(), observed=ran(toy, same), ran=text)) == diagnostics(checked)
    unchecked = toy.view(observed=ran(toy, same), ran=text)
    assert [d.code for d in diagnostics(unchecked)] == ["FL101"]


def test_findings_elsewhere_are_not_shown_here(toy: Any):
    elsewhere = codes.make("FL201", Span("/other.py", 1, 0, 1, 1), what="x")
    seen = ran(toy, Event("finding", diagnostic=elsewhere))
    assert diagnostics(toy.view(observed=seen, ran=TrackedText.unedited(SourceText(toy.text)))) == []


def test_findings_move_with_the_text_and_go_with_it(toy: Any):
    document = Document(toy.uri, toy.path, 1, SourceText(toy.text))
    document.observe(ran(toy, recompiled(toy, "f32[4]")))
    assert document.ran is not None
    before = document.ran.observed.functions["toy", LINE].findings
    (key,) = before
    document.change([change(0, 0, "# above\n")], 2)
    moved = document.ran.text.range(key[1])
    assert moved is not None
    assert moved.start.line == 5
    document.observe(document.ran.observed)  # more of the same run: its text stays
    assert document.ran.text.range(key[1]) == moved
    document.change([change(5, 14, "z")], 3)
    assert document.ran.text.range(key[1]) is None


def change(line: int, column: int, text: str) -> lsp.TextDocumentContentChangePartial:
    where = lsp.Position(line, column)
    return lsp.TextDocumentContentChangePartial(lsp.Range(where, lsp.Position(line, column + (line > 0))), text)


def times(graph: int, calls: int, seconds: float, fastest: float = 1e-6) -> Event:
    return Event("times", graph=graph, calls=calls, seconds=seconds, fastest=fastest)


HEAT = [
    ([], None),
    ([times(0, 1204, 1.204)], "last run: 1,204 calls · 1.0 ms each"),
    ([times(0, 1, 2e-6), times(0, 2, 4e-6)], "last run: 2 calls · 2.0 µs each"),
    ([Event("graph", graph=0), Event("graph", graph=1, resumed=True), times(0, 3, 3.0), times(1, 3, 3.0)],
     "last run: 3 calls · 2.00 s each"),
    ([Event("graph", graph=0)], "last run: 0 calls"),
]  # fmt: skip


@pytest.mark.parametrize(("events", "title"), HEAT)
def test_heat_above_the_function(toy: Any, events: list[Event], title: str | None):
    seen = ran(toy, *events) if events else None
    for report in (toy.file(), None):
        shown = [t for t in titles(toy.view(report=report, observed=seen)) if t.startswith("last run")]
        assert shown == ([title] if title else [])


def test_recompiles_heat(toy: Any):
    seen = ran(toy, times(0, 5, 5e-3), recompiled(toy, "f32[4]"), recompiled(toy, "f32[5]"))
    assert "last run: 5 calls · 2 recompiles · 1.0 ms each" in titles(toy.view(report=toy.file(), observed=seen))
    assert titles(toy.view(report=toy.file(), observed=Observed("run", "train.py"))) == titles(
        toy.view(report=toy.file())
    )


def test_a_module_is_found_by_the_line_of_its_code(toy: Any):
    seen = Observed("run", "train.py")
    seen.take(1, dataclasses.replace(times(0, 7, 7e-3), file=toy.path, function="Model.forward", line=4))
    assert "last run: 7 calls · 1.0 ms each" in titles(toy.view(report=toy.file(), observed=seen))


def at(toy: Any, needle: str) -> lsp.Position:
    return SourceText(toy.text).position(toy.text.index(needle))


def test_hovers(toy: Any):
    x = toy.span(toy.text, "x = a")
    name = Span(toy.path, x.line, 4, x.line, 5)
    sizes = [Tensor("f32", (str(n),), ("1",)) for n in range(MOST_SHAPES + 2)]
    argument = Span(toy.path, LINE, 0, LINE, 0)
    seen = ran(
        toy,
        *(Event("shapes", shapes=(Shape("x", name, t),)) for t in (*sizes, sizes[-1])),
        Event("call", shapes=(Shape("b", argument, sizes[3]),), recorded=True),
        Event("graph", graph=0, seconds=0.5),
        times(0, 4, 8e-3, 1e-3),
    )
    for report in (toy.file(), None):
        view = toy.view(report=report, observed=seen, ran=TrackedText.unedited(SourceText(toy.text)))
        shown = "Seen in last run: `x`: " + ", ".join(f"`f32[{n}]`" for n in range(2, MOST_SHAPES + 2))
        assert shown in text_of(hover(view, at(toy, "x = a")))
        assert shown in text_of(hover(view, at(toy, "x, b)")))  # where it was bound last
        assert "last run" not in text_of(hover(view, at(toy, "b = b")))
        assert "Seen in last run: `f32[3]`" in text_of(hover(view, at(toy, "b, scale")))
        about = text_of(hover(view, at(toy, "toy(a:")))
        assert "**Last run**: 4 calls · 0 recompiles · 1 graph compiled in 500.0 ms" in about
        assert "- graph 0: 4 calls, 2.0 ms each, the fastest 1.0 ms" in about


def test_times_of_kernels(toy: Any):
    """In hovers on the kernel's lines, and in the text of the kernels, whose lines stay where they are."""
    report = toy.report()
    (kernel, *_) = report.graphs[0].kernels
    timed = Event("kernels", kernels=(KernelTime(kernel.name, "forward", kernel.spans, 40, 0.5e-3),))
    seen = ran(toy, timed, timed)
    seen.take(2, dataclasses.replace(timed, file=toy.path, function="toy", line=LINE))  # another process
    said = f"{kernel.name}` (forward) took 12.5 µs a call (80 calls timed)"
    view = toy.view(report=toy.file(), observed=seen, ran=TrackedText.unedited(SourceText(toy.text)))
    assert f"Last run: `{said}" in text_of(hover(view, at(toy, "x = a")))
    assert "took" not in text_of(hover(view, at(toy, "helper(x, b):")))
    unit = Stage("cpp", "cpp", f"// {kernel.name}: sin\nextern void {kernel.name}();\n", ())
    noted = last_run.noted(view, report, unit)
    assert (
        noted.split("\n")[0] == f"// {kernel.name}: sin · last run: {kernel.name} took 12.5 µs a call (80 calls timed)"
    )
    assert noted.split("\n")[1:] == unit.text.split("\n")[1:]
    backward = dataclasses.replace(unit, name="cpp.backward")
    assert last_run.noted(view, report, backward) == unit.text
    assert last_run.noted(toy.view(report=toy.file()), report, unit) == unit.text
