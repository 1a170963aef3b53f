"""Many models and operator chains on a GPU: eager, the peer and Fuselens, each in processes of its own.

    python -m benchmarks.models [--families chains,vision,training] [--only resnet,vgg] [--count 150] [--seed 0]
                                [--systems eager,peer,own] [--jobs 6] [--rounds 7] [--json out.json] [--sort ratio]

``--jobs`` programs at a time are prepared side by side, a process each and system. Then they are timed one after the other,
nothing else being under way; the systems take turns. *queued* and *single* are as in ``benchmarks.gpu``, medians over the turns.
*ratio* is the least queued time of the peer's modes over the least of ours; *eager* is eager's over ours. *first* is the first
call's seconds, beside ``jobs`` others. *memory* is what a call needs at most above what it began with, ours over the peer's.
``--show out.json`` prints the table of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.cold_starts import CACHES
from benchmarks.harness import ROOT

from . import families, nets

KINDS = ("queued", "single")
ALL = ("chains", *nets.FAMILIES)
Row = dict[str, dict[str, Any]]  # system → "queued", "single", "first", "memory", "agrees", "distance" or "problem"


class System:
    """A process of one system, for one program after the other."""

    def __init__(self, system: str, scratch: str) -> None:
        caches = {variable: f"{scratch}/{system}/{variable}" for variable in CACHES}
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.system, self.environment = system, {**os.environ, **caches, "PYTHONPATH": path}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.models.process", self.system], env=self.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.card = self._answer()

    def ask(self, what: str) -> dict[str, Any]:
        """What it answers. A process that dies is replaced, since the next program is none of its business."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
            return self._answer()
        except (OSError, EOFError):
            status = self.process.wait()
            self.start()
            return {"problem": f"the process ended with status {status}"}

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # others print, too
                return json.loads(line)
        raise EOFError

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(
    names: list[str], systems: list[str], jobs: int, rounds: int, done: Callable[[dict[str, Row]], None]
) -> str:
    """Measures all; ``done`` gets the rows as they come. Returns the card's name and torch's version."""
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs * len(systems)) as pool:
        slots = [
            list(pool.map(lambda s, k=k: System(s, f"{scratch}/{k}"), systems)) for k in range(min(jobs, len(names)))
        ]
        try:
            for start in range(0, len(names), jobs):
                batch = list(zip(names[start : start + jobs], slots, strict=False))
                done(_batch(batch, pool, rounds))
            card = slots[0][0].card
            return f"{card['card']}, torch {card['torch']}"
        finally:
            for slot in slots:
                for system in slot:
                    system.close()


def _batch(batch: list[tuple[str, list[System]]], pool: ThreadPoolExecutor, rounds: int) -> dict[str, Row]:
    waiting = {(n, s.system): pool.submit(s.ask, f"prepare {n}") for n, slot in batch for s in slot}
    rows: dict[str, Row] = {}
    for name, slot in batch:
        rows[name] = {s.system: dict(waiting[name, s.system].result()) for s in slot}
    for name, slot in batch:
        ready = [s for s in slot if "problem" not in rows[name][s.system]]
        turns: dict[str, dict[str, list[float]]] = {s.system: {kind: [] for kind in KINDS} for s in ready}
        for _ in range(rounds):
            for kind in KINDS:
                for system in ready:
                    turns[system.system][kind].append(system.ask(kind).get("ms", math.nan))
        for system, taken in turns.items():
            rows[name][system] |= {kind: statistics.median(taken[kind]) for kind in KINDS}
            rows[name][system]["spread"] = max(taken["queued"]) / min(taken["queued"]) - 1
    list(pool.map(lambda s: s.ask("drop"), (s for _, slot in batch for s in slot)))
    return rows


# --- what it says -------------------------------------------------------------------------------------------------


def best(row: Row, system: str, figure: str) -> float:
    """The least of the modes of ``system``; nan where none ran."""
    found = [r[figure] for s, r in row.items() if s.split("_")[0] == system and figure in r]
    return min(found, default=math.nan)


