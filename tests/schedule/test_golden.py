"""Text in, text out: each ``tests/golden/loops/NAME.loop`` is fused and ordered; the results lie next to it.

``FUSELENS_BLESS=1 pytest tests/schedule/test_golden.py`` rewrites the results. Explain the diff where you commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselens.ir.loops import Graph
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify
from fuselens.schedule.fuse import fuse
from fuselens.schedule.order import order

FOLDER = Path(__file__).parents[1] / "golden" / "loops"
SOURCES = sorted(p.name for p in FOLDER.glob("*.loop") if p.name.count(".") == 1)
PASSES: dict[str, Callable[[Graph], Graph]] = {"fuse": fuse, "order": lambda g: order(fuse(g))}


@pytest.mark.parametrize("stage", PASSES)
@pytest.mark.parametrize("source", SOURCES)
def test_golden(source: str, stage: str) -> None:
    graph = parse((FOLDER / source).read_text())
    verify(graph)
    result = PASSES[stage](graph)
    verify(result)
    reasons = "".join(f"# {d.code} {d.subject}: {d.reason} {d.data}\n" for d in result.decisions)
    text = show(result)[0] + reasons
    expected = FOLDER / source.replace(".loop", f".{stage}.loop")
    if os.environ.get("FUSELENS_BLESS"):
        expected.write_text(text)
    assert text == expected.read_text()


def test_a_result_is_read_back_by_the_parser() -> None:
    for source in SOURCES:
        text = show(fuse(parse((FOLDER / source).read_text())))[0]
        assert show(parse(text))[0] == text
