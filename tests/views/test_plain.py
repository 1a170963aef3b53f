"""Reports as JSON-ready data and back."""

from __future__ import annotations

import json

import pytest

from fuselens.record import wire
from fuselens.record.plain import Spans, from_plain, to_plain
from fuselens.record.report import (
    Decision,
    Diagnostic,
    Edit,
    FileReport,
    Fix,
    Frame,
    Graph,
    Guard,
    Line,
    Report,
    Span,
    Stage,
    Symbol,
    Timing,
)  # fmt: skip

A, B = Span("/a.py", 1, 0, 1, 4), Span("/b é.py", 2, 1, 3, 0)
FINDING = Diagnostic(
    "FL101", "m", A, hints=("h",), stack=(Frame("f", B), Frame("g", Span("/a.py", 1, 0, 1, 4))),
    fixes=(Fix("t", (Edit(B, "new"),), True, "agreed"),),
)  # fmt: skip
REPORT = FileReport(
    "/a.py",
    [
        Report(
            "f", "/a.py", A, breaks=[FINDING], guards=[Guard("IS", "x", "x is y", span=None), Guard("IS", "z", "", ("z",), B, 2.5)],
            graphs=[
                Graph(
                    0, "f", None, 3,
                    stages=[Stage("cpp", "cpp", "text\n", (Line(1, (A, B)), Line(2, ()), Line(3, (B,))))],
                    decisions=[Decision("FL410", "taken", "s", "r", B, {"bytes": 3, "names": ["a", None, 0.5]})],
                    timings=[Timing("lower", 0.25)], training=True,
                )
            ],
            symbols=[Symbol("n", "x.size(0)", 3, None, 7)], versions={"torch": "2"},
        )
    ],
    [Diagnostic("FL902", "no", None)], 1.5, ("/b.py",),
)  # fmt: skip


def test_for_people() -> None:
    data = json.loads(json.dumps(to_plain(REPORT)))
    assert from_plain(FileReport, data) == REPORT
    assert data["functions"][0]["span"] == {"file": "/a.py", "line": 1, "column": 0, "end_line": 1, "end_column": 4}


def test_for_the_wire() -> None:
    event = wire.Event(7, "result", file=REPORT)
    frame = wire.encode(event)
    assert wire.decode(frame[wire.LENGTH_SIZE :], wire.Event) == event
    assert frame.count(b"/b \\u00e9.py") == 1  # each span is there once


def test_equal_spans_have_one_number() -> None:
    spans = Spans()
    plain = to_plain(REPORT, spans)
    assert spans.rows == [("/a.py", 1, 0, 1, 4), ("/b é.py", 2, 1, 3, 0)]
    assert plain["functions"][0]["graphs"][0]["stages"][0]["lines"] == [[1, 0, 1], [2], [3, 1]]


def test_unknown_fields_are_passed_over() -> None:
    data = to_plain(REPORT)
    data["new"] = data["functions"][0]["new"] = {"anything": 1}
    assert from_plain(FileReport, data) == REPORT


@pytest.mark.parametrize("body", [b"[]", b"3", b'{"id": 1, "kind": "result", "file": []}', b'{"spans": [[1]]}', b"{"])
def test_nonsense_is_refused(body: bytes) -> None:
    with pytest.raises(wire.ProtocolError):
        wire.decode(body, wire.Event)
