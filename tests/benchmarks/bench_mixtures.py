"""Mixtures as they are served: streams and first bins of eight components, and a thousand shards in one."""

import os
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from harness import Row, Sample, interleaved
from workload import Workspace, in_words, memory_mb, serving

from packhorse.client import Client, connect
from packhorse.topology import Topology

NOTE = (
    "mixtures: one `BinStream` with its blocks decoded, of a mixture of eight components (copies of one dataset, "
    "weights 1 to 8) and of that dataset alone, from the same `packhorse serve`, taking turns. First bins are from "
    "`stream_bins` to the first block on an open channel, every time of another epoch. The thousand shards are "
    "copies of one small dataset with equal weights; their server has opened them before, and the time is from the "
    "request to the first block of another seed's stream. Memory is the server's own, anonymous."
)
BATCH_SIZE = 32
_EIGHT = [f"c{number}" for number in range(1, 9)]
_SHARDS = 1000
_SHARD_SEQUENCES = 10_000


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    return [_eight_components(workspace), _first_bin(workspace), *_thousand_shards(workspace)]


def _root_of_copies(workspace: Workspace, num_sequences: int, names: list[str], weights: list[int]) -> Path:
    """Makes a data root of one dataset under several names, and a mixture of them."""
    root = workspace.root / f"mixture-of-{len(names)}-{num_sequences}"
    root.mkdir()
    for name in names:
        shutil.copytree(workspace.prepared(num_sequences), root / name, copy_function=os.link)
    shares = ", ".join(f"{name} = {weight}" for name, weight in zip(names, weights, strict=True))
    (root / "mixed.mixture.toml").write_text(f"[[stages]]\nweights = {{{shares}}}\n")
    return root


def _eight_components(workspace: Workspace) -> Row:
    sizes = workspace.sizes
    root = _root_of_copies(workspace, sizes.medium, _EIGHT, list(range(1, 9)))
    with serving(root) as (address, _), connect(address) as client:

        def reading(dataset: str) -> Callable[[], float]:
            epochs = count()
            return lambda: _million_ids_per_second(client, dataset, next(epochs), sizes.streamed_ids)

        mixed, plain = reading("mixed"), reading("c1")
        interleaved(1, mixed, plain)
        ours, theirs = interleaved(sizes.repeats, mixed, plain)
    ours_sample, plain_sample = Sample(ours, "M ids/s"), Sample(theirs, "M ids/s")
    ratio = ours_sample.median / plain_sample.median
    return Row(
        what="stream of a mixture of 8",
        size=f"8 × {in_words(sizes.medium)} sequences",
        ours=str(ours_sample),
        peer=f"{plain_sample}, one dataset alone",
        ratio=ratio,
        target="≥ 0.8×",
        reached=ratio >= 0.8,
    )


def _million_ids_per_second(client: Client, dataset: str, epoch: int, num_ids: int) -> float:
    with client.stream_bins(dataset, epoch=epoch, seed=1, topology=Topology(batch_size=BATCH_SIZE)) as stream:
        next(stream)
        taken, started = 0, time.perf_counter()
        for block in stream:
            taken += len(block.ids)
            if taken >= num_ids:
                break
        return taken / (time.perf_counter() - started) / 1e6


def _first_bin(workspace: Workspace) -> Row:
    num_sequences = workspace.sizes.large // len(_EIGHT)
    root, epochs = _root_of_copies(workspace, num_sequences, _EIGHT, list(range(1, 9))), count()
    with serving(root) as (address, _), connect(address) as client:

        def first_block_ms(dataset: str) -> float:
            epoch, started = next(epochs), time.perf_counter()
            with client.stream_bins(dataset, epoch=epoch, seed=7) as stream:
                next(stream)
                return 1000 * (time.perf_counter() - started)

        mixed, plain = (lambda: first_block_ms("mixed")), (lambda: first_block_ms("c1"))
        interleaved(5, mixed, plain)
        ours, theirs = interleaved(workspace.sizes.streams, mixed, plain)
    ours_sample, plain_sample = Sample(ours, "ms"), Sample(theirs, "ms")
    return Row(
        what="first bin of a mixture of 8",
        size=f"8 × {in_words(num_sequences)} sequences",
        ours=str(ours_sample),
        peer=f"{plain_sample}, one of the datasets alone",
        ratio=plain_sample.median / ours_sample.median,
        target="< 10 ms",
        reached=ours_sample.median < 10,
    )


def _thousand_shards(workspace: Workspace) -> list[Row]:
    names = [f"shard-{number:04}" for number in range(_SHARDS)]
    root = _root_of_copies(workspace, _SHARD_SEQUENCES, names, [1] * _SHARDS)
    size = f"{_SHARDS:,} × {in_words(_SHARD_SEQUENCES)} sequences"
    with serving(root) as (address, process), connect(address) as client:
        client.list_datasets()

        def first_block(seed: int) -> float:
            started = time.perf_counter()
            with client.stream_bins("mixed", seed=seed) as stream:
                next(stream)
            return time.perf_counter() - started

        sample = Sample(tuple(first_block(seed) for seed in range(5)), "s")
        with client.stream_bins("mixed", seed=9) as stream:
            for _ in range(20):
                next(stream)
        own_mb = memory_mb(process)["RssAnon"]
    return [
        Row(
            what="open a mixture of 1,000 shards",
            size=size,
            ours=str(sample),
            target="< 1 s",
            reached=sample.median < 1,
        ),
        Row(
            what="memory of a mixture of 1,000 shards",
            size=size,
            ours=f"{own_mb:.0f} MB",
            target="< 300 MB",
            reached=own_mb < 300,
        ),
    ]
