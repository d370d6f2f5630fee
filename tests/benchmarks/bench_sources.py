"""Sources made of sources beside the plain epoch: a mixture of eight components, and locality windows."""

import time
from collections.abc import Callable

import numpy as np
from harness import Row, Sample, interleaved
from workload import Workspace, in_words, pinned

from packhorse.dataset import PreparedDataset, open_prepared
from packhorse.epoch import Component, EpochView, Mixture, Source, Stage, WindowedView

NOTE = (
    "sources: bins of 16,384 positions at a time, one after the other, in one thread pinned to one core, by its "
    "processor seconds; beside the plain epoch of the same dataset, taking turns. The mixture has eight components of "
    "that dataset under different seeds, weights 1 to 8; what opening it takes is left out. Windows hold about 65,536 "
    "or 16,384 bins, and laying them out is part of the time."
)
POSITIONS_AT_ONCE = 16_384
_BLOCKS = 60


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    sizes = workspace.sizes
    rows = []
    for num_sequences in (sizes.medium, sizes.large):
        dataset = open_prepared(workspace.prepared(num_sequences))
        with pinned():
            rows.append(_row("mixture of 8 components", dataset, _mixture(dataset)))
            for bins_per_window in (65_536, 16_384):
                windows = max(2, dataset.plan.num_bins // bins_per_window)
                source = WindowedView(dataset.plan, dataset.pool, seed=1, epoch=0, num_windows=windows)
                rows.append(_row(f"{windows:,} locality windows", dataset, source))
            rows.append(_first_bin(dataset))
    return rows


def _mixture(dataset: PreparedDataset) -> Source:
    def component(number: int) -> Component:
        return Component.of(f"c{number}", lambda epoch: EpochView(dataset.plan, dataset.pool, seed=number, epoch=epoch))

    parts = [component(number) for number in range(1, 9)]
    weights = {f"c{number}": number for number in range(1, 9)}
    return Mixture(parts, [Stage(weights)], seed=1, num_bins=dataset.plan.num_bins).epoch(0)


def _row(what: str, dataset: PreparedDataset, source: Source) -> Row:
    plain = EpochView(dataset.plan, dataset.pool, seed=1, epoch=0)
    blocks = min(_BLOCKS, plain.num_bins // POSITIONS_AT_ONCE)

    def measured(of: Source) -> Callable[[], float]:
        firsts = iter(range(0, plain.num_bins, POSITIONS_AT_ONCE))
        of.bins(np.arange(POSITIONS_AT_ONCE))  # compiles, and reads into the page cache

        def rate() -> float:
            first = next(firsts)
            started = time.thread_time()
            num_ids = len(of.bins(np.arange(first, first + POSITIONS_AT_ONCE)).ids)
            return num_ids / (time.thread_time() - started) / 1e6

        return rate

    ours, theirs = interleaved(blocks, measured(source), measured(plain))
    ours_sample, plain_sample = Sample(ours, "M ids/s"), Sample(theirs, "M ids/s")
    ratio = ours_sample.median / plain_sample.median
    return Row(
        what=what,
        size=f"{in_words(dataset.manifest.num_sequences)} sequences",
        ours=f"{ours_sample.median:.3g} M ids/s, median of {blocks} blocks",
        peer=f"{plain_sample.median:.3g} M ids/s, the plain epoch",
        ratio=ratio,
        target="≥ 0.8×",
        reached=ratio >= 0.8,
    )


def _first_bin(dataset: PreparedDataset) -> Row:
    """Measures opening a windowed epoch and taking its first bin."""
    windows = max(2, dataset.plan.num_bins // 65_536)

    def seconds() -> float:
        started = time.thread_time()
        WindowedView(dataset.plan, dataset.pool, seed=1, epoch=0, num_windows=windows).bins([0])
        return time.thread_time() - started

    sample = Sample(tuple(1000 * seconds() for _ in range(20)), "ms")
    return Row(
        what=f"open {windows:,} windows, first bin",
        size=f"{in_words(dataset.manifest.num_sequences)} sequences",
        ours=str(sample),
        target="< 10 ms",
        reached=sample.median < 10,
    )
