"""Models of Transformers, made small, evaluated and trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.libraries.against_eager import computes, trains

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("fresh")

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
GROUPED = {**SMALL, "num_key_value_heads": 1}


def texts(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, 50, shape, generator=torch.Generator().manual_seed(seed))


def pictures(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def text_model(name: str) -> Any:
    torch.manual_seed(0)
    t = transformers
    return {
        "Llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**GROUPED)),
        "GPT-2": lambda: t.GPT2LMHeadModel(t.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=32)),
        "Bert": lambda: t.BertForMaskedLM(t.BertConfig(**SMALL)),
        "Qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**GROUPED)),
        "Gemma2": lambda: t.Gemma2ForCausalLM(t.Gemma2Config(**GROUPED, head_dim=8)),
        "Mamba": lambda: t.MambaForCausalLM(
            t.MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=50, state_size=4)
        ),
        "T5": lambda: t.T5ForConditionalGeneration(
            t.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=50, decoder_start_token_id=0)
        ),
    }[name]().eval()  # fmt: skip


TEXT = ["Llama", "GPT-2", "Bert", "Qwen2", "Gemma2", "Mamba", "T5"]


@pytest.mark.parametrize("name", TEXT)
def test_trained_on_texts(name: str) -> None:  # without dropout: compiled programs draw other numbers
    def loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, labels=ids).loss

    batches = [(texts(2, 10, seed=i),) for i in range(3)]
    assert 1 <= trains(text_model(name), loss, batches, rtol=1e-3, atol=1e-4) <= 3


def test_experts_and_the_loss_of_their_router() -> None:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**GROUPED, num_local_experts=4, output_router_logits=True)
    model = transformers.MixtralForCausalLM(config).eval()

    def loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
        found = model(input_ids=ids, labels=ids)
        assert found.aux_loss is not None
        return found.loss

    batches = [(texts(2, 10, seed=i),) for i in range(3)]
    assert 1 <= trains(model, loss, batches, rtol=1e-3, atol=1e-4) <= 3


@pytest.mark.parametrize("name", TEXT)
def test_logits(name: str) -> None:
    model = text_model(name)

    @torch.no_grad()
    def logits(ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, labels=ids).logits

    assert 1 <= computes(logits, (texts(2, 10),), rtol=1e-3, atol=1e-4) <= 3


def test_vit() -> None:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        **{k: v for k, v in SMALL.items() if k != "vocab_size"}, image_size=16, patch_size=8
    )
    model = transformers.ViTForImageClassification(config)

    def loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return model(pixel_values=x, labels=y).loss

    batches = [(pictures(i), torch.tensor([0, 1])) for i in range(2)]
    assert 1 <= trains(model, loss, batches, rtol=1e-3, atol=1e-4) <= 3


def test_whisper() -> None:
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, pad_token_id=0,
        encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=50, num_mel_bins=8, max_source_positions=16, max_target_positions=16,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = transformers.WhisperModel(config).eval()
    sound = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def states(sound: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return model(input_features=sound, decoder_input_ids=ids).last_hidden_state

    assert 1 <= computes(states, (sound, texts(2, 6)), rtol=1e-3, atol=1e-4) <= 3


def test_clip() -> None:
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config={**SMALL, "max_position_embeddings": 16, "eos_token_id": 49},
        vision_config={**SMALL, "image_size": 16, "patch_size": 8}, projection_dim=8,
    )  # fmt: skip
    model = transformers.CLIPModel(config).eval()

    @torch.no_grad()
    def logits(ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, pixel_values=x).logits_per_image

    assert 1 <= computes(logits, (texts(2, 6), pictures()), rtol=1e-3, atol=1e-4) <= 3
