"""A server under every kind of load for minutes: what grows in it, grows without end."""

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import Row
from workload import Workspace, in_words, memory_mb, serving

from packhorse.client import connect
from packhorse.topology import Topology

NOTE = (
    "endurance: one `packhorse serve` under load for ten minutes (with --quick half a minute): eight streams read one "
    "epoch after the other, two clients open a connection and a stream and leave after the first block, and one each "
    "asks for bins at random positions, for the places of ids, and for lengths to be packed. Sampled twice a second; a "
    "slope is that of the straight line through the second half, and “grown” what it says from its beginning to its "
    "end. Run only when it is named."
)
_SECONDS, _QUICK_SECONDS = 600.0, 30.0
_EVERY_SECONDS = 0.5
_STREAMS = 8
_MOST_MB_PER_MINUTE = 1.0


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    size = workspace.sizes.small
    is_full = workspace.sizes.repeats > 3
    seconds = _SECONDS if is_full else _QUICK_SECONDS
    with serving(workspace.root_of(size)) as (address, pid):
        stopping = threading.Event()
        counts = [0] * (_STREAMS + 5)
        kinds: list[Callable[[str, str, int], int]] = [_read_an_epoch] * _STREAMS
        kinds += [_open_and_leave, _open_and_leave, _jump, _locate, _pack]

        def repeat(number: int) -> None:
            for turn in itertools.count():
                if stopping.is_set():
                    return
                counts[number] += kinds[number](address, f"bench-{size}", turn * len(kinds) + number)

        threads = [threading.Thread(target=repeat, args=(number,)) for number in range(len(kinds))]
        for thread in threads:
            thread.start()
        samples = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            samples.append(_sample(pid))
            time.sleep(_EVERY_SECONDS)
        stopping.set()
        for thread in threads:
            thread.join()
    what = f"{seconds / 60:g} minutes, {in_words(size)} sequences"
    work = f"{in_words(sum(counts[:_STREAMS]) // 10**6 * 10**6)} ids streamed, {sum(counts[_STREAMS:]):,} other calls"
    half = np.array(samples[len(samples) // 2 :])
    minutes = np.arange(len(half)) * _EVERY_SECONDS / 60
    rows = []
    for column, name, unit, most in (
        (0, "memory", " MB", _MOST_MB_PER_MINUTE),
        (1, "files", "", 1.0),
        (2, "threads", "", 1.0),
    ):
        slope = float(np.polyfit(minutes, half[:, column], 1)[0])
        rows.append(
            Row(
                what=f"{name} of a server under load",
                size=what,
                ours=f"{slope:+.2f}{unit} a minute (from {half[:, column].min():.0f} to {half[:, column].max():.0f})",
                peer=work,
                target=f"< {most:g}{unit} a minute",
                reached=slope < most if is_full else None,  # half a minute tells no slope
            )
        )
    return rows


def _sample(pid: int) -> tuple[float, int, int]:
    """A process's memory in MB, open files and threads."""
    return memory_mb(pid)["RssAnon"], len(os.listdir(f"/proc/{pid}/fd")), len(list(Path(f"/proc/{pid}/task").iterdir()))


def _read_an_epoch(address: str, dataset: str, number: int) -> int:
    rank = number % _STREAMS
    with connect(address) as client:
        topology = Topology(world_size=_STREAMS, batch_size=8)
        return sum(len(block.ids) for block in client.stream_bins(dataset, epoch=number, rank=rank, topology=topology))


def _open_and_leave(address: str, dataset: str, number: int) -> int:
    with connect(address) as client, client.stream_bins(dataset, seed=number) as stream:
        next(stream)
    return 1


def _jump(address: str, dataset: str, number: int) -> int:
    choice = random.Random(number)
    with connect(address) as client:
        num_bins = client.get_dataset(dataset).num_bins
        for _ in range(20):
            client.get_bins(dataset, epoch=0, seed=1, positions=[choice.randrange(num_bins) for _ in range(64)])
    return 20


def _locate(address: str, dataset: str, number: int) -> int:
    with connect(address) as client:
        client.locate(dataset, epoch=0, seed=number, ids=range(200))
    return 1


def _pack(address: str, _: str, number: int) -> int:
    lengths = np.random.default_rng(number).integers(1, 2048, 5000)
    with connect(address) as client:
        client.pack_sequences(lengths, 2048)
    return 1
