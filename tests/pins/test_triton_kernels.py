"""Edited Triton kernels, for a GPU that is not here: Triton compiles them, and its interpreter runs them."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from fuselens.pins import texts

from .test_kernels import Edit, answered, kernels, project, ran, replacing

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.usefixtures("project"),
]
MODEL = """
import torch

import fuselens

NUMBERS = torch.linspace(-2, 2, 60)


@fuselens.compile(example_inputs=lambda: (torch.randn(3, 60, requires_grad=True), NUMBERS))
def scaled(x, w):
    return torch.relu(x * w) + 1.5
"""
GPU = ("--target", "cuda:sm_90")
EDITS: dict[str, tuple[Edit, str, str]] = {
    "as it is": (lambda text: f"{text}# mine\n", "", r"✓ equals the graph on \d+ kinds of inputs, with gradients · .*not measured"),
    "another value": (replacing("1\\.5", "1.25"), "FL628", "refused: on the example inputs, result 0"),
    "no mask": (replacing(r"(tl\.store\(.*), xmask\)", r"\1)"), "FL629", "writes behind the memory of"),
    "no such function": (replacing(r"tl\.maximum", "tl.maximal"), "FL627", "maximal"),
    "endless": (
        replacing(r"( +)(tl\.store)", r"\1k = tl.program_id(0)\n\1while k >= 0:\n\1    k = k * 1\n\1\2"),
        "FL629", "did not end within 20 s",
    ),
    "executed": (replacing("@triton", "open('/tmp/never', 'w')\n\n\n@triton"), "FL626", "is executed when the file is loaded"),
    "another parameter": (replacing(r"def mul_relu_add_0\(", "def mul_relu_add_0(more, "), "FL626", "is called as"),
    "no Python": (lambda text: f"{text}def\n", "FL627", "refused: "),
}  # fmt: skip

__all__ = ["project"]


def test_edits(project: Path, tmp_path: Path) -> None:
    (project / "model.py").write_text(MODEL)
    begun = Path(answered("edit", "model.py::scaled", *GPU, cwd=project)["draft"])
    text, paths = begun.read_text(), {}
    body = texts.body_of("triton", text)
    for number, (which, (edit, _, _)) in enumerate(EDITS.items()):
        shutil.copytree(project, other := tmp_path / f"copy{number}")
        paths[which] = other / begun.relative_to(project)
        assert (after := edit(body)) != body, (which, body)
        paths[which].write_text(text.removesuffix(body) + after)
    found = {Path(f["draft"]): f for f in answered("verify", *paths.values(), "--timeout", 20, cwd=project)}
    for which, (_, code, why) in EDITS.items():
        told = found[paths[which]]
        assert re.search(why, told["text"]), (which, told)
        assert told["verdict"].get("found", [{"code": ""}])[0]["code"] == code, (which, told)
    line = found[paths["no such function"]]["verdict"]["found"][0]["line"]
    assert "maximal" in paths["no such function"].read_text().split("\n")[line - 1]

    good = paths["as it is"]
    status, said = kernels("pin", good, cwd=good.parents[3])
    assert status == 0, said
    _, said = ran("-m", "fuselens.cli", "explain", *GPU, "model.py::scaled", cwd=good.parents[3])
    assert f"these kernels are yours: .fuselens/kernels/{good.parent.name}/forward.py" in said, said
