"""One data-parallel rank of the demo: a small model, a DataLoader over gRPC, and counts of the batches.

Owns what a rank's process does. Leaves starting ranks and killing the server to `packhorse demo`.
"""

import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from packhorse.client import Batch, PackedDataset, Server
from packhorse.client.masks import build_packing_attention_bias

SEED = 17
"""The seed of every epoch."""
_WIDTH, _HEADS, _BLOCKS = 64, 4, 2
"""The model's hidden size, attention heads, and transformer blocks."""
_NO_LABEL = -100
"""The label of tokens that no loss is taken on."""
_LEARNING_RATE = 3e-3


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """Settings of every rank."""

    target: str
    """Address of the server."""
    dataset: str
    """Name of the dataset."""
    tokens_path: str
    """Path of the token files' index."""
    world_size: int
    """Data-parallel ranks."""
    num_workers: int
    """Dataloader workers of each rank."""
    batch_size: int
    """Bins of a batch, for each rank."""
    epochs: int
    """Number of epochs that are read, from epoch 0 on."""
    num_train_steps: int
    """Training steps at the beginning of each epoch; batches after them are only counted."""
    vocab_size: int
    """Number of different tokens."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    rendezvous: str
    """File through which the ranks find each other."""
    timeout_seconds: float
    """How long a rank waits for the server, which is killed and started again."""


@dataclass(kw_only=True)
class EpochCount:
    """Counts of the batches that one rank got in one epoch."""

    steps: int = 0
    sequences: int = 0
    tokens: int = 0
    """Tokens, without padding."""
    checksum: int = 0
    """Sum modulo 2^64 of hashes of (token, index in its sequence, length of its sequence)."""
    first_batch_seconds: float = 0.0
    """Time from asking the DataLoader to its first batch, including the start of its workers."""
    seconds: float = 0.0
    """Time of the whole epoch."""
    losses: list[float] = field(default_factory=list)
    """Losses of the training steps."""

    def add(self, batch: Batch) -> None:
        """Counts a batch."""
        mask = batch["attention_mask"].numpy().astype(bool)
        lengths = np.diff(batch["cu_seqlens"].numpy())
        self.steps += 1
        self.sequences += len(lengths)
        self.tokens += int(lengths.sum())
        checksum = token_checksum(batch["input_ids"].numpy()[mask], batch["position_ids"].numpy()[mask], lengths)
        self.checksum = (self.checksum + checksum) % 2**64


def token_checksum(tokens: NDArray[np.int64], indices: NDArray[np.int64], lengths: NDArray[np.integer]) -> int:
    """Returns a sum of hashes of tokens, modulo 2^64, that does not depend on the order of sequences.

    A token, its index and its sequence's length are put into 64 bits, which are then mixed as in SplitMix64.

    Args:
        tokens: int64 [T], the sequences' tokens, concatenated.
        indices: int64 [T], each token's index in its sequence.
        lengths: [n], the sequences' lengths.
    """
    value = tokens.astype(np.uint64) << np.uint64(40)  # 24 bits for the token, 20 each for index and length
    value ^= indices.astype(np.uint64) << np.uint64(20)
    value ^= np.repeat(lengths, lengths).astype(np.uint64)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((value ^ (value >> np.uint64(31))).sum(dtype=np.uint64))


class Report(NamedTuple):
    """What a rank tells the demo."""

    rank: int
    event: "Step | EpochCount | str"
    """A step that was taken, the counts of an epoch that ended, or the text of the error that ended the rank."""


class Step(NamedTuple):
    """A step of a rank, both numbers from 0."""

    epoch: int
    number: int


class DemoModel(nn.Module):
    """A small language model: two blocks of causal attention within each packed sequence."""

    def __init__(self, vocab_size: int, max_seq_len: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, _WIDTH)
        self.positions = nn.Embedding(max_seq_len, _WIDTH)
        block = nn.TransformerEncoderLayer(
            _WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, _BLOCKS, norm=nn.LayerNorm(_WIDTH), enable_nested_tensor=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, batch: Batch) -> Tensor:
        """Returns the mean loss over the tokens that have a label."""
        bias = build_packing_attention_bias(batch["sequence_ids"], torch.float32, torch.device("cpu"), causal=True)
        mask = bias.expand(-1, _HEADS, -1, -1).flatten(0, 1)  # [bins · heads, max_seq_len, max_seq_len]
        hidden = self.blocks(self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"]), mask=mask)
        labels = batch["labels"][:, 1:]  # not shifted in the batch: a token's label is the token itself
        has_label = labels != _NO_LABEL
        logits = hidden[:, :-1][has_label] @ self.tokens.weight.T  # [predicted tokens, vocabulary]
        return nn.functional.cross_entropy(logits, labels[has_label])


def run_rank(rank: int, options: TrainerOptions, reports: Any) -> None:
    """Trains through every epoch, and puts a `Report` of each step and epoch, and of an error, into a queue."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C in a terminal is the parent's, which ends this process
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends workers and their semaphores too
    logging.basicConfig(level=logging.INFO, format=f"    rank {rank} %(name)s: %(message)s")
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        rendezvous = f"file://{options.rendezvous}"
        distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=options.world_size)
        try:
            _train(rank, options, reports)
        finally:
            distributed.destroy_process_group()
    except Exception as error:
        reports.put(Report(rank, repr(error)))
        raise


def _train(rank: int, options: TrainerOptions, reports: Any) -> None:
    """Trains on the first steps of each epoch, counts all batches, and reports steps and epochs."""
    server = Server(options.target, timeout_seconds=options.timeout_seconds)
    dataset = PackedDataset(server, options.dataset, options.tokens_path, batch_size=options.batch_size, seed=SEED)
    loader: DataLoader[Batch] = DataLoader(dataset, batch_size=None, num_workers=options.num_workers)
    model = DistributedDataParallel(DemoModel(options.vocab_size, options.max_seq_len))
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    for epoch in range(options.epochs):
        dataset.set_epoch(epoch)
        count = EpochCount()
        started = time.perf_counter()
        for step, batch in enumerate(loader):
            if step == 0:
                count.first_batch_seconds = time.perf_counter() - started
            if step < options.num_train_steps:
                loss = model(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                count.losses.append(loss.item())
            count.add(batch)
            reports.put(Report(rank, Step(epoch, step)))
        count.seconds = time.perf_counter() - started
        reports.put(Report(rank, count))
