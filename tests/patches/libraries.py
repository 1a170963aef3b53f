"""A small library, installed as pip would have done it, and a project that uses it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LAYERS = """
import torch


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 0:
            y = y * 2
        return y


class Clip(torch.nn.Module):
    def forward(self, x):
        limit = x.abs().max().item()
        return x / (limit + 1)


class Counted(torch.nn.Module):
    def forward(self, x):
        open("/dev/null").close()
        return x + 1
"""
MODEL = """
import torch

import fuselens
from gates.layers import Clip, Counted, Gate

torch.manual_seed(0)
gate, clip, counted = Gate(), Clip(), Counted()


@fuselens.compile(example_inputs=lambda: (torch.randn(3, 4),))
def score(x):
    return clip(gate(x)) + 1


@fuselens.compile(example_inputs=lambda: (torch.randn(3, 4),))
def unfixable(x):
    return counted(x * 2)


if __name__ == "__main__":
    report = fuselens.explain(score)(torch.ones(3, 4))
    x = torch.randn(3, 4)
    torch.testing.assert_close(score(x), clip(gate(x)) + 1)
    print(report.summary(), [d.code for d in report.diagnostics if d.code.startswith("FL64")])
"""


def install(site: Path, name: str, version: str, files: dict[str, str]) -> None:
    """Writes a distribution into a folder of installed packages, with what a wheel's installer writes beside it."""
    rows = []
    for path, text in files.items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text)}")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/METADATA,,", f"{info.name}/RECORD,,"]) + "\n")


def project(folder: Path, layers: str = LAYERS, version: str = "1.2", model: str = MODEL) -> Path:
    """The library in ``site-packages`` beside the project in ``project``, whose folder is given back."""
    install(folder / "site-packages", "gates", version, {"gates/__init__.py": "", "gates/layers.py": layers})
    made = folder / "project"
    made.mkdir(exist_ok=True)
    (made / "pyproject.toml").touch()
    (made / "model.py").write_text(model)
    return made


def ran(*arguments: object, cwd: Path, **variables: str) -> tuple[int, str, str]:
    environment = os.environ | {
        "FUSELENS_CACHE_DIR": str(cwd.parent / "cache"),
        "PYTHONPATH": os.pathsep.join([str(cwd.parent / "site-packages"), *sys.path]),
        **variables,
    }
    command = [sys.executable, "-P", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=300)
    return done.returncode, done.stdout, done.stderr


def patches(*arguments: object, cwd: Path, **how: str) -> tuple[int, Any]:
    """The status of a command, and what it says as JSON."""
    status, said, why = ran("-m", "fuselens.cli", "patches", *arguments, "--format", "json", cwd=cwd, **how)
    assert said, why
    return status, json.loads(said)
