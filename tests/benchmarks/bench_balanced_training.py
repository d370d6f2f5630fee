"""A real run: what balancing takes off an optimizer step of a small Llama on two ranks, beside what was predicted."""

import math
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from harness import Row, Sample, results_of_ranks
from tests.flat_words import prepare
from workload import Workspace

from packhorse.client import PackedDataset, Topology, cost_linear_of

NOTE = (
    "balanced training: a Llama of 4 layers (hidden size 64, attention sequence by sequence), lognormal lengths in "
    "bins of 4,096 tokens, 2 gloo ranks of one thread × 8 micro-batches of one bin. Seconds from one optimizer step's "
    "end to the next, on the same bins and the same weights, modes in turn. “predicted” comes from the bins' costs "
    "alone; cost_linear is fitted to the measured times of all bins. “waiting at every step” puts a barrier behind "
    "every micro-batch, as FSDP does. The gradient summed over an optimizer step is compared between balanced and not."
)
RANKS, ACCUMULATION, MAX_SEQ_LEN, VOCABULARY = 2, 8, 4096, 512
MODES = (("none", False), ("optimizer-step", False), ("none", True), ("micro-step", True))
"""(balance, whether ranks wait at every step)."""


@dataclass(frozen=True)
class Bin:
    """One bin that a rank trained on."""

    linear: int
    """Tokens: Σ L."""
    square: int
    """Σ L²."""
    seconds: float
    """Forward and backward, in this thread's processor time."""


def run(workspace: Workspace) -> list[Row]:
    """Trains, and returns rows."""
    num_steps = 2 if workspace.sizes.repeats < 5 else 5
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        random = np.random.default_rng(3)
        num_sequences = 60 * RANKS * ACCUMULATION * num_steps
        lengths = np.clip(random.lognormal(5.6, 1.5, num_sequences).astype(int), 1, MAX_SEQ_LEN)
        pq.write_table(pa.table({"length": lengths}), root / "lengths.parquet")
        prepare(
            root / "lengths.parquet",
            length_column="length",
            output=root / "data" / "run",
            max_seq_len=MAX_SEQ_LEN,
            algorithm="best-fit",
            progress=False,
        )
        found = results_of_ranks(_rank, (str(root), lengths.tolist(), num_steps), RANKS)
    return _rows(found, num_steps)


def _rows(found: dict[int, Any], num_steps: int) -> list[Row]:
    bins = {mode: [found[rank]["bins"][mode] for rank in range(RANKS)] for mode in range(len(MODES))}
    every = [b for mode in bins.values() for rank in mode for b in rank]
    columns = np.array([[b.linear, b.square] for b in every], dtype=np.float64)
    per_token, per_pair = np.linalg.lstsq(columns, np.array([b.seconds for b in every]), rcond=None)[0]
    predicted = {mode: _predicted(bins[mode], MODES[mode][1], per_token, per_pair) for mode in bins}
    measured = {mode: found[0]["seconds"][mode] for mode in bins}
    size = f"{RANKS} ranks × {ACCUMULATION}, {num_steps} optimizer steps"
    rows = []
    for plain, balanced, where in ((0, 1, "once an optimizer step"), (2, 3, "at every step")):
        ours, theirs = Sample(tuple(measured[balanced]), "s"), Sample(tuple(measured[plain]), "s")
        ratio = statistics.mean(measured[plain]) / statistics.mean(measured[balanced])
        expected = predicted[plain] / predicted[balanced]
        rows.append(
            Row(
                what=f"optimizer step, ranks waiting {where}",
                size=size,
                ours=f"{ours}, {MODES[balanced][0]}",
                peer=f"{theirs}, none; predicted {expected:.3g}×",
                ratio=ratio,
                target="as predicted within 15 %",
                reached=abs(ratio / expected - 1) < 0.15,
            )
        )
    difference = max(found[0]["differences"])
    rows.append(
        Row(
            what="gradient of an optimizer step, balanced and not",
            size=size,
            ours=f"{difference:.1e} relative distance",
            target="< 1e-5",
            reached=difference < 1e-5,
        )
    )
    rows.append(
        Row(
            what="cost_linear of that model",
            size=f"{len(every)} bins",
            ours=f"{found[0]['cost_linear']} from its config",
            peer=f"{per_token / per_pair:.0f} fitted to measured times",
        )
    )
    return rows


