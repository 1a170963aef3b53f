"""Programs are looked at without being run: what they compile is found, and what it is called with."""

from __future__ import annotations

import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fuselens.checking.check import check_file, opened_function, run_function
from fuselens.slices import Evaluation, Leads, described
from fuselens.slices.unknown import Unknown, UnknownUsed
from fuselens.source.discovery import SourceModule

from .programs import HEAD, PROGRAMS

Look = Callable[[str], Evaluation]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / "program.py")])

    def evaluate(text: str) -> Evaluation:
        source = HEAD + textwrap.dedent(text)
        path = str(tmp_path / "program.py")
        leads = Leads(SourceModule(source, path))
        evaluation = Evaluation(leads, leads.module.annotated)
        namespace: dict[str, Any] = {"__name__": "program", "__file__": path}
        evaluation.run(namespace)
        return evaluation

    return evaluate


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, look: Look, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.system", lambda _: pytest.fail("the program ran to its end"))
    text, expected = PROGRAMS[name]
    assert Leads(SourceModule(HEAD + text, "program.py")).runs_itself()
    compilers = torch.compile, torch.nn.Module.compile, torch.load
    found = look(text).found
    given = {q: [*map(described, c.args or ()), *(described(v) for v in c.kwargs.values())] for q, c in found.items()}
    assert given == expected
    assert capfd.readouterr() == ("", "")
    assert compilers == (torch.compile, torch.nn.Module.compile, torch.load)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_compiled_is_as_it_was_written(name: str, look: Look) -> None:
    text, _ = PROGRAMS[name]
    for compiled in look(text).found.values():
        target = compiled.target.forward if isinstance(compiled.target, torch.nn.Module) else compiled.target
        assert not any("__fuselens" in n for n in target.__code__.co_names)
        assert not isinstance(compiled.target, torch.nn.Module) or not compiled.target._forward_pre_hooks


NOT_PROGRAMS = {
    "library": "@torch.compile\ndef f(x):\n    return x + 1\n",
    "guarded, with examples": "import fuselens\n@fuselens.compile(example_inputs=(torch.ones(2),))\ndef f(x):\n    return x\n"
    "if __name__ == '__main__':\n    f(torch.ones(3))\n",
    "guarded, annotated": "@torch.compile\ndef f(x: 'Float32[Tensor, \"n\"]'):\n    return x\nif __name__ == '__main__': f(1)\n",
    "module": "model = torch.compile(nn.Linear(2, 2))\n",
}


@pytest.mark.parametrize("name", NOT_PROGRAMS)
def test_what_is_imported_as_it_is(name: str) -> None:
    assert not Leads(SourceModule(HEAD + NOT_PROGRAMS[name], "m.py")).runs_itself()


def test_a_failure_leaves_its_names_unknown(look: Look) -> None:
    evaluation = look("""
        import not_here
        words = not_here.load("en")
        if words.size > 3:
            width = 8
        else:
            width = 16
        height = 4
        f = torch.compile(lambda x: x + 1)
        try:
            a = int(words)
        except ValueError:
            a = 2
        f(torch.ones(height))
        f(torch.ones(width))
    """)
    (compiled,) = evaluation.found.values()
    assert described(compiled.args) == "(f32[4])"
    note, assumed = evaluation.notes
    assert (note.line, note.why) == (8, "ModuleNotFoundError: No module named 'not_here'")
    assert assumed.line == 10
    assert assumed.why.startswith("this condition is taken to hold: line 8: ModuleNotFoundError")


def test_a_call_with_unknown_values_is_not_made(look: Look) -> None:
    evaluation = look("""
        def f(x):
            raise AssertionError("called")
        g = torch.compile(f)
        data = open("not here").read()
        for epoch in range(3):
            g(data)
    """)
    (compiled,) = evaluation.found.values()
    assert compiled.args is None
    assert [n.line for n in evaluation.notes] == [11]


def test_what_the_program_raises_ends_its_function(look: Look) -> None:
    evaluation = look("""
        def chosen(name):
            if name == "small":
                return 3
            raise ValueError(name)
        def make(name):
            try:
                width = chosen(name)
            except ValueError:
                width = 5
            return torch.compile(nn.Linear(width, width)), width
        model, width = make("large")
        model(torch.ones(2, width))
    """)
    (compiled,) = evaluation.found.values()
    assert described(compiled.args) == "(f32[2, 5])"
    assert not evaluation.notes


