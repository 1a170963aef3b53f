"""Files that compile nothing are looked at as if they compiled their modules, where somebody asks for it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from fuselens import cli
from fuselens.checking import check
from fuselens.config import Config
from fuselens.record.report import FileReport
from fuselens.source.discovery import SourceModule

HEAD = "import torch\nfrom torch import nn\n"
NET = """\
class Part(nn.Module):
    def forward(self, x):
        return x + 1

class Net(nn.Module):
    def __init__(self, width, depth: int = 2):
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(depth))
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return self.out(x)
"""
CANDIDATES = {
    "defined": (NET, ["Net.forward"]),
    "made": (NET + "def main():\n    net = Net(8).to('cpu')\n    net(1)\n", ["main.<locals>.net"]),
    "made and not called": (NET + "piece = Part()\nnet = Net(8)\nshow(piece)\n", ["net"]),
    "made by a library": ("import timm\nm = timm.create('x')\nm.train()\nm(1)\n", ["m"]),
    "first of several": ("m = nn.Sequential(nn.Linear(2, 2))\nm = wrapped(m)\nm(1)\n", ["m"]),
    "no module": ("m = make()\nm(1)\nclass C:\n    def forward(self): pass\n", []),
    "compiles something": (NET + "net = torch.compile(Net(8))\n", []),
    "after a docstring": ('"""Text."""\nfrom __future__ import annotations\n' + HEAD + NET, ["Net.forward"]),
}


def looked_at(path: Path, **options: object) -> FileReport:
    return check.check_file(path, config=Config(preview=True, explore=True, **options))


@pytest.mark.parametrize("name", CANDIDATES)
def test_what_is_looked_at(name: str) -> None:
    text, expected = CANDIDATES[name]
    module = SourceModule(HEAD + text if not text.startswith('"""') else text, "f.py", preview=True)
    if name != "compiles something":
        assert [a.qualname for a in module.annotated] == expected
    assert len(SourceModule(HEAD + text, "f.py").previews()) == len(expected)
    compile(module.tree, "f.py", "exec")


def test_a_file_that_makes_a_module_and_does_not_call_it(tmp_path: Path) -> None:
    """Its layers say what it takes, which its class does not."""
    (tmp_path / "net.py").write_text(HEAD + NET + "net = Net(8)\n")
    (report,) = looked_at(tmp_path / "net.py").functions
    assert report.function == "net" and len(report.graphs) == 1
    assert [d.code for d in report.diagnostics] == ["FL921"]


def test_a_file_that_defines_a_module(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(HEAD + NET)
    (report,) = looked_at(tmp_path / "net.py").functions
    assert (report.function, str(report.inputs), len(report.graphs)) == ("Net.forward", "x: f32[2, 64]", 1)
    assert report.span is not None and report.span.line == 13


def test_inputs_of_the_program_that_imports_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(HEAD + NET)
    program = "from net import Net\nnet = Net(8).train()\nnet.eval()\nwhile True:\n    net(torch.ones(5, 8)).sum().backward()\n"
    (tmp_path / "train.py").write_text(HEAD + program + "open('made', 'w')\n")
    (report,) = looked_at(tmp_path / "net.py").functions
    assert str(report.inputs) == "x: f32[5, 8]" and report.inputs is not None and report.inputs.line == 7
    (report,) = looked_at(tmp_path / "train.py").functions
    assert (report.function, str(report.inputs), len(report.graphs)) == ("net", "x: f32[5, 8]", 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.py", "train.py"]


def test_the_text_stays_what_it_is(tmp_path: Path) -> None:
    """A class looked at in a preview is not another one: its source is found, its breaks are at its lines."""
    text = HEAD + dedent("""
        class Net(nn.Module):
            def forward(self, x: torch.Tensor = torch.ones(3)):
                x = x + 1
                print(x.sum())
                return x * 2
    """)
    (tmp_path / "net.py").write_text(text)
    (report,) = looked_at(tmp_path / "net.py").functions
    (found,) = report.breaks
    assert found.span is not None and text.splitlines()[found.span.line - 1].strip() == "print(x.sum())"
    assert len(report.graphs) == 2


def test_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.py"
    file.write_text(HEAD + NET)
    assert cli.main(["check", str(file)]) == 0
    assert (
        capsys.readouterr().out.strip().endswith("; `--preview` looks at 1 module as if it compiled them\n0 functions.")
    )
    assert cli.main(["check", "--preview", str(file)]) == 0
    assert "  Net.forward  1 graph " in capsys.readouterr().out
