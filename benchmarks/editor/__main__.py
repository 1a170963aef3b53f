"""What an editor waits for, over LSP, with a real server.

    python -m benchmarks.editor [--saves 20] [--keys 60] [--busy] [FILE ...]     a save, a keystroke
    python -m benchmarks.editor --large [--keys 60]                              a keystroke in 10,000 lines
    python -m benchmarks.editor --gpt2 [--saves 20]                              a save of a 12-layer GPT-2
    python -m benchmarks.editor --storm 100 [FILE ...]                           the last of many saves
    python -m benchmarks.editor --cold 5 [FILE ...]                              a file opened with a new server

Each save changes a comment at the end of the file (so the text is new and the code is not) or, with ``--fresh``, a
constant (so kernels are generated anew). The time runs from the didSave notification to the publishDiagnostics that
follows; ``report`` is the time until the whole report is there: kernels, documents, lenses. A keystroke is a didChange that
adds a character to a line of code: its time runs to the publishDiagnostics with what is predicted of the new text.

``--busy`` keeps one processor busy beside. ``--storm`` types and saves without a pause and waits for the findings of the last
text. ``--cold``'s times are from the start of the server's process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lsprotocol import types as lsp

from . import files
from .client import SETTINGS, Editor, editor

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TYPED = "\nobserved = sum(range(10))"
INSIDE = "\n    observed = sum(range(10))\n    if a.sum() > 0:\n        b = b + 1\n"
Times = dict[str, list[float]]  # what was measured → seconds


async def save(client: Editor, path: Path, saves: int, fresh: bool, pause: float) -> Times:
    times: Times = {"open": [], "save": [], "report": []}
    client.forget()
    start = client.now()
    uri, text = client.open(path), path.read_text()
    times["open"].append(await client.until(lambda: uri in client.published) - start)
    await client.until(lambda: client.reports)
    for k in range(saves):
        text = _edited(text, k, fresh)
        await asyncio.sleep(pause)
        path.write_text(text)
        client.change(uri, text)
        await asyncio.sleep(0.4)  # what typing publishes by itself is over
        client.forget()
        start = client.now()
        client.save(uri)
        times["save"].append(await client.until(lambda: uri in client.published) - start)
        times["report"].append(await client.until(lambda: client.reports) - start)
    return times


async def type_at_end(client: Editor, path: Path, keys: int) -> Times:
    uri, text, times = path.as_uri(), path.read_text(), []
    for key in range(keys):
        end = lsp.Position(text.count("\n"), len(text) - text.rfind("\n") - 1)
        character = TYPED[key % len(TYPED)]
        times.append(await _keystroke(client, uri, end, character))
        text += character
    return {"key": times}


async def type_inside(client: Editor, path: Path, keys: int) -> Times:
    """Types lines into functions all over a file that was opened and not checked."""
    path.write_text(files.large())
    client.forget()
    start = client.now()
    uri = client.open(path)
    path.write_text("")  # what is shown is not saved, so that nothing is checked
    first = await client.until(lambda: uri in client.published) - start
    times: Times = {"open": [first], "key": [], "enter": []}
    lines = files.large().split("\n")
    places = [k for k, line in enumerate(lines) if line.startswith("    a = ")]
    for key in range(keys):
        line = places[(key // len(INSIDE) * 97 + 150) % len(places)]
        within = INSIDE[: key % len(INSIDE)]
        column = len(within) - within.rfind("\n") - 1 if "\n" in within else len(lines[line])
        character = INSIDE[key % len(INSIDE)]
        where = lsp.Position(line + within.count("\n"), column)
        times["enter" if character == "\n" else "key"].append(await _keystroke(client, uri, where, character))
    return times


async def _keystroke(client: Editor, uri: str, where: lsp.Position, character: str) -> float:
    client.forget()
    start = client.now()
    client.change(uri, character, lsp.Range(where, where))
    return await client.until(lambda: uri in client.published) - start


async def storm(client: Editor, path: Path, saves: int) -> Times:
    """From the last save to the findings of its text, which alone has a break at its end."""
    uri, text = client.open(path), path.read_text()
    await client.until(lambda: client.reports)
    last = "\n\n@fuselens.compile\ndef last(x: torch.Tensor):\n    print(x)\n    return x\n"
    for k in range(saves):
        new = f"{text}\n# save {k}\n" + (last if k == saves - 1 else "")
        path.write_text(new)
        client.change(uri, new)
        client.save(uri)
        await asyncio.sleep(0.02)

    def stands() -> bool:
        found = client.published.get(uri)
        return found is not None and any(
            d.range.start.line > text.count("\n") and not (d.data or {}).get("predicted") for d in found.diagnostics
        )

    start = client.now()
    return {"storm": [await client.until(stands) - start]}


async def cold(folder: Path, original: Path) -> Times:
    path = Path(shutil.copy(original, folder))
    async with editor(folder) as client:
        times = {"answer": [client.now()]}
        uri = client.open(path)
        predicted = await client.until(lambda: uri in client.published)
        found = await client.until(lambda: client.reports)
        told = [when for when, state, _ in client.statuses if state == "starting"] + [w for w, _ in client.progress]
        times |= {"told": [min(told, default=float("nan"))], "first": [predicted], "report": [found]}
        for when, text in sorted([(w, f"status: {s}: {m}") for w, s, m in client.statuses] + client.progress):
            logging.getLogger("told").info("%7.0f ms  %s", when * 1e3, text)
        return times


def _edited(text: str, k: int, fresh: bool) -> str:
    if fresh:
        constant = r"(?<=[*+] )\d+\.?\d*(?=[)\s])"
        return re.sub(constant, f"{1 + (os.getpid() % 1000 * 100 + k + 1) / 1e6}", text, count=1)
    return text + f"# save {k}\n"


@contextlib.contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """A process that computes, beside."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def show(name: str, times: Times) -> None:
    columns = []
    for what, seconds in times.items():
        ordered = sorted(s * 1e3 for s in seconds)
        p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
        several = f" (min {ordered[0]:.0f}, p95 {p95:.0f})" if len(ordered) > 1 else ""
        columns.append(f"{what} {statistics.median(ordered):.0f}{several}")
    print(f"{name}: {'  '.join(columns)} ms", flush=True)


