"""The calls that a program makes of a function, each made as in a first run: with a compiler whose cache is empty."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ... import api
from ...config import Config
from ...inputs.structures import tensors_in
from ...pipeline import Recorder
from ...proving.kinds import seeded
from ...record.report import Diagnostic
from ...slices import Heard, Hearing
from ..function_check import merge_config
from ..opening import found_in, opened
from ..parsing import FileRefused
from .clock import Clock

_LEAST = 1e-3


def known_calls(hearing: Hearing, qualname: str) -> list[Heard]:
    """Those that can be made again."""
    return [c for c in hearing.calls if c.function == qualname and not c.unknown and not c.inside]


def sizes_of(call: Heard) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(t.shape) for t in tensors_in((call.args, call.kwargs)))


def seconds(path: str, text: str, qualname: str, config: Config) -> float:
    """The processor time that all calls take together which guards can tell apart. Raises FileRefused."""
    hearing = Hearing()
    seeded()
    with opened(path, text, (qualname,), config=config, values=True, hearing=hearing) as file:
        file.ask_callers()
        (annotated,) = file.annotated
        found = found_in(file, annotated)
        if isinstance(found, Diagnostic):
            raise FileRefused(found)
        merged = merge_config(config, found.config, annotated.arguments)
        with tempfile.TemporaryDirectory() as folder:
            chosen = dataclasses.replace(
                merged, explore=False, weightless=False, dump=None, cache_dir=Path(folder), keep_sizes=False
            )  # fmt: skip
            _start(chosen)
            begin = Clock.used()  # not longer for what other processes do meanwhile
            _make(known_calls(hearing, qualname), chosen)
            return max(Clock.used() - begin, _LEAST)


def _start(config: Config) -> None:
    """What a first compilation into an empty cache does for all later ones."""

    def nothing(x: torch.Tensor) -> torch.Tensor:
        return x * 3 + 1

    api.wrap(nothing, dataclasses.replace(config, fullgraph=False), owner=object())(torch.ones(7))


def _make(calls: Sequence[Heard], config: Config) -> None:
    recorder, owner, regions = Recorder("", "", None, config, texts=False), object(), dict[int, Any]()
    for call in calls:
        if (region := regions.get(id(call.target))) is None:
            region = regions[id(call.target)] = api.wrap(call.target, config, recorder=recorder, owner=owner)
        call.state.restore()
        with call.around.again():
            region(*call.args, **call.kwargs)
