"""What ``fuselens.explain`` gives: as text, JSON, in notebooks, and with the fields of torch's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import fuselens
from fuselens.record.plain import from_plain
from fuselens.record.printed import page, schema
from fuselens.record.report import Report


def step(x: torch.Tensor) -> torch.Tensor:
    y = x.exp() + 1
    if y.sum() < 0:
        y = -y
    return y.softmax(0)


@pytest.fixture(scope="module")
def report() -> Any:
    return fuselens.explain(step)(torch.ones(4, 8, requires_grad=True))


def test_text(report: Any) -> None:
    text = str(report)
    assert text == f"{report}" and text.startswith("step  ")
    for part in ("3 graphs · 1 break", "Breaks", "FL101", "if y.sum() < 0:", "Guards", "Graph 0: step", "Timings"):
        assert part in text
    assert repr(report) == f"<Explanation of step: {report.summary()}>"


def test_json_follows_the_schema(report: Any) -> None:
    whole = schema.of_files()
    plain = json.loads(report.to_json())
    jsonschema.validate(plain, {"$ref": "#/$defs/Report", "$defs": whole["$defs"]})
    assert from_plain(Report, plain).breaks == report.breaks


def test_torchs_fields(report: Any) -> None:
    theirs = torch._dynamo.explain(step)(torch.ones(4, 8, requires_grad=True))
    torch._dynamo.reset()
    assert report.graph_break_count == theirs.graph_break_count == len(report.break_reasons)
    assert report.graph_count == 3 and len(report.graphs) == 3  # both sides of the branch
    assert report.op_count >= theirs.op_count > 0
    assert [set(ops) for ops in report.ops_per_graph][0] >= {"aten.exp.default", "aten.add.Tensor", "aten.sum.default"}
    assert len(report.out_guards) > 0 and report.compile_times["total"] > 0
    for name in (
        "graphs",
        "graph_count",
        "graph_break_count",
        "break_reasons",
        "op_count",
        "ops_per_graph",
        "out_guards",
        "compile_times",
    ):
        assert hasattr(theirs, name) and hasattr(report, name)


class Checked(HTMLParser):
    """Tags that are closed, and nothing that is fetched."""

    VOID = frozenset({"meta", "br", "!doctype"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [v or "" for name, v in attrs if name in ("src", "href") and not (v or "").startswith("#")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def looked_at(text: str) -> Checked:
    parser = Checked()
    parser.feed(text)
    assert parser.open == [] and parser.fetched == []
    return parser


def test_a_page_stands_alone_and_is_well_formed(report: Any) -> None:
    text = page.page([report])
    looked_at(text)
    for part in (
        "if y.sum() &lt; 0:",
        "FL101",
        "data-kernels=",
        "Guards",
        "Where compile time went",
        "Memory, step by step",
        "aten.exp.default",
    ):
        assert part in text
    assert "https://" not in text and "http://" not in text


def test_a_page_of_names_that_are_no_html() -> None:
    def hostile(x: torch.Tensor) -> torch.Tensor:
        print("</script><b>")
        return x + 1

    report = fuselens.explain(hostile)(torch.ones(3))
    report.function = "<img src=x onerror=alert(1)>"
    looked_at(page.page([report], lambda file: "</pre><script>alert(1)</script>\n" * 200))


def test_a_page_is_bounded(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_TEXT", 100)
    monkeypatch.setattr(page, "MOST_PAGE", 300)
    text = page.page([report])
    looked_at(text)
    assert "characters more are in the file of the stage" in text
    assert len(text) < len(page.page([Report("f", "/f.py")])) + 60_000


# --- notebooks ------------------------------------------------------------------------------------------------------


@pytest.fixture
def shell() -> Iterator[Callable[[str], Any]]:
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "fuselens")

    def ran(cell: str) -> tuple[list[Any], Any]:
        with capture_output() as captured:
            done = made.run_cell(cell)
            done.raise_error()
        return [o for o in captured.outputs if "text/html" in o.data and "<iframe" in o.data["text/html"]], done.result

    yield ran
    InteractiveShell.clear_instance()
    fuselens.reset()


DEFINED = """import torch, fuselens
@fuselens.compile
def first(x):
    return x.exp() + 1

@fuselens.compile
def second(x):
    return x.sin() * 2
"""


def test_a_cell_shows_what_it_compiled(shell: Callable[[str], Any]) -> None:
    outputs, _ = shell(f"%%fuselens\n{DEFINED}\nfirst(torch.ones(3))")
    (one,) = outputs
    assert "return x.exp() + 1" in one.data["text/html"], "the source of the cell"
    assert one.data["text/plain"] == "<Explanation of first: 1 graph · 0 breaks · 1 kernel>"
    outputs, _ = shell("%%fuselens\nfirst(torch.ones(3))")
    assert outputs == [], "nothing was compiled"
    outputs, _ = shell("%%fuselens second\nfirst(torch.ones(4)); value = second(torch.ones(3))")
    assert [o.data["text/plain"] for o in outputs] == ["<Explanation of second: 1 graph · 0 breaks · 1 kernel>"]
    assert torch.equal(shell("value")[1], torch.ones(3).sin() * 2)
