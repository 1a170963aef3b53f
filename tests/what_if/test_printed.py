"""What is said of changes: gains in a menu, for a lens, and in lines."""

from __future__ import annotations

from typing import Any

from fuselens.record.printed import tried
from fuselens.record.report import Edit, Span, TriedChange, WhatIf

SPAN = Span("/model.py", 7, 4, 7, 9)


def change(title: str, time: float | None, saved: int = 0, **how: Any) -> TriedChange:
    memory = {"bytes_before": 500 << 20, "bytes": (500 << 20) - saved} if saved else {}
    edits = (Edit(SPAN, title),)
    return TriedChange("clone", title, SPAN, edits, time=time, time_quartiles=(time or 1, time or 1), **memory, **how)


def test_gains() -> None:
    assert tried.title(change("Leave out .clone()", 0.89, 420 << 20)) == "Leave out .clone(): −11 % time, −420 MiB"
    assert tried.gain(change("x", 1.06, 42 << 20)) == "+6 % time, −42 MiB"
    assert tried.gain(change("x", 0.7, 1 << 20, steady=False)) == "no other time, −1 MiB"
    assert tried.gain(change("x", 0.75, of="first calls")) == "−25 % time of the first calls"
    rounded = change("bfloat16", 0.5, error=3.1e-3, changes="its result is bfloat16")
    assert tried.title(rounded) == "bfloat16: −50 % time; differs from eager by 3e-3; its result is bfloat16"


def test_headlines_and_lines() -> None:
    some = WhatIf("step", (change("a", 0.69), change("b", 0.9), change("c", 0.5, why="it differs")), ("d",), 12.0, 60.0)
    assert tried.headline(some) == "2 changes gain up to 31 %"
    assert list(tried.lines(some, "/model.py")) == [
        "2 changes gain up to 31 % (12 of 60 s of processor time used)",
        "  1. line 7: a: −31 % time",
        "     half of the pairs of calls between −31 and −31 %",
        "  2. line 7: b: −10 % time",
        "     half of the pairs of calls between −10 and −10 %",
        "  not offered: line 7: c: it differs",
        "  not tried, because the processor time was used: d",
    ]
    memory = WhatIf("step", (change("a", 0.7, 16 << 20, steady=False),))
    assert tried.headline(memory) == "1 change gains up to 16 MiB"
    assert tried.headline(WhatIf("step", (change("a", 1.0, why="no"),))) == "no change gains"
    assert list(tried.lines(WhatIf("step", stopped="it died"), "")) == ["nothing is known: it died"]
