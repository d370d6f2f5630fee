"""A server of two processes beside one of one process, under the same load of many clients."""

from itertools import count

from harness import Row, Sample, interleaved
from workload import Workspace, in_words, serving

from packhorse.cli.load import Load, run_load
from packhorse.client import Access, connect
from packhorse.topology import Topology

NOTE = (
    "processes: `packhorse serve` and `packhorse serve --processes 2` on loopback, in turn under `packhorse bench`'s "
    "load: 32 ranks, each with a connection of its own, in two processes on the same machine. Kernels of one process "
    "use all cores already, so whole epochs tell how much of a block is not kernels; streams of one step tell what "
    "opening takes."
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
    with serving(root) as (alone, _), serving(root, "--processes", "2") as (together, _):
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
            streams, _ = run_load(load, 2)
            longest = max(stream.seconds for stream in streams)
            num_opened = sum(len(stream.first_seconds) for stream in streams)
            return sum(stream.num_ids for stream in streams) / longest / 1e6, num_opened / longest

        def rate(address: str) -> float:
            return measured(address, 8)[0]

        def opened(address: str) -> float:
            return measured(address, bins_of_rank)[1]

        rates = interleaved(repeats, lambda: rate(together), lambda: rate(alone))
        openings = interleaved(repeats, lambda: opened(together), lambda: opened(alone))
    sequences = f"{in_words(size)} sequences, {RANKS} clients"
    return [
        _row("two processes: whole epochs", f"{sequences}, 8 bins a step", "M ids/s", *rates),
        _row("two processes: streams of one step", sequences, "streams/s", *openings),
    ]


def _row(what: str, size: str, unit: str, together: tuple[float, ...], alone: tuple[float, ...]) -> Row:
    ours, peer = Sample(together, unit), Sample(alone, unit)
    ratio = ours.median / peer.median
    return Row(
        what=what,
        size=size,
        ours=str(ours),
        peer=f"{peer}, one process",
        ratio=ratio,
        target=f"≥ {_LEAST_RATIO}×",
        reached=ratio >= _LEAST_RATIO,
    )
