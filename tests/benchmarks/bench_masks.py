"""Masks and kernels' inputs from offsets, beside those that look at tokens or at pairs of them."""

import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import seqpack.masking
import torch
from harness import Row, Sample, interleaved, timed
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from workload import MAX_SEQ_LEN, Workspace, in_words, shares

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks import (
    AttentionBiasBuffer,
    build_block_mask,
    build_packing_attention_bias,
    build_packing_cu_seqlens,
    build_varlen_offsets,
)

NOTE = (
    "masks: on the CPU, both sides with the same number of PyTorch threads (in the table), every time for the next of "
    "some batches, after their equality was checked. seqpack's bias takes fresh memory every time, and knows no causal "
    "one. Ours: “fresh” gives the same tensor in fresh memory, from the layout that a batch carries or from the "
    "sequence_ids that seqpack takes; `out=` writes all of a given tensor; `AttentionBiasBuffer`, the way of a "
    "training loop, takes back the blocks of the batch before and writes those of the next. "
    "FlexAttention's mask: causal, blocks of 128, all tensors equal to `create_block_mask`'s. "
    "Offsets: every time of a layout from which none were taken before; “scanned” reads sequence_ids as seqpack does."
)
_BATCHES = 4
_ROWS = 8
_CALLS = 200
"""Of what takes microseconds, timed together."""


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    repeats = 3 * workspace.sizes.repeats
    full = workspace.sizes.small >= 1_000_000
    batches = [layout_of(_ROWS, MAX_SEQ_LEN, seed) for seed in range(_BATCHES)]
    rows = _biases(batches, repeats)
    rows += [
        _block_mask(_ROWS, MAX_SEQ_LEN, repeats),
        _block_mask(1, 8_192, repeats),
        _block_mask(1, 32_768 if full else 16_384, 2),
        _long_block_mask(),
    ]
    return rows + _offsets(batches, repeats)


def layout_of(num_rows: int, row_tokens: int, seed: int) -> PackLayout:
    """Rows that sequences of usual lengths fill, the last of each as long as there is room."""
    random = np.random.default_rng(seed)
    places: list[int] = []
    row_ends = []
    for _ in range(num_rows):
        left = row_tokens
        while left:
            place = min(left, int(random.choice(MAX_SEQ_LEN, p=shares())) + 1)
            places.append(place)
            left -= place
        row_ends.append(len(places))
    return PackLayout.of_rows(np.array(places), np.array(row_ends), row_tokens)


def _milliseconds(work: Callable[[], Any]) -> float:
    return 1000 * timed(work)


def _row(what: str, size: str, ours: Sample, theirs: Sample, peer: str, least: float | None = None) -> Row:
    ratio = theirs.median / ours.median
    return Row(
        what=what,
        size=size,
        ours=str(ours),
        peer=f"{theirs}, {peer}",
        ratio=ratio,
        target="" if least is None else f"≥ {least:g}×",
        reached=None if least is None else ratio >= least,
    )


def _biases(batches: list[PackLayout], repeats: int) -> list[Row]:
    labels = [torch.from_numpy(layout.sequence_ids()) for layout in batches]
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        build = partial(build_packing_attention_bias, dtype=dtype, device="cpu", causal=False)
        peer = partial(seqpack.masking.build_packing_attention_bias, dtype=dtype, device="cpu")
        buffer = AttentionBiasBuffer(_ROWS, MAX_SEQ_LEN, dtype, causal=False)
        out = torch.empty((_ROWS, 1, MAX_SEQ_LEN, MAX_SEQ_LEN), dtype=dtype)
        ways: list[tuple[str, Callable[[Any], torch.Tensor], list[Any], float | None]] = [
            ("fresh", build, batches, 5),
            ("fresh, from sequence_ids", build, labels, 5),
            ("fresh, causal", partial(build, causal=True), batches, None),
            ("into out=", partial(build, out=out), batches, None),
            ("AttentionBiasBuffer", buffer.build, batches, 5),
        ]
        for layout, ids in zip(batches, labels, strict=True):
            expected = peer(ids)
            expected_causal = expected.masked_fill(_future(), -torch.inf)
            for name, way, _, _ in ways:
                ours = way(ids if "sequence_ids" in name else layout)
                assert torch.equal(ours, expected_causal if "causal" in name else expected), name
        theirs, *ours_of_ways = interleaved(
            repeats,
            partial(_next, cycle(labels), peer),
            *(partial(_next, cycle(wheres), way) for _, way, wheres, _ in ways),
        )
        size = f"{_ROWS} × {in_words(MAX_SEQ_LEN)} tokens, {torch.get_num_threads()} threads"
        name_of_type = str(dtype).removeprefix("torch.")
        for (name, _, _, least), ours in zip(ways, ours_of_ways, strict=True):
            what = f"attention bias, {name_of_type}, {name}"
            of_peer = "seqpack, fresh, not causal" if "causal" in name else "seqpack, fresh"
            rows.append(_row(what, size, Sample(ours, "ms"), Sample(theirs, "ms"), of_peer, least))
    return rows


