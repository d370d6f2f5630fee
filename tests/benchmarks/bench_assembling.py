"""Bins to tensors: `BatchAssembler` beside torch.cat, and beside the plain widening copy of as many tokens."""

import json
from pathlib import Path

import numpy as np
import torch
from harness import Row, Sample, interleaved, timed
from workload import MAX_SEQ_LEN, Workspace, shares

from packhorse.client import BatchAssembler, BinBlock
from packhorse.client.batches import BatchBuffers
from packhorse.client.sources import FlatSource
from packhorse.client.streams.blocks import joined
from packhorse.formats import write_flat_tokens
from packhorse.packing import pack_sequences

NOTE = (
    "assembling: batches of 8 × 2,048 tokens from a memory-mapped uint16 file, random sequences. `torch.cat` is the "
    "way that seqpack's documentation shows, a loop over bins and sequences: tokens and sequence_ids only, or, for the "
    "same work, the position_ids, attention_mask, unshifted labels, cu_seqlens and max_seqlen that ours makes as well. "
    "A block's batches are those of 64 steps, as a stream brings them to PackedDataset; a batch alone is what random "
    "access makes. "
    "The widening copy is `out[:] = tokens[:16384]`, uint16 to int64, into memory that is there."
)
ROWS, SEQUENCES, BATCHES, TIMES = 8, 60_000, 64, 5
TARGET = 10.0


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    random = np.random.default_rng(11)
    rows = []
    for name, probabilities in (("lognormal", shares()), ("Wikipedia", _wikipedia())):
        lengths = random.choice(len(probabilities), size=SEQUENCES, p=probabilities) + 1
        path = workspace.root / f"assembling-{name}.bin"
        tokens = random.integers(0, 50_000, size=int(lengths.sum()), dtype=np.uint16)
        write_flat_tokens(path, np.split(tokens, np.cumsum(lengths)[:-1]), np.uint16)
        rows += _measure(workspace, path, lengths, name)
    return rows


def _measure(workspace: Workspace, path: Path, lengths: np.ndarray, name: str) -> list[Row]:
    source, documents = FlatSource(path), _Documents(path)
    assembler, buffers = BatchAssembler(MAX_SEQ_LEN), BatchBuffers(ROWS * MAX_SEQ_LEN)
    blocks = _blocks(lengths)
    stream_block = joined(blocks)
    flat = np.memmap(path, np.uint16, mode="r")
    wide = np.empty(ROWS * MAX_SEQ_LEN, np.int64)

    def ours(memory: BatchBuffers | None = None) -> None:
        for block in blocks:
            assembler.assemble(block, source, buffers=memory)

    def steps() -> None:
        for _ in assembler.assemble_steps(stream_block, source, batch_size=ROWS):
            pass

    def cat(*, everything: bool) -> None:
        for block in blocks:
            _torch_cat(block, documents, everything=everything)

    def widening() -> None:
        for _ in blocks:
            wide[:] = flat[: len(wide)]

    batch, peer = assembler.assemble(blocks[0], source), _torch_cat(blocks[0], documents, everything=True)
    assert peer.keys() <= batch.keys()
    assert all(torch.equal(batch[key], torch.as_tensor(value)) for key, value in peer.items() if key != "max_seqlen")

    works = (steps, ours, lambda: ours(buffers), lambda: cat(everything=True), lambda: cat(everything=False), widening)
    for work in works:
        work()
    together, own, reused, all_keys, two_keys, copies = (
        Sample(tuple(1e6 * seconds / BATCHES for seconds in values), "µs")
        for values in interleaved(TIMES * workspace.sizes.repeats, *(lambda work=work: timed(work) for work in works))
    )
    per_batch = np.mean([len(block.ids) for block in blocks])
    size = f"8 × 2,048, {name}, {per_batch:.0f} sequences a batch"
    rows = []
    for what, mine, theirs, who in (
        ("assemble a block's batches, same tensors", together, all_keys, "torch.cat, all tensors"),
        ("assemble a block's batches, more tensors", together, two_keys, "torch.cat, tokens and sequence_ids"),
        ("assemble a batch alone, same tensors", own, all_keys, "torch.cat, all tensors"),
    ):
        ratio = theirs.median / mine.median
        targeted = mine is together and theirs is all_keys
        rows.append(
            Row(
                what=what,
                size=size,
                ours=str(mine),
                peer=f"{theirs}, {who}",
                ratio=ratio,
                target=f"≥ {TARGET:g}×" if targeted else "",
                reached=ratio >= TARGET if targeted else None,
            )
        )
    rows.append(
        Row(
            what="assemble a batch alone into reused buffers",
            size=size,
            ours=str(reused),
            peer=f"{copies}, widening copy of the tokens alone",
            ratio=copies.median / reused.median,
        )
    )
    return rows