def test_loops_that_build_are_whole_and_others_end(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuselens.slices.evaluation._LOOP_SECONDS", 1.0)
    evaluation = look("""
        layers = []
        for n in range(300):
            layers.append(nn.Linear(3, 3))
        while True:
            waited = 1
        net = torch.compile(nn.Sequential(*layers))
        net(torch.ones(1, 3))
    """)
    (compiled,) = evaluation.found.values()
    assert len(compiled.target) == 300 and compiled.args is not None
    assert [n.why for n in evaluation.notes] == ["TimeoutError: this loop takes longer than 1 s"]


def test_time_is_bounded(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """One statement may take half of it, and is left out."""
    monkeypatch.setattr("fuselens.slices.evaluation.LONGEST_SECONDS", 2.0)
    evaluation = look("""
        def slow():
            while True:
                pass
        net = torch.compile(nn.Linear(3, 3))
        slow()
        slow()
        net(torch.ones(1, 3))
    """)
    (compiled,) = evaluation.found.values()
    assert compiled.args is None
    assert [n.why for n in evaluation.notes] == ["TimeoutError: this takes longer than 1 s"]


def test_values_are_those_of_the_call(look: Look) -> None:
    evaluation = look("""
        @torch.compile
        def f(x, y):
            return x.add_(1) + y
        @torch.compile
        def g(x):
            return x
        x = torch.zeros(2, requires_grad=False)
        f(x, y=torch.ones(2, requires_grad=True))
        g(x)
    """)
    f, g = evaluation.found["f"], evaluation.found["g"]
    assert f.args and g.args
    assert torch.equal(f.args[0], torch.zeros(2))
    assert f.kwargs["y"].requires_grad
    assert torch.equal(g.args[0], torch.ones(2))
    assert evaluation.found["f"].line == 15


def test_unknown_values() -> None:
    value: Any = Unknown("line 3: it failed")
    assert value.a.b(1)[2] + 3 is value
    assert 3 * value is value
    value.x = 1
    value[2] = 3
    for decide in (bool, iter, len, int, float, hash):
        with pytest.raises(UnknownUsed, match="line 3: it failed"):
            decide(value)
    with pytest.raises(UnknownUsed):
        types.new_class("T", (value,))


def test_a_report_of_a_program(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(HEAD + PROGRAMS["in main"][0])
    report = check_file(path)
    (function,) = report.functions
    assert report.diagnostics == []
    assert len(function.graphs) == 1 and not function.breaks
    assert "f32[8, 1, 28, 28]" in [str(t) for t in function.graphs[0].inputs]
    (found,) = [d for d in function.diagnostics if d.code == "FL921"]
    assert "at line 20: f32[8, 1, 28, 28]" in found.message


LARGE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(12288, 49152), nn.Linear(49152, 12288)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

net = nn.Sequential(*(Net() for _ in range(12))).to("cuda")
net = torch.compile(net)
for step in range(1000):
    net(torch.randn(64, 512, 12288, device="cuda")).sum().backward()
"""


def test_a_check_of_a_large_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """14 billion parameters, 1.6 GB an activation."""
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "program.py"
    path.write_text(LARGE)
    (function,) = check_file(path).functions
    (graph,) = function.graphs
    assert "f32[64, 512, 12288]" in [str(t) for t in graph.inputs]
    assert not function.breaks


LARGE_RUN = """
import torch
from torch import nn
torch.manual_seed(3)
net = nn.Linear(2048, 2048)
net = torch.compile(net)
net(torch.ones(2, 2048))
"""


def test_a_run_has_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of zeros would prove nothing."""
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "program.py"
    path.write_text(LARGE_RUN)
    with opened_function(path, "net", None, None) as function:
        assert function.target.weight.std() > 0.01
        assert torch.equal(function.inputs().args[0], torch.ones(2, 2048))
    result = run_function(path, "net")
    assert result.agrees and result.error is None


def test_what_is_known_of_an_object_that_could_not_be_made(look: Look) -> None:
    evaluation = look("""
        class Config:
            width = 8
        class Data:
            def __init__(self, path, length, config, scale=2):
                self.length = length
                self.words = open(path).read()
                self.width = config.width
                self.scale = scale
                self.count = len(self.words)
        data = Data("not_here.txt", 5, Config())
        f = torch.compile(lambda x: x + 1)
        f(torch.ones(data.length, data.width))
    """)
    (compiled,) = evaluation.found.values()
    assert described(compiled.args) == "(f32[5, 8])"
