"""``generate()`` of Transformers, whose model's forward is compiled, gives eager's tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fuselens
from tests.libraries.against_eager import graphs

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("fresh")


def language(layers: int = 2) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=32, vocab_size=50,
        bos_token_id=1, eos_token_id=None, pad_token_id=0, initializer_range=0.5,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def tokens(model: Any, **how: Any) -> torch.Tensor:
    ids = torch.randint(1, 50, (how.pop("rows", 2), 5), generator=torch.Generator().manual_seed(3))
    torch.manual_seed(4)
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, **how)


HOW = {
    "dynamic": lambda: {"do_sample": False},
    "static": lambda: {"do_sample": False, "cache_implementation": "static"},
    "beams": lambda: {"do_sample": False, "num_beams": 3},
    "sampled": lambda: {"do_sample": True, "top_k": 10},
    "assisted": lambda: {"do_sample": False, "assistant_model": language(1), "rows": 1},
}


@pytest.mark.parametrize("name", HOW)
def test_tokens(name: str) -> None:
    expected = tokens(language(), **HOW[name]())
    model = language()
    model.forward = compiled = fuselens.compile(model.forward)
    found = tokens(model, **HOW[name]())
    assert torch.equal(found, expected)
    assert 1 <= graphs(compiled) <= 4
    before = graphs(compiled)
    assert torch.equal(tokens(model, **HOW[name]()), expected)
    assert graphs(compiled) == before  # a second text of this length compiles nothing


def test_a_backend_by_name() -> None:
    how = {"do_sample": False, "cache_implementation": "static"}
    config = transformers.CompileConfig(backend="fuselens", mode=None, fullgraph=False)
    assert torch.equal(tokens(language(), compile_config=config, **how), tokens(language(), **how))
