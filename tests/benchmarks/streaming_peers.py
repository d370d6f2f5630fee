"""Other people's streams of the same prepacked bins, each in a process of its own; ours likewise.

Owns how each is written, opened, resumed and read at its best; run by the benchmark of peers as
`streaming_peers.py NAME FOLDER SECONDS [ADDRESS PID DATASET]`, and prints what it measured as JSON.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PACKAGES = {"MosaicML Streaming": "streaming", "Grain": "grain", "tf.data service": "tensorflow"}
"""Peers by the name of their module."""

PEERS_PYTHON = "PEERS_PYTHON"
"""Environment variable: an interpreter that has the peers which this environment lacks. It needs NumPy beside them."""

SEED = 1
RESUME_EPOCH = 2  # the third

_BINS_AT_ONCE = 1000
_READ_AHEAD = 100_000
_SHUFFLE_BUFFER = 10_000


@cache
def interpreter_of(peer: str) -> str | None:
    """Returns the interpreter that a peer runs in: this one, else that of PEERS_PYTHON; None where neither has it."""
    package = PACKAGES.get(peer, "packhorse")
    if importlib.util.find_spec(package) is not None:
        return sys.executable
    other = os.environ.get(PEERS_PYTHON, "")
    find = f"import importlib.util as util; raise SystemExit(util.find_spec({package!r}) is None)"
    return other if other and subprocess.run([other, "-c", find]).returncode == 0 else None


class Bins:
    """The prepacked bins, in one file of ids and one of where each bin ends; a source for Grain."""

    def __init__(self, folder: Path) -> None:
        self._ids = np.load(folder / "ids.npy", mmap_mode="r")
        self._ends = np.load(folder / "bin_ends.npy", mmap_mode="r")

    def __len__(self) -> int:
        """Number of bins."""
        return len(self._ends)

    def __getitem__(self, number: int) -> NDArray[np.uint32]:
        """Ids of one bin."""
        begin = 0 if number == 0 else int(self._ends[number - 1])
        return np.array(self._ids[begin : int(self._ends[number])])


Opened = Iterator[NDArray[Any]]


def packhorse(_: Path) -> Callable[[int, int], Opened]:
    """Ours, from the server at the address that is on the command line."""
    from packhorse.client import connect
    from packhorse.topology import Topology

    address, _, dataset = sys.argv[4:]

    def open_at(epoch: int, position: int) -> Opened:
        topology = Topology(batch_size=8, start_position=position)
        with connect(address) as client:
            for block in client.stream_bins(dataset, epoch=epoch, seed=SEED, topology=topology):
                for ids, _ in block.bins():
                    yield ids

    return open_at


def grain(folder: Path) -> Callable[[int, int], Opened]:
    """Grain's shuffled map dataset, without threads: what it reads is in memory, and they would only cost."""
    from grain import MapDataset, ReadOptions

    options = ReadOptions(num_threads=0, prefetch_buffer_size=0)

    def open_at(epoch: int, position: int) -> Opened:
        source = Bins(folder)
        iterator = iter(MapDataset.source(source).seed(SEED).shuffle().repeat(epoch + 1).to_iter_dataset(options))
        if epoch or position:
            iterator.set_state({**iterator.get_state(), "next_index": epoch * len(source) + position})
        return iterator

    return open_at


def mosaicml_streaming(folder: Path) -> Callable[[int, int], Opened]:
    """Shards of MosaicML Streaming, written beside the bins when they are first asked for."""
    from streaming import MDSWriter, StreamingDataset

    shards = folder / "mds"
    if not shards.exists():
        bins = Bins(folder)
        with MDSWriter(out=str(shards), columns={"ids": "bytes"}) as writer:
            for number in range(len(bins)):
                writer.write({"ids": bins[number].tobytes()})

    def open_at(epoch: int, position: int) -> Opened:
        dataset = StreamingDataset(
            local=str(shards), shuffle=True, shuffle_seed=SEED, batch_size=1, predownload=_READ_AHEAD
        )
        if epoch or position:
            dataset.load_state_dict(
                {
                    "epoch": epoch,
                    "sample_in_epoch": position,
                    "num_canonical_nodes": 1,
                    "shuffle_seed": SEED,
                    "initial_physical_nodes": 1,
                }
            )
        return (np.frombuffer(sample["ids"], dtype=np.uint32) for sample in dataset)

    return open_at


