"""Code actions as pure functions of a view."""

from __future__ import annotations

import dataclasses

import pytest
from lsprotocol import types as lsp

from fuselens.live import Event
from fuselens.record import diagnostics as codes
from fuselens.record.report import Edit, FileReport, Fix, Guard, Report, Span
from fuselens_server.client.messages import CLIENT_ACTIONS
from fuselens_server.features import code_actions
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.document_uri import parse
from fuselens_server.texts.observed import Observed
from fuselens_server.texts.tracked_text import TrackedText

BRANCH = lsp.Position(5, 8)  # in `b.sum() < 0`


def with_fixes(toy, *fixes: Fix, **changes):
    report = toy.report()
    report.breaks = [dataclasses.replace(report.breaks[0], fixes=fixes)]
    return toy.view(report=FileReport(toy.path, [report]), version=7, **changes)


def offered(view, where=BRANCH, only=None, trigger=None, **options) -> list[lsp.CodeAction]:
    place = where if isinstance(where, lsp.Range) else lsp.Range(where, where)
    context = lsp.CodeActionContext([], only, trigger)
    return list(code_actions.code_actions(view, place, context, **options))


def fix(toy, title: str, needle: str = "b.sum() < 0", new: str = "True", verified: bool = False, **more) -> Fix:
    return Fix(title, (Edit(toy.span(toy.text, needle), new),), verified, **more)


def titles(actions: list[lsp.CodeAction]) -> list[str]:
    return [action.title for action in actions]


def test_fixes_come_first_and_only_a_tried_one_is_preferred(toy):
    view = with_fixes(toy, fix(toy, "guess"), fix(toy, "sure", verified=True), fix(toy, "also sure", verified=True))
    found = offered(view, only=[lsp.CodeActionKind.QuickFix])
    assert [(a.title, a.is_preferred, a.kind) for a in found] == [
        ("sure", True, "quickfix"),
        ("also sure", None, "quickfix"),
        ("guess (not tried out)", None, "quickfix"),
        ("Explain FL101", None, "quickfix"),
    ]
    assert [d.code for d in found[0].diagnostics] == ["FL101"]
    (change,) = found[0].edit.document_changes
    assert (change.text_document.uri, change.text_document.version) == (toy.uri, 7)
    (edit,) = change.edits
    assert (view.compiled.range(toy.span(toy.text, "b.sum() < 0")), "True") == (edit.range, edit.new_text)


def test_clients_without_versioned_edits(toy):
    view = with_fixes(toy, fix(toy, "sure", verified=True))
    edit = offered(view, versioned=False)[0].edit
    assert edit.document_changes is None
    assert [e.new_text for e in edit.changes[toy.uri]] == ["True"]


def test_fixes_follow_edits_and_vanish_where_their_text_was_edited(toy):
    several = Fix("two places", tuple(Edit(toy.span(toy.text, t), "x") for t in ("b.sum() < 0", "b * -1")), True)
    moved = with_fixes(toy, several, edits=((0, 0, "# 😀\n"),))
    (change,) = offered(moved, lsp.Position(6, 8))[0].edit.document_changes
    assert [edit.range.start.line for edit in change.edits] == [6, 7]
    touched = toy.text.index("b * -1")
    assert "two places" not in titles(offered(with_fixes(toy, several, edits=((touched, touched + 1, "c"),))))


def test_fixes_of_other_files_are_not_offered(toy):
    elsewhere = Fix("there", (Edit(Span("/other.py", 1, 0, 1, 1), "x"),), True)
    assert titles(offered(with_fixes(toy, elsewhere), only=[lsp.CodeActionKind.QuickFix])) == ["Explain FL101"]


def test_fix_all_takes_fixes_that_were_tried_together(toy):
    report = toy.report()
    first, second = (fix(toy, *of, verified=True, together=True) for of in (("a",), ("b", "b * -1", "-b")))
    again, guess = fix(toy, "c", "b.sum()", "0", verified=True), fix(toy, "d", "x * b", "y")
    report.breaks = [
        dataclasses.replace(report.breaks[0], message=str(n), fixes=fixes)
        for n, fixes in enumerate([(first,), (again,), (guess, second), (first,)])
    ]
    other = toy.report()  # of another function, say: it cannot take what the first one has
    other.breaks = [dataclasses.replace(other.breaks[0], fixes=(dataclasses.replace(again, together=True), second))]
    view = toy.view(report=FileReport(toy.path, [report, other]))
    (action,) = offered(view, only=[lsp.CodeActionKind.SourceFixAll])
    assert action.kind == "source.fixAll.fuselens"
    assert [edit.new_text for edit in action.edit.document_changes[0].edits] == ["True", "-b"]
    assert not [a for a in offered(view) if a.kind == "source.fixAll.fuselens"]  # only when asked for
    touched = toy.text.index("b * -1")
    edited = toy.view(report=FileReport(toy.path, [report]), edits=((touched, touched + 1, "c"),))
    assert offered(edited, only=[lsp.CodeActionKind.SourceFixAll]) == []  # without the second it was not tried
    assert offered(with_fixes(toy, guess), only=[lsp.CodeActionKind.SourceFixAll]) == []


def test_what_the_cursor_is_on_can_be_opened(toy, view):
    inside = lsp.Position(4, 10)  # on the name `a`, in `a / (a.abs() + 1)`
    found = offered(view, inside)
    assert titles(found) == [
        "Open what this became: toy, graph 0, cpp",
        "Explain the compilation of toy",
    ]
    uri, function, address, line = found[0].command.arguments
    assert (uri, function, line) == (toy.uri, None, 1)
    assert parse(address).name == "cpp"
    assert parse(found[1].command.arguments[2]).name == "summary"
    assert found[0].command.command == "fuselens.server.openDocument"
    assert offered(view, inside, actions=CLIENT_ACTIONS)[0].command.command == "fuselens.openDocument"


