"""Tokens from an object store through the node's cache, beside a plain download of the same bytes."""

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from harness import Row, Sample, interleaved
from workload import Workspace, in_words

from packhorse.client import RemoteSource
from packhorse.formats import MegatronWriter

NOTE = (
    "object-store: a Megatron pair behind an HTTP server on loopback that answers ranges, takes 20 ms for each request "
    "and sends 100 MB/s on each connection, as object stores do about; read through fsspec into an empty cache, in the "
    "order of locality windows of 4,096 neighbours or in no order, and once more with the cache full. Beside it one "
    "request for the whole file."
)
_SEQUENCE_TOKENS = 1_000
_BATCH = 64
_WINDOW = 4_096
_BLOCK_OF_IDS = 1 << 16
"""Of a stream that runs: half a mebibyte of ids."""
_SERVER = Path(__file__).with_name("slow_store.py")


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    num_sequences = workspace.sizes.stored_tokens // _SEQUENCE_TOKENS
    folder = workspace.root / "store"
    folder.mkdir()
    rng = np.random.default_rng(1)
    with MegatronWriter(folder / "corpus", vocab_size=60_000) as writer:
        for _ in range(num_sequences):
            writer.append(rng.integers(0, 60_000, _SEQUENCE_TOKENS))
    megabytes = (folder / "corpus.bin").stat().st_size / 1e6
    windows = np.concatenate([rng.permutation(some) for some in np.split(*_windows(num_sequences))])
    scattered = rng.permutation(num_sequences)[: num_sequences // 16]
    with _serving(folder) as url:

        def download() -> float:
            started = time.perf_counter()
            with urllib.request.urlopen(f"{url}/corpus.bin") as answer:
                while answer.read(1 << 20):
                    pass
            return megabytes / (time.perf_counter() - started)

        def ours(ids: np.ndarray, *, warm: bool = False, block_bytes: int = 1 << 20) -> float:
            with tempfile.TemporaryDirectory(dir=workspace.root) as cache:
                source = RemoteSource(f"{url}/corpus.idx", cache_folder=cache, block_bytes=block_bytes)
                if warm:
                    _read(source, ids)
                    source = RemoteSource(f"{url}/corpus.idx", cache_folder=cache, block_bytes=block_bytes)
                started = time.perf_counter()
                _read(source, ids)
                return len(ids) * _SEQUENCE_TOKENS * 2 / 1e6 / (time.perf_counter() - started)

        plain, near, far, again = interleaved(
            max(1, workspace.sizes.repeats // 2),
            download,
            lambda: ours(windows),
            lambda: ours(scattered, block_bytes=1 << 16),
            lambda: ours(windows, warm=True),
        )
    size = f"{in_words(num_sequences * _SEQUENCE_TOKENS)} tokens"
    return [
        _row("locality windows, cold cache", size, near, plain, target=True),
        _row("no order, cold cache, blocks of 64 KiB, a 16th of it", size, far, plain, target=False),
        _row("locality windows, warm cache", size, again, plain, target=False),
    ]


def _windows(num_sequences: int) -> tuple[np.ndarray, list[int]]:
    return np.arange(num_sequences), list(range(_WINDOW, num_sequences, _WINDOW))


def _read(source: RemoteSource, ids: np.ndarray) -> None:
    """Gathers batch by batch, as a dataset does with a block of the stream."""
    lengths = np.full(len(ids), _SEQUENCE_TOKENS)
    out = np.empty(_BATCH * _SEQUENCE_TOKENS, np.int64)
    starts = np.arange(_BATCH) * _SEQUENCE_TOKENS
    for first in range(0, len(ids), _BLOCK_OF_IDS):
        some = ids[first : first + _BLOCK_OF_IDS]
        gather = source.gather_from(some, lengths[: len(some)])
        for begin in range(0, len(some), _BATCH):
            end = min(begin + _BATCH, len(some))
            gather(begin, end, out, starts[: end - begin])


def _row(what: str, size: str, ours: tuple[float, ...], plain: tuple[float, ...], *, target: bool) -> Row:
    sample, peer = Sample(ours, "MB/s"), Sample(plain, "MB/s")
    ratio = sample.median / peer.median
    return Row(
        what=what,
        size=size,
        ours=str(sample),
        peer=f"{peer}, one download",
        ratio=ratio,
        target="≥ 0.8×" if target else "",
        reached=ratio >= 0.8 if target else None,
    )


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(_SERVER), str(folder), str(port)])
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
