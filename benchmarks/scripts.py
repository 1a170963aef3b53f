"""What a look at a training script costs: ``python -m benchmarks.scripts [NAME ...]``.

Each program of ``tests/scripts`` is checked as a stranger would, without its data: by ``fuselens check`` in a process of its own,
with an empty cache (*cold*, torch's import included) and again (*again*). ``memory`` is the most that a process of it had, torch included.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.scripts.real_run import NAMES, copied, opened

NOT_CHECKED = ("notebook",)  # the editor's


def main(names: list[str]) -> None:
    print(f"{'program':16} {'cold s':>7} {'again s':>8} {'memory MiB':>11}")
    colds = []
    for name in names or [n for n in NAMES if n not in NOT_CHECKED]:
        with tempfile.TemporaryDirectory() as place:
            folder = copied(name, Path(place), prepared=False)
            seconds = [_checked(folder, opened(name), Path(place) / "cache") for _ in range(2)]
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # of the largest so far
        colds.append(seconds[0])
        print(f"{name:16} {seconds[0]:7.1f} {seconds[1]:8.1f} {memory:11.0f}", flush=True)
    print(f"{len(colds)} programs, cold: median {statistics.median(colds):.1f} s, most {max(colds):.1f} s, "
          f"{sum(s <= 10 for s in colds)} of them within 10 s")  # fmt: skip


def _checked(folder: Path, file: str, cache: Path) -> float:
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-P", "-m", "fuselens.cli", "check", file], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"FUSELENS_CACHE_DIR": str(cache)}, check=False,
    )  # fmt: skip
    return time.monotonic() - began


if __name__ == "__main__":
    main(sys.argv[1:])
