"""Where calls are found, what of them is known, and what is said where it is not."""

import os
import subprocess
import sys

from fuselens.record.printed import foreseen
from fuselens.record.report import Guard

MODEL = """import torch
import fuselens


@fuselens.compile
def attend(q, k, *rest):
    return torch.softmax(q @ k.transpose(-1, -2), -1)
"""
TRAIN = """import torch
from model import attend


def main():
    for n in (8, 16, 32):
        q = torch.randn(2, n, 4)
        attend(q, q)


if __name__ == "__main__":
    main()
"""
HEAD = "import sys\n\nimport torch\n\nimport fuselens\n\n\n@fuselens.compile\ndef step(x, flag=True):\n    return x * 2\n\n\n"


def only(file):
    (report,) = file.functions
    assert report.foreseen is not None, report.diagnostics
    return report, report.foreseen


def test_by_way_of_another_file(tmp_path, ask):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(TRAIN)
    report, told = only(ask(tmp_path / "model.py"))
    assert told.compilations == 2 and told.certain
    (site,) = told.sites
    assert site.place(report.file) == "train.py:8" and site.calls == 3
    assert [d.code for d in report.diagnostics] == ["FL207"]
    assert "at train.py:8" in report.diagnostics[0].message


def test_what_is_unknown_is_not_counted(tmp_path, ask):
    path = tmp_path / "unknown.py"
    path.write_text(
        HEAD + "import missing\nx = missing.load()\nstep(x)\nstep(torch.ones(3))\nargs = missing.args()\nstep(*args)\n"
    )
    _, told = only(ask(path))
    assert told.compilations == 1 and not told.certain and told.proved == ()
    assert [bool(site.unknown) for site in told.sites if site.span.line == 15] == [True]
    assert [site.calls for site in told.places] == [1]
    assert "foretold at 1 call site; not all is known" in "\n".join(foreseen.lines(told, str(path)))


def test_a_condition_that_is_unknown_says_nothing_as_a_finding(tmp_path, ask):
    path = tmp_path / "guessed.py"
    path.write_text(HEAD + "import missing\nstep(torch.ones(3))\nif missing.more:\n    step(torch.ones(4))\n")
    report, told = only(ask(path))
    assert not told.certain and not report.diagnostics


def test_a_counter_beside_a_long_loader_is_not_certain(tmp_path, ask):
    path = tmp_path / "counted.py"
    loop = "from torch.utils.data import DataLoader, TensorDataset\nloader = DataLoader(TensorDataset(torch.ones(99, 2)), 3)\n"
    loop += "for k, (x,) in enumerate(loader):\n    step(x, k)\n"
    path.write_text(HEAD.replace("x * 2", "x * flag") + loop)
    _, told = only(ask(path))
    assert told.compilations == 2 and told.doubts == ("29 of 33 batches of a loader",)


def test_nobody_calls_it(tmp_path, ask):
    path = tmp_path / "alone.py"
    path.write_text(HEAD)
    _, told = only(ask(path))
    assert told.compilations is None
    assert foreseen.headline(told) == "compilations unknown: no call of it was found"


def test_a_call_that_the_program_does_not_get_to(tmp_path, ask):
    path = tmp_path / "beside.py"
    path.write_text(HEAD + "def beside(x):\n    return step(x)\n\n\nstep(torch.ones(3))\n")
    _, told = only(ask(path))
    assert told.compilations == 1 and told.certain
    assert "line 14: the program does not get there" in "\n".join(foreseen.lines(told, str(path)))


def test_calls_of_recorded_runs(tmp_path, ask, cache):
    path = tmp_path / "recorded.py"
    path.write_text(HEAD + "for n in map(int, sys.argv[1:]):\n    step(torch.ones(n))\n")
    recorded = [sys.executable, "-m", "fuselens.cli", "record", str(path), "4", "5", "6"]
    subprocess.run(recorded, env=os.environ | cache, check=True)
    _, told = only(ask(path))
    assert told.compilations == 2 and told.doubts == ("only calls of recorded runs are known",)
    assert [site.recorded for site in told.places] == [True]


def test_cells_of_a_notebook(tmp_path, ask):
    _, told = only(ask(tmp_path / "cells.ipynb", HEAD + "for n in [2, 3]:\n    step(torch.ones(n))\n"))
    assert told.compilations == 2 and told.certain


def test_guards_have_a_fate_and_a_budget(tmp_path, ask):
    path = tmp_path / "flags.py"
    path.write_text(HEAD.replace("x * 2", "x * 2 if flag else x") + "step(torch.ones(3))\nstep(torch.ones(3), False)\n")
    report, told = only(ask(path))
    assert told.compilations == 2 and told.certain and not report.diagnostics
    (failing,) = told.failing
    assert (failing.why, failing.site.line, failing.call) == ("flag: expected True, found False", 14, 2)
    assert "x: float32[3] on cpu, strides (1,)" in told.proved and failing.expression not in told.proved
    fate = foreseen.fate(Guard("TENSOR", "x", "x: float32[3] on cpu, strides (1,)"), told, str(path))
    assert fate.startswith("always true at the 2 call sites (line 13, line 14); about ") and fate.endswith(" ns")
    assert told.ns and sum(cost.guards for cost in told.costs) >= len(told.proved)
