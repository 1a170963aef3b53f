"""Positions in a saved text after edits."""

from __future__ import annotations

import random

import pytest
from lsprotocol import types as lsp

from fuselens.record.report import Span
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.tracked_text import Edit, TrackedText, whole_change

TEXT = "one = 1\ntwo = 2\nthree = 3\n"


def edited(text: str, *edits: tuple[int, int, str]) -> TrackedText:
    tracked = TrackedText.unedited(SourceText(text))
    for start, end, new in edits:
        now = tracked.current.text
        tracked = tracked.after(Edit(start, end, len(new)), SourceText(now[:start] + new + now[end:]))
    return tracked


def shown(tracked: TrackedText, where: lsp.Range | None) -> str | None:
    if where is None:
        return None
    return tracked.current.text[tracked.current.offset(where.start) : tracked.current.offset(where.end)]


TWO = Span("f", 2, 0, 2, 3)  # "two", offsets 8 to 11


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        ((0, 0, "zero = 0\n"), "two"),  # a line before
        ((0, 8, ""), "two"),  # the line before is deleted
        ((3, 3, "_"), "two"),  # inside the line before
        ((8, 8, "# "), "two"),  # just before, on its line
        ((11, 11, "x"), "two"),  # just after: not part of it
        ((12, 13, "+="), "two"),  # behind, on its line
        ((16, 16, "x = 1\n"), "two"),  # a line behind
        ((9, 9, "x"), None),  # inside
        ((8, 9, "T"), None),
        ((10, 14, ""), None),  # over its end
        ((5, 9, ""), None),  # over its start
        ((0, 26, ""), None),  # everything gone
    ],
)
def test_a_span_moves_or_is_given_up(edit, text):
    tracked = edited(TEXT, edit)
    assert shown(tracked, tracked.range(TWO)) == text


@pytest.mark.parametrize("edit", [(9, 9, "x"), (8, 9, "T"), (10, 14, ""), (5, 9, ""), (0, 26, "")])
def test_an_anchor_always_has_a_place(edit):
    tracked = edited(TEXT, edit)
    place = tracked.anchor(TWO)
    assert place.start.line < tracked.current.line_count


def test_typing_is_one_edit():
    tracked = edited(TEXT, *((i, i, c) for i, c in enumerate("comment = 'typed'\n")), (17, 18, ""))
    assert len(tracked.edits) == 1
    assert shown(tracked, tracked.range(TWO)) == "two"


@pytest.mark.parametrize("seed", range(40))
def test_lines_that_no_edit_touches_move_as_their_offsets_do(seed):
    """Lines above and below all edits are placed by their numbers alone, others through offsets: both say the same."""
    rng = random.Random(seed)
    text = ["\n", "\r\n"][seed % 2].join(
        rng.choice(["a = 1", "    b = a", "", "é = 'ü'", "c(d, e)"]) for _ in range(12)
    )
    tracked = edited(text)
    for _ in range(rng.randint(1, 5)):
        now = tracked.current.text
        start = rng.randint(0, len(now))
        end, new = min(len(now), start + rng.choice([0, 0, 1, 4])), rng.choice(["", "x", "\n", "y = 2\n\n", "# é"])
        tracked = tracked.after(Edit(start, end, len(new)), SourceText(now[:start] + new + now[end:]))
    for line in range(1, tracked.origin.line_count + 1):
        wide = len(tracked.origin.line(line).encode())
        for span in (
            Span("f", line, 0, line, wide),
            Span("f", line, 1, line + 1, 1),
            Span("f", line, wide, line, wide),
        ):
            place = tracked._offsets(span)
            assert tracked.range(span) == (place and tracked.current.range(*place)), (text, tracked.edits, span)


def test_stale_only_when_the_text_differs():
    assert not edited(TEXT).stale
    assert edited(TEXT, (0, 0, "#")).stale
    assert not edited(TEXT, (0, 0, "#"), (0, 1, "")).stale


@pytest.mark.parametrize(
    ("edit", "line", "origin"),
    [
        ((0, 0, "new\n"), 0, None),
        ((0, 0, "new\n"), 1, 1),
        ((0, 0, "new\n"), 2, 2),
        ((0, 8, ""), 0, 2),
        ((12, 15, "+= 22"), 1, 2),  # the line was edited behind its start: still that line
        ((16, 16, "  # x\n"), 2, None),
    ],
)
def test_the_line_under_the_cursor(edit, line, origin):
    assert edited(TEXT, edit).line(lsp.Position(line, 0)) == origin


def test_the_place_under_the_cursor():
    tracked = edited(TEXT, (0, 0, "é\n"))
    assert tracked.place(lsp.Position(2, 1)) == (2, 1)
    assert tracked.place(lsp.Position(0, 0)) is None


@pytest.mark.parametrize("seed", range(20))
def test_untouched_characters_are_followed_through_random_edits(seed):
    """Oracle: every character carries its identity; a span is kept exactly when all its characters still neighbour."""
    rng = random.Random(seed)
    text = "".join(rng.choice("ab😀\n") for _ in range(40))
    characters: list[int | None] = list(range(len(text)))
    tracked = TrackedText.unedited(SourceText(text))
    for _ in range(8):
        start = rng.randrange(len(characters) + 1)
        end = min(len(characters), start + rng.randrange(3))
        new = "".join(rng.choice("xyz\n") for _ in range(rng.randrange(3)))
        now = tracked.current.text
        tracked = tracked.after(Edit(start, end, len(new)), SourceText(now[:start] + new + now[end:]))
        characters[start:end] = [None] * len(new)
    for offset in range(len(text)):
        if text[offset] == "\n":
            continue
        line, column = SourceText(text).bytes_at_offset(offset)
        found = tracked.range(Span("f", line, column, line, column + len(text[offset].encode())))
        if found is not None:
            assert characters.index(offset) == tracked.current.offset(found.start)
        if offset in characters:
            now = tracked.current.position(characters.index(offset))
            assert tracked.place(now) in ((line, column), None)


@pytest.mark.parametrize(
    ("old", "new"),
    [("abc", "abXc"), ("", "x"), ("x", ""), ("same", "same"), ("aaa", "aa"), ("aa", "aaa"), ("abc", "xyz")],
)
def test_a_whole_change_is_its_smallest_edit(old, new):
    edit = whole_change(old, new)
    assert old[: edit.start] + new[edit.start : edit.start + edit.length] + old[edit.end :] == new
    assert edit.growth == len(new) - len(old)
