"""The call whose step is looked at. A step computes nothing, so it needs no card: what the program has there is kept on the CPU."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch

from ...config import Config
from ...record.report import Diagnostic
from ...slices.devices import without_card
from ..function_check import Call, planned
from ..opening import OpenFile, opened, silent


@contextlib.contextmanager
def call_of(
    path: str | Path, source: str | None, function: str, config: Config, device: str
) -> Iterator[tuple[OpenFile, Call | Diagnostic]]:
    """The file, and the function's call. ``device`` is where its kernels run ("cpu" or "cuda"). Raises FileRefused."""
    on_card = device == "cuda" and torch.cuda.is_available()
    if on_card and config.target in ("auto", "cuda"):
        major, minor = torch.cuda.get_device_capability()
        config = dataclasses.replace(config, target=f"cuda:sm_{major}{minor}")
    with contextlib.ExitStack() as stack:
        with without_card() if on_card else contextlib.nullcontext():
            file = stack.enter_context(opened(path, source, (function,), None, config))
            call = planned(file, file.annotated[0], config, silent)
        yield file, call
