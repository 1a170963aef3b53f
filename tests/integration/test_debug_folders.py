"""``FUSELENS_DEBUG=1``: a folder for each function of a run, with every stage, a page, and programs that run its graphs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fuselens
from fuselens import config
from fuselens.ir.graphs import program_text
from fuselens.record.plain import from_plain
from fuselens.record.report import Report

PROGRAM = """import torch, fuselens

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    def forward(self, tokens, mask):
        self.seen.add_(1)
        x = torch.nn.functional.dropout(self.table(tokens), 0.1)
        print("once")
        return self.head(x).masked_fill(mask[..., None], float("-inf")).softmax(-1)

torch.manual_seed(0)
net = fuselens.compile(Net())
mask = torch.zeros(2, 1, dtype=torch.bool).expand(2, 5)
for _ in range(2):
    net(torch.randint(16, (2, 5)), mask).sum().backward()
fuselens.compile(lambda x: x + 1)(torch.ones(3))
fuselens.compile(lambda x: x + 2)(torch.ones(3))
"""


def ran(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("FUSELENS_")}
    given = {"FUSELENS_CACHE_DIR": str(cwd / "cache"), **environment}
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, env=own | given, capture_output=True, text=True, check=False
    )


def test_a_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = ran("train.py", cwd=tmp_path, FUSELENS_DEBUG="1")
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = (tmp_path / "fuselens_debug").iterdir()
    assert sorted(p.name for p in run.iterdir()) == ["Net", "_lambda_", "_lambda_-2", "index.html"]
    assert 'href="Net/index.html"' in (run / "index.html").read_text()
    graph = run / "Net" / "graph0"
    assert [p.name.partition("_")[2] for p in sorted(graph.iterdir()) if p.name[0].isdigit()][:5] == [
        "capture.py", "joint.py", "forward.py", "backward.py", "simplify.py",
    ]  # fmt: skip
    report = from_plain(Report, json.loads((run / "Net" / "report.json").read_text()))
    assert [b.code for b in report.breaks] == ["FL103"] and len(report.graphs) == 2
    assert "FL103" in (run / "Net" / "index.html").read_text() and "FL103" in (run / "Net" / "explain.txt").read_text()
    for program in sorted(run.rglob("repro.py")):
        done = ran(program, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "the compiled graph agrees with eager\n"), (
            program.read_text(),
            done.stderr,
        )


def test_nothing_is_written_without_being_asked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    assert ran("train.py", cwd=tmp_path, FUSELENS_DEBUG="0").returncode == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "train.py"]


def test_a_folder_that_cannot_be_written_is_one_finding(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "file").write_text("")
    done = ran("train.py", cwd=tmp_path, FUSELENS_DUMP=str(tmp_path / "file"))
    assert done.returncode == 0 and done.stderr.count("FL917") == 1


def test_a_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuselens.record.printed import folder

    monkeypatch.setattr(folder, "MOST_BYTES", 500)
    report = fuselens.explain(lambda x: x.exp() + 1)(torch.ones(3))
    written = folder.dump(report, tmp_path)
    assert sum(p.stat().st_size for p in written if p.parent.name.startswith("graph")) <= 500
    assert "texts were left out" in next(p for p in written if p.name == "explain.txt").read_text()


# --- programs of graphs ---------------------------------------------------------------------------------------------


def _expanded(x: torch.Tensor) -> torch.Tensor:
    return x.expand(3, 4).clone() * torch.tensor([1.0, float("nan"), float("inf"), -0.0])


def _settings(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = x.to(torch.float16, memory_format=torch.contiguous_format)
    return y, torch.arange(4, device=x.device)[..., None] ** 2, x.size(0), torch.where(x > 0, x, 0.5)


def _written(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.view(-1)[1:].sum()


def _complex(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.fft.fft(x.to(torch.complex64)))


CASES = {
    _expanded: lambda: (torch.ones(4),),
    _settings: lambda: (torch.randn(2, 3, requires_grad=True),),
    _written: lambda: (torch.randn(3, 4),),
    _complex: lambda: (torch.randn(8),),
}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_programs_run(tmp_path: Path, function: Any) -> None:
    with config.patch(dump=tmp_path / "dump"):
        fuselens.compile(function)(*CASES[function]())
    fuselens.reset()
    (program,) = (tmp_path / "dump").rglob("repro.py")
    done = ran(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "the compiled graph agrees with eager\n"), (
        program.read_text(),
        done.stderr,
    )


def test_a_program_that_disagrees_says_so(tmp_path: Path) -> None:
    with config.patch(dump=tmp_path / "dump"):
        fuselens.compile(lambda x: x.tanh())(torch.ones(4))
    fuselens.reset()
    (program,) = (tmp_path / "dump").rglob("repro.py")
    broken = Path(__file__).parents[1] / "cli" / "broken_compiler.py"
    start = f"import runpy; runpy.run_path({str(broken)!r})['lower'](); runpy.run_path({str(program)!r}, run_name='__main__')"
    done = ran("-c", start, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(
        "the compiled graph differs from eager: result 0: 4 of 4 elements differ, first at (0,)"
    )


def test_what_cannot_be_written_down_says_so() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(lambda v: v, (x,)),))
    text = program_text.program(graph, [torch.ones(2)], about="a graph", options={})
    assert "this graph cannot be run on its own" in text
    compile(text, "repro.py", "exec")


def test_a_reason_with_quotes_is_a_program_all_the_same() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    strange: Any = type('it\'s "quoted"', (), {})()
    graph.output((graph.call_function(torch.add, (x, strange)),))
    text = program_text.program(graph, [torch.ones(2)], about="a graph", options={})
    assert "this graph cannot be run on its own" in text
    compile(text, "repro.py", "exec")
