"""Constants in place of what a graph makes of nothing but numbers, in each call anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fuselens


def shifted_windows(x: Tensor) -> Tensor:
    mask = x.new_zeros(8, 8)
    for number, rows in enumerate((slice(0, -4), slice(-4, -2), slice(-2, None))):
        mask[rows, 2:6] = number
    mask = mask.view(4, 2, 4, 2).permute(0, 2, 1, 3).reshape(16, 4)
    apart = mask.unsqueeze(1) - mask.unsqueeze(2)
    return x + apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0).sum((0, 1, 2))


def lowered(fn: Callable[..., Any], *given: Any) -> str:
    (graph,) = fuselens.explain(fn)(*given).graphs
    return next(s.text for s in graph.stages if s.name == "lower")


def test_what_takes_kernels_of_its_own_is_a_constant() -> None:
    x = torch.randn(3, 5)
    text = lowered(shifted_windows, x)
    assert "slice_scatter" not in text
    assert text.count("  constant ") == 1
    torch.testing.assert_close(fuselens.compile(shifted_windows)(x), shifted_windows(x))


def test_it_trains() -> None:
    x = torch.randn(3, 5, requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        return (x * shifted_windows(x)).sum()

    wanted, found = (torch.autograd.grad(f(x), x) for f in (fn, fuselens.compile(fn)))
    torch.testing.assert_close(found, wanted)


def test_what_loops_compute_where_it_is_read_stays() -> None:
    def fn(x: Tensor) -> Tensor:
        i = torch.arange(64)
        return x.masked_fill(i[:, None] < i[None, :], 0.0)

    x = torch.randn(64, 64)
    assert "  constant " not in lowered(fn, x)
    torch.testing.assert_close(fuselens.compile(fn)(x), fn(x))


def test_a_result_is_nobodys_constant() -> None:
    """A caller may write to what is returned."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.cat([torch.zeros(3), torch.ones(3), torch.arange(3.0)])
        return made, x + made

    compiled = fuselens.compile(fn)
    x = torch.randn(9)
    for _ in range(3):
        made, total = compiled(x)
        torch.testing.assert_close((made, total), fn(x))
        made.add_(5)


def test_inputs_and_chance_stay() -> None:
    def fn(x: Tensor) -> Tensor:
        places = torch.cat([torch.zeros(2), x[:2]])
        return x + places + torch.cat([torch.rand(2), torch.ones(2)])

    compiled = fuselens.compile(fn, options={"fallback_random": True})
    x = torch.randn(4)
    for seed in (1, 2):
        torch.manual_seed(seed)
        wanted = fn(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(x), wanted)


def test_another_process_has_it_from_the_cache(tmp_path: Path) -> None:
    x = torch.randn(3, 5)
    for _ in range(2):
        compiled = fuselens.compile(shifted_windows, options={"cache_dir": tmp_path})
        torch.testing.assert_close(compiled(x), shifted_windows(x))
        fuselens.reset()
