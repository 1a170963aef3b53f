"""The sweep over transformers' base models: how it makes them small, and what it finds."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.corpus import __main__ as sweep
from benchmarks.corpus import process, sizes


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ["bert", "vit", "t5"])
def test_a_base_model_is_captured_whole(name, training):
    found = process.found(name, training, "eager")
    assert found["outcome"] == "whole", found
    assert found["parameters"] < 2_000_000


def test_what_is_found_in_wrong_results(monkeypatch):
    called = process._called

    def moved(model, original, kwargs, training):
        left, seconds = called(model, original, kwargs, training)
        if hasattr(model, "__fuselens__"):
            left["output"]["attribute", "last_hidden_state"] = torch.zeros(1)
        return left, seconds

    monkeypatch.setattr(process, "_called", moved)
    assert process.found("bert", False, "eager")["outcome"] == "wrong"


def test_layers_of_every_type_are_kept():
    from transformers import Gemma3TextConfig

    default = Gemma3TextConfig()
    _, small = next(sizes.configs("gemma3_text"))
    assert (
        small.num_hidden_layers == len(small.layer_types) == len(set(default.layer_types)) < default.num_hidden_layers
    )
    assert small.hidden_size < default.hidden_size


def test_later_lines_replace_earlier_ones_in_the_table(tmp_path):
    lines = [
        {"name": "a", "outcome": "broken", "breaks": ["FL102 x.py:3: why"]}, {"name": "b", "outcome": "eager", "why": ""},
        {"name": "c", "outcome": "broken", "breaks": ["FL102 x.py:4: why"]}, {"name": "a", "outcome": "whole"},
    ]  # fmt: skip
    path = tmp_path / "found.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = sweep.table(sweep.read(path))
    assert "| counted | 2 | |" in text
    assert "values agree | 1 | 50.0% |" in text
    assert "- broken, 1: FLN x.py:N: why (c)" in text
