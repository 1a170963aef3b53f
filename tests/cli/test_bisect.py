"""``fuselens bisect`` finds the defects of broken compilers, and writes programs that show them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = Path(__file__).with_name("broken_compiler.py")
MODEL = """import fuselens
import torch
import torch.nn.functional as F

torch.manual_seed(0)
first, last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)


@fuselens.compile(example_inputs=lambda: (torch.randn(8, 16),))
def step(x):
    y = last(F.layer_norm(F.silu(first(x)), (32,)))
    if y.sum() > 0:
        y = y - 2
    y = torch.tanh(y) + x
    return torch.softmax(y, -1).cumsum(-1)
"""


def ran(defect: str, *arguments: object, cwd: Path) -> tuple[int, str]:
    start = [str(BROKEN), defect] if defect else ["-m", "fuselens.cli"]
    command = [sys.executable, "-P", *start, *map(str, arguments)]
    environment = os.environ | {"FUSELENS_CACHE_DIR": str(cwd / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


FOUND = {
    # defect → operations of the smallest part, how it fails, where it begins
    "lower": (["tanh"], r"differs \(result 0\): ", "lower: loops, before they are fused"),
    "fuse": (
        ["tanh", "add", "softmax"], r"differs \(result 0\): ",
        r"fuse: loops, fused into kernels; the first that makes it: \w+ \+ \w+, for `softmax = torch\.softmax\(add, -1\)`",
    ),
    "simplify": (["layer_norm"], "differs ", "simplify: rewrites of the graph of ATen operators; the first that makes it: simplify"),
    "crash": (["tanh"], r"crashed: .*SIG(ILL|TRAP)", "generate: code of the kernels, and what calls them"),
    "again": (["tanh"], r"differs \(result 0 of a later call\): ", "generate: code of the kernels, and what calls them"),
    "slow": (["tanh"], "slow: ", "generate: code of the kernels, and what calls them"),
}  # fmt: skip
_BLOCK = re.compile(
    r"smallest part that does: (\d+) of \d+ operations? \(.*?\): (.*)\n((?:      .*\n)+)    first wrong after (.*)\n    written as (.*)\n"
)


@pytest.mark.parametrize("defect", FOUND)
def test_defects(model: Path, defect: str) -> None:
    operations, how, where = FOUND[defect]
    options = ["--slower-than", 4] if defect == "slow" else []
    status, text = ran(defect, "bisect", "model.py::step", "--output", "out", *options, cwd=model.parent)
    assert status == 1, text
    assert "  capture: 2 graphs, run operator by operator, give eager's values\n" in text
    (count, told, body, fault, written), *_ = _BLOCK.findall(text)
    assert [line.split(" = ")[0].strip() for line in body.splitlines()[:-1]] == operations, text
    assert re.match(how, told) and re.fullmatch(where, fault), text
    program = model.parent / written
    healthy = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, cwd=model.parent, check=False
    )
    assert (healthy.returncode, healthy.stdout) == (0, "the compiled graph agrees with eager\n"), healthy.stderr
    status, text = ran(defect, "bisect", program, "--output", "again", *options, cwd=model.parent)
    assert status == 1 and f"that does: {count} of {count} operation" in text, text


def test_nothing_is_wrong(model: Path) -> None:
    status, text = ran("", "bisect", "model.py", cwd=model.parent)
    assert status == 0, text
    assert text.count(": agrees\n") == 2
    (folder,) = (model.parent / "fuselens_bisect").iterdir()
    assert sorted(p.name for p in folder.iterdir()) == ["graph0.pt", "graph0.py", "graph1.pt", "graph1.py"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import torch\nx = 1\n", "has no annotated functions, and is no program of a graph"),
        (MODEL.replace("y - 2", "y @ 2").replace("> 0", "< 1e9"), "cannot be run eagerly, or captured: "),
    ],
)
def test_what_cannot_be_looked_at(model: Path, source: str, why: str) -> None:
    model.write_text(source)
    status, text = ran("", "bisect", "model.py", cwd=model.parent)
    assert status == 2 and why in text, text


def test_json(model: Path) -> None:
    status, said = ran("lower", "bisect", "model.py", "--format", "json", "--output", "out", cwd=model.parent)
    (found,) = json.loads(said)
    assert status == 1 and found["function"] == "step" and found["capture"] is None
    (wrong,) = (graph for graph in found["graphs"] if graph["fails"])
    assert wrong["smallest"]["fault"].startswith("lower: ") and "tanh" in wrong["smallest"]["statements"][-1]
    assert (model.parent / wrong["smallest"]["program"]).is_file()
