"""Locality windows from a cold page cache: bytes that an epoch reads from a token file three times the cache."""

import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from harness import Row
from numpy.typing import NDArray
from workload import Workspace, in_words

from packhorse.dataset import open_prepared
from packhorse.epoch import EpochView, Source, WindowedView
from packhorse.formats import write_flat_tokens

NOTE = (
    "locality: one epoch, bin after bin, of a token file of uint32, every sequence read by `pread` without readahead. "
    "The page cache holds a third of the file: what was touched longest ago is dropped with posix_fadvise, as far as "
    "the limit asks. Bytes read are those of /proc/self/io. Tokens per second are those of this disk on this machine. "
    "Windows read the less the more sequences of each length one takes (see the guide to locality windows)."
)
WINDOWS = 8
_CACHE_SHARE = 3
_MOST_READ = 1.3
_ENOUGH_SEQUENCES = 1_000_000
"""Fewer have too few of each length for the target."""

_BINS_AT_ONCE = 128
_PAGE_BYTES = 4096
_TOKEN_BYTES = 4


class Epoch(NamedTuple):
    """What reading one epoch took."""

    read: float
    """Bytes from disk over the file's."""
    tokens_per_second: float


class ColdCache:
    """A page cache of a limited size in front of one file, least recently used pages first out.

    Args:
        path: the file.
        most_pages: that it holds.
    """

    def __init__(self, path: Path, most_pages: int) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._touched = np.full(-(-os.fstat(self._file).st_size // _PAGE_BYTES), -1, np.int64)
        self._most_pages = most_pages
        self._turn = 0
        os.fsync(self._file)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Reads spans of bytes, then drops what is too much."""
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            os.pread(self._file, end - start, start)
            self._touched[start // _PAGE_BYTES : (end - 1) // _PAGE_BYTES + 1] = self._turn
        self._turn += 1
        if (self._touched >= 0).sum() > self._most_pages:
            self._drop()

    def _drop(self) -> None:
        """Drops the pages touched longest ago, until nine tenths of the limit are left."""
        cached = np.flatnonzero(self._touched >= 0)
        num_dropped = len(cached) - self._most_pages * 9 // 10
        gone = np.sort(cached[np.argpartition(self._touched[cached], num_dropped)[:num_dropped]])
        for run in np.split(gone, np.flatnonzero(np.diff(gone) > 1) + 1):
            os.posix_fadvise(self._file, int(run[0]) * _PAGE_BYTES, len(run) * _PAGE_BYTES, os.POSIX_FADV_DONTNEED)
        self._touched[gone] = -1

    def close(self) -> None:
        """Drops everything."""
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._file)


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    num_sequences = workspace.sizes.small
    dataset = open_prepared(workspace.prepared(num_sequences))
    lengths = pq.read_table(workspace.parquet(num_sequences))["length"].to_numpy().astype(np.int64)
    path = workspace.root / "locality.bin"
    random = np.random.default_rng(1)
    write_flat_tokens(path, (random.integers(0, 128_000, n, dtype=np.uint32) for n in lengths.tolist()), np.uint32)
    ends = np.cumsum(lengths) * _TOKEN_BYTES
    windowed = _epoch(WindowedView(dataset.plan, dataset.pool, seed=1, epoch=0, num_windows=WINDOWS), path, ends)
    shuffled = _epoch(EpochView(dataset.plan, dataset.pool, seed=1, epoch=0), path, ends)
    path.unlink()
    size = f"{in_words(num_sequences)} sequences, a file of {ends[-1] / 1e6:,.0f} MB"
    return [
        Row(
            what=f"bytes read for an epoch in {WINDOWS} windows, the file = 1",
            size=size,
            ours=f"{windowed.read:.2f}",
            peer=f"{shuffled.read:.2f} global shuffle",
            ratio=shuffled.read / windowed.read,
            target=f"under {_MOST_READ}",
            reached=windowed.read < _MOST_READ if num_sequences >= _ENOUGH_SEQUENCES else None,
        ),
        Row(
            what="tokens per second beside it",
            size=size,
            ours=f"{windowed.tokens_per_second / 1e6:.1f} M tokens/s",
            peer=f"{shuffled.tokens_per_second / 1e6:.1f} M tokens/s global shuffle",
            ratio=windowed.tokens_per_second / shuffled.tokens_per_second,
        ),
    ]


def _epoch(source: Source, path: Path, ends: NDArray[np.int64]) -> Epoch:
    """Reads every bin of an epoch, ids being rows, from a cache that begins cold."""
    file_bytes = path.stat().st_size
    cache = ColdCache(path, file_bytes // _CACHE_SHARE // _PAGE_BYTES)
    before, began = _read_bytes(), time.perf_counter()
    for first in range(0, source.num_bins, _BINS_AT_ONCE):
        bins = source.bins(np.arange(first, min(first + _BINS_AT_ONCE, source.num_bins)))
        cache.read(ends[bins.ids] - bins.lengths.astype(np.int64) * _TOKEN_BYTES, ends[bins.ids])
    seconds = time.perf_counter() - began
    read = (_read_bytes() - before) / file_bytes
    cache.close()
    return Epoch(read, float(ends[-1]) / _TOKEN_BYTES / seconds)


def _read_bytes() -> int:
    """Bytes that this process made the disk read."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])
