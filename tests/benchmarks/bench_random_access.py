"""Bins by position in other people's loaders, beside our own loader of the stream; and one bin at a random position."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from itertools import count
from typing import Any

import numpy as np
from harness import Row, Sample, interleaved
from loops import STEP_SECONDS, token_file, tokens_per_second, wait_share
from torch.utils.data import DataLoader
from torchdata.nodes import Loader, Prefetcher
from workload import MAX_SEQ_LEN, Workspace, in_words, serving

from packhorse.client import DevicePrefetcher, LoaderOptions, PackedBins, create_packed_dataloader
from packhorse.trainers.torchdata import PackedNode

NOTE = (
    "random access: `packhorse serve` in a process of its own, a memory-mapped uint16 token file, batches of "
    "8 × 2,048. Ours is `create_packed_dataloader` with two workers. Beside it PackedBins in a DataLoader with two "
    "workers (`collate_fn=bins.collate`, and PyTorch's own collation) and in Grain (one process, its own threads, "
    "NumPy), and PackedNode in torchdata's graph. Tokens per second are rows × 2,048, without a step's 50 ms. "
    "The wait is the time in `next` during steps of 50 ms of sleep, without the first batch; “fetched ahead” is "
    "DevicePrefetcher around the loader. A random position is `bins[position]`: request, tokens and row, one after "
    "the other."
)
BATCH_SIZE, WORKERS = 8, 2
_SEQUENCES = 200_000
_POSITIONS = 2_000
_WARM_UP = 50
_LEAST_RATIO, _MOST_WAIT, _MOST_MS = 0.7, 1.0, 3.0

Pass = Callable[[], Iterator[Any]]


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    num_sequences = min(_SEQUENCES, workspace.sizes.small)
    name, tokens = f"bench-{num_sequences}", token_file(workspace, num_sequences)
    size = f"8 × 2,048, {in_words(num_sequences)} sequences"
    with serving(workspace.root_of(num_sequences)) as (address, _):
        make_bins = partial(PackedBins, address, name, tokens, seed=3)
        options = LoaderOptions(num_workers=WORKERS, rank=(0, 1))
        stream = partial(create_packed_dataloader, address, name, tokens, batch_size=BATCH_SIZE, seed=3, loader=options)
        with closing(stream()) as ours, closing(stream()) as of_node:
            passes = {"the stream": _pass_of(ours, ours), **_passes(make_bins)}
            passes["PackedNode in torchdata.nodes"] = _pass_of(Loader(Prefetcher(PackedNode(of_node), 4)), of_node)
            rows = [*_rates(passes, workspace, size), *_waits(passes, workspace, size)]
        return [*rows, _anywhere(make_bins(), size)]


def _passes(make_bins: Callable[..., PackedBins]) -> dict[str, Pass]:
    """Each way to read PackedBins: begins an epoch anew."""
    found: dict[str, Pass] = {}
    for how, is_ours in (("collate_fn=bins.collate", True), ("default collation", False)):
        bins = make_bins()
        loader = DataLoader(
            bins,
            batch_size=BATCH_SIZE,
            collate_fn=bins.collate if is_ours else None,
            num_workers=WORKERS,
            prefetch_factor=4,
            persistent_workers=True,
        )
        found[f"DataLoader, {how}"] = _pass_of(loader, bins)
        if is_ours:
            found["DataLoader, fetched ahead"] = _pass_of(DevicePrefetcher(loader, "cpu"), bins)
    if find_spec("grain") is not None:
        import grain

        bins = make_bins(output="numpy")
        options = grain.ReadOptions(num_threads=4, prefetch_buffer_size=16)
        found["Grain"] = _pass_of(grain.MapDataset.source(bins).batch(BATCH_SIZE).to_iter_dataset(options), bins)
    return found


def _pass_of(loader: Any, epochs_of: Any) -> Pass:
    epochs = count(1)

    def begin() -> Iterator[Any]:
        epochs_of.set_epoch(next(epochs))
        return iter(loader)

    return begin


def _rates(passes: dict[str, Pass], workspace: Workspace, size: str) -> list[Row]:
    steps = 200 * workspace.sizes.repeats
    samples = interleaved(3, *(partial(_rate, begin, steps) for begin in passes.values()))
    ours, *others = (Sample(values, "M tokens/s") for values in samples)
    return [
        Row(
            what=f"batches end to end: {how}",
            size=size,
            ours=str(sample),
            peer=f"{ours}, packhorse's loader of the stream",
            ratio=sample.median / ours.median,
            target=f"≥ {_LEAST_RATIO}×",
            reached=sample.median >= _LEAST_RATIO * ours.median,
        )
        for how, sample in zip(list(passes)[1:], others, strict=True)
    ]


def _waits(passes: dict[str, Pass], workspace: Workspace, size: str) -> list[Row]:
    steps = 20 * workspace.sizes.repeats
    samples = interleaved(3, *(partial(_wait, begin, steps) for begin in passes.values()))
    ours, *others = (Sample(values, "%") for values in samples)
    return [
        Row(
            what=f"share of a {STEP_SECONDS * 1e3:.0f} ms step that waits: {how}",
            size=size,
            ours=str(sample),
            peer=f"{ours}, packhorse's loader of the stream",
            ratio=ours.median / sample.median,
            target=f"< {_MOST_WAIT:g} %",
            reached=sample.median < _MOST_WAIT,
        )
        for how, sample in zip(list(passes)[1:], others, strict=True)
    ]


def _rate(begin: Pass, steps: int) -> float:
    return tokens_per_second(begin(), steps, lambda batch: BATCH_SIZE * MAX_SEQ_LEN)


def _wait(begin: Pass, steps: int) -> float:
    return wait_share(begin(), steps)


def _anywhere(bins: PackedBins, size: str) -> Row:
    choice = random.Random(0)

    def milliseconds(position: int) -> float:
        started = time.perf_counter()
        bins[position]
        return 1e3 * (time.perf_counter() - started)

    jumps = [milliseconds(choice.randrange(len(bins))) for _ in range(_POSITIONS)][_WARM_UP:]
    walk = [milliseconds(position) for position in range(_POSITIONS)][_WARM_UP:]
    half, most = np.percentile(jumps, [50, 99])
    walk_half, walk_most = np.percentile(walk, [50, 99])
    return Row(
        what="one row at a random position, over loopback",
        size=size,
        ours=f"{half:.3g} ms (p99 {most:.3g})",
        peer=f"{walk_half:.3g} ms (p99 {walk_most:.3g}), packhorse one position after the other",
        ratio=walk_half / half,
        target=f"< {_MOST_MS:g} ms",
        reached=half < _MOST_MS,
    )
