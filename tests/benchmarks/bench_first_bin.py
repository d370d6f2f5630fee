"""The first bin over gRPC: how long until a stream delivers, whatever the dataset's size."""

import time
from itertools import count

from harness import Row, Sample, interleaved
from workload import Workspace, in_words, serving

from packhorse.client import Client, connect

NOTE = (
    "first bin: `packhorse serve` in a process of its own, on loopback; from `stream_bins` to the first block in the "
    "client's hands, every time another epoch, so that nothing of it was computed before. “new connection” includes "
    "opening the channel."
)


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    sizes = workspace.sizes
    root = workspace.root_of(sizes.small, sizes.large)
    epochs = count()
    rows = []
    with serving(root) as (address, _):

        def cold(num_sequences: int) -> float:
            with connect(address) as client:
                return first_block_ms(client, num_sequences, next(epochs))

        for num_sequences in (sizes.small, sizes.large):
            cold(num_sequences)
        cold_small, cold_large = interleaved(sizes.streams // 3, lambda: cold(sizes.small), lambda: cold(sizes.large))
        with connect(address) as client:
            for num_sequences in (sizes.small, sizes.large) * 5:
                first_block_ms(client, num_sequences, next(epochs))
            small, large = interleaved(
                sizes.streams,
                lambda: first_block_ms(client, sizes.small, next(epochs)),
                lambda: first_block_ms(client, sizes.large, next(epochs)),
            )
    for what, for_small, for_large, targeted in (
        ("first bin, warm server, open channel", small, large, True),
        ("first bin, new connection", cold_small, cold_large, False),
    ):
        small_sample, large_sample = Sample(for_small, "ms"), Sample(for_large, "ms")
        ratio = small_sample.median / large_sample.median
        rows.append(
            Row(
                what=what,
                size=f"{in_words(sizes.large)} sequences",
                ours=str(large_sample),
                peer=f"{small_sample}, packhorse at {in_words(sizes.small)}",
                ratio=ratio,
                target="< 10 ms, ≥ 0.67× (within 1.5×)" if targeted else "",
                reached=(large_sample.median < 10 and 1 / ratio <= 1.5) if targeted else None,
            )
        )
    return rows


def first_block_ms(client: Client, num_sequences: int, epoch: int) -> float:
    """Milliseconds until the first block of a stream is there."""
    started = time.perf_counter()
    stream = client.stream_bins(f"bench-{num_sequences}", epoch=epoch, seed=7)
    block = next(stream)
    elapsed = time.perf_counter() - started
    assert len(block) == 1
    stream.close()
    return 1000 * elapsed