def _predicted(ranks: list[list[Bin]], waits_at_steps: bool, per_token: float, per_pair: float) -> float:
    """Seconds that the slowest rank takes, summed over all waits."""
    seconds = np.array([[per_token * b.linear + per_pair * b.square for b in rank] for rank in ranks])
    if not waits_at_steps:
        seconds = seconds.reshape(RANKS, -1, ACCUMULATION).sum(axis=2)
    return float(seconds.max(axis=0).sum())


def _rank(rank: int, folder: str, lengths: list[int], num_steps: int, results: Any) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    model = _model()
    cost_linear = cost_linear_of(model)
    tokens = _Tokens(lengths)
    seconds: dict[int, list[float]] = {mode: [] for mode in range(len(MODES))}
    bins: dict[int, list[Bin]] = {mode: [] for mode in range(len(MODES))}
    gradients: dict[tuple[int, int], torch.Tensor] = {}
    batches = {
        mode: iter(_dataset(folder, tokens, rank, balance, cost_linear)) for mode, (balance, _) in enumerate(MODES)
    }
    _micro_step(model, next(iter(_dataset(folder, tokens, rank, "none", cost_linear))))  # warms up
    for step in range(num_steps):
        for mode, (_, waits) in enumerate(MODES):
            model.zero_grad()
            dist.barrier()
            started = time.perf_counter()
            for _ in range(ACCUMULATION):
                bins[mode].append(_micro_step(model, next(batches[mode])))
                if waits:
                    dist.barrier()
            flat = torch.cat([p.grad.ravel() for p in model.parameters()])
            dist.all_reduce(flat)
            seconds[mode].append(time.perf_counter() - started)
            gradients[mode, step] = flat
    differences = [
        float((gradients[mode, step] - gradients[0, step]).norm() / gradients[0, step].norm())
        for mode in range(1, len(MODES))
        for step in range(num_steps)
    ]
    results.put((rank, {"seconds": seconds, "bins": bins, "differences": differences, "cost_linear": cost_linear}))
    dist.destroy_process_group()


def _dataset(folder: str, tokens: Any, rank: int, balance: str, cost_linear: int) -> PackedDataset:
    return PackedDataset(
        f"embedded:{folder}/data",
        "run",
        tokens,
        batch_size=1,
        seed=5,
        preset="padding-free",
        balance=balance,
        rank=(rank, RANKS),
        topology=Topology(accumulation=1 if balance == "none" else ACCUMULATION, cost_linear=cost_linear),
    )


class _Tokens:
    """Tokens of every id, made up from it."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, row: int) -> np.ndarray:
        return np.random.default_rng(row).integers(0, VOCABULARY, self._lengths[row])


def _micro_step(model: torch.nn.Module, batch: Any) -> Bin:
    """Adds a bin's gradient of the summed loss; the mean over the step is for the optimizer."""
    ends = batch["cu_seq_lens_q"].tolist()
    lengths = [b - a for a, b in pairwise(ends)]
    started = time.thread_time()
    arguments = {name: value for name, value in batch.items() if name in _ARGUMENTS}
    logits = model(**arguments, use_cache=False).logits[0, :-1]
    loss = torch.nn.functional.cross_entropy(logits, batch["labels"][0, 1:], ignore_index=-100, reduction="sum")
    loss.backward()
    return Bin(sum(lengths), sum(length**2 for length in lengths), time.thread_time() - started)


_ARGUMENTS = ("input_ids", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def _model() -> torch.nn.Module:
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

    AttentionInterface.register("sequence_by_sequence", _attention)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=MAX_SEQ_LEN,
    )
    config._attn_implementation = "sequence_by_sequence"
    return LlamaForCausalLM(config)


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, cu_seq_lens_q: Any, **_: Any
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sequence: [1, heads, T, d] in, [1, T, heads, d] out."""
    ends = cu_seq_lens_q.tolist()
    scale = 1 / math.sqrt(query.shape[-1])
    outputs = [
        torch.nn.functional.scaled_dot_product_attention(
            query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], is_causal=True, scale=scale
        )
        for a, b in pairwise(ends)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None
