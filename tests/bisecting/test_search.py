"""The search for the smallest part of a graph that fails: whatever it returns fails, and nothing of it can be left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuselens.bisecting import straight
from fuselens.bisecting.search import Search, Verdict
from fuselens.bisecting.straight import Lines, NoProgram, Part

PROGRAM = """
def graph(self, x : "f32", y):
    a = torch.sin(x);  x = None
    b = a + y
    c = b.add_(1);  b = None
    d = torch.exp(a);  a = None
    setitem = operator.setitem(d, 0, 1.0);  setitem = None
    e = d * c;  d = c = None
    return (e, y, 3)


def inputs():
    return [1, 2]


def called(*given):
    return graph(None, *given)
"""


def test_statements() -> None:
    lines = straight.read(PROGRAM)
    assert lines.parameters == ("x", "y") and lines.results == ("e", "y", "3")
    assert [s.name for s in lines.statements] == ["a", "b", "c", "d", "setitem", "e"]
    assert [s.changes for s in lines.statements] == [False, False, True, False, True, False]
    text = lines.text(lines.whole)
    assert "x = None" not in text and text.endswith("return (e, y, 3,)\n")


def test_what_a_part_is_given() -> None:
    lines = straight.read(PROGRAM)
    assert lines.part(range(6), ("d",)).given == (("x", 0), ("y", 0))
    tail = lines.part((5,), ("e",), 5)  # as they are after what changed them
    assert tail == Part((5,), (("c", 5), ("d", 5)), ("e",))
    assert lines.part((0, 5), ("e",)) == Part((5,), (("c", 3), ("d", 4)), ("e",))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def graph(", "cannot be parsed"),
        ("x = 1", "no functions"),
        (PROGRAM.replace("    return (e, y, 3)", "    ..."), "cannot be run on its own"),
    ],
)
def test_what_is_no_program(source: str, why: str) -> None:
    with pytest.raises(NoProgram, match=why):
        straight.read(source)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Lines, frozenset[int]]:
    """Straight lines, and those of their statements that fail together."""
    count = draw(st.integers(1, 24))
    names = ["x"]
    body = []
    for k in range(count):
        used = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        body.append(f"    v{k} = f({', '.join(used)})")
        names.append(f"v{k}")
    results = draw(st.lists(st.sampled_from(names[1:]), min_size=1, max_size=3, unique=True))
    source = "\n".join(["def graph(self, x):", *body, f"    return ({', '.join(results)},)"])
    lines = straight.read(f"{source}\n\ndef inputs(): ...\n\ndef called(*g): ...\n")
    live = lines.part(range(count), lines.results).kept
    return lines, frozenset(draw(st.lists(st.sampled_from(live), min_size=1, max_size=3)))


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_the_smallest_part_fails_and_has_nothing_to_spare(drawn: tuple[Lines, frozenset[int]]) -> None:
    lines, wrong = drawn

    def fails(part: Part) -> bool:
        return wrong <= set(part.kept)

    search = Search(lines, lambda part, until: Verdict("differs" if fails(part) else "agrees"), "differs")
    found = search.smallest()
    assert fails(found)
    for number in found.kept:  # each without one statement either lacks a wrong one, or was not smaller
        kept = tuple(k for k in found.kept if k != number)
        fewer = lines.part(kept, found.results) if kept else None
        assert fewer is None or not fails(fewer) or len(fewer.kept) >= len(found.kept)
    defined = {lines.statements[k].name for k in found.kept} | {name for name, _ in found.given}
    assert all(lines.statements[k].uses - {"f"} <= defined for k in found.kept)


def search_with(fails: Callable[[str], bool], kind: str = "differs") -> Search:
    lines = straight.read(PROGRAM)

    def probe(part: Part, until: str) -> Verdict:
        return Verdict(kind if fails(until) else "agrees", fusions=9, left_out=f"after {until}")

    return Search(lines, probe, kind)


def number(until: str) -> int:
    return int(until.partition(":")[2] or 99)


@pytest.mark.parametrize("first", range(1, 10))
def test_the_first_fusion_that_fails(first: int) -> None:
    search = search_with(lambda until: until == "" or (until.startswith("generate") and number(until) >= first))
    fault = search.fault(search.lines.whole, ())
    assert (fault.stage, fault.step) == ("generate", f"after generate:{first - 1}")
    assert search.probes <= 5 + 3 + 4


def test_the_first_rewrite_that_fails() -> None:
    rewrites = ("one", "two", "three")
    search = search_with(
        lambda until: until in ("", "lower", "fuse") or (until.startswith("simplify") and number(until) >= 2)
    )
    fault = search.fault(search.lines.whole, rewrites)
    assert (fault.stage, fault.step) == ("simplify", "two")


@pytest.mark.parametrize("stage", ["capture", "joint", "lower"])
def test_stages_without_steps(stage: str) -> None:
    search = search_with(lambda until: until in ("", stage))
    assert search.fault(search.lines.whole, ()).stage == stage


def test_interpreted_loops_are_not_what_is_slow() -> None:
    search = search_with(lambda until: until in ("", "lower", "fuse") or until.startswith("generate"), "slow")
    assert search.fault(search.lines.whole, ()).stage == "generate"


def test_no_more_is_asked_when_the_time_is_over() -> None:
    lines = straight.read(PROGRAM)
    search = Search(lines, lambda part, until: Verdict("differs"), "differs", over=lambda: True)
    assert search.smallest() == lines.whole and search.probes == 1
