"""A function is compiled again when something that it depends on changed, and only then."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuselens.checking import check
from fuselens.record.report import Report

Written = Callable[..., Path]
F = """
@fuselens.compile
def f(x: Float32[Tensor, "n"]):
    return helper(x) * SCALE
"""
HELPER = """
SCALE = 2.0
def helper(x):
    return x + inner(x)
def inner(x):
    return x.sin()
"""
MODEL = """
class Block(nn.Module):
    def __init__(self, size, rate=0.5):
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.rate = rate
    def forward(self, x):
        return torch.relu(self.linear(x)) * self.rate
model = fuselens.compile(nn.Sequential(Block(4), Block(4)), example_inputs=(torch.ones(2, 4),))
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Modules that the files under test import are imported anew by the next check, as in a new process."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("beside"):
            del sys.modules[name]


def compiled(path: Path, known: dict[str, str] | None = None) -> dict[str, Report]:
    for name in [n for n in sys.modules if n.startswith("beside")]:
        del sys.modules[name]
    file = check.check_file(path, known=known)
    assert file.diagnostics == []
    return {r.function: r for r in file.functions}


def unchanged(written: Written, before: str, after: str) -> dict[str, bool]:
    """Which functions of ``after`` need not be compiled by one who has the reports of ``before``."""
    first = compiled(written(before))
    assert all(r.fingerprint and not r.unchanged for r in first.values())
    second = compiled(written(after), {name: r.fingerprint for name, r in first.items()})
    return {name: r.unchanged for name, r in second.items()}


@pytest.mark.parametrize(
    "after",
    [
        HELPER + F,
        "# a comment\n\n" + HELPER + "\n\n" + F,
        HELPER + F.replace("    return", "    # why\n    return"),
        HELPER + F.replace("helper(x) * SCALE", "(helper(x)\n            * SCALE)"),
        HELPER + "UNRELATED = [1]\n" + F + "\ndef other(): pass\n",
        HELPER.replace("def inner", "import math\ndef inner") + F,
        F + HELPER,
    ],
)
def test_what_only_moved_is_unchanged(written: Written, after: str) -> None:
    assert unchanged(written, HELPER + F, after) == {"f": True}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x.sin()", "x.cos()"),
        ("SCALE = 2.0", "SCALE = 3.0"),
        ("SCALE = 2.0", "SCALE = 2"),
        ("helper(x) * SCALE", "helper(x) / SCALE"),
        ('"n"', '"n 3"'),
        ("@fuselens.compile", "@fuselens.compile(fullgraph=True)"),
        ("@fuselens.compile", '@fuselens.compile(options={"fast_math": True})'),
        ("SCALE = 2.0", "SCALE = 2.0\ntorch.set_default_dtype(torch.float64)"),
        ("SCALE = 2.0", "SCALE = torch.ones(3)[:1]"),
        ("SCALE = 2.0", "SCALE = torch.tensor(4)"),
    ],
)
def test_what_depends_on_a_change_is_compiled_again(written: Written, old: str, new: str) -> None:
    import torch

    text = HELPER + F
    assert old in text
    try:
        assert unchanged(written, text, text.replace(old, new)) == {"f": False}
    finally:
        torch.set_default_dtype(torch.float32)


def test_one_of_two_functions(written: Written) -> None:
    g = F.replace("def f", "def g").replace("helper(x)", "x.exp()")
    assert unchanged(written, HELPER + F + g, HELPER.replace("sin", "cos") + F + g) == {"f": False, "g": True}


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("relu", "relu", True),
        ("relu", "tanh", False),
        ("rate=0.5", "rate=0.25", False),
        ("Block(4), Block(4)", "Block(4), Block(4), Block(4)", False),
        ("Block(4), Block(4)", "Block(4).eval(), Block(4)", False),
        ("torch.ones(2, 4)", "torch.ones(3, 4)", False),
        ("torch.ones(2, 4)", "torch.zeros(2, 4)", True),
    ],
)
def test_modules(written: Written, old: str, new: str, same: bool) -> None:
    """Parameters are drawn anew with each import: they count by their metadata."""
    assert unchanged(written, MODEL, MODEL.replace(old, new)) == {"model": same}


