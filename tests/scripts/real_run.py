"""What a program compiles when it really runs, for a short time: the yardstick of what a look at it says.

    python -m tests.scripts.real_run [NAME ...]

runs programs of the folder ``programs`` one after the other, each in a copy in which its data are made, and writes what was
compiled into ``real_runs.json``. There is no GPU: a copy says ``cpu`` where the program says ``cuda``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS, RUNS = HERE / "programs", HERE / "real_runs.json"
NAMES = sorted(p.parent.name for p in PROGRAMS.glob("*/program.json"))
_OPENED = {"mingpt": "mingpt/trainer.py", "tabular_typer": "engine.py"}
_TEXTS = (".py", ".ipynb", ".yaml", ".json")
_CUDA = (
    (re.compile(r"""(\\?["'])cuda(:\{?[\w\]\["'.()]*\}?)?\1"""), r"\1cpu\1"),
    (re.compile(r"\.cuda\([^()]*\)"), ".cpu()"),
    (re.compile(r"device: cuda"), "device: cpu"),
    (re.compile(r"""torch\.device\((["'])cpu\1, [^\n]*\)$""", re.MULTILINE), "torch.device('cpu')"),
)


def described(name: str) -> dict[str, Any]:
    return json.loads((PROGRAMS / name / "program.json").read_text())


def opened(name: str) -> str:
    """The file that a person opens: the program, or where that compiles nothing, what it imports."""
    return _OPENED.get(name, described(name)["file"])


def copied(name: str, folder: Path, *, prepared: bool) -> Path:
    """A copy of a program in ``folder``, with the data that it wants where ``prepared``."""
    made = folder / name
    shutil.copytree(PROGRAMS / name, made, ignore=shutil.ignore_patterns("__pycache__"))
    about = described(name)
    for file in about.get("shares", ()):  # with another program
        shutil.copy(PROGRAMS / file, made)
    for script in about["prepare"] if prepared else ():
        path = made / script if (made / script).exists() else PROGRAMS / script  # of several programs
        subprocess.run([sys.executable, path], cwd=made, check=True, stdout=subprocess.DEVNULL, timeout=120)
    return made


def real_run(name: str) -> dict[str, Any]:
    """By function what was compiled of it: the inputs of its graphs, and its breaks by code and line."""
    about = described(name)
    with tempfile.TemporaryDirectory() as place:
        folder = copied(name, Path(place), prepared=True)
        says = any("cpu" in a for a in about["arguments"])  # on its command line
        for file in (f for f in folder.rglob("*") if f.suffix in _TEXTS and f.is_file() and not says):
            text = file.read_text(encoding="utf-8")
            for pattern, plain in _CUDA:
                text = pattern.sub(plain, text)
            file.write_text(text, encoding="utf-8")
        out = Path(place) / "out.json"
        arguments = ["cpu" if a == "cuda" else a for a in about["arguments"]]
        child = HERE / "short_run.py"
        done = subprocess.run(
            [sys.executable, str(child), str(out), about["file"], *arguments], cwd=folder, capture_output=True, text=True,
            timeout=300, env=os.environ | {"FUSELENS_CACHE_DIR": str(Path(place) / "cache"), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if not out.exists():
            raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
        return json.loads(out.read_text())


def main(names: list[str]) -> None:
    runs = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    for name in names or NAMES:
        runs[name] = real_run(name)
        print(name, runs[name]["ended"], {f: len(r["graphs"]) for f, r in runs[name]["functions"].items()}, flush=True)
        ordered = {n: runs[n] for n in sorted(runs)}
        lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(r)}" for n, r in ordered.items())
        RUNS.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
