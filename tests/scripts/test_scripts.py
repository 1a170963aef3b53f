"""Programs as strangers write them, looked at: none runs, and each shows what a real short run of it compiles.

CI takes a few, chosen by the seed; the sweep takes all. Without their data, sizes may be assumed: then graphs and breaks are
compared, and the ranks of inputs. With their data, sizes are those of the real run.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .real_run import NAMES, RUNS, copied, opened

RUNS_OF = json.loads(RUNS.read_text())
SIZES_OF_DATA = frozenset({
    "bert_classify", "fire_cli", "gat", "gcn", "hydra_train", "llama", "lora_click", "muon", "nanogpt", "nanogpt_sample", "nerf",
    "recsys", "reinforce", "rnn_lm", "seq2seq_gru", "speech", "style_transfer", "super_resolution", "tabular_typer",
    "time_series", "translation", "unet",
})  # fmt: skip
"""Programs whose inputs only their data say."""
NOT_WHOLE = {
    "ddp": "the real wrapper talks to other processes in its forward, which breaks the graph; a look has the module of one process",
    "notebook": "its cells are joined by the server, whose tests have notebooks",
}
WITHOUT_DATA = NOT_WHOLE | {
    "bert_classify": "what a batch is called with is in the data set: labels are not found",
    "nanogpt_sample": "the sizes of the model are in its checkpoint",
    "recsys": "three inputs, two of them indices of 26 tables",
    "tabular_typer": "an input of numbers and one of categories, of different widths",
    "translation": "seven inputs, four of them masks of each other's sizes",
}
WITH_DATA = NOT_WHOLE | {
    "time_series": "126 LSTM cells in one graph take 20 s, and its C++ 40 s more where the cache is empty"
}
NEVER_MADE = {"style_transfer": 1}
"""Functions that the real run does not come to either: of another command."""
OF_AN_OPTION = {"gpt_fast": "main.<locals>.prefill"}
"""Compiled by an option only, which the real run is not given and a look takes to be."""
CHOSEN = random.Random(int(os.environ.get("FUSELENS_SWEEP_SEED", "0"))).sample(NAMES, 6)


def state(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {p: (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in sorted(folder.rglob("*"))}


def looked_at(name: str, place: Path, *, prepared: bool) -> list[dict[str, Any]]:
    """The functions of a program's report, of a fresh process with an empty cache."""
    folder = copied(name, place, prepared=prepared)
    before = state(folder)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fuselens.cli", "check", "--format", "json", "--timeout", "160", opened(name)], cwd=folder,
        capture_output=True, text=True, timeout=170, env=os.environ | {"FUSELENS_CACHE_DIR": str(place / "cache")},
    )  # fmt: skip
    assert state(folder) == before
    assert done.stderr == ""
    (report,) = json.loads(done.stdout)
    assert {d["severity"] for d in report.get("diagnostics", ())} <= {"hint"}, report
    found = [f for f in report["functions"] if f.get("graphs")]
    assert len(report["functions"]) - len(found) == NEVER_MADE.get(name, 0), report
    return found


def inputs_of(graph: dict[str, Any]) -> list[str]:
    return sorted(f"{t['dtype']}[{', '.join(t['shape'])}]" for t in graph["inputs"])


def ranks(inputs: list[str]) -> list[str]:
    """dtypes and numbers of dimensions; floating-point types are one, for a GPU's autocast is not a CPU's."""
    return sorted(re.sub(r"[\w ]+(?=[,\]])", "n", re.sub(r"^b?f\d+", "f", given)) for given in inputs)


def compare(name: str, functions: list[dict[str, Any]], *, sizes: bool) -> None:
    real = {f: r for f, r in RUNS_OF[name]["functions"].items() if r["graphs"]}
    functions = [f for f in functions if f["function"] != OF_AN_OPTION.get(name)]
    assert functions, "nothing was compiled"
    for function in functions:
        graphs = [inputs_of(g) for g in function["graphs"] if "part_of" not in g]
        for run in real.values():
            theirs = [sorted(g) for g in run["graphs"]]
            same = (
                all(g in theirs for g in graphs)
                if sizes
                else {*map(str, map(ranks, graphs))} <= {*map(str, map(ranks, theirs))}
            )
            breaks = {b["span"]["line"] for b in function.get("breaks", ())}
            if same and breaks == {line for _, line in run["breaks"]}:
                break
        else:
            raise AssertionError((function["function"], graphs, [b["code"] for b in function.get("breaks", ())], real))


def params(names: list[str]) -> list[Any]:
    return [pytest.param(n, marks=() if n in CHOSEN else pytest.mark.sweep) for n in names]


@pytest.mark.parametrize("name", params([n for n in NAMES if n not in WITHOUT_DATA]))
def test_without_its_data(name: str, tmp_path: Path) -> None:
    compare(name, looked_at(name, tmp_path, prepared=False), sizes=name not in SIZES_OF_DATA)


@pytest.mark.parametrize("name", params([n for n in NAMES if n in SIZES_OF_DATA and n not in WITH_DATA]))
def test_with_its_data(name: str, tmp_path: Path) -> None:
    compare(name, looked_at(name, tmp_path, prepared=True), sizes=True)
