"""Hugging Face's Trainer over packed batches, padding-free, on one process or several.

    torchrun --nproc-per-node 2 client/examples/hf_trainer.py --target 127.0.0.1:50051 --dataset corpus \\
        --tokens corpus.idx --vocab-size 8000 --output run

Run it again and it goes on behind the newest checkpoint. The model is a small Llama with random weights; put
`AutoModelForCausalLM.from_pretrained(...)` in its place, with FlashAttention where there is a GPU for it. A Trainer counts
steps by its number of processes and its batch size: go on with the same ones.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from record import Record
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from packhorse.client import PackedDataLoader, create_packed_dataloader


class PackedTrainer(Trainer):
    """A Trainer whose batches come from a PackedDataLoader as they are."""

    def __init__(self, loader: PackedDataLoader, record: Record, **options: Any) -> None:
        super().__init__(**options)
        self.loader = loader
        self.record = record
        self.cursor: dict[str, Any] | None = None
        self.add_callback(SaveCursor(self))

    def get_train_dataloader(self) -> PackedDataLoader:
        """Returns the loader without accelerate around it, which would deal its batches over the ranks once more."""
        return self.loader

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Keeps the cursor for the next checkpoint, out of the model's sight."""
        self.cursor = inputs.pop("cursor")
        self.record.add(inputs, inputs["cu_seq_lens_q"])
        return super().training_step(model, inputs, *args, **kwargs)


class SaveCursor(TrainerCallback):
    """Keeps the cursor of the last batch trained on beside each checkpoint.

    With gradient accumulation the Trainer fetches several batches for one step; by the time it saves, all of them were
    trained on.
    """

    def __init__(self, trainer: PackedTrainer) -> None:
        self.trainer = trainer

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Writes it; it is the same on every rank."""
        if state.is_world_process_zero:
            cursor_path(f"{args.output_dir}/checkpoint-{state.global_step}").write_text(json.dumps(self.trainer.cursor))


def cursor_path(checkpoint: str) -> Path:
    """Where a checkpoint's cursor lies."""
    return Path(checkpoint) / "cursor.json"


class LoadCursor(TrainerCallback):
    """Goes on behind a checkpoint, once the Trainer has counted the steps of a whole epoch."""

    def __init__(self, loader: PackedDataLoader, checkpoint: str) -> None:
        self.loader = loader
        self.cursor = json.loads(cursor_path(checkpoint).read_text())

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Loads the cursor."""
        self.loader.load_state_dict(self.cursor)
