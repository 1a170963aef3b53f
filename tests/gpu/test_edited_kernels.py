"""Edited Triton kernels on a GPU: verified and measured there, refused, pinned, and run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from fuselens.pins import texts
from tests.pins.test_kernels import Edit, answered, kernels, project, ran, replacing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
MODEL = """
import torch

import fuselens


def example():
    return torch.randn(1000, 1000, device="cuda", requires_grad=True), torch.randn(1000, device="cuda")


@fuselens.compile(example_inputs=example)
def scaled(x, w):
    return torch.relu(x * w) + 1.5
"""
STORE = r"( +)tl\.store\((\w+) \+ (.*?), (\w+), xmask\)"
EDITS: dict[str, tuple[Edit, str, str]] = {
    "as it is": (lambda text: f"{text}# mine\n", "", r"✓ equals the graph on \d+ kinds of inputs, with gradients · .*, ours "),
    "another value": (replacing("1\\.5", "1.25"), "FL628", "refused: on the example inputs, result 0"),
    "slower": (
        replacing(STORE, r"\1for _ in range(2000):\n\1    tl.store(\2 + \3, \4, xmask)\n\1    tl.debug_barrier()"), "",
        r"✓ equals .* \(\+\d+ %\)",
    ),
    "no such function": (replacing(r"tl\.maximum", "tl.maximal"), "FL627", "maximal"),
    "far outside": (replacing(STORE, r"\1tl.store(\2 + \3 + 1099511627776, \4, xmask)"), "FL629", "CUDA error"),
    "endless": (
        replacing(r"( +)(tl\.store)", r"\1k = tl.program_id(0)\n\1while k >= 0:\n\1    tl.debug_barrier()\n\1    k = k * 1\n\1\2"),
        "FL629", "did not end within 60 s",
    ),
}  # fmt: skip
RUN = """
import sys; sys.path.insert(0, '.')
import fuselens, model, torch
x, w = model.example()
found = model.scaled(x, w)
torch.testing.assert_close(found, torch.relu(x * w) + 1.5)
found.sum().backward()
report = fuselens.explain(model.scaled)(x, w)
print([u.pin for g in report.graphs for u in g.units], [d.code for d in report.diagnostics])
"""

__all__ = ["project"]


def test_edits(project: Path, tmp_path: Path) -> None:
    (project / "model.py").write_text(MODEL)
    begun = Path(answered("edit", "model.py::scaled", cwd=project)["draft"])
    assert begun.name == "forward.py"
    text, paths = begun.read_text(), {}
    body = texts.body_of("triton", text)
    for number, (which, (edit, _, _)) in enumerate(EDITS.items()):
        shutil.copytree(project, other := tmp_path / f"copy{number}")
        paths[which] = other / begun.relative_to(project)
        assert (after := edit(body)) != body, (which, body)
        paths[which].write_text(text.removesuffix(body) + after)
    found = {Path(f["draft"]): f for f in answered("verify", *paths.values(), "--timeout", 60, cwd=project)}
    for which, (_, code, why) in EDITS.items():
        told = found[paths[which]]
        print(f"{which}: {told['text']}")
        assert re.search(why, told["text"]), (which, told)
        assert told["verdict"].get("found", [{"code": ""}])[0].get("code", "") == code, (which, told)

    slow = paths["slower"]
    status, said = kernels("pin", slow, cwd=slow.parents[3])
    assert status == 2 and "takes longer than ours" in said, said
    good = paths["as it is"]
    root = good.parents[3]
    status, said = kernels("pin", "--slower", good, cwd=root)
    assert status == 0, said
    (pin,) = (root / ".fuselens" / "kernels").glob("*/forward.py")
    assert (
        f'"target": "cuda:sm_{"".join(map(str, torch.cuda.get_device_capability()))}"'
        in pin.with_suffix(".json").read_text()
    )
    for _ in range(2):  # the second time everything is in the cache
        status, said = ran("-c", RUN, cwd=root)
        assert status == 0 and f"'.fuselens/kernels/{pin.parent.name}/forward.py'" in said and "FL620" in said, said

    known = pin.with_suffix(".json")
    known.write_text(re.sub(r'"target": "[^"]+"', '"target": "interpreter"', known.read_text()))
    status, said = ran("-c", RUN, cwd=root)
    assert status == 0 and "FL623" in said and "FL620" not in said, said