def figures(row: Row) -> dict[str, float]:
    """What a row of the table says. A ratio above 1 is in our favour, but for that of memory."""
    own = {figure: best(row, "own", figure) for figure in (*KINDS, "first", "memory")}
    peer = {figure: best(row, "peer", figure) for figure in own}
    return {
        "queued": own["queued"],
        "single": own["single"],
        "ratio": peer["queued"] / own["queued"],
        "one at a time": peer["single"] / own["single"],
        "eager": best(row, "eager", "queued") / own["queued"],
        "first": own["first"] / peer["first"] if peer["first"] else math.nan,
        "memory": own["memory"] / peer["memory"] if peer["memory"] else math.nan,
    }


def geomean(values: Iterable[float]) -> float:
    real = [v for v in values if v > 0 and math.isfinite(v)]
    return statistics.geometric_mean(real) if real else math.nan


def show(rows: dict[str, Row], sort: str) -> str:
    columns = ("queued", "single", "ratio", "one at a time", "eager", "first", "memory")
    out = []
    by_family: dict[str, list[str]] = {}
    for name in rows:
        by_family.setdefault(name.partition("/")[0], []).append(name)
    for family, names in by_family.items():
        found = {name: figures(rows[name]) for name in names}
        names.sort(key=lambda n: (math.isnan(found[n].get(sort, 0)), found[n].get(sort, n)))
        out.append(f"\n{family:90}" + "".join(f"{column:>14}" for column in columns))
        for name in names:
            line = f"{families.title(name)[:90]:90}" + "".join(f"{found[name][c]:14.3f}" for c in columns)
            out.append(line + "".join(f"  {s}: {p}" for s, p in _problems(rows[name])))
        ratios = [found[name]["ratio"] for name in names]
        said = [f"{column} {geomean(found[n][column] for n in names):.3f}" for column in columns[2:]]
        few = sum(r < 0.95 for r in ratios)
        slow = sum(found[n]["eager"] < 1 for n in names)
        out.append(
            f"geomeans of {family}: {', '.join(said)}; {few} of {len(names)} under .95, {slow} slower than eager"
        )
    return "\n".join(out)


def _problems(row: Row) -> list[tuple[str, str]]:
    found = [(s, str(r["problem"]).splitlines()[0][:120]) for s, r in row.items() if "problem" in r]
    found += [(s, f"differs by {r['distance']:.1e}") for s, r in row.items() if r.get("agrees") is False]
    return found + [
        (s, "draws random numbers: not compared") for s, r in row.items() if s != "eager" and r.get("agrees", 0) is None
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--families", default=",".join(ALL), help=f"comma-separated; default all: {', '.join(ALL)}")
    parser.add_argument("--only", default="", help="comma-separated: programs whose name has one of these")
    parser.add_argument("--count", type=int, default=150, help="of chains")
    parser.add_argument("--seed", type=int, default=0, help="of chains")
    parser.add_argument("--systems", default="eager,peer,own", help="comma-separated, as of benchmarks.gpu")
    parser.add_argument("--jobs", type=int, default=6, help="programs that are prepared side by side")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sort", default="ratio", help="a column, or name")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=Path, metavar="JSON")
    options = parser.parse_args()
    if options.show:
        print(show(json.loads(options.show.read_text())["programs"], options.sort))
        return
    names, absent = families.names(options.families.split(","), options.seed, options.count)
    names = [name for name in names if any(part in families.title(name) for part in options.only.split(","))]
    rows: dict[str, Row] = {}

    def done(found: dict[str, Row]) -> None:
        rows.update(found)
        print(f"{len(rows)} of {len(names)}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps({"programs": rows}))

    card = measure(names, options.systems.split(","), options.jobs, options.rounds, done)
    print(card + "".join(f"\nnot measured: {family}" for family in absent))
    print(show(rows, options.sort))


if __name__ == "__main__":
    main()
