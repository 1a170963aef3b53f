"""Trainers of Lightning and of transformers, as far as a look at a program goes: one batch, on the CPU, and nothing is written
or shown."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import torch

_OFF = {
    "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    "num_sanity_val_steps": 0, "limit_train_batches": 1, "max_epochs": 1, "accelerator": "cpu", "devices": 1, "num_nodes": 1,
    "strategy": "auto", "profiler": None, "plugins": None, "limit_val_batches": 0,
}  # fmt: skip
_OFF_IN_TRANSFORMERS = {
    "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "eval_strategy": "no", "push_to_hub": False,
    "dataloader_num_workers": 0, "load_best_model_at_end": False, "deepspeed": None, "fsdp": None,
}  # fmt: skip
_WRITE = ("Checkpoint", "ProgressBar", "Monitor", "Summary", "EarlyStopping")


def in_place(modules: frozenset[str]) -> Iterator[tuple[Any, str, Any]]:
    """What to replace for a program that imports ``modules``: owner, name and value."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        if name.partition(".")[0] in modules:
            with contextlib.suppress(ImportError):
                trainer = importlib.import_module(name).Trainer
                yield trainer, "__init__", _made(trainer.__init__)
                for method in ("test", "validate", "predict", "save_checkpoint"):
                    yield trainer, method, lambda *_, **__: None
    if "transformers" in modules:
        with contextlib.suppress(ImportError):
            arguments = importlib.import_module("transformers").TrainingArguments
            yield arguments, "__post_init__", _arguments(arguments.__post_init__)


def _arguments(made: Any) -> Any:
    @functools.wraps(made)
    def post_init(self: Any) -> None:
        for name, value in _OFF_IN_TRANSFORMERS.items():
            if hasattr(self, name):
                setattr(self, name, value)
        self.output_dir = os.path.join(tempfile.gettempdir(), "trainer")
        if not torch.cuda.is_available():
            self.use_cpu, self.fp16, self.bf16 = True, False, False
        made(self)

    return post_init


def _made(made: Any) -> Any:
    @functools.wraps(made)
    def init(self: Any, *_: Any, **options: Any) -> None:
        options |= _OFF
        if str(options.get("precision", "")).startswith("16"):
            options["precision"] = "bf16-mixed"  # the CPU's
        callbacks = options.get("callbacks") or []
        callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
        options["callbacks"] = [c for c in callbacks if not any(word in type(c).__name__ for word in _WRITE)]
        made(self, **options)

    return init