@pytest.mark.parametrize(
    ("state", "same"),
    [
        ("T = {'a': (1, [2.5]), 'b': {3, 'c'}}", True),
        ("import enum\nclass E(enum.Enum):\n    A = 1\nT = E.A", True),
        ("import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int = 1\nT = D()", True),
        ("import typing\nclass P(typing.NamedTuple):\n    a: int\nT = P(1)", True),
        ("import functools\nT = functools.partial(helper, 1)", True),
        ("import functools\n@functools.lru_cache\ndef T(): return 1", True),
        ("import numpy\nT = numpy.arange(3)", True),
        ("T = fuselens.compile(helper)", True),
        ("T = torch.compile(helper)", True),
        ("class T:\n    __slots__ = ('a',)\n    @property\n    def b(self): return self.a", True),
        ("T = []\nT.append(T)", True),
        ("import threading\nT = threading.Lock()", False),
        ("T = iter([1])", False),
        ("import random\nT = random.Random(1)", False),
        ("T = torch.Generator()", False),
    ],
)
def test_kinds_of_state(written: Written, state: str, same: bool) -> None:
    """What cannot be looked into is never taken to be the same."""
    text = HELPER + state + F.replace("helper(x)", "helper(x) if T is not None else x")
    first = compiled(written(text))["f"]
    assert bool(first.fingerprint) == same
    assert compiled(written(text), {"f": first.fingerprint})["f"].unchanged == same


def test_state_is_compared_by_value(written: Written) -> None:
    text = HELPER + "T = {'a': [1, 2]}" + F.replace("SCALE", "T['a'][0]")
    assert unchanged(written, text, text.replace("[1, 2]", "[1, 3]")) == {"f": False}


def test_other_files(written: Written) -> None:
    """Their lines count as well: reports point there."""
    main = "import beside\n" + F.replace("helper(x) * SCALE", "beside.helper(x)")
    written("def helper(x): return x.sin()\ndef unrelated(): return 1\n", "beside.py", "")
    first = compiled(written(main))["f"]
    known = {"f": first.fingerprint}
    assert compiled(written(main), known)["f"].unchanged
    written("def helper(x): return x.sin()\ndef unrelated(): return 22\n", "beside.py", "")
    assert compiled(written(main), known)["f"].unchanged
    written("\ndef helper(x): return x.sin()\n", "beside.py", "")
    assert not compiled(written(main), known)["f"].unchanged
    written("def helper(x): return x.cos()\n", "beside.py", "")
    assert not compiled(written(main), known)["f"].unchanged


def test_the_files_that_were_imported_are_named(written: Written) -> None:
    beside = written("def helper(x): return x.sin()\n", "beside.py", "")
    file = check.check_file(written("import beside\n" + F.replace("helper(x) * SCALE", "beside.helper(x)")))
    assert str(beside) in file.imports


def test_a_name_bound_twice_is_always_compiled(written: Written) -> None:
    text = HELPER + F + F
    first = check.check_file(written(text)).functions
    second = check.check_file(written(text), known={"f": first[0].fingerprint}).functions
    assert [r.unchanged for r in second] == [False, False]


def test_a_library_patched_by_the_file(written: Written) -> None:
    text = HELPER + "import json\njson.scale = helper\n" + F.replace("helper(x) * SCALE", "json.scale(x)")
    assert unchanged(written, text, text.replace("sin", "cos")) == {"f": False}


def test_one_edit_in_a_file_of_two_thousand_lines_costs_one_function(written: Written) -> None:
    each = "@fuselens.compile\ndef f{0}(x: Float32[Tensor, 'n']):\n    return x.sin() * {0}\n" + "\n# -\n" * 23
    text = "".join(each.format(k) for k in range(40))
    assert text.count("\n") > 1900
    found = unchanged(written, text, "\n\n" + text.replace("x.sin() * 17\n", "x.cos() * 17\n"))
    assert [name for name, same in found.items() if not same] == ["f17"]


@pytest.mark.parametrize("missing", ["compiler", "disk"])
def test_what_could_not_be_built_is_tried_again(
    written: Written, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    """When there is a compiler, or room on the disk, nothing of the function has changed."""
    compiler, cache = tmp_path / "compiler", tmp_path / "cache"
    monkeypatch.setenv("CXX", str(compiler) if missing == "compiler" else "g++")
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(cache))
    if missing == "disk":
        cache.write_text("")  # a file, in which nothing can be written
    first = compiled(written(HELPER + F))["f"]
    assert [d.code for d in first.diagnostics] == ["FL403" if missing == "compiler" else "FL916"]
    if missing == "disk":
        cache.unlink()
    compiler.symlink_to(shutil.which("g++") or "g++")
    second = compiled(written(HELPER + F), {"f": first.fingerprint})["f"]
    assert (second.unchanged, second.diagnostics) == (False, [])
