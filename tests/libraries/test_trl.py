"""Steps of TRL's trainers for SFT and DPO, the model compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.libraries.against_eager import agree

trl = pytest.importorskip("trl")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]

WORDS = "the cat sat on a mat and saw two dogs".split()


def words() -> Any:
    """A tokenizer of a few words."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def language(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=16, pad_token_id=0,
        eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def arguments(place: Path, compiles: bool) -> dict[str, Any]:
    how: dict[str, Any] = {"torch_compile": True, "torch_compile_backend": "fuselens"} if compiles else {}
    return {
        "output_dir": str(place), "per_device_train_batch_size": 2, "max_steps": 2, "report_to": [], "seed": 0, "use_cpu": True,
        "save_strategy": "no", "disable_tqdm": True, "learning_rate": 0.01, "logging_steps": 1, "bf16": False, **how,
    }  # fmt: skip


def left(trainer: Any) -> tuple[list[float], Any]:
    torch.manual_seed(5)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 2
    return losses, [p.detach() for p in trainer.model.parameters()]


def sft(place: Path, compiles: bool) -> Any:
    data = datasets.Dataset.from_list([{"text": " ".join(WORDS[i : i + 5])} for i in range(4)])
    return left(
        trl.SFTTrainer(
            language(), trl.SFTConfig(**arguments(place, compiles)), train_dataset=data, processing_class=words()
        )
    )


def dpo(place: Path, compiles: bool) -> Any:
    data = datasets.Dataset.from_list(
        [{"prompt": "the cat", "chosen": " sat on a mat", "rejected": f" saw {word}"} for word in WORDS[:4]]
    )
    config = trl.DPOConfig(**arguments(place, compiles))
    return left(trl.DPOTrainer(language(), language(1), config, train_dataset=data, processing_class=words()))


@pytest.mark.parametrize("steps", [sft, dpo])
def test_steps(steps: Any, tmp_path: Path) -> None:
    losses, weights = steps(tmp_path, False)
    found_losses, found_weights = steps(tmp_path, True)
    agree(found_losses, losses, rtol=1e-3, atol=1e-4)
    agree(found_weights, weights, rtol=1e-2, atol=2e-3)
    assert any(not torch.equal(a, b) for a, b in zip(weights, language().parameters(), strict=True))