def tf_data_service(folder: Path) -> Callable[[int, int], Opened]:
    """A tf.data service of one worker, which reads the bins from a TFRecord file and shuffles them through a buffer.

    A service cannot go to a position: the bins before it are read and dropped. Bins travel many at once, as strings,
    which is faster than fewer at once, and than decoding them in the service.
    """
    import tensorflow as tf

    records = folder / "bins.tfrecord"
    if not records.exists():
        bins = Bins(folder)
        with tf.io.TFRecordWriter(str(records)) as writer:
            for number in range(len(bins)):
                writer.write(bins[number].tobytes())
    command = [sys.executable, str(Path(__file__).with_name("tf_data_server.py"))]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    _SERVERS.append(server)
    assert server.stdout is not None
    target = server.stdout.readline().strip()
    service = tf.data.experimental.service

    def open_at(epoch: int, position: int) -> Opened:
        dataset = tf.data.TFRecordDataset(str(records))
        dataset = dataset.shuffle(_SHUFFLE_BUFFER, seed=SEED + epoch, reshuffle_each_iteration=False).skip(position)
        dataset = dataset.batch(_BINS_AT_ONCE).prefetch(2)
        served = dataset.apply(service.distribute(processing_mode=service.ShardingPolicy.OFF, service=target))
        return (np.frombuffer(ids, dtype=np.uint32) for batch in served.as_numpy_iterator() for ids in batch)

    return open_at


OPENERS = {
    "packhorse": packhorse,
    "Grain": grain,
    "MosaicML Streaming": mosaicml_streaming,
    "tf.data service": tf_data_service,
}

_SERVERS: list["subprocess.Popen[str]"] = []
"""That peers have started."""


def measure(open_at: Callable[[int, int], Opened], num_bins: int, seconds: float) -> dict[str, float]:
    """Seconds to the first bin, and to the first after a resume in the middle of epoch 3; then ids a second."""

    def first(epoch: int, position: int) -> tuple[float, Opened]:
        started = time.perf_counter()
        bins = open_at(epoch, position)
        assert len(next(bins))
        return time.perf_counter() - started, bins

    first(0, 0)  # imports, and whatever is made once
    first_seconds, _ = first(0, 0)
    resume_seconds, bins = first(RESUME_EPOCH, num_bins // 2)
    num_ids, started, epoch = 0, time.perf_counter(), RESUME_EPOCH
    while time.perf_counter() - started < seconds:
        found = [len(ids) for ids in islice(bins, _BINS_AT_ONCE)]
        num_ids += sum(found)
        if len(found) < _BINS_AT_ONCE:
            epoch += 1
            bins = open_at(epoch, 0)
    rate = num_ids / (time.perf_counter() - started)
    return {"first_seconds": first_seconds, "resume_seconds": resume_seconds, "ids_per_second": rate}


def _anonymous_mb(pid: int | str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(("RssAnon", "RssShmem")))


if __name__ == "__main__":
    name, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    importlib.import_module(PACKAGES.get(name, "packhorse.client"))
    before = _anonymous_mb("self")
    opener = OPENERS[name](folder)
    measured = measure(opener, len(Bins(folder)), seconds)
    measured["memory_mb"] = _anonymous_mb("self") - before
    servers = [sys.argv[5]] if name == "packhorse" else [server.pid for server in _SERVERS]
    measured["memory_mb"] += sum(_anonymous_mb(pid) for pid in servers)
    for server in _SERVERS:
        server.communicate()
    print("MEASURED " + json.dumps(measured), flush=True)
