"""``short_run.py OUT FILE ARGUMENT …`` runs a program until nothing new is compiled, and writes what was: see real_run.py."""

from __future__ import annotations

import builtins
import dataclasses
import json
import os
import runpy
import sys
import threading
import time
import traceback
import warnings
from typing import Any

import torch

from fuselens import api
from fuselens.config import from_environment
from fuselens.pipeline.recorder import Recorder
from fuselens_server.texts.notebooks import python_text

LONGEST, QUIET = 60.0, 10.0  # seconds; without anything new
recorders: list[Recorder] = []


def compile(fn: Any = None, **options: Any) -> Any:
    if fn is None:
        return lambda given: compile(given, **options)
    config = dataclasses.replace(
        from_environment(), fullgraph=bool(options.get("fullgraph")), dynamic=options.get("dynamic"), backend="eager"
    )
    name = getattr(fn, "__qualname__", type(fn).__name__)
    recorder = Recorder(name, "", None, config, texts=False)
    recorders.append(recorder)
    return api.wrap(fn, config, recorder=recorder, owner=object())


def compile_in_place(module: torch.nn.Module, **options: Any) -> None:
    module.forward = compile(module.forward, **options)
    recorders[-1].report.function = type(module).__name__


def end(out: str, why: str) -> None:
    functions: dict[str, Any] = {}
    for report in (r.report for r in recorders):
        found = functions.setdefault(report.function, {"graphs": [], "breaks": []})
        graphs = [[str(t) for t in g.inputs] for g in report.captured]
        found["graphs"] += [g for g in graphs if g not in found["graphs"]]
        found["breaks"] = sorted(
            {*map(tuple, found["breaks"]), *((b.code, b.span.line if b.span else 0) for b in report.breaks)}
        )
    with open(out, "w") as file:
        json.dump({"ended": why, "functions": functions}, file)
    os._exit(0)


def watch(out: str) -> None:
    began, changed, count = time.monotonic(), time.monotonic(), 0
    while True:
        time.sleep(0.3)
        graphs = sum(len(r.report.graphs) for r in recorders)
        if graphs != count:
            changed, count = time.monotonic(), graphs
        if time.monotonic() - began > LONGEST or (graphs and time.monotonic() - changed > QUIET):
            end(out, "it was stopped")


def _without(owner: Any, name: str, *options: str) -> None:
    """Calls lack options that only devices of a GPU's kind can have."""
    real = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **{k: v for k, v in kwargs.items() if k not in options})

    setattr(owner, name, call)


def source_of(notebook: str) -> str:
    with open(notebook, encoding="utf-8") as file:
        cells = ["".join(c["source"]) for c in json.load(file)["cells"] if c["cell_type"] == "code"]
    return "\n".join(map(python_text, cells))


def main(out: str, program: str, *arguments: str) -> None:
    warnings.simplefilter("ignore")
    torch.compile = compile  # type: ignore[assignment]
    torch.nn.Module.compile = compile_in_place  # type: ignore[assignment]
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[assignment]
    _without(torch.nn.parallel.DistributedDataParallel, "__init__", "device_ids", "output_device")
    _without(torch.distributed, "init_process_group", "device_id")
    for name in ("synchronize", "set_device", "empty_cache", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    threading.Thread(target=watch, args=(out,), daemon=True).start()
    sys.argv = [program, *arguments]
    sys.path[0] = os.getcwd()
    try:
        if program.endswith(".ipynb"):
            exec(builtin_compile(source_of(program), program, "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(program, run_name="__main__")
    except BaseException as error:
        traceback.print_exc()
        end(out, f"{type(error).__name__}: {error}"[:200])
    end(out, "at its end")


builtin_compile = builtins.compile

if __name__ == "__main__":
    main(*sys.argv[1:])
