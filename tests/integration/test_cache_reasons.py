"""Whether a graph was found in the cache, and if not, what is new: in the report, and so in logs and ``explain``."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import fuselens
from fuselens import config
from fuselens.pipeline import cache_keys
from fuselens.record.report import Report


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"
    fuselens.reset()


def function(x: torch.Tensor, by: Any = 2) -> torch.Tensor:
    return (x.exp() * by).sum(0)


def looked_up(*args: Any, **options: Any) -> str:
    report: Report = fuselens.explain(function, **options)(*args)
    return "; ".join(graph.cache for graph in report.graphs)


X = torch.ones(4, 8)


def test_a_second_time_it_is_found() -> None:
    assert looked_up(X) == "it was not compiled before"
    assert looked_up(X) == "found"


def _threads() -> str:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        return looked_up(X)
    finally:
        torch.set_num_threads(before)


def _deterministic() -> str:
    torch.use_deterministic_algorithms(True)
    try:
        return looked_up(X)
    finally:
        torch.use_deterministic_algorithms(False)


def _ungraded() -> str:
    with torch.no_grad():
        return looked_up(X)


@pytest.mark.parametrize(
    ("again", "why"),
    [
        (
            lambda: looked_up(torch.ones(5, 8)),
            "input 0 was float32[4, 8] on cpu, strides [8, 1], and is float32[5, 8] on cpu",
        ),
        (
            lambda: looked_up(X.double()),
            "input 0 was float32[4, 8] on cpu, strides [8, 1], and is float64[4, 8] on cpu",
        ),
        (lambda: looked_up(X.t().contiguous().t()), "strides [8, 1], and is float32[4, 8] on cpu, strides [1, 4]"),
        (lambda: looked_up(X.clone().requires_grad_()), "strides [8, 1], with gradient"),
        (lambda: looked_up(X, 3), "the captured graph is another"),
        (lambda: looked_up(X, fast_math=True), "option fast_math was False, and is True"),
        (lambda: looked_up(X, cpu_isa="scalar"), "option cpu_isa was , and is scalar"),
        (_threads, "threads were"),
        (_deterministic, "settings of torch differ"),
        (_ungraded, "gradients were recorded"),
    ],
)
def test_why_it_is_not_found(again: Callable[[], str], why: str) -> None:
    looked_up(X)
    assert why in again()
    assert looked_up(X) == "found", "what was there is still there"


def test_a_run_does_not_keep_texts() -> None:
    fuselens.compile(function)(X)
    assert looked_up(X) == "checks keep the texts of stages, and runs do not"


def test_an_entry_that_was_removed(place: Path) -> None:
    looked_up(X)
    shutil.rmtree(place / "graph")
    assert looked_up(X) == "its entry was removed"


def test_parts_that_are_damaged(place: Path) -> None:
    looked_up(X)
    for path in (place / "keys").rglob("*.json"):
        path.write_bytes(b"[{]")
    assert looked_up(X.double()) == "it was not compiled before"


def marked(rows: int) -> torch.Tensor:
    x = torch.ones(rows, 8)
    fuselens.mark_dynamic(x, 0)
    return x


def test_sizes_that_are_symbols() -> None:
    assert "and is float32[s" in (looked_up(X), looked_up(marked(4)))[1]
    assert looked_up(marked(4)) == "found"
    assert looked_up(marked(6)) == "its sizes are symbols, of which something else is known"
    assert looked_up(marked(6)) == looked_up(marked(4)) == "found"


def test_what_has_no_key() -> None:
    tensors = [torch.ones(3, 4), torch.ones(2, 4)]
    nested = torch.nested.nested_tensor(tensors, layout=torch.jagged)
    assert looked_up(nested).startswith("it has no key")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.dictionaries(st.sampled_from(["name", *cache_keys._DIFFERENCES]), json_values), max_size=3), st.data()
)
def test_parts_that_others_wrote_never_fail(before: list[dict[str, Any]], data: st.DataObject) -> None:
    parts = {name: data.draw(json_values) for name in cache_keys._DIFFERENCES}
    assert cache_keys.why_missing(cache_keys.Key("name", "", "frame", parts), before)


POOLED = torch.ones(2, 8, 8)
KEYED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "with indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "a property": lambda x: x.mT * 2,
    "parts": lambda x: torch.view_as_complex(x.reshape(-1, 2)).real * 2,
    "checkpoint": lambda x: checkpoint(lambda y: y.sin() * 2, x, use_reentrant=False),
    "vmap": lambda x: torch.vmap(lambda y: y.sum())(x),
    "grad": lambda x: torch.func.grad(lambda y: y.sin().sum())(x),
}


@pytest.mark.parametrize("name", KEYED)
def test_what_has_a_key(name: str) -> None:
    for expected in ("it was not compiled before", "found"):
        report = fuselens.explain(KEYED[name])(POOLED)
        assert [graph.cache for graph in report.graphs] == [expected]


def test_keys_of_functions_that_run_graphs_tell_them_apart() -> None:
    of = lambda f, **how: fuselens.explain(lambda x: torch.vmap(f, **how)(x))(POOLED).graphs[0].cache  # noqa: E731
    assert of(lambda y: y.sum(0)) != "found"
    assert of(lambda y: y.sum(1)) != "found"
    assert of(lambda y: y.sum(0), in_dims=1) != "found"
    assert of(lambda y: y.sum(0), out_dims=1) != "found"
