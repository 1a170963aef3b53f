"""``fuselens verify``, ``bench`` and ``diff``."""

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


@fuselens.compile(example_inputs=lambda: (torch.randn(8, 16),))
def step(x):
    return torch.tanh(x * 2).softmax(-1)


@fuselens.compile(example_inputs=lambda: (torch.randn(4),))
def checked(x):
    if x.abs().sum() == 0:
        raise ValueError("all are zero")
    return 1 / x
"""


def ran(*arguments: object, cwd: Path, defect: str = "") -> tuple[int, str]:
    start = [str(BROKEN), defect] if defect else ["-m", "fuselens.cli"]
    environment = os.environ | {"FUSELENS_CACHE_DIR": str(cwd / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", *start, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_verify(model: Path) -> None:
    status, text = ran("verify", "model.py", cwd=model.parent)
    assert status == 0, text
    lines = text.splitlines()
    assert lines[0] == "model.py::step" and re.fullmatch(r"  ✓ equals eager \([\d.e-]+; float64 agrees\)", lines[1])
    assert re.fullmatch(r"  (\d+) of \1 kinds of calls agree", lines[2])
    assert "    ✓ zeros: both raise ValueError: all are zero" in lines


def test_verify_several_files(model: Path) -> None:
    (model.parent / "more").mkdir()
    (model.parent / "more" / "other.py").write_text(MODEL.replace("def step", "def other"))
    status, text = ran("verify", "model.py::step", "more", cwd=model.parent)
    assert status == 0, text
    names = [line for line in text.splitlines() if not line.startswith(" ")]
    assert names == ["model.py::step", "more/other.py::other", "more/other.py::checked"]
    status, text = ran("verify", "model.py", "nowhere.py", cwd=model.parent)
    assert status == 2 and "nowhere.py" in text, text


def test_verify_as_json(model: Path) -> None:
    status, text = ran("verify", "model.py::step", "--format", "json", cwd=model.parent)
    (proof,) = json.loads(text)
    assert status == 0 and proof["function"] == "step" and "fault" not in proof
    assert {t["inputs"] for t in proof["tried"]} >= {"the example inputs", "negative zeros", "odd memory: transposed"}
    assert all(t["agrees"] for t in proof["tried"])


def test_verify_tells_where_half_precision_loses_digits(model: Path) -> None:
    body = "    h = x.bfloat16() * 2\n    h = h + 300\n    h = h - 300\n    return h.float()"
    model.write_text(MODEL.replace("    return torch.tanh(x * 2).softmax(-1)", body))
    status, text = ran("verify", "model.py::step", cwd=model.parent)
    assert status == 0, text
    assert re.search(
        r"^  drift from float64 grows most at line 9: \S+ eager, \S+ compiled, \S+ × that of line 8$", text, re.M
    ), text
    assert re.search(r"^    line 9   bfloat16  .*: it grows most here$", text, re.M), text
    status, text = ran("verify", "model.py::step", "--format", "json", cwd=model.parent)
    (proof,) = json.loads(text)
    assert [row["span"]["line"] for row in proof["drift"]] == [7, 8, 9, 10], text
    assert (
        proof["drift"][2]["compiled"] > 10 * proof["drift"][1]["compiled"] and proof["drift"][2]["source"]["line"] == 8
    )


def test_verify_ends_in_time(model: Path) -> None:
    model.write_text(
        MODEL.replace("    return torch.tanh", "    time.sleep(0.4)\n    return torch.tanh").replace(
            "import torch", "import time\nimport torch"
        )
    )
    status, text = ran("verify", "model.py::step", "--timeout", 12, cwd=model.parent)
    assert status == 0, text
    assert re.search(r"^  (\d+) of \1 kinds of calls agree \(\d+ more: there was no time\)$", text, re.M), text


FAULTS = {
    "lower": ("FL601", 8, "lower: loops, before they are fused"),
    "crash": ("FL605", 8, "generate: code of the kernels"),
    "again": ("FL603", 8, "generate: code of the kernels"),
}


def test_verify_keeps_what_was_proved_before_a_limit(model: Path) -> None:
    """A call that does not end loses nothing of those before it."""
    text = MODEL.replace("    return torch.tanh", "    while not x.any():\n        pass\n    return torch.tanh")
    model.write_text(text)
    status, text = ran("verify", "model.py::step", "--timeout", 15, cwd=model.parent)
    assert status == 1
    assert "    ✓ the example inputs: " in text, text
    assert "no more is known: " in text and "(zeros, run eagerly)" in text, text


@pytest.mark.parametrize("defect", FAULTS)
def test_verify_finds_the_line_and_what_makes_it_wrong(model: Path, defect: str) -> None:
    code, line, stage = FAULTS[defect]
    model.write_text(
        MODEL.replace("torch.tanh(x * 2).softmax(-1)", "x * 2").replace(
            "    return x * 2", "    y = x * 2\n    y = torch.tanh(y)\n    return y.softmax(-1)"
        )
    )
    status, text = ran("verify", "model.py::step", "--format", "json", cwd=model.parent, defect=defect)
    assert status == 1, text
    (proof,) = json.loads(text)
    fault = proof["fault"]
    assert (fault["code"], fault["span"]["line"]) == (code, line), text
    assert stage in fault["explanation"]
    (written,) = re.findall(r"The smallest program that shows it: (\S+)", fault["explanation"])
    program = Path(written).read_text()
    assert "torch.tanh" in program and "softmax" not in program


def test_verify_tells_what_runs_eagerly(model: Path) -> None:
    model.write_text(MODEL.replace("softmax(-1)", "softmax(-1).to('meta')"))
    status, text = ran("verify", "model.py::step", cwd=model.parent)
    assert status == 1 and "  not compiled: FL301: " in text, text


def test_bench(model: Path) -> None:
    status, text = ran("bench", "model.py::step", "--modes", "default,max-autotune", "--rounds", 2, cwd=model.parent)
    assert status == 0, text
    first, columns, *rows = text.splitlines()
    assert first == "model.py::step (medians of 2 processes)"
    assert columns.split() == ["first", "call", "call", "eager", "speed-up", "memory", "eager's"]
    assert [row.split()[0] for row in rows] == ["default", "max-autotune"]
    assert all(re.search(r"\d\.\d\d × \(\d+\.\d\d to \d+\.\d\d\)", row) for row in rows)


def test_bench_of_what_differs(model: Path) -> None:
    status, text = ran("bench", "model.py::step", cwd=model.parent, defect="lower")
    assert status == 1 and "as annotated: step: DIFFERS from eager" in text


def test_diff(model: Path) -> None:
    assert ran("diff", "model.py", "model.py", cwd=model.parent) == (0, "nothing is different\n")
    other = model.with_name("other.py")
    other.write_text(MODEL.replace(".softmax(-1)", ".softmax(-1)\n\n\n@fuselens.compile\ndef more(x):\n    return x").replace(
        "    return torch.tanh(x * 2)", "    print(1)\n    return torch.tanh(x * 2)"))  # fmt: skip
    status, text = ran("diff", "model.py", "other.py", cwd=model.parent)
    lines = text.splitlines()
    assert status == 1 and lines[:2] == ["--- model.py", "+++ other.py"]
    assert "more: only in other.py" in lines
    assert "  breaks: 0 → 1" in lines and "  + FL103 graph break: `print` prints" in lines
    status, text = ran("diff", "model.py::step", "other.py::step", "--stage", "capture", cwd=model.parent)
    assert status == 1 and re.search(r"^  @@ ", text, re.M)


def test_diff_of_modes_and_targets(model: Path) -> None:
    status, text = ran("diff", "model.py::step", "--to-target", "cuda:sm_90", cwd=model.parent)
    assert status == 1 and "  target: auto → cuda:sm_90" in text
    assert ran("diff", "model.py::step", "--to-mode", "default", cwd=model.parent)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["model.py"], "give one thing to compare with"),
        (["model.py", "model.py", "--to-mode", "default"], "give one thing to compare with"),
        (["model.py", "model.py", "--blame"], "--blame is about revisions: name one first"),
        (["model.py", "model.py", "--format", "sarif"], "--format sarif is for a comparison with a revision"),
        (["model.py", "none.py"], "none.py: no such file"),
        (["model.py", "--to-mode", "fastest"], "as_mode is 'fastest'"),
    ],
)
def test_what_cannot_be_compared(model: Path, arguments: list[str], why: str) -> None:
    status, text = ran("diff", *arguments, cwd=model.parent)
    assert status == 2 and why in text, text
