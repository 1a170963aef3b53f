"""What is kept of a file while it is edited is what a look at the whole text finds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fuselens.source.discovery import SourceModule
from fuselens.source.edited import EditedModule
from fuselens.source.predictions import predict

TESTS = Path(__file__).resolve().parents[1]
FILES = [
    TESTS / "predictions" / "programs.py",
    TESTS / "predictions" / "models.py",
    *sorted((TESTS.parent / "examples").glob("*.py")),
]
SOURCE = """\
import fuselens
import torch
from torch import Tensor, nn

SCALE = 2

def loss(x: Tensor):
    if x.sum() > 0:
        return x
    return -x

def average(x: Tensor):
    return loss(x).mean()

class Net(nn.Module):
    def forward(self, x: Tensor):
        return average(x) * SCALE

@fuselens.compile
def f(x: Tensor):
    return average(x)

net = fuselens.compile(Net())

@fuselens.compile
def g(x: Tensor, n: int = SCALE):
    return x * n
"""
SNIPPETS = [
    "\n", "\n\n", "    ", "if x.sum() > 0:\n    pass\n", "    print(x)\n", "@fuselens.compile\n", "@torch.compile", "(", ")", '"""',
    "'''", "\\\n", "#", ";", "x = 1; y = 2\n", "else:\n    pass\n", "import time as t\n", "from torch import *\n", "global SCALE\n",
    "def h(x):\n    return x.item()\n", "\r\n", "\r", "\x0c", "é", "ﬁ = 1\n", "𝒙", "return x.tolist()\n", "class Net:\n    pass\n",
    "loss = print\n", "try:\n", "async ", "\ufeff", "\x00",
]  # fmt: skip


def same(edited: EditedModule, text: str) -> bool:
    """Compares with a look at the whole; whether the text can be parsed."""
    try:
        module = SourceModule(text, edited.filename)
    except SyntaxError:
        with pytest.raises(SyntaxError):
            edited.update(text)
        return False
    shown, predicted = edited.update(text), predict(module)
    assert shown.annotated == tuple(module.annotated)
    assert shown.predicted == predicted
    assert list(shown.predicted) == list(predicted)
    return True


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_edits_anywhere_give_what_the_whole_text_gives(path: Path) -> None:
    draw = random.Random(path.name)
    whole = path.read_text()
    edited, text, parsed = EditedModule(whole, str(path)), whole, 0
    for _ in range(80):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice([0, 0, 0, 1, 3, 40, 300]))
        lines = text.splitlines(keepends=True)
        new = (
            draw.choice(SNIPPETS) if draw.random() < 0.7 else "".join(lines[(k := draw.randrange(len(lines))) : k + 9])
        )
        if draw.random() < 0.6:  # whole lines: more often parsed
            start, end = (text.rfind("\n", 0, place) + 1 for place in (start, end))
        text = text[:start] + new + text[end:]
        if same(edited, text):
            parsed += 1
        elif draw.random() < 0.8:
            text = whole
    assert parsed > 5


def test_a_helper_of_a_helper_concerns_those_who_call_it() -> None:
    edited = EditedModule(SOURCE, "f.py")
    assert {name: [d.code for d in found] for name, found in edited.shown.predicted.items()} == {
        "f": ["FL101"], "net": ["FL101"], "g": [],
    }  # fmt: skip
    kept = edited.shown.predicted["g"]
    assert same(edited, SOURCE.replace("if x.sum() > 0", "if x.shape[0]"))
    assert edited.shown.predicted["f"] == edited.shown.predicted["net"] == []
    assert edited.shown.predicted["g"] is kept


def test_only_what_an_edit_may_concern_is_looked_at_again() -> None:
    edited = EditedModule(SOURCE, "f.py")
    kept = dict(edited.shown.predicted)
    assert same(edited, SOURCE.replace("return x * n", "return x * n.item()"))
    assert [name for name, found in edited.shown.predicted.items() if found is kept[name]] == ["f", "net"]


def test_an_import_concerns_all() -> None:
    edited = EditedModule(SOURCE, "f.py")
    assert same(edited, SOURCE.replace("import fuselens", "import fuselens as fl"))
    assert [a.qualname for a in edited.shown.annotated] == []
    assert same(edited, SOURCE)
    assert len(edited.shown.annotated) == 3


def test_after_a_syntax_error_all_goes_on_from_the_last_text_without_one() -> None:
    edited = EditedModule(SOURCE, "f.py")
    for text in (
        SOURCE.replace("return x * n", "return x * ("),
        SOURCE + '"""',
        SOURCE.replace("def g", "def"),
        SOURCE + "\x00",
    ):
        assert not same(edited, text)
        assert len(edited.shown.annotated) == 3
    assert same(edited, SOURCE.replace("    return x * n", "    x = x + n\n\n    return x.item()"))
    assert [d.code for d in edited.shown.predicted["g"]] == ["FL102"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@fuselens.compile\ndef g", "def g"),
        ("def average", "@fuselens.compile\ndef average"),
        ("SCALE = 2\n", "SCALE = 2 + \\\n\n"),
        ("SCALE = 2\n", "if 1:\n    SCALE = 2\nelse:\n    SCALE = 3\n"),
        ("import torch\n", "import torch; import time\n"),
        ("net = fuselens", "def x(): pass\nnet = other = fuselens"),
        ("def loss", "fuselens.compile(loss)\nfuselens.compile(loss)\ndef loss"),
        (SOURCE, ""),
        ("", "\ufeff"),
    ],
)
def test_forms(old: str, new: str) -> None:
    edited = EditedModule(SOURCE, "f.py")
    same(edited, SOURCE.replace(old, new, 1))
    assert same(edited, SOURCE)


def test_lines_that_are_gone_are_forgotten_in_time() -> None:
    edited = EditedModule(SOURCE, "f.py")
    for k in range(200):
        assert (
            same(edited, SOURCE.replace("return x * n", f"return x * {k}"))
            if k % 40 == 0
            else edited.update(SOURCE.replace("return x * n", f"return x * {k}") + "\n" * k)
        )
    assert len(edited._lines) < 3000
