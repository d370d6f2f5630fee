"""Ids that occur twice, found over the whole dataset in bounded memory.

Owns cutting the ids' range into windows of few enough ids, looking through one window, and the message. Leaves
ascending segments and finding an id's rows to `passes.passes`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import PreparedDataset
from packhorse.prepare.kernels import find_entries, gather
from packhorse.prepare.passes.passes import PoolMap, map_pool

WINDOW_IDS = 1 << 22
"""The most ids that are looked at together."""
_MOST_ROWS_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTask:
    """The ids in [low, high] of a pool whose segments are ascending."""

    pool: str
    first_tokens_path: str | None
    """starts.npy where ids of pieces repeat and only pieces that begin at token 0 are compared; else None."""
    edges: NDArray[np.int64]
    """Where each segment begins, and where the last one ends: int64 [D + 1]."""
    low: int
    high: int
    num_ids: int


def cut_windows(
    pool_path: str,
    edges: NDArray[np.int64],
    low: int,
    high: int,
    window_ids: int = WINDOW_IDS,
    *,
    first_tokens_path: str | None = None,
) -> Iterator[WindowTask]:
    """Yields windows that cover all ids, ascending; each holds at most `window_ids`, or one id alone.

    Args:
        pool_path: the pool file, each segment ascending.
        edges: int64 [D + 1], where each segment begins, and where the last one ends.
        low: smallest id.
        high: largest id.
        window_ids: the most ids in a window.
        first_tokens_path: see `WindowTask`.
    """
    pool = map_pool(pool_path)
    waiting = [(low, high)]
    while waiting:
        low, high = waiting.pop()
        num_ids = int((_entries_after(pool, edges, high) - _entries_before(pool, edges, low)).sum())
        if num_ids > window_ids and low < high:
            middle = (low + high) >> 1
            waiting += [(middle + 1, high), (low, middle)]
        elif num_ids > 1:
            yield WindowTask(
                pool=pool_path, first_tokens_path=first_tokens_path, edges=edges, low=low, high=high, num_ids=num_ids
            )


def find_duplicate(task: WindowTask) -> int | None:
    """Returns the smallest id that occurs twice in a window; None where there is none."""
    if task.low == task.high and task.first_tokens_path is None:
        return task.low
    pool = map_pool(task.pool)
    window = np.empty(task.num_ids, dtype=pool.dtype)
    begins, ends = _entries_before(pool, task.edges, task.low), _entries_after(pool, task.edges, task.high)
    gather(pool, begins, ends, window)
    if task.first_tokens_path is not None:
        all_first_tokens = map_pool(task.first_tokens_path)
        first_tokens = np.empty(task.num_ids, dtype=all_first_tokens.dtype)
        gather(all_first_tokens, begins, ends, first_tokens)
        window = window[first_tokens == 0]
    window.sort()
    repeated = window[1:] == window[:-1]
    return int(window[int(np.argmax(repeated))]) if repeated.any() else None


def duplicate_error(repeated: int, rows: Sequence[tuple[str, int, int]], before: PreparedDataset | None) -> ValueError:
    """Returns the error for an id that occurs twice.

    Args:
        repeated: the id.
        rows: all that have it, as `find_rows` gives them.
        before: the version that they are added to.
    """
    named = "; ".join(f"row {row} of {path}, length {length}" for path, row, length in rows[:_MOST_ROWS_NAMED])
    named += "; …" if len(rows) > _MOST_ROWS_NAMED else ""
    if before is not None and len(rows) == 1:
        return ValueError(
            f"id {repeated} is in {before.name} already and comes again ({named}); every id must occur once: repair "
            "the id column, or append new sequences only"
        )
    return ValueError(
        f"id {repeated} occurs {len(rows)} times ({named}); every id must occur once: repair the id column, or leave "
        "out --id-column to use row numbers"
    )


def _entries_before(pool: PoolMap, edges: NDArray[np.int64], value: int) -> NDArray[np.int64]:
    """Returns each segment's first entry with an id of at least `value`: int64 [D]."""
    entries = np.empty(len(edges) - 1, dtype=np.int64)
    find_entries(pool, edges[:-1], edges[1:], value, entries)
    return entries


def _entries_after(pool: PoolMap, edges: NDArray[np.int64], value: int) -> NDArray[np.int64]:
    """Returns each segment's first entry with an id over `value`: int64 [D]."""
    return edges[1:] if value == np.iinfo(np.int64).max else _entries_before(pool, edges, value + 1)
