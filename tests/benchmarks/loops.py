"""Training loops without a model: how long a step waits for its batch, and how fast batches come at most.

Owns what the loops measure and the tokens that they read; leaves which loaders are compared to the benchmarks.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from workload import Workspace

from packhorse.formats import write_flat_tokens

STEP_SECONDS = 0.05


def wait_share(batches: Iterator[Any], steps: int) -> float:
    """Percent of a step's time that `next` takes; a step sleeps for STEP_SECONDS, as a trainer waits for a GPU."""
    next(batches)
    waited = 0.0
    started = time.perf_counter()
    for _ in range(steps):
        time.sleep(STEP_SECONDS)
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
    return 100 * waited / (time.perf_counter() - started)


def tokens_per_second(batches: Iterator[Any], steps: int, tokens_of: Callable[[Any], int]) -> float:
    """Millions of tokens that come in a second where nothing else is done."""
    next(batches)
    started, num_tokens = time.perf_counter(), 0
    for _ in range(steps):
        num_tokens += tokens_of(next(batches))
    return num_tokens / (time.perf_counter() - started) / 1e6


def token_file(workspace: Workspace, num_sequences: int) -> Path:
    """A flat token file whose sequences have the lengths of the workspace's rows."""
    path = workspace.root / f"training-{num_sequences}.bin"
    if not path.exists():
        lengths = pq.read_table(workspace.parquet(num_sequences))["length"].to_pylist()
        random = np.random.default_rng(1)
        write_flat_tokens(path, (random.integers(0, 50_000, n, dtype=np.uint16) for n in lengths), np.uint16)
    return path
