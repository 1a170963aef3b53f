"""From nothing to a first compiled function, by what the editor shows alone: each step timed, and a picture of it.

    python -m benchmarks.first_steps [--pictures FOLDER] [--torch torch==2.13.0]

The editor has a profile that is new, with this extension and no other. The folder has a virtual environment with torch, and a
file that uses ``torch.compile``; nothing of ours is installed. A browser does what the screen offers: open the file, *Install
fuselens*, *Install* in the dialog, *Run*. Each time runs from the click to what it was for, on the screen. Nothing is read or
set through the editor's interface. The wheel is built here, and pip finds it in a folder; what else it needs comes from the
index that pip has, so that the time of the installation is that of the network, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "e2e")]

import editor  # noqa: E402
from workbench import Chromium, Probe, Workbench  # noqa: E402

MODEL = """\
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        y = torch.nn.functional.gelu(self.up(x))
        if y.mean() > 1:
            y = y / y.mean()
        return x + self.down(y)


model = torch.compile(Gate(64))

if __name__ == "__main__":
    print(model(torch.randn(8, 64)).shape)
"""
LENS = ".codelens-decoration a"


def prepare(folder: Path, torch: str) -> Path:
    """A project as a person has it, and a folder of wheels with ours in it. Returns the latter."""
    project, wheels = folder / "project", folder / "wheels"
    project.mkdir()
    (project / "model.py").write_text(MODEL)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", wheels, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", project / ".venv"], check=True)
    install = [project / ".venv" / "bin" / "python", "-m", "pip", "install", "--quiet", torch]
    subprocess.run(install, check=True)
    return wheels


class Steps:
    """What was done, how long it took, and how the screen looked then."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.taken: list[tuple[str, float]] = []

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.taken.append((what, time.monotonic() - started))
        self.bench.screenshot(f"{len(self.taken)}-{what.split(' →')[0].lower().replace(' ', '-')}")

    def table(self) -> str:
        rows = [f"| {what} | {seconds:.1f} |" for what, seconds in self.taken]
        total = sum(seconds for _, seconds in self.taken)
        return "\n".join(["| step | seconds |", "| --- | --- |", *rows, f"| **together** | **{total:.1f}** |"])


def take(steps: Steps, address: str) -> None:
    bench = steps.bench
    with steps.step("Open the folder → its files"):
        bench.page("goto", address)
        bench.visible(".explorer-folders-view .monaco-list-row", "model.py")
    with steps.step("Open model.py → that fuselens is missing, and how to install it"):
        bench.page("doubleClick", ".explorer-folders-view .monaco-list-row", "model.py")
        bench.notification("fuselens")
    with steps.step("Install fuselens → the command, to be allowed"):
        bench.click(".notification-toast .monaco-button", "Install")
        bench.visible(".monaco-dialog-box", "fuselens[server]")
    with steps.step("Install → findings in the file"):
        bench.click(".monaco-dialog-box .monaco-button", "Install")
        bench.visible(LENS, "graphs", 900)
    with steps.step("Run → faster than eager by, and whether it agrees"):
        bench.press_lens("▶ Run", lambda: [t for t in bench.shown_lenses() if "eager" in t])


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the first steps of a person in the editor.")
    parser.add_argument("--pictures", type=Path, help="where the pictures are kept")
    parser.add_argument("--torch", default="torch", help="what pip installs before")
    arguments = parser.parse_args()
    server, chromium = editor.install(), shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no browser: install Chromium (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        wheels = prepare(folder, arguments.torch)
        os.environ |= {
            "PIP_FIND_LINKS": str(wheels),
            "UV_FIND_LINKS": str(wheels),
            "FUSELENS_CACHE_DIR": str(folder / "cache"),
        }
        port, vsix = editor.free_port(), ROOT / "extension" / "dist" / "fuselens.vsix"
        with editor.serve(server, folder / "home", [vsix], port=port, settings={}):
            page = Chromium(chromium)
            steps = Steps(Workbench(page, Probe(folder / "none"), arguments.pictures or folder / "pictures"))
            try:
                take(steps, editor.address(port, folder / "project"))
            finally:
                print(steps.table())
                page.close()


if __name__ == "__main__":
    main()
