"""The server's memory beside the files it maps, while it streams."""

import threading

from harness import Row
from workload import Workspace, in_words, memory_mb, serving

from packhorse.client import connect
from packhorse.topology import Topology

NOTE = (
    "memory: RssAnon of `packhorse serve` (what is not the pages of mapped files), its highest value while four "
    "streams are read at once, sampled every 50 ms."
)
STREAMS = 4
_LIMIT_MB = 300


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
        )
    ]
