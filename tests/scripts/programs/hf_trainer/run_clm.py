#!/usr/bin/env python
"""Pre-train a tiny GPT-2 on character sequences with the HF Trainer."""
import logging
import math
import os
import sys
from dataclasses import dataclass, field
from typing import Optional

os.environ.setdefault("WANDB_DISABLED", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    n_layer: int = field(default=3, metadata={"help": "Number of transformer layers"})
    n_head: int = field(default=4)
    n_embd: int = field(default=128)
    vocab_size: int = field(default=1024)


@dataclass
class DataArguments:
    block_size: int = field(default=96)
    num_samples: int = field(default=2000)
    train_file: Optional[str] = field(default=None, metadata={"help": ".npy of token ids"})


class MarkovDataset(Dataset):
    """Token streams of a random sparse Markov chain: something learnable without any download."""

    def __init__(self, vocab_size, block_size, n, seed=0):
        self.block_size, self.n, self.seed = block_size, n, seed
        rng = np.random.default_rng(0)
        self.table = rng.integers(0, vocab_size, (vocab_size, 4))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng([self.seed, i])
        choice = rng.integers(0, 4, self.block_size)
        out = np.empty(self.block_size, dtype=np.int64)
        cur = rng.integers(0, len(self.table))
        for t in range(self.block_size):
            out[t] = cur
            cur = self.table[cur, choice[t]]
        ids = torch.from_numpy(out)
        return {"input_ids": ids, "labels": ids.clone()}


class NpyDataset(Dataset):
    def __init__(self, path, block_size):
        data = np.load(path, mmap_mode="r")
        self.data = data[: len(data) // block_size * block_size].reshape(-1, block_size)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        ids = torch.tensor(self.data[i].astype(np.int64))
        return dict(input_ids=ids, labels=ids)


class PerplexityCallback(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            logger.info("step %d ppl %.2f", state.global_step, math.exp(min(20, logs["loss"])))


def main():
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    parser = HfArgumentParser((ModelArguments, DataArguments))
    model_args, data_args = parser.parse_args_into_dataclasses()
    training_args = TrainingArguments(
        output_dir="./gpt2-tiny",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=6e-4,
        weight_decay=0.1,
        warmup_steps=50,
        num_train_epochs=2,
        lr_scheduler_type="cosine",
        logging_steps=10,
        save_steps=100,
        save_total_limit=1,
        report_to="none",
        torch_compile=True,
        seed=42,
    )
    set_seed(training_args.seed)
    config = GPT2Config(
        vocab_size=model_args.vocab_size,
        n_positions=data_args.block_size,
        n_embd=model_args.n_embd,
        n_layer=model_args.n_layer,
        n_head=model_args.n_head,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    logger.info("model has %.1fM parameters", model.num_parameters() / 1e6)
    if data_args.train_file:
        train_ds = NpyDataset(data_args.train_file, data_args.block_size)
    else:
        train_ds = MarkovDataset(model_args.vocab_size, data_args.block_size, data_args.num_samples)
    eval_ds = MarkovDataset(model_args.vocab_size, data_args.block_size, 64, seed=1)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_ds,
        eval_dataset=eval_ds,
        callbacks=[PerplexityCallback()],
    )
    trainer.train()
    metrics = trainer.evaluate()
    metrics["perplexity"] = math.exp(metrics["eval_loss"])
    trainer.log_metrics("eval", metrics)
    trainer.save_model()


if __name__ == "__main__":
    main()
