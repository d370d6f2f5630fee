"""A server of two processes beside one of one process, under the same load of many clients."""

import os
import statistics
from itertools import count

from harness import Row, Sample, interleaved
from many_readers import processor_seconds
from workload import Workspace, in_words, serving

from packhorse.client import Access, connect
from packhorse.proof.load import Load, run_load
from packhorse.topology import Topology

NOTE = (
    "processes: `packhorse serve` and `packhorse serve --processes 2` on loopback, in turn under `packhorse bench`'s "
    "load: 32 ranks, each with a connection of its own, in two processes on the same machine. Kernels of one process "
    "use all cores already, so whole epochs tell how much of a block is not kernels; streams of one step tell what "
    "opening takes. Both processes and the clients share the cores: what one process and its clients leave idle bounds "
    "what two can gain, and is told beside it."
)
RANKS = 32
_LEAST_RATIO = 1.6


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    sizes = workspace.sizes
    size, seeds = sizes.small, count()
    seconds, repeats = (
        (8.0, sizes.repeats) if sizes.repeats > 3 else (2.0, 2)
    )  # each needs seconds to start its clients
    root = workspace.root_of(size)
    cores: list[float] = []
    """Busy with one process and its clients."""
    with serving(root) as (alone, pid), serving(root, "--processes", "2") as (together, _):
        with connect(alone) as client:
            bins_of_rank = -(-client.get_dataset(f"bench-{size}").num_bins // RANKS)

        def measured(address: str, batch_size: int) -> tuple[float, float]:
            """M ids a second, and streams opened a second."""
            load = Load(
                target=address,
                access=Access(),
                dataset=f"bench-{size}",
                seed=next(seeds),
                topology=Topology(world_size=RANKS, batch_size=batch_size),
                seconds=seconds,
                steps_per_second=None,
            )
            before = processor_seconds(pid)
            streams, of_clients = run_load(load, 2)
            longest = max(stream.seconds for stream in streams)
            if address == alone:
                cores.append((processor_seconds(pid) - before + of_clients) / longest)
            num_opened = sum(len(stream.first_seconds) for stream in streams)
            return sum(stream.num_ids for stream in streams) / longest / 1e6, num_opened / longest

        def rate(address: str) -> float:
            return measured(address, 8)[0]

        def opened(address: str) -> float:
            return measured(address, bins_of_rank)[1]

        rates = interleaved(repeats, lambda: rate(together), lambda: rate(alone))
        openings = interleaved(repeats, lambda: opened(together), lambda: opened(alone))
    sequences = f"{in_words(size)} sequences, {RANKS} clients"
    of_epochs, of_openings = cores[:repeats], cores[repeats:]
    return [
        _row("two processes: whole epochs", f"{sequences}, 8 bins a step", "M ids/s", rates, of_epochs),
        _row("two processes: streams of one step", sequences, "streams/s", openings, of_openings),
    ]


def _row(what: str, size: str, unit: str, rates: list[tuple[float, ...]], cores: list[float]) -> Row:
    ours, peer = (Sample(rate, unit) for rate in rates)
    ratio, busy, there = ours.median / peer.median, statistics.median(cores), len(os.sched_getaffinity(0))
    return Row(
        what=what,
        size=size,
        ours=str(ours),
        peer=f"{peer}, one process, {busy:.2f} of {there} cores busy: at most {there / busy:.2f}×",
        ratio=ratio,
        target=f"≥ {_LEAST_RATIO}×",
        reached=ratio >= _LEAST_RATIO,
    )
