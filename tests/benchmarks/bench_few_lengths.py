"""Packing 8 to 4,096 sequences, as a step of rollouts has them, beside plain Python that does the same.

Owns what is timed. LLaMA-Factory's greedy knapsack is written anew here: it sorts the lengths, and fills one bin after
the other with the longest that fits, found by bisection.
"""

import time
from bisect import bisect, insort
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import peers
from harness import Row, Sample, interleaved
from workload import Workspace

from packhorse.client import MemoryDatasets, connect
from packhorse.packing import (
    greedy_pack_sequences,
    heap_pack_sequences,
    pack_length_histogram_batched,
    pack_sequences,
)

NOTE = (
    "few-lengths: processor time of one call, the fastest of several interleaved turns. Lists in; lists of lists out, "
    "or a histogram in and templates out. Lengths are lognormal with a median of 250 tokens, bins have 2,048. "
    "LLaMA-Factory's greedy knapsack is written anew from its description."
)

_Packer = Callable[..., Any]
"""(lengths, or their histogram, max_seq_len) → bins."""

_MAX_SEQ_LEN = 2048
_TARGETS = {8: "≥ 0.33×", 64: "≥ 1×", 512: "≥ 1×", 4096: "≥ 1×"}


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    if not peers.installed("seqpack"):
        return []
    import seqpack

    rows = []
    with connect(MemoryDatasets({"any": [1]}, max_seq_len=1)) as client:
        for num, target in _TARGETS.items():
            draws = np.random.default_rng(num).lognormal(np.log(250), 0.8, num)
            lengths = np.clip(draws, 1, _MAX_SEQ_LEN).astype(int).tolist()
            greedy = ("seqpack greedy", seqpack.greedy_pack_sequences)
            batched = ("seqpack batched", seqpack.pack_length_histogram_batched)
            beside: list[tuple[str, _Packer, tuple[str, _Packer], object]] = [
                ("pack_sequences", _lists, greedy, lengths),
                ("greedy_pack_sequences", greedy_pack_sequences, greedy, lengths),
                ("heap_pack_sequences", heap_pack_sequences, ("seqpack heap", seqpack.heap_pack_sequences), lengths),
                ("pack_length_histogram_batched", pack_length_histogram_batched, batched, Counter(lengths)),
                ("Client.pack_sequences, embedded", client.pack_sequences, greedy, lengths),
                ("pack_sequences", _lists, ("LLaMA-Factory's knapsack", greedy_knapsack), lengths),
            ]
            for name, ours, (peer, theirs), given in beside:
                works = (partial(ours, given, _MAX_SEQ_LEN), partial(theirs, given, _MAX_SEQ_LEN))
                rows.append(_row(num, target, name, works[0], peer, works[1]))
    return rows


def _lists(lengths: list[int], max_seq_len: int) -> list[list[int]]:
    return pack_sequences(lengths, max_seq_len).bins()


def _row(num: int, target: str, name: str, ours: Callable[[], object], peer: str, theirs: Callable[[], object]) -> Row:
    mine, other = (
        Sample(values, "s") for values in interleaved(7, lambda: _seconds(ours, num), lambda: _seconds(theirs, num))
    )
    ratio = min(other.values) / min(mine.values)
    return Row(
        what=f"{name}, few lengths",
        size=f"{num:,} sequences",
        ours=f"{min(mine.values) * 1e6:.0f} µs",
        peer=f"{min(other.values) * 1e6:.0f} µs, {peer}",
        ratio=ratio,
        target=target,
        reached=ratio >= float(target.strip("≥ ×")),
    )


def _seconds(work: Callable[[], object], num: int) -> float:
    """Processor seconds of one call, over as many as take some milliseconds."""
    calls = max(1, 2048 // num)
    work()
    begin = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - begin) / calls


def greedy_knapsack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Returns bins of indices: each takes the longest sequence that still fits, until none does."""
    left: list[tuple[int, int]] = []
    for index, length in enumerate(lengths):
        insort(left, (length, index))
    bins = []
    while left:
        room, content = capacity, []
        while (at := bisect(left, (room, len(lengths)))) > 0:
            length, index = left.pop(at - 1)
            room -= length
            content.append(index)
        bins.append(content)
    return bins
