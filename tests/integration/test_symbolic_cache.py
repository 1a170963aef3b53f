"""Graphs whose sizes are symbols, from the cache: the same values and guards as when they were made, and the same limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuselens
from fuselens import config
from fuselens.runtime.cache import contents
from fuselens.runtime.cache.store import Cache


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"
    fuselens.reset()


W = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
PROGRAMS: dict[str, Callable[..., Any]] = {
    "points": lambda x: (x * 2).tanh(),
    "product": lambda x: F.gelu(x @ W).softmax(-1),
    "sums": lambda x: (x.sum(0), x.mean(), x.cumsum(0)),
    "parts": lambda x: torch.stack(x.chunk(2)).amax(0) if x.shape[0] % 2 == 0 else x,
    "views": lambda x: x.view(-1, 4).flatten()[: x.shape[0]] * x.shape[0],
    "pooled": lambda x: F.avg_pool1d(x.t()[None], 3, 2, 1),
    "padded": lambda x: F.pad(x, (1, 2, 0, x.shape[0])).flip(0),
    "together": lambda x: torch.cat([x, x[1:]]).var(0),
    "written": lambda x: x.clone().mul_(x.shape[0])[::2],
    "repeated": lambda x: x.repeat(2, 1).unfold(0, 2, 2).sum(-1),
}
ROWS = (6, 10, 14, 7, 16)


def inputs(rows: int, grad: bool) -> Tensor:
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows)).requires_grad_(grad)
    fuselens.mark_dynamic(x, 0)
    return x


def flat(value: Any) -> list[Tensor]:
    return [t for v in value for t in flat(v)] if isinstance(value, tuple) else [value]


def observed(fn: Callable[..., Any], compiled: Callable[..., Any], grad: bool) -> None:
    for rows in ROWS:
        results = []
        for call in (fn, compiled):
            x = inputs(rows, grad)
            found = flat(call(x))
            if grad:
                sum(t.sum() for t in found).backward()  # type: ignore[union-attr]
            results.append([*found, x.grad])
        torch.testing.assert_close(results[1], results[0])


def guards(fn: Callable[..., Any], grad: bool) -> tuple[list[str], list[str]]:
    """What a new compilation guards, and what the cache said to its graphs."""
    fuselens.reset()
    report = fuselens.explain(fn)(inputs(ROWS[0], grad))
    return [g.expression for g in report.guards], [g.cache for g in report.graphs]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_when_it_was_made(name: str, grad: bool) -> None:
    fn = PROGRAMS[name]
    observed(fn, fuselens.compile(fn), grad)
    fuselens.reset()
    observed(fn, fuselens.compile(fn), grad)
    (cold, missed), (warm, found) = guards(fn, grad), guards(fn, grad)
    assert warm == cold
    assert all(m != "found" for m in missed) and set(found) == {"found"}


@pytest.mark.parametrize("damage", [b"", b"[]", b'[[["symbol", "s99"]], []]', b"[[], [[], []]]"])
def test_conditions_that_cannot_be_read(place: Path, damage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = PROGRAMS["product"]
    guards(fn, False)
    get = Cache.get
    monkeypatch.setattr(
        Cache,
        "get",
        lambda cache, kind, key, suffix="": damage if suffix == ".sizes" else get(cache, kind, key, suffix),
    )
    assert guards(fn, False)[1] != ["found"]
    observed(fn, fuselens.compile(fn), False)


def test_entries_go_where_others_go(place: Path, tmp_path: Path) -> None:
    guards(PROGRAMS["product"], False)
    assert contents.contents(place).others == []
    made = fuselens.save_cache_artifacts()
    assert made is not None
    with config.patch(cache_dir=tmp_path / "another"):
        fuselens.load_cache_artifacts(made[0])
        assert guards(PROGRAMS["product"], False)[1] == ["found"]
