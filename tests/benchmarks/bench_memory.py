"""The server's memory beside the files it maps: while it streams, and of streams that were left in the middle."""

import asyncio
import threading
import time

import grpc
from harness import Row
from many_readers import request
from workload import Workspace, in_words, memory_mb, serving

from packhorse.client import connect
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2_grpc

NOTE = (
    "memory: RssAnon of `packhorse serve` (what is not the pages of mapped files), its highest value while four "
    "streams are read at once, sampled every 50 ms. Streams that are left: each reads its header and a block and is "
    "cancelled, sixteen at a time on one connection; RssAnon after all of them less that after as many before them."
)
STREAMS = 4
_LIMIT_MB = 300
_LEFT, _QUICK_LEFT = 20_000, 4_000
_LEFT_AT_ONCE = 16
_LEFT_LIMIT_BYTES = 20
_SETTLE_SECONDS = 2.0


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    sizes = workspace.sizes
    with serving(workspace.root_of(sizes.large)) as (address, pid):
        idle = memory_mb(pid)["RssAnon"]
        highest: dict[str, float] = {}
        finished = threading.Event()

        def watch() -> None:
            while not finished.wait(0.05):
                for name, value in memory_mb(pid).items():
                    highest[name] = max(value, highest.get(name, 0.0))

        def read(rank: int) -> None:
            with (
                connect(address) as client,
                client.stream_bins(
                    f"bench-{sizes.large}", seed=3, rank=rank, topology=Topology(world_size=STREAMS, batch_size=8)
                ) as stream,
            ):
                done = 0
                for block in stream:
                    done += len(block.ids)
                    if done * STREAMS >= sizes.streamed_ids:
                        return

        watcher = threading.Thread(target=watch)
        readers = [threading.Thread(target=read, args=(rank,)) for rank in range(STREAMS)]
        watcher.start()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        finished.set()
        watcher.join()
    return [
        Row(
            what=f"server memory beyond mapped files, {STREAMS} streams",
            size=f"{in_words(sizes.large)} sequences, {in_words(sizes.streamed_ids)} ids read",
            ours=f"{highest['RssAnon']:.0f} MB (idle {idle:.0f}; with mapped pages {highest['VmRSS']:.0f})",
            target=f"< {_LIMIT_MB} MB",
            reached=highest["RssAnon"] < _LIMIT_MB,
        ),
        _row_of_left(workspace),
    ]


def _row_of_left(workspace: Workspace) -> Row:
    """What the server keeps of streams whose clients have left in the middle."""
    number = _LEFT if workspace.sizes.repeats > 3 else _QUICK_LEFT
    size = workspace.sizes.small
    with serving(workspace.root_of(size)) as (address, pid):
        asyncio.run(_leave(address, f"bench-{size}", number))
        time.sleep(_SETTLE_SECONDS)
        before = memory_mb(pid)["RssAnon"]
        asyncio.run(_leave(address, f"bench-{size}", number))
        time.sleep(_SETTLE_SECONDS)
        kept_bytes = (memory_mb(pid)["RssAnon"] - before) * 1e6 / number
    return Row(
        what="server memory lost by each stream that is left in the middle",
        size=f"{number:,} streams, {in_words(size)} sequences",
        ours=f"{kept_bytes:.0f} bytes",
        target=f"< {_LEFT_LIMIT_BYTES} bytes",
        reached=kept_bytes < _LEFT_LIMIT_BYTES,
    )


async def _leave(address: str, dataset: str, number: int) -> None:
    """Opens so many streams, some at a time, and leaves each after its first block."""
    at_once = asyncio.Semaphore(_LEFT_AT_ONCE)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = packing_pb2_grpc.PackingServiceStub(channel)

        async def leave(rank: int) -> None:
            async with at_once:
                call = stub.StreamBins(request(dataset, rank))
                for _ in ("header", "block"):
                    await call.read()
                call.cancel()

        await asyncio.gather(*map(leave, range(number)))
