"""The page of codes is the table, printed."""

from __future__ import annotations

from pathlib import Path

from fuselens.record.diagnostics import TABLE, codes_markdown, make

PAGE = Path(__file__).resolve().parents[2] / "docs" / "codes.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == codes_markdown().rstrip() + "\n", "write codes_markdown() to docs/codes.md"


def test_every_code_can_be_made():
    for code in TABLE:
        made = make(code, what="f", why="because", value=1, count=2, limit=3, where="")
        assert "{" not in made.message + made.explanation
