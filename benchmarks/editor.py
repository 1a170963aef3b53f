"""Save → diagnostics and keystroke → predictions, over LSP, with a real server and a warm worker.

    python -m benchmarks.editor [--saves 20] [--keys 60] [FILE ...]

Each save changes a comment at the end of the file (so the text is new and the code is not) or, with ``--fresh``, a
constant (so kernels are generated anew). The time runs from the didSave notification to the publishDiagnostics that
follows; ``report`` is the time until the whole report is there: kernels, documents, lenses. A keystroke is a didChange that
adds a character to a line of code: its time runs to the publishDiagnostics with what is predicted of the new text.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


TYPED = "\nobserved = sum(range(10))"
Times = dict[str, list[float]]


@dataclass(slots=True)
class Measured:
    """File name → seconds. The first save of each file, its opening, may wait for the worker to import torch."""

    saves: Times = field(default_factory=dict)  # to the diagnostics
    reports: Times = field(default_factory=dict)  # to the whole report
    keys: Times = field(default_factory=dict)
    memory: float = 0.0  # of the server afterwards, MiB: resident, what it shares with others included


async def measure(files: list[Path], saves: int, keys: int, fresh: bool) -> Measured:
    client = LanguageClient("benchmark", "1")
    published: dict[str, asyncio.Event] = {}

    @client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def publish(params: lsp.PublishDiagnosticsParams) -> None:
        published.setdefault(params.uri, asyncio.Event()).set()

    reported = asyncio.Event()

    @client.feature("fuselens/documentsChanged")
    def documents_changed(params: Any) -> None:
        reported.set()

    await client.start_io(sys.executable, "-m", "fuselens_server")
    measured = Measured()
    with tempfile.TemporaryDirectory() as folder:
        options = {"allowedFolders": [folder]}
        await client.initialize_async(
            lsp.InitializeParams(
                lsp.ClientCapabilities(), root_uri=Path(folder).as_uri(), initialization_options=options
            )
        )
        client.initialized(lsp.InitializedParams())
        for original in files:
            path = Path(shutil.copy(original, folder))
            uri, text = path.as_uri(), path.read_text()
            event = published.setdefault(uri, asyncio.Event())
            start = time.perf_counter()
            client.text_document_did_open(lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(uri, "python", 1, text)))
            await asyncio.wait_for(event.wait(), 120)
            times = measured.saves[path.name] = [time.perf_counter() - start]
            whole = measured.reports[path.name] = []
            for i in range(saves):
                text = _edited(text, i, fresh)
                path.write_text(text)
                client.text_document_did_change(
                    lsp.DidChangeTextDocumentParams(
                        lsp.VersionedTextDocumentIdentifier(i + 2, uri),
                        [lsp.TextDocumentContentChangeWholeDocument(text)],
                    )
                )
                await asyncio.sleep(0.4)  # what typing publishes by itself is over
                event.clear()
                reported.clear()
                start = time.perf_counter()
                client.text_document_did_save(lsp.DidSaveTextDocumentParams(lsp.TextDocumentIdentifier(uri)))
                await asyncio.wait_for(event.wait(), 120)
                times.append(time.perf_counter() - start)
                await asyncio.wait_for(reported.wait(), 120)
                whole.append(time.perf_counter() - start)
            typed = measured.keys[path.name] = []
            for key in range(keys):
                end = lsp.Position(text.count("\n"), len(text) - text.rfind("\n") - 1)
                character = TYPED[key % len(TYPED)]
                event.clear()
                start = time.perf_counter()
                client.text_document_did_change(
                    lsp.DidChangeTextDocumentParams(
                        lsp.VersionedTextDocumentIdentifier(saves + key + 2, uri),
                        [lsp.TextDocumentContentChangePartial(lsp.Range(end, end), character)],
                    )
                )
                await asyncio.wait_for(event.wait(), 120)
                typed.append(time.perf_counter() - start)
                text += character
        assert client._server is not None
        measured.memory = psutil.Process(client._server.pid).memory_info().rss / 2**20
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()
    return measured


def _percentiles(seconds: list[float]) -> tuple[float, float]:
    """The median and the 95th percentile."""
    ordered = sorted(seconds) or [float("nan")]
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]


def _edited(text: str, i: int, fresh: bool) -> str:
    if fresh:
        constant = r"(?<=[*+] )\d+\.?\d*(?=[)\s])"
        return re.sub(constant, f"{1 + (os.getpid() % 1000 * 100 + i + 1) / 1e6}", text, count=1)
    return text + f"# save {i}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.editor", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--saves", type=int, default=15)
    parser.add_argument("--keys", type=int, default=60)
    parser.add_argument("--fresh", action="store_true", help="change a constant with every save")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # pygls says of every notification of ours that it does not know it
    files = options.files or sorted(EXAMPLES.glob("*.py"))
    measured = asyncio.run(measure(files, options.saves, options.keys, options.fresh))
    print(f"server, idle: {measured.memory:.0f} MiB")
    kinds = ("save", "report", "key")
    print(f"{'file':26}{'open ms':>10}" + "".join(f"{kind} {p}".rjust(12) for kind in kinds for p in ("p50", "p95")))
    for name, (first, *rest) in measured.saves.items():
        columns = [*_percentiles(rest), *_percentiles(measured.reports[name]), *_percentiles(measured.keys[name])]
        print(f"{name:26}{first * 1e3:10.0f}" + "".join(f"{seconds * 1e3:12.0f}" for seconds in columns))


if __name__ == "__main__":
    main()