async def measure(options: argparse.Namespace, folder: Path) -> None:
    checked = sorted(path for path in EXAMPLES.glob("*.py") if "fuselens.compile" in path.read_text())
    originals = options.files or ([EXAMPLES / "toy.py"] if options.cold or options.storm else checked)
    if options.cold:
        for original in originals:
            runs = [await cold(folder, original) for _ in range(options.cold)]
            show(original.name, {what: [run[what][0] for run in runs] for what in runs[0]})
        return
    async with editor(folder) as client:
        if options.large:
            show("large", await type_inside(client, folder / "large.py", options.keys))
        elif options.gpt2:
            (folder / "gpt2.py").write_text(files.GPT2)
            show("gpt2", await save(client, folder / "gpt2.py", options.saves, options.fresh, options.pause))
        else:
            for original in originals:
                path = Path(shutil.copy(original, folder))
                if options.storm:
                    show(path.name, await storm(client, path, options.storm))
                else:
                    times = await save(client, path, options.saves, options.fresh, options.pause)
                    show(path.name, times | await type_at_end(client, path, options.keys))
        await asyncio.sleep(1)
        process = client.process()
        print(
            f"server: {process.memory_info().rss / 2**20:.0f} MiB, {sum(process.cpu_times()[:2]):.2f} s of processor time"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.editor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--saves", type=int, default=15)
    parser.add_argument("--keys", type=int, default=60)
    parser.add_argument("--fresh", action="store_true", help="change a constant with every save")
    parser.add_argument(
        "--pause", type=float, default=0.0, metavar="SECONDS", help="before each edit, in which proofs run"
    )
    parser.add_argument("--busy", action="store_true", help="beside a process that keeps a processor busy")
    parser.add_argument("--large", action="store_true", help="keystrokes in a file of 10,000 lines")
    parser.add_argument("--gpt2", action="store_true", help="saves of a 12-layer GPT-2")
    parser.add_argument("--storm", type=int, default=0, metavar="SAVES", help="saves without a pause")
    parser.add_argument("--cold", type=int, default=0, metavar="TIMES", help="servers started, one after the other")
    parser.add_argument("--told", action="store_true", help="print what a person is told meanwhile, with --cold")
    parser.add_argument("--unproved", action="store_true", help="without proofs and what if in the background")
    options = parser.parse_args()
    SETTINGS.update({"proveSeconds": 0, "whatIfSeconds": 0} if options.unproved else {})
    logging.disable(logging.NOTSET if options.told else logging.WARNING)  # pygls does not know our notifications
    logging.basicConfig(level="CRITICAL", format="%(message)s")
    logging.getLogger("told").setLevel("INFO")
    with tempfile.TemporaryDirectory() as folder, busy(options.busy):
        asyncio.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()
