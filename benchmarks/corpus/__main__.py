"""Every base model of the installed transformers, small: how many are captured whole, and whether they agree with eager.

    python -m benchmarks.corpus [--training] [--peer] [--backend eager] [--only REGEX] [--shard 1/2] [--jobs 1] [--json FILE]

With ``--peer`` also how many graphs ``torch.compile`` makes of those that are not whole.
Each model runs in a process of its own: eagerly twice, then compiled. Backend *eager* runs what was captured as it is;
*fuselens* makes kernels. Results agree within rounding: some models compute in another way where they are compiled.
``--json`` gets a line for each model as it comes; those that are in it are not run again, unless ``--again REGEX``
matches their outcome (``--again 'broken|wrong'``).
A model that does not run eagerly, small and with the inputs that we know how to make, is not counted.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MEMORY = 24 << 30  # bytes of addresses that a model may ask for
Row = dict[str, Any]
OUTCOMES = {
    "whole": "one graph, values agree", "broken": "more graphs, or code that is not captured; values agree",
    "wrong": "values differ from eager's", "crashed": "raised, or ended the process", "timeout": "took too long",
}  # fmt: skip


def _child(name: str, options: argparse.Namespace, sender: Connection) -> None:
    from . import process

    quiet = os.open(os.devnull, os.O_WRONLY)
    if not options.verbose:
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    try:
        sender.send(process.main(name, options.training, options.backend, MEMORY, options.peer))
    except BaseException as e:  # noqa: BLE001 - SystemExit, too: it is the finding
        sender.send(json.dumps({"outcome": "crashed", "why": f"{type(e).__name__}: {e}"[:400]}))
    os._exit(0)


def measured(name: str, options: argparse.Namespace) -> Row:
    """What a forked process finds: all that models share has been imported before."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(name, options, sender))
    start = time.perf_counter()
    process.start()
    sender.close()
    try:
        if not receiver.poll(options.timeout):
            return {"outcome": "timeout", "why": f"more than {options.timeout:.0f} s"}
        return json.loads(receiver.recv())
    except EOFError:
        process.join()
        return {"outcome": "crashed", "why": f"the process ended with status {process.exitcode}"}
    finally:
        process.kill()
        process.join()
        receiver.close()
        print(f"{time.perf_counter() - start:6.1f} s  {name}", file=sys.stderr, flush=True)


def cause(text: str) -> str:
    """A break without what differs from model to model."""
    return re.sub(r"0x[0-9a-f]+|\d+", "N", text)


def table(rows: dict[str, Row]) -> str:
    counts = collections.Counter(row["outcome"] for row in rows.values())
    counted = sum(n for outcome, n in counts.items() if outcome != "eager")
    out = ["| outcome | models | share |", "| --- | ---: | ---: |"]
    for outcome, what in OUTCOMES.items():
        out.append(f"| {outcome}: {what} | {counts[outcome]} | {counts[outcome] / max(1, counted):.1%} |")
    out.append(f"| counted | {counted} | |")
    out.append(f"| not counted: did not run eagerly | {counts['eager']} | |")
    for outcome in ("broken", "wrong", "crashed", "timeout"):
        causes: dict[str, list[str]] = {}
        for name, row in rows.items():
            if row["outcome"] == outcome:
                why = row.get("breaks") if outcome == "broken" else [row["why"]]
                causes.setdefault(cause((why or ["no graph"])[0]), []).append(name)
        for why, names in sorted(causes.items(), key=lambda item: -len(item[1])):
            out.append(
                f"- {outcome}, {len(names)}: {why[:160]} ({', '.join(names[:6])}{', …' if len(names) > 6 else ''})"
            )
    both = {name: (row["graphs"], row["peer_graphs"]) for name, row in rows.items() if row.get("peer_graphs")}
    if both:
        more = {name: counts for name, counts in both.items() if counts[0] > counts[1]}
        total = [sum(counts) for counts in zip(*both.values(), strict=True)]
        out.append(
            f"- {len(both)} that are not whole: {total[0]} graphs, of torch.compile {total[1]}; more in {len(more)}:"
        )
        out += [f"  - {name}: {ours}, torch.compile {peers}" for name, (ours, peers) in more.items()]
    fallen = [name for name, row in rows.items() if row.get("fallbacks")]
    if fallen:
        out.append(f"- {len(fallen)} have a graph that runs eagerly: {', '.join(fallen[:20])}")
    return "\n".join(out)


def read(path: Path | None) -> dict[str, Row]:
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row.pop("name"): row for row in rows}  # a later line replaces an earlier one


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--training", action="store_true", help="with dropout and gradients, which are compared, too")
    parser.add_argument(
        "--peer", action="store_true", help="count torch.compile's graphs of models that are not whole, too"
    )
    parser.add_argument("--backend", default="eager", help="eager or fuselens")
    parser.add_argument("--only", default="", metavar="REGEX", help="of a model's type")
    parser.add_argument("--shard", default="1/1", help="i/n: each n-th model, from the i-th")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=180)
    parser.add_argument("--again", default="", metavar="REGEX", help="outcomes that are run again")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", action="store_true", help="the table of what is in --json, running nothing")
    parser.add_argument("--verbose", action="store_true", help="let models and the compiler print")
    options = parser.parse_args()
    rows = read(options.json)
    if options.show:
        print(table(rows))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["FUSELENS_CACHE_DIR"] = scratch
        run(options, rows)
    import torch
    import transformers

    print(f"transformers {transformers.__version__}, torch {torch.__version__}, backend {options.backend}")
    print(table(rows))


def run(options: argparse.Namespace, rows: dict[str, Row]) -> None:
    import transformers.models.bert.modeling_bert
    import transformers.models.clip.modeling_clip
    import transformers.models.llama.modeling_llama  # noqa: F401

    import fuselens.api  # noqa: F401 - in the process that is forked, as are the next

    from . import process, sizes

    del process
    part, parts = map(int, options.shard.split("/"))
    names = [n for n in sizes.names() if re.search(options.only, n)][part - 1 :: parts]
    left = [n for n in names if n not in rows or (options.again and re.fullmatch(options.again, rows[n]["outcome"]))]
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, row in zip(left, pool.map(lambda n: measured(n, options), left), strict=True):
            rows[name] = row
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps({"name": name, **row}) + "\n")


if __name__ == "__main__":
    main()
