"""Fixes tried out in the background: asked for once, taken where the function is still the same, and seen in the editor."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp

from fuselens.record import diagnostics, wire
from fuselens.record.report import Edit, FileReport, Fix, Report, Span
from fuselens_server.client.settings import Settings
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.session import Document
from fuselens_server.work.fix_trials import FixTrials, has_untried
from fuselens_server.work.turns import Urgency
from fuselens_server.work.worker_pool import Environment, WorkerDiedError

FILE = """\
import fuselens
import torch


def example():
    return torch.ones(8), -torch.ones(8)


@fuselens.compile(example_inputs=example)
def toy(a, b):
    if b.sum() < 0:
        b = b * -1
    return a / b.sum().item()
"""


async def test_verified_fixes_are_preferred(new_editor: Any, tmp_path: Path):
    def literals(capabilities: lsp.ClientCapabilities) -> None:
        capabilities.workspace = lsp.WorkspaceClientCapabilities(
            workspace_edit=lsp.WorkspaceEditClientCapabilities(document_changes=True)
        )
        kinds = lsp.ClientCodeActionKindOptions([lsp.CodeActionKind.QuickFix])
        literal = lsp.ClientCodeActionLiteralOptions(kinds)
        capabilities.text_document.code_action = lsp.CodeActionClientCapabilities(
            code_action_literal_support=literal, is_preferred_support=True
        )

    editor = await new_editor().start(tmp_path, more=literals)

    def messages() -> list[str]:
        return [s.message for s in editor.notifications["fuselens/status"]]

    try:
        file, found = await editor.open(tmp_path / "file.py", FILE)
        (branch,) = [d for d in found if d.code == "FL101"]
        await editor.until(lambda: any("trying out fixes of file.py" in m for m in messages()))
        await editor.until(lambda: messages()[-1] == "ready", 120)
        context = lsp.CodeActionContext([branch], [lsp.CodeActionKind.QuickFix])
        parameters = lsp.CodeActionParams(file.identifier, branch.range, context)
        actions = await editor.client.text_document_code_action_async(parameters)
        chosen = [a for a in actions if isinstance(a, lsp.CodeAction) and a.edit]
        assert [(a.title.partition(" (")[0], a.is_preferred) for a in chosen] == [
            ("Compute both sides and choose with torch.where", True), ("Run one side with torch.cond", None),
        ]  # fmt: skip
        (change,) = chosen[0].edit.document_changes
        assert [e.new_text for e in change.edits] == ["b = torch.where(b.sum() < 0, b * -1, b)"]
    finally:
        await editor.stop()


class Pool:
    """Keeps requests; each ends when it is told to."""

    def __init__(self) -> None:
        self.requests: list[wire.Request] = []
        self.answers: list[asyncio.Future[wire.Event]] = []

    async def submit(self, environment: Environment, request: wire.Request, progress: Any, urgency: Any) -> wire.Event:
        assert urgency() == Urgency.BACKGROUND
        self.requests.append(request)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]


class Client:
    def __init__(self) -> None:
        self.settings = Settings()

    async def settled(self, path: str) -> tuple[Settings, Environment]:
        return self.settings, Environment("python")

    def of(self, path: str) -> Settings:
        return self.settings


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


PLACE = Span("/f.py", 1, 0, 1, 4)


def report(name: str, fingerprint: str, *titles: str) -> Report:
    fixes = tuple(Fix(title, (Edit(PLACE, title),)) for title in titles)
    return Report(name, "/f.py", breaks=[diagnostics.make("FL101", PLACE, fixes=fixes)], fingerprint=fingerprint)


def checked(*reports: Report) -> Document:
    document = Document("file:///f.py", "/f.py", 1, SourceText("text"))
    document.begin()
    document.finish(FileReport("/f.py", list(reports)))
    return document


def answer(request: wire.Request, verified: set[str], dropped: set[str]) -> wire.Event:
    found = [
        dataclasses.replace(d, fixes=tuple(
            dataclasses.replace(f, verified=f.title in verified, trial="tried") for f in d.fixes if f.title not in dropped
        )) for d in request.findings
    ]  # fmt: skip
    return wire.Event(1, "result", file=FileReport("/f.py", [Report(request.functions[0], "/f.py", breaks=found)]))


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def trials(client: Client, pool: Pool) -> FixTrials:
    return FixTrials(client, pool, lambda: None)  # type: ignore[arg-type]


async def test_outcomes_are_taken_and_not_asked_for_again(trials: FixTrials, pool: Pool):
    document = checked(report("f", "1", "a", "b", "c"), report("g", "2"))
    trials.start(document)
    trials.start(document)
    await settle()
    assert [(r.method, r.functions, r.source) for r in pool.requests] == [("fix", ("f",), "text")]
    pool.answers[0].set_result(answer(pool.requests[0], {"b"}, {"a"}))
    await settle()
    assert document.checked is not None
    current = document.checked.report.functions[0]
    assert [(f.title, f.verified) for f in current.breaks[0].fixes] == [("b", True), ("c", False)]
    assert (trials.documents, has_untried(current)) == ([], False)
    trials.start(document)
    await settle()
    assert len(pool.requests) == 1


async def test_a_function_that_only_moved_keeps_its_trial(trials: FixTrials, pool: Pool):
    document = checked(report("f", "1", "a"), report("g", "2", "a"))
    trials.start(document)
    await settle()
    moved = report("f", "1", "a")
    moved.breaks = [dataclasses.replace(d, fixes=tuple(dataclasses.replace(f, edits=(Edit(dataclasses.replace(
        PLACE, line=9, end_line=9), f.title),)) for f in d.fixes)) for d in moved.breaks]  # fmt: skip
    document.begin()
    document.finish(FileReport("/f.py", [moved, report("g", "3", "a")]))
    trials.start(document)
    await settle()
    assert [r.functions for r in pool.requests] == [("f",), ("g",), ("g",)]
    assert [a.cancelled() for a in pool.answers] == [False, True, False]
    pool.answers[0].set_result(answer(pool.requests[0], {"a"}, set()))
    await settle()
    (fix,) = moved.breaks[0].fixes
    assert (fix.verified, fix.edits[0].span.line) == (True, 9)


async def test_a_fix_that_got_more_edits_is_taken_where_it_stands(trials: FixTrials, pool: Pool):
    first, later = Span("/f.py", 1, 0, 1, 4), Span("/f.py", 3, 0, 3, 4)
    more = (Edit(first, "a"), Edit(later, "b"))

    def of(request: wire.Request) -> wire.Event:
        found = [dataclasses.replace(d, fixes=tuple(
            dataclasses.replace(f, edits=more, base=f.edits, verified=True, trial="tried", together=True) for f in d.fixes
        )) for d in request.findings]  # fmt: skip
        return wire.Event(1, "result", file=FileReport("/f.py", [Report(request.functions[0], "/f.py", breaks=found)]))

    document = checked(report("f", "1", "a"))
    trials.start(document)
    await settle()
    pool.answers[0].set_result(of(pool.requests[0]))
    await settle()
    assert document.checked is not None
    (fix,) = document.checked.report.functions[0].breaks[0].fixes
    assert (fix.edits, fix.verified, fix.together) == (more, True, True)

    document = checked(report("f", "1", "a"))
    trials.start(document)
    await settle()
    moved = report("f", "1", "a")
    moved.breaks = [dataclasses.replace(d, fixes=(Fix("a", (Edit(later, "a"),)),)) for d in moved.breaks]
    document.begin()
    document.finish(FileReport("/f.py", [moved]))
    pool.answers[1].set_result(of(pool.requests[1]))
    await settle()
    assert has_untried(document.checked.report.functions[0])  # where the others would be now, nobody knows


@pytest.mark.parametrize("outcome", [wire.Event(1, "result"),
                                     wire.Event(1, "result", file=FileReport("/f.py", [], [diagnostics.make("FL905")]))])  # fmt: skip
async def test_what_was_not_tried_out_is_a_template(trials: FixTrials, pool: Pool, outcome: Any):
    document = checked(report("f", "", "a"))
    trials.start(document)
    await settle()
    pool.answers[0].set_result(outcome)
    await settle()
    assert document.checked is not None
    (fix,) = document.checked.report.functions[0].breaks[0].fixes
    assert not fix.verified
    assert fix.trial.startswith("it could not be tried out")
    assert trials.documents == []


async def test_a_worker_that_died_is_no_answer(trials: FixTrials, pool: Pool):
    document = checked(report("f", "1", "a"))
    trials.start(document)
    await settle()
    pool.answers[0].set_exception(WorkerDiedError("killed"))
    await settle()
    assert trials.documents == []
    trials.start(document)
    await settle()
    assert [r.functions for r in pool.requests] == [("f",), ("f",)]


async def test_they_end_with_the_document_and_can_be_switched_off(trials: FixTrials, client: Client, pool: Pool):
    document = checked(report("f", "1", "a"))
    trials.start(document)
    await settle()
    trials.cancel_all()
    await settle()
    assert (pool.answers[0].cancelled(), trials.documents) == (True, [])
    client.settings = Settings(try_fixes=False)
    trials.start(document)
    await settle()
    assert len(pool.requests) == 1
