"""Two Gloo processes: collectives are in graphs, models that are trained on several ranks are compiled, and all is as eagerly."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import cases  # noqa: E402  the program that the processes run

PROGRAM = Path(__file__).with_name("cases.py")
FUNCTIONS = [fn.__name__ for fn in (*cases.FUNCTIONS, *cases.GRADIENTS)]
MODELS = {  # graphs, parts (at least), breaks (at most)
    "ddp_of_compiled": (1, 0, 0),
    "ddp_of_compiled_in_buckets": (1, 3, 0),
    "compiled_ddp": (1, 0, 1),
    "compiled_ddp_in_buckets": (1, 3, 1),
    "fsdp": (3, 0, 3),
    "fsdp_by_block": (1, 0, 0),
    "tensor_parallel": (1, 0, 0),
    "distributed_inputs": (1, 0, 0),
    "pipeline": (1, 0, 0),
    "pipeline_in_turn": (1, 0, 0),
}


@pytest.fixture(scope="module")
def found(both: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    place = tmp_path_factory.mktemp("ranks")
    ended = both(PROGRAM, place / "cache", str(place / "{rank}.json"))
    assert [status for status, _, _ in ended] == [0, 0], [errors for _, _, errors in ended]
    return [json.loads((place / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_collective_is_in_the_graph(name: str, found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert "raised" not in rank[name], rank[name]["raised"]
        assert rank[name] == {"agrees": True, "graphs": 1, "fallbacks": 0, "breaks": [], "why": [], "parts": 0}


@pytest.mark.parametrize(
    ("name", "buckets"),
    [
        ("averaged", ["4 × all_reduce"]),
        ("of_three_kinds", ["2 × all_reduce", "2 × all_gather_into_tensor", "3 × reduce_scatter_tensor"]),
        ("that_need_each_other", ["2 × all_reduce"]),
    ],
)
def test_small_collectives_are_in_buckets(name: str, buckets: list[str], found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert "raised" not in rank[name], rank[name]["raised"]
        told = rank[name]
        assert told["agrees"] and told["buckets"] == buckets and told["graphs"] == 1 and told["fallbacks"] == 0, told


def test_overlap_is_measured(found: list[dict[str, Any]]) -> None:
    for rank in found:
        told = rank["measured"]
        assert told["agrees"] and told["phase"] == "forward", told
        assert 0 <= told["waited_seconds"] <= told["measured_seconds"] < 10, told
        assert "run meanwhile; measured " in told["told"] and "of it waited for" in told["told"], told


@pytest.mark.parametrize("name", [fn.__name__ for fn in cases.BETWEEN])
def test_a_call_between_two_graphs(name: str, found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert "raised" not in rank[name], rank[name]["raised"]
        told = rank[name]
        assert told["agrees"] and told["fallbacks"] == 0, told
        assert told["breaks"] and {why.partition(":")[0] for why in told["breaks"]} <= {"FL104", "FL105", "FL106"}, told
        assert not told["why"], told


@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_two_ranks(name: str, found: list[dict[str, Any]]) -> None:
    graphs, parts, breaks = MODELS[name]
    for rank in found:
        assert "raised" not in rank[name], rank[name]["raised"]
        told = rank[name]
        assert told["agrees"], told
        assert told["fallbacks"] == 0, told
        assert told["graphs"] - told["parts"] == graphs, told
        assert told["parts"] >= parts and len(told["breaks"]) <= breaks, told
