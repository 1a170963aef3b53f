"""The questions that are asked: within a budget, what gains twice, and what is said of the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fuselens.record import diagnostics, plain
from fuselens.record.report import Edit, FileReport, Span, TriedChange, WhatIf
from fuselens.record.wire import Event
from fuselens.source.changes import Change, asking

SPAN = Span("/model.py", 3, 0, 3, 4)


def change(title: str, **how: Any) -> Change:
    return Change("clone", title, SPAN, (Edit(SPAN, title),), **how)


def measured(of: Change, time: float, **how: Any) -> TriedChange:
    why = "" if time < 1 else "no gain"
    return TriedChange(of.kind, of.title, of.span, of.edits, time=time, time_quartiles=(time, time), seconds=time,
                       seconds_before=1.0, why=why, **how)  # fmt: skip


def told(seconds: float, **found: Any) -> Event:
    return Event(0, "result", text=json.dumps({**found, "seconds": seconds}))


def searched(
    changes: list[Change], times: dict[str, list[float]], budget: float, cost: float = 4.0
) -> tuple[WhatIf, list[str]]:
    """What is found where measuring each costs so much processor time, and what was asked, in order."""
    search, asked = asking.search("step", budget), list[str]()
    question = next(search)
    try:
        while True:
            if question.method == "changes":
                event = told(1.0, changes=[plain.to_plain(c) for c in changes])
            else:
                one = plain.from_plain(Change, question.options["change"], [])
                asked.append(one.title)
                event = told(cost, tried=plain.to_plain(measured(one, times[one.title].pop(0))))
            assert question.processor_seconds <= budget
            question = search.send(event)
    except StopIteration as end:
        return end.value, asked


def test_what_gains_is_measured_twice_and_the_best_comes_first() -> None:
    changes = [change("a"), change("b"), change("c"), change("d", refused="it is needed")]
    found, asked = searched(changes, {"a": [0.9, 0.8], "b": [1.1], "c": [0.5, 0.5]}, 60)
    assert asked == ["a", "b", "c", "a", "c"]
    assert [c.title for c in found.offered] == ["c", "a"]
    assert 0.84 < (found.offered[1].time or 0) < 0.85 and found.offered[1].time_quartiles == (0.8, 0.9)
    assert {c.title: c.why for c in found.changes if not c.offered} == {"b": "no gain", "d": "it is needed"}
    assert found.seconds == 21.0 and not found.left


def test_what_gains_once_only_is_not_offered() -> None:
    found, _ = searched([change("a")], {"a": [0.9, 1.2]}, 60)
    assert not found.offered and found.changes[0].why == "it gained in one process of two: no gain"


def test_no_more_processor_time_than_the_budget() -> None:
    changes = [change(title) for title in "abcdef"]
    found, asked = searched(changes, {title: [0.9, 0.9] for title in "abcdef"}, 10)
    assert asked == ["a", "b"] and found.seconds == 9.0
    assert found.left == ("c", "d", "e", "f")
    assert [c.title for c in found.offered] == ["a", "b"]  # once: there was no time for more


def test_a_process_that_ends_otherwise_is_an_answer() -> None:
    search = asking.search("step", 30)
    assert next(search).method == "changes"
    search.send(told(1.0, changes=[plain.to_plain(change("a")), plain.to_plain(change("b"))]))
    died = diagnostics.make("FL906", why="SIGSEGV", where="")
    search.send(Event(0, "result", file=FileReport("/model.py", [], [died]), processor_seconds=3.0))
    with pytest.raises(StopIteration) as end:
        search.send(told(2.0, tried=plain.to_plain(measured(change("b"), 1.0))))
    found: WhatIf = end.value.value
    assert "SIGSEGV" in found.changes[0].why and found.seconds == 6.0


def test_a_file_that_cannot_be_looked_at() -> None:
    search = asking.search("step", 30)
    next(search)
    with pytest.raises(StopIteration) as end:
        search.send(Event(0, "result", file=FileReport("/model.py", [], [diagnostics.make("FL902", why="bad")])))
    assert end.value.value.stopped and not end.value.value.changes
