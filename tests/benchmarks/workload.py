"""What the benchmarks work on: one kind of lengths in every size, prepared once a run in a temporary folder.

Owns data and servers, and takes both away at the end; leaves measuring to the benchmarks.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MAX_SEQ_LEN = 2048
MEAN_LENGTH = 400
SIGMA = 1.0
PACKHORSE = str(Path(sys.executable).with_name("packhorse"))

_ROWS_AT_ONCE = 1_000_000
_DESCRIPTION = f"lognormal lengths in [1, {MAX_SEQ_LEN}], mean about {MEAN_LENGTH} before the cut, sigma {SIGMA:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    planned: int
    """Sequences of the histogram that is only planned."""
    small: int
    medium: int
    large: int
    huge: int
    """Rows prepared by the benchmark that only --only runs."""
    repeats: int
    streams: int
    """Streams opened to measure a first bin."""
    streamed_ids: int
    """Ids read to measure a stream's throughput, and the server's memory."""
    text_bytes: int
    """Text that is tokenized."""
    stored_tokens: int
    """Tokens in the object store."""


FULL = Sizes(
    planned=3_000_000_000,
    small=1_000_000,
    medium=10_000_000,
    large=100_000_000,
    huge=1_000_000_000,
    repeats=5,
    streams=60,
    streamed_ids=40_000_000,
    text_bytes=32_000_000,
    stored_tokens=200_000_000,
)
QUICK = Sizes(
    planned=3_000_000_000,
    small=100_000,
    medium=1_000_000,
    large=4_000_000,
    huge=8_000_000,
    repeats=3,
    streams=30,
    streamed_ids=3_000_000,
    text_bytes=4_000_000,
    stored_tokens=25_000_000,
)


def shares() -> np.ndarray:
    """Probability of every length from 1 to MAX_SEQ_LEN: float64 [MAX_SEQ_LEN]."""
    lengths = np.arange(1, MAX_SEQ_LEN + 1)
    center = np.log(MEAN_LENGTH) - SIGMA**2 / 2
    density = np.exp(-((np.log(lengths) - center) ** 2) / (2 * SIGMA**2)) / lengths
    return density / density.sum()


def histogram(num_sequences: int) -> dict[int, int]:
    """Returns counts of exactly `num_sequences` sequences, with every length present where there are enough."""
    counts = np.maximum(1, np.floor(shares() * num_sequences)).astype(np.int64)
    counts[np.argmax(counts)] += num_sequences - counts.sum()
    return {length + 1: int(count) for length, count in enumerate(counts)}


def in_words(number: int) -> str:
    """1000000 → "1 M"."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return str(number)


class Workspace:
    """A temporary folder of Parquet files and prepared datasets, each made when first asked for.

    Args:
        sizes: how much is measured.
    """

    description = _DESCRIPTION

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._folder = tempfile.TemporaryDirectory(prefix="packhorse-bench-")
        self.root = Path(self._folder.name)

    def parquet(self, num_sequences: int, *, ids: bool = True) -> Path:
        """Returns a Parquet file of int32 `length` and int64 `id`, ids in random order; without ids where so asked."""
        path = self.root / f"{num_sequences}{'' if ids else '-lengths'}.parquet"
        if not path.exists():
            random = np.random.default_rng(num_sequences)
            schema = pa.schema([("length", pa.int32()), *([("id", pa.int64())] if ids else [])])
            # Ids by a multiplier coprime to the size: each once, in no order, without an array of them all.
            multiplier = next(m for m in range(num_sequences * 3 // 5 | 1, 2**62, 2) if np.gcd(m, num_sequences) == 1)
            with pq.ParquetWriter(path, schema) as writer:
                for first in range(0, num_sequences, _ROWS_AT_ONCE):
                    rows = np.arange(first, min(first + _ROWS_AT_ONCE, num_sequences), dtype=np.int64)
                    lengths = random.choice(MAX_SEQ_LEN, size=len(rows), p=shares()).astype(np.int32) + np.int32(1)
                    columns = [lengths, rows * multiplier % num_sequences] if ids else [lengths]
                    writer.write_table(pa.table(columns, schema=schema))
        return path

    def prepared(self, num_sequences: int) -> Path:
        """Returns a prepared dataset, alone in its parent folder."""
        path = self.root / f"root-{num_sequences}" / f"bench-{num_sequences}"
        if not path.exists():
            command = [PACKHORSE, "prepare", "--input", str(self.parquet(num_sequences)), "--length-column", "length"]
            command += ["--max-seq-len", str(MAX_SEQ_LEN), "--output", str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return path

    def root_of(self, *sizes: int) -> Path:
        """Returns a folder with the prepared datasets of these sizes and no others."""
        root = self.root / ("serve-" + "-".join(map(str, sizes)))
        if not root.exists():
            paths = [self.prepared(size) for size in sizes]
            root.mkdir()
            for path in paths:
                shutil.copytree(path, root / path.name, copy_function=os.link)  # a server follows no links out
        return root

    def __enter__(self) -> "Workspace":
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Deletes everything."""
        self._folder.cleanup()


@contextmanager
def serving(root: Path, *flags: str) -> Iterator[tuple[str, int]]:
    """Runs `packhorse serve` on a free port of loopback; gives its address and process id."""
    with _process([PACKHORSE, "serve", "--data-root", str(root), "--listen", "127.0.0.1:0", *flags]) as started:
        yield started


@contextmanager
def serving_recorded(messages: Path, *words: str) -> Iterator[tuple[str, int]]:
    """Runs the bare server of recorded messages in the same way."""
    with _process([sys.executable, str(Path(__file__).with_name("bare_server.py")), str(messages), *words]) as started:
        yield started


def memory_mb(pid: int) -> dict[str, float]:
    """Returns a process's memory in MB by the kernel's names (VmRSS, VmHWM, RssAnon, …); nothing once it ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = [line.split() for line in lines if line.endswith(" kB")]
    return {field[0].rstrip(":"): int(field[1]) * 1024 / 1e6 for field in fields}


@contextmanager
def pinned() -> Iterator[None]:
    """Keeps this process on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _process(command: list[str]) -> Iterator[tuple[str, int]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            found = re.search(r"listening on (\S+)", line)
            if found:
                yield found[1], process.pid
                break
        else:
            raise RuntimeError(f"{command[0]} ended before it listened; run it by hand to see why")
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