class _Documents:
    """Tokens as a map-style dataset usually gives them: a slice of the memory map, widened to int64."""

    def __init__(self, path: Path) -> None:
        self._tokens = np.memmap(path, np.uint16, mode="r")
        self._ends = np.memmap(path.with_name(path.name + ".boundaries"), np.int64, mode="r")

    def __getitem__(self, index: int) -> torch.Tensor:
        start = self._ends[index - 1] if index else 0
        return torch.from_numpy(self._tokens[start : self._ends[index]].astype(np.int64))


def _torch_cat(block: BinBlock, documents: _Documents, *, everything: bool) -> dict[str, torch.Tensor | int]:
    names = ["input_ids", "sequence_ids"] + ["position_ids", "attention_mask", "labels"] * everything
    rows: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    lengths: list[int] = []
    for ids, _ in block.bins():
        parts: dict[str, list[torch.Tensor]] = {name: [] for name in names}
        for label, sequence_id in enumerate(ids.tolist()):
            tokens = documents[sequence_id]
            parts["input_ids"].append(tokens)
            parts["sequence_ids"].append(torch.full((len(tokens),), label, dtype=torch.int32))
            if everything:
                labels = tokens.clone()
                labels[0] = -100
                parts["position_ids"].append(torch.arange(len(tokens)))
                parts["attention_mask"].append(torch.ones_like(tokens))
                parts["labels"].append(labels)
                lengths.append(len(tokens))
        left = MAX_SEQ_LEN - sum(map(len, parts["input_ids"]))
        fill = {"input_ids": 0, "sequence_ids": len(ids), "attention_mask": 0, "labels": -100}
        for name in names:
            padding = (
                torch.arange(left)
                if name == "position_ids"
                else torch.full((left,), fill[name], dtype=parts[name][0].dtype)
            )
            rows[name].append(torch.cat([*parts[name], padding]))
    batch: dict[str, torch.Tensor | int] = {name: torch.stack(rows[name]) for name in names}
    if everything:
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        offsets[1:] = torch.tensor(lengths).cumsum(0)
        batch |= {"cu_seqlens": offsets, "max_seqlen": max(lengths)}
    return batch


def _blocks(lengths: np.ndarray) -> list[BinBlock]:
    packed = pack_sequences(lengths, MAX_SEQ_LEN, seed=1)
    order = np.random.default_rng(5).permutation(packed.num_bins)[: ROWS * BATCHES]
    all_bins = packed.bins()
    bins = [np.array(all_bins[number]) for number in order.tolist()]
    blocks = []
    for first in range(0, len(bins), ROWS):
        chosen = bins[first : first + ROWS]
        ids = np.concatenate(chosen).astype(np.int64)
        ends = np.cumsum([len(one_bin) for one_bin in chosen])
        blocks.append(
            BinBlock(ids=ids, lengths=lengths[ids].astype(np.int32), bin_ends=ends, positions=np.arange(len(chosen)))
        )
    return blocks


def _wikipedia() -> np.ndarray:
    path = Path(__file__).parents[1] / "data" / "wikipedia_512_histogram.json"
    counts = np.array(json.loads(path.read_text()), dtype=np.float64)
    return counts / counts.sum()
