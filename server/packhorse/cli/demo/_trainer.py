"""One data-parallel rank of the demo: a DataLoader over gRPC, a few training steps, and a count of what came.

Owns the rank's process; leaves the model to `_model` and who kills the server to `demo`.
"""

import logging
import os
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from packhorse.cli.demo._model import DemoModel
from packhorse.client import PackedBatch, PackedDataset
from packhorse.client.masks import build_packing_attention_bias


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """What every rank is told."""

    target: str
    """The server."""
    dataset: str
    """The dataset's name."""
    tokens: str
    """Prefix of the token files."""
    world_size: int
    """Number of ranks."""
    num_workers: int
    """Dataloader workers of each rank."""
    batch_size: int
    """Bins in a batch."""
    epochs: int
    """How often to go through the dataset."""
    train_steps: int
    """Training steps at the beginning of each epoch; later batches are only counted."""
    vocab_size: int
    """Of the tokenizer."""
    max_seq_len: int
    """Of the dataset."""
    rendezvous: str
    """File through which the ranks find each other."""


@dataclass(kw_only=True)
class EpochCount:
    """What one rank saw of one epoch."""

    steps: int = 0
    """Batches."""
    sequences: int = 0
    """Sequences in them."""
    tokens: int = 0
    """Tokens in them, padding left out."""
    checksum: int = 0
    """Sum modulo 2^64 of hashes of (token, index in its sequence, length of its sequence)."""
    first_batch_seconds: float = 0.0
    """From asking the DataLoader to its first batch; starting its workers included."""
    seconds: float = 0.0
    """The whole epoch."""
    losses: list[float] = field(default_factory=list)
    """Of the training steps."""

    def add(self, batch: PackedBatch) -> None:
        """Counts a batch."""
        mask = batch["attention_mask"].numpy().astype(bool)
        lengths = np.diff(batch["cu_seqlens"].numpy())
        self.steps += 1
        self.sequences += len(lengths)
        self.tokens += int(lengths.sum())
        checksum = token_checksum(batch["input_ids"].numpy()[mask], batch["position_ids"].numpy()[mask], lengths)
        self.checksum = (self.checksum + checksum) % 2**64


def token_checksum(tokens: NDArray[np.int64], indices: NDArray[np.int64], lengths: NDArray[np.integer]) -> int:
    """Returns a sum of hashes that does not depend on the order of sequences.

    Args:
        tokens: int64 [T], sequences end to end.
        indices: int64 [T], each token's index in its sequence.
        lengths: [n], of the sequences.
    """
    value = tokens.astype(np.uint64) << np.uint64(40)
    value ^= indices.astype(np.uint64) << np.uint64(20)
    value ^= np.repeat(lengths, lengths).astype(np.uint64)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((value ^ (value >> np.uint64(31))).sum(dtype=np.uint64))


def run_rank(rank: int, options: TrainerOptions, events: Any) -> None:
    """Goes through every epoch and puts what happens on `events`, as (rank, kind, fact) tuples."""
    logging.basicConfig(level=logging.INFO, format=f"    rank {rank} %(name)s: %(message)s")
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group(
        "gloo", init_method=f"file://{options.rendezvous}", rank=rank, world_size=options.world_size
    )
    try:
        _train(rank, options, events)
    finally:
        distributed.destroy_process_group()


def _train(rank: int, options: TrainerOptions, events: Any) -> None:
    dataset = PackedDataset(options.target, options.dataset, options.tokens, batch_size=options.batch_size, seed=17)
    loader: DataLoader[PackedBatch] = DataLoader(dataset, batch_size=None, num_workers=options.num_workers)
    model = DistributedDataParallel(DemoModel(options.vocab_size, options.max_seq_len))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        dataset.set_epoch(epoch)
        count = EpochCount()
        started = time.perf_counter()
        for step, batch in enumerate(loader):
            if step == 0:
                count.first_batch_seconds = time.perf_counter() - started
            if step < options.train_steps:
                count.losses.append(_train_step(model, optimizer, batch))
            count.add(batch)
            events.put((rank, "step", (epoch, step)))
        count.seconds = time.perf_counter() - started
        events.put((rank, "epoch", count))


def _train_step(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, batch: PackedBatch) -> float:
    bias = build_packing_attention_bias(batch["sequence_ids"], torch.float32, torch.device("cpu"), causal=True)
    loss = model(batch["input_ids"], batch["position_ids"], bias, batch["labels"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
