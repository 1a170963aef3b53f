"""Graph breaks inside of a library: those of torch.compile, ours, and ours with patches, on public models of Transformers.

    python -m benchmarks.library_breaks [NAME ...] [--json FILE] [--timeout 300] [--no-patches]

Each cell is a process of its own. *peer* is what ``torch._dynamo.explain`` counts for one call of the model: each graph but the
first begins after a break. Ours are counted alike, and there are never fewer than lines that break. The patches are those that
``fuselens patches apply`` makes and keeps, in a project of its own for each model. *identical*: the compiled calls give eager's
outputs bit for bit, twice, each graph run as it was captured, with the same random numbers; what rounds otherwise is told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Found = dict[str, Any]
PROGRAM = """
import torch

import fuselens
from benchmarks.library_models import MODELS

model, given = MODELS["{name}"]()


@fuselens.compile(example_inputs=lambda: (given,))
def called(inputs):
    return [value for value in model(**inputs).values() if isinstance(value, torch.Tensor)]
"""


# --- in processes of their own ---------------------------------------------------------------------------------------------


def peer(name: str, folder: Path) -> Found:
    import torch

    from .library_models import MODELS

    model, inputs = MODELS[name]()
    told = torch._dynamo.explain(model)(**inputs)
    places = {
        f"{_short(r.user_stack[-1].filename)}:{r.user_stack[-1].lineno}" for r in told.break_reasons if r.user_stack
    }
    return {"places": sorted(places), "graphs": told.graph_count, "breaks": told.graph_break_count}


def ours(name: str, folder: Path) -> Found:
    """With the patches of the project in ``folder``."""
    import torch

    from fuselens import api
    from fuselens.capture.program import overlays
    from fuselens.config import from_environment

    from .library_models import MODELS

    model, inputs = MODELS[name]()
    with overlays.program(str(folder / "program.py")):
        config = from_environment(build=False)
        report = api.inspect(model, (), inputs, config=config, function=name, span=None)
        compiled = api.wrap(model, from_environment(until="capture", fallback_random=True), owner=object())
    why = ""
    for _ in range(2):
        expected, actual = (_seeded(torch, called, inputs) for called in (model, compiled))
        why = why or _difference(torch, expected, actual)
    broke = [d for d in report.breaks if d.span is not None]
    places = sorted({f"{_short(d.span.file)}:{d.span.line} {d.code}" for d in broke if d.span})
    graphs = sum("part of graph" not in g.frame for g in report.graphs)  # layers that are alike are compiled once
    return {
        "places": places, "breaks": max(len(places), graphs - 1), "graphs": graphs, "differs": why,
        "aside": [d.message for d in report.diagnostics if d.code in ("FL641", "FL642", "FL643")],
    }  # fmt: skip


def _seeded(torch: Any, model: Any, inputs: Any) -> list[Any]:
    import numpy

    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    with torch.no_grad():
        return _tensors(torch, model(**inputs))


def _tensors(torch: Any, value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(torch, v)]
    return [value] if isinstance(value, int | float | str) else []


def _difference(torch: Any, expected: list[Any], actual: list[Any]) -> str:
    if len(expected) != len(actual) or not expected:
        return f"{len(actual)} outputs in place of {len(expected)}"
    for k, (one, other) in enumerate(zip(expected, actual, strict=True)):
        if not torch.is_tensor(one):
            if one != other:
                return f"output {k} differs"
        elif not torch.allclose(one, other, rtol=0, atol=0, equal_nan=True):
            near = one.is_floating_point() and torch.allclose(one, other, rtol=1.3e-6, atol=1e-5)  # torch.testing's
            return f"output {k} {'rounds' if near else 'differs'} by {float((one - other).abs().max()):.0e}"
    return ""


def _short(path: str) -> str:
    return path.rpartition("site-packages/")[2]


def _child(what: Any, name: str, folder: Path, sender: Connection) -> None:
    warnings.simplefilter("ignore")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        sender.send(what(name, folder))
    except BaseException as error:  # noqa: BLE001 - it is the finding
        sender.send({"error": f"{type(error).__name__}: {error}"[:300]})
    os._exit(0)


def alone(what: Any, name: str, folder: Path, timeout: float) -> Found:
    """What a forked process finds."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(what, name, folder, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(timeout) else {"error": f"more than {timeout:.0f} s"}
    except EOFError:
        return {"error": "the process died"}
    finally:
        process.kill()
        process.join()


# --- the table -------------------------------------------------------------------------------------------------------------


def patched(name: str, folder: Path, timeout: float) -> Found:
    """``fuselens patches apply``."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "fuselens.cli",
        "patches",
        "apply",
        "--format",
        "json",
        "--timeout",
        str(timeout),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, "program.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=4 * timeout, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"more than {4 * timeout:.0f} s"}
    with contextlib.suppress(json.JSONDecodeError):
        return {"told": json.loads(done.stdout)}
    return {"error": done.stderr[-300:]}


def row(name: str, timeout: float, patches: bool, had: Found) -> Found:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "pyproject.toml").touch()
        (folder / "program.py").write_text(PROGRAM.format(name=name))
        found: Found = {
            "peer": had.get("peer") or alone(peer, name, folder, timeout),
            "without": alone(ours, name, folder, timeout),
        }
        found["with"] = found["without"]
        if patches and found["without"].get("places"):
            found["patches"] = patched(name, folder, timeout)
            found["files"] = [p.name for p in folder.rglob("*.patch")]
            if found["files"]:
                found["with"] = alone(ours, name, folder, timeout)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.library_breaks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path, help="all that was found; rows that it has are not run again")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--no-patches", action="store_true", help="without trying fixes out")
    options = parser.parse_args()
    os.environ.setdefault("FUSELENS_CACHE_DIR", tempfile.mkdtemp())
    from fuselens import api  # noqa: F401 - forked processes have it

    from .library_models import MODELS

    rows: dict[str, Found] = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    print("| model | breaks of the peer | ours | with patches | outputs |\n| --- | ---: | ---: | ---: | --- |")
    for name in options.names or MODELS:
        if "with" not in rows.get(name, {}):
            rows[name] = row(name, options.timeout, not options.no_patches, rows.get(name, {}))
        print(line(name, rows[name]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))
    print(*summary([rows[name] for name in options.names or MODELS]), sep="\n")


def line(name: str, found: Found) -> str:
    cells = [_cell(found[which]) for which in ("peer", "without", "with")]
    differs = [found[which].get("differs", found[which].get("error", "")) for which in ("without", "with")]
    return "| " + " | ".join([name, *cells, next(filter(None, differs), "identical")]) + " |"


def _cell(found: Found) -> str:
    return found["error"].splitlines()[0][:60] if "error" in found else str(found["breaks"])


def summary(rows: list[Found]) -> list[str]:
    counted = [r for r in rows if not any("error" in r[which] for which in ("peer", "without", "with"))]
    breaks = {which: sum(r[which]["breaks"] for r in counted) for which in ("peer", "without", "with")}
    told = [r["with"]["differs"] or r["without"]["differs"] for r in counted]
    rounds = sum("rounds" in why for why in told)
    out = [
        f"\n{len(counted)} models counted; outputs identical in {told.count('')}, equal but for rounding in {rounds}"
    ]
    for which in ("without", "with"):
        removed = 1 - breaks[which] / max(breaks["peer"], 1)
        whole = sum(not r[which]["breaks"] for r in counted)
        out.append(
            f"{which} patches: {breaks[which]} of {breaks['peer']} breaks, {removed:.1%} removed; {whole} models whole"
        )
    return out


if __name__ == "__main__":
    main()