def _next(wheres: Any, way: Callable[[Any], torch.Tensor]) -> float:
    where = next(wheres)
    return _milliseconds(lambda: way(where))


def _future() -> torch.Tensor:
    return torch.ones(MAX_SEQ_LEN, MAX_SEQ_LEN, dtype=torch.bool).triu(1)


def _block_mask(num_rows: int, row_tokens: int, repeats: int) -> Row:
    layout = layout_of(num_rows, row_tokens, 0)
    labels = torch.from_numpy(layout.sequence_ids())

    def causal_in_sequences(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (labels[b, q] == labels[b, k]) & (q >= k)

    def peer() -> BlockMask:
        return create_block_mask(causal_in_sequences, num_rows, None, row_tokens, row_tokens, "cpu")

    ours, theirs = build_block_mask(layout, "cpu", causal=True), peer()
    for name in BlockMask._TENSOR_ATTRS:
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (mine is None and other is None) or torch.equal(mine, other), name
    del theirs
    of_ours, of_theirs = interleaved(
        repeats,
        lambda: _milliseconds(lambda: build_block_mask(layout, "cpu", causal=True)),
        lambda: _milliseconds(peer),
    )
    size = f"{num_rows} × {in_words(row_tokens)} tokens, {torch.get_num_threads()} threads"
    return _row("build_block_mask", size, Sample(of_ours, "ms"), Sample(of_theirs, "ms"), "create_block_mask", least=50)


def _long_block_mask() -> Row:
    layout = layout_of(1, 131_072, 0)
    (ours,) = interleaved(5, lambda: _milliseconds(lambda: build_block_mask(layout, "cpu", causal=True)))
    return Row(
        what="build_block_mask",
        size=f"1 × {in_words(131_072)} tokens, {torch.get_num_threads()} threads",
        ours=str(Sample(ours, "ms")),
        peer="16 GiB for pairs, create_block_mask",
        target="possible",
        reached=True,
    )


def _offsets(batches: list[PackLayout], repeats: int) -> list[Row]:
    labels = [torch.from_numpy(layout.sequence_ids()) for layout in batches]
    for layout, ids in zip(batches, labels, strict=True):
        cu_seqlens, longest = seqpack.masking.build_packing_cu_seqlens(ids)
        offsets = build_varlen_offsets(layout, "cpu")
        assert torch.equal(offsets.cu_seqlens, cu_seqlens)
        assert torch.equal(build_packing_cu_seqlens(ids)[0], cu_seqlens)
        assert offsets.max_seqlen == longest

    def fresh() -> list[PackLayout]:
        return [layout.flattened() for layout in batches for _ in range(_CALLS // _BATCHES)]

    planned, tensors, scanned, theirs = interleaved(
        repeats,
        lambda: _microseconds(lambda layout: (layout.cu_seqlens, layout.max_seqlen), fresh()),
        lambda: _microseconds(lambda layout: build_varlen_offsets(layout, "cpu"), fresh()),
        lambda: _microseconds(build_packing_cu_seqlens, labels * (_CALLS // _BATCHES)),
        lambda: _microseconds(seqpack.masking.build_packing_cu_seqlens, labels * (_CALLS // _BATCHES)),
    )
    size = f"{_ROWS} × {in_words(MAX_SEQ_LEN)} tokens"
    their_sample = Sample(theirs, "µs")
    return [
        _row(f"cu_seqlens and max_seqlen, {name}", size, Sample(ours, "µs"), their_sample, "seqpack, scanned", least)
        for name, ours, least in (
            ("from the plan", planned, 10),
            ("as tensors for a device", tensors, None),
            ("scanned", scanned, None),
        )
    ]


def _microseconds(work: Callable[[Any], Any], arguments: list[Any]) -> float:
    """Of one call, on average."""
    started = time.perf_counter()
    for argument in arguments:
        work(argument)
    return 1e6 * (time.perf_counter() - started) / len(arguments)