def test_no_bulb_on_every_compiled_line(view):
    assert offered(view, lsp.Position(4, 10), trigger=lsp.CodeActionTriggerKind.Automatic) == []
    automatic = offered(view, trigger=lsp.CodeActionTriggerKind.Automatic)
    assert titles(automatic) == ["Explain FL101"]
    assert automatic[0].command.arguments[2] == "fuselens://codes/FL101.md"


@pytest.mark.parametrize(
    ("only", "kinds"),
    [
        (["quickfix"], {"quickfix"}), (["fuselens.open"], {"fuselens.open"}), (["fuselens"], {"fuselens.open"}),
        (["source"], set()), (["refactor"], set()), ([""], {"quickfix", "fuselens.open"}),
        (["quick"], set()), (None, {"quickfix", "fuselens.open"}),
    ],
)  # fmt: skip
def test_only_the_wanted_kinds(view, only, kinds):
    assert {action.kind for action in offered(view, only=only)} == kinds


def test_a_selection_takes_every_finding_that_it_touches(view):
    assert "Explain FL101" in titles(offered(view, lsp.Range(lsp.Position(0, 0), lsp.Position(9, 0))))
    assert "Explain FL101" in titles(offered(view, lsp.Position(5, 7)))  # just before it
    assert titles(offered(view, lsp.Position(0, 0))) == []


def test_nothing_before_a_report(toy):
    assert offered(toy.view(), lsp.Position(3, 4)) == []


def test_what_no_check_has_found_has_templates_made_here(toy):
    place = toy.span(toy.text, "b.sum() < 0")
    prediction = codes.predict("FL101", place, what="b.sum() < 0")
    guess, *_ = offered(toy.view(predicted={"toy": [prediction]}), only=[lsp.CodeActionKind.QuickFix])
    assert guess.title == "Compute both sides and choose with torch.where (not tried out)"
    assert [e.new_text for e in guess.edit.document_changes[0].edits] == [
        "import torch\n", "b = torch.where(b.sum() < 0, b * -1, b)",
    ]  # fmt: skip
    recompiled = codes.make(
        "FL201", toy.span(toy.text, "a / (a"), what="`toy`, because of a: expected f32[4], found f32[5]"
    )
    seen = Observed("run", "train.py")
    seen.take(1, Event("finding", toy.path, "toy", 3, diagnostic=recompiled))
    ran = TrackedText.unedited(SourceText(toy.text))
    found = offered(toy.view(observed=seen, ran=ran), lsp.Position(4, 9), [lsp.CodeActionKind.QuickFix])
    assert found[0].title == "Compile for any size: dynamic=True (not tried out)"


def test_what_a_run_recompiled_again_and_again_has_the_fix_that_spares_it(toy):
    what = "`toy`, because of a: expected f32[4], found f32[5]"
    again = codes.make("FL205", toy.span(toy.text, "a / (a"), what=what, count=2, limit=8)
    seen = Observed("run", "train.py")
    seen.take(1, Event("finding", toy.path, "toy", 3, diagnostic=again))
    ran = TrackedText.unedited(SourceText(toy.text))
    found = offered(toy.view(observed=seen, ran=ran), lsp.Position(4, 9), [lsp.CodeActionKind.QuickFix])
    assert found[0].title == "Compile for any size: dynamic=True (not tried out)"


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        ("", "not tried out"),
        ("no inputs were found that take both sides", "not verified: no inputs were found that take both sides"),
        ("it leaves FL301: a reason that is about something else", "not verified"),
        ("compiled, it raised " + "a long message " * 10, "not verified"),
    ],
)
def test_the_title_of_a_fix_says_what_a_menu_has_room_for(trial: str, words: str) -> None:
    assert code_actions._unverified(Fix("title", (), trial=trial)) == words


FIXED = """\
import fuselens

@fuselens.compile
def f(x, n=2.0):
    return x * n
"""


def fixed(toy, expression: str, text: str = FIXED):
    guard = Guard("TENSOR", "x", f"x: {expression}", ("x",))
    report = Report("f", toy.path, Span(toy.path, 4, 4, 4, 5), guards=[guard])
    view = toy.view(text=text, report=FileReport(toy.path, [report]))
    return view, view.annotated[0]


@pytest.mark.parametrize(
    ("expression", "is_fixed"),
    [
        ("float32[4, 8] on cpu, strides (8, 1)", True),
        ("float32[*, 8] on cpu", True),
        ("float32[*, 1] on cpu", False),
        ("float32[*] on cpu, strides (8,)", False),
        ("float32[] on cuda:7", False),
    ],
)
def test_fixed_sizes_can_be_relaxed(toy, expression, is_fixed):
    view, function = fixed(toy, expression)
    finding = code_actions.for_any_size(view, function, "x")
    assert (finding is not None) is is_fixed
    assert code_actions.for_any_size(view, function, "n") is None
    if finding is not None:
        (edit,) = code_actions.text_edits(view, view.compiled, finding.fixes[0])
        assert edit.new_text == "fuselens.compile(dynamic=True)"


def test_what_says_dynamic_already_is_not_relaxed(toy):
    view, function = fixed(toy, "float32[4]", FIXED.replace(".compile", ".compile(dynamic=False)"))
    assert code_actions.for_any_size(view, function) is None
