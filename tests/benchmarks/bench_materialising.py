"""Materialising a whole epoch on one core, from any position; beside seqpack's generator under the same plan."""

import random
import time
from collections import deque
from collections.abc import Callable
from itertools import count

import numpy as np
import seqpack
from harness import Row, Sample, interleaved, timed
from workload import Workspace, in_words, pinned

from packhorse.dataset import PreparedDataset, open_prepared, pools_by_length
from packhorse.epoch import EpochView, materialize_epoch

NOTE = (
    "materialising: a whole epoch under the same plan, in one thread pinned to one core, by that thread's processor "
    "seconds. Ours: `EpochView.bins`, 16,384 positions at a time, pool memory-mapped, bins in shuffled order. seqpack: "
    "its `materialize_epoch`, all bins, its shuffle of the pools before the first bin included, pools in memory; by "
    "default the bins of one template follow each other, and `shuffle_bins=True` gives the same kind of order as ours. "
    "“as lists” is our function of the same name, which gives Python lists as seqpack's does."
)
POSITIONS_AT_ONCE = 16_384
_SAMPLED_BLOCKS = 90


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    sizes = workspace.sizes
    rows = []
    for num_sequences in (sizes.medium, sizes.large):
        dataset = open_prepared(workspace.prepared(num_sequences))
        with pinned():
            _epoch(dataset, 0)  # compiles, and reads the pool into the page cache
            detailed = num_sequences == sizes.medium
            rows += _whole(dataset, sizes.repeats if detailed else 2, detailed=detailed)
            rows.append(_from_anywhere(dataset))
    return rows


def _whole(dataset: PreparedDataset, repeats: int, *, detailed: bool) -> list[Row]:
    """Measures whole epochs."""
    num_sequences = dataset.manifest.num_sequences
    pools = {length: ids.astype(np.int64) for length, ids in pools_by_length(dataset).items()}
    epochs = count(1)

    def rate(work: Callable[[], object]) -> float:
        return num_sequences / timed(work, clock=time.thread_time) / 1e6

    def peer(**options: bool) -> float:
        return rate(lambda: _consume(seqpack.materialize_epoch(dataset.templates, pools, next(epochs), **options)))

    size = f"{in_words(num_sequences)} sequences"
    ours, theirs = interleaved(repeats, lambda: rate(lambda: _epoch(dataset, next(epochs))), peer)
    ours_sample, their_sample = Sample(ours, "M ids/s"), Sample(theirs, "M ids/s")
    ratio = ours_sample.median / their_sample.median
    rows = [
        Row(
            what="materialise an epoch, one core",
            size=size,
            ours=str(ours_sample),
            peer=f"{their_sample}, seqpack",
            ratio=ratio,
            target="≥ 10×",
            reached=ratio >= 10,
        )
    ]
    if detailed:
        shuffled = Sample((peer(shuffle_bins=True),), "M ids/s")
        as_lists = Sample(
            (rate(lambda: _consume(materialize_epoch(dataset.templates, pools, next(epochs)))),), "M ids/s"
        )
        rows += [
            Row(
                what="the same, bins shuffled on both sides",
                size=size,
                ours=str(ours_sample),
                peer=f"{shuffled}, seqpack shuffle_bins=True",
                ratio=ours_sample.median / shuffled.median,
            ),
            Row(
                what="the same, as lists on both sides",
                size=size,
                ours=str(as_lists),
                peer=f"{their_sample}, seqpack",
                ratio=as_lists.median / their_sample.median,
            ),
        ]
    return rows


def _from_anywhere(dataset: PreparedDataset) -> Row:
    """Measures blocks from the epoch's beginning and from random positions, taking turns."""
    view = EpochView(dataset.plan, dataset.pool, seed=1, epoch=0)
    choice = random.Random(0)
    last = view.num_bins - POSITIONS_AT_ONCE
    starts = iter(range(0, last, POSITIONS_AT_ONCE))

    def rate(first: int) -> float:
        positions = np.arange(first, first + POSITIONS_AT_ONCE)
        started = time.thread_time()
        num_ids = len(view.bins(positions).ids)
        return num_ids / (time.thread_time() - started) / 1e6

    blocks = min(_SAMPLED_BLOCKS, last // POSITIONS_AT_ONCE)
    anywhere, beginning = interleaved(blocks, lambda: rate(choice.randrange(last)), lambda: rate(next(starts)))
    anywhere_sample, beginning_sample = Sample(anywhere, "M ids/s"), Sample(beginning, "M ids/s")
    ratio = anywhere_sample.median / beginning_sample.median
    return Row(
        what="from a random position",
        size=f"{in_words(dataset.manifest.num_sequences)} sequences",
        ours=f"{anywhere_sample.median:.3g} M ids/s, median of {blocks} blocks",
        peer=f"{beginning_sample.median:.3g} M ids/s, packhorse from the first on",
        ratio=ratio,
        target="the same (≥ 0.9×)",
        reached=ratio >= 0.9,
    )


def _epoch(dataset: PreparedDataset, epoch: int) -> None:
    view = EpochView(dataset.plan, dataset.pool, seed=1, epoch=epoch)
    num_ids = 0
    for first in range(0, view.num_bins, POSITIONS_AT_ONCE):
        num_ids += len(view.bins(np.arange(first, min(first + POSITIONS_AT_ONCE, view.num_bins))).ids)
    assert num_ids == dataset.manifest.num_sequences


def _consume(bins: object) -> None:
    deque(bins, maxlen=0)  # type: ignore[call-overload]
