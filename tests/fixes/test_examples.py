"""Assumed inputs are written down where the author would: the check of that text states them, and they are the same."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from fuselens.checking.check import check_file
from fuselens.record.report import Input, Inputs, Report
from fuselens.source import fixes

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x, scale=1.0):
        return self.layer(x) * scale

"""
HEAD = "import torch\nfrom torch import nn\n"
# what is added to a program (after its imports), and the lines that the fix writes
WRITTEN = {
    "a decorated function": (
        "@torch.compile\ndef f(x, n):\n    return x + n\nf(torch.ones(3), 2)",
        ["import fuselens", "@fuselens.example(lambda: (torch.randn(3), 2))"],
    ),
    "by name": (
        "import fuselens as fl\n@fl.compile()\ndef f(x, *, n):\n    return x[n]\nf(torch.ones(3, 4), n=torch.ones(2, dtype=torch.int64))",
        ['@fl.example(lambda: ((torch.randn(3, 4),), {"n": torch.zeros(2, dtype=torch.int64)}))'],
    ),
    "lists": (
        "@torch.compile\ndef f(xs, y):\n    return xs[0] + xs[1] * y\nf([torch.ones(2, 3), torch.ones(())], True)",
        ["import fuselens", "@fuselens.example(lambda: ((torch.randn(2, 3), torch.randn(())), True))"],
    ),
    "a compiled module of the file": (
        NET + "net = torch.compile(Net())\nnet(torch.ones(5, 8, dtype=torch.float32), scale=2.0)",
        ["import fuselens", '    @fuselens.example(lambda: ((torch.randn(5, 8),), {"scale": 2.0}))'],
    ),
    "what its layers take": (
        NET + "net = torch.compile(Net())",
        ["import fuselens", "    @fuselens.example(lambda: (torch.randn(2, 8),))"],
    ),
    "a call that takes inputs": (
        "import fuselens\n" + NET + 'net = fuselens.compile(Net(), mode="default")\nnet(torch.ones(5, 8))',
        ['net = fuselens.compile(Net(), mode="default", example_inputs=lambda: (torch.randn(5, 8),))'],
    ),
    "a compiled function of the file": (
        "def f(x):\n    return x * 2\ng = torch.compile(f)\ng(torch.ones(3, dtype=torch.bfloat16))",
        ["import fuselens", "@fuselens.example(lambda: (torch.randn(3, dtype=torch.bfloat16),))"],
    ),
    "a method": (
        "class A:\n    @torch.compile\n    def f(self, x):\n        return x + 1\nA().f(torch.ones(2))",
        ["import fuselens", "    @fuselens.example(lambda: (torch.randn(2),))"],
    ),
}
NOT_WRITTEN = {
    "a class of another file": "from somewhere import net\nnet = torch.compile(net)\nnet(torch.ones(5, 8))",
    "a method whose class needs more": (
        "class A:\n    def __init__(self, n): self.n = n\n    @torch.compile\n    def f(self, x): return x + 1\nA(3).f(torch.ones(2))"
    ),
    "a lambda": "g = torch.compile(lambda x: x + 1)\ng(torch.ones(3))",
}


def proposed(path: Path, report: Report) -> list[str]:
    assert report.inputs is not None
    text = path.read_text()
    found = fixes.example_fixes(fixes.Source(text, str(path)), report.function, report.inputs)
    return [fixes.applied(text, fix.edits) for fix in found]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_was_assumed(name: str, tmp_path: Path) -> None:
    body, lines = WRITTEN[name]
    path = tmp_path / "program.py"
    path.write_text(HEAD + body + "\n")
    (before,) = check_file(path).functions
    (edited,) = proposed(path, before)
    assert [line for line in edited.splitlines() if line not in (HEAD + body).splitlines()] == lines
    path.write_text(edited)
    (after,) = check_file(path).functions
    assert before.inputs is not None and before.inputs.assumed
    assert after.inputs is not None and after.inputs.origin in ("fuselens.example", "example_inputs")
    assert after.inputs.values == before.inputs.values
    assert not [d for d in after.diagnostics if d.severity in ("error", "warning") or d.code == "FL921"]


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_what_has_no_place(name: str) -> None:
    text = HEAD + NOT_WRITTEN[name]
    source = fixes.Source(text, "/f.py")
    (target,) = source.targets
    inputs = Inputs("call", (Input("x", "f32[2]"),), 3)
    assert list(fixes.example_fixes(source, target.annotated.qualname, inputs)) == []


@pytest.mark.parametrize("kind", ["Config", "dict", "f8e4m3[2]", "(f32[2], Config)"])
def test_what_cannot_be_written(kind: str) -> None:
    text = textwrap.dedent("import torch\n@torch.compile\ndef f(x): return x\n")
    inputs = Inputs("call", (Input("x", kind),), 4)
    assert list(fixes.example_fixes(fixes.Source(text, "/f.py"), "f", inputs)) == []
