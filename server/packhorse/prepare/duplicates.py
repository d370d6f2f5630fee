"""Ids that occur twice: found in the merged pool, in bounded memory, and refused with the rows that have them.

Owns the tasks that compare ids and find the rows of one, and the error. Leaves merging ids into the pool to `_merging`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import PreparedDataset
from packhorse.parameters import parameter
from packhorse.prepare._kernels import find_entries, gather
from packhorse.prepare._spills import Entries, map_entries
from packhorse.prepare.counting import FoundRow
from packhorse.prepare.input import RowRange

CHUNK_IDS = 1 << 22
"""The most ids that are compared together."""

_MOST_ROWS_NAMED = 4
"""The most rows that an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    """The ids from `low` to `high` of a merged pool, which are compared with each other."""

    pool_path: str
    """Path of pools.npy; ids ascend in each segment, the entries of one room."""
    first_tokens_path: str | None
    """Path of starts.npy if sequences are split; ids of pieces repeat, so only entries that begin at token 0 are
    compared. None otherwise."""
    edges: NDArray[np.int64]
    """Where each segment of the pool begins, and where the last one ends: int64 [D + 1]."""
    low: int
    """The smallest id to compare."""
    high: int
    """The largest id to compare."""
    num_ids: int
    """Number of the pool's entries with an id from `low` to `high`, at least 2."""


def cut_chunks(
    pool_path: str,
    edges: NDArray[np.int64],
    low: int,
    high: int,
    chunk_ids: int = CHUNK_IDS,
    *,
    first_tokens_path: str | None = None,
) -> Iterator[ChunkTask]:
    """Yields tasks that cover the ids from `low` to `high`, ascending.

    A task has at most `chunk_ids` entries, or all entries of a single id. Ranges with fewer than two entries are left
    out.
    """
    pool = map_entries(pool_path)
    waiting = [(low, high)]  # a stack of ranges of ids, the lowest on top
    while waiting:
        first_id, last_id = waiting.pop()
        num_ids = int((_first_above(pool, edges, last_id) - _first_from(pool, edges, first_id)).sum())
        if num_ids > chunk_ids and first_id < last_id:
            middle = (first_id + last_id) >> 1
            waiting += [(middle + 1, last_id), (first_id, middle)]
        elif num_ids > 1:
            yield ChunkTask(
                pool_path=pool_path,
                first_tokens_path=first_tokens_path,
                edges=edges,
                low=first_id,
                high=last_id,
                num_ids=num_ids,
            )


def find_duplicate(task: ChunkTask) -> int | None:
    """Returns the smallest id that occurs twice in a chunk; None if there is none."""
    if task.low == task.high and task.first_tokens_path is None:  # a task has at least two entries
        return task.low
    pool = map_entries(task.pool_path)
    chunk = np.empty(task.num_ids, dtype=pool.dtype)
    begins, ends = _first_from(pool, task.edges, task.low), _first_above(pool, task.edges, task.high)
    gather(pool, begins, ends, chunk)
    if task.first_tokens_path is not None:
        all_first_tokens = map_entries(task.first_tokens_path)
        first_tokens = np.empty(task.num_ids, dtype=all_first_tokens.dtype)
        gather(all_first_tokens, begins, ends, first_tokens)
        chunk = chunk[first_tokens == 0]
    chunk.sort()
    repeated = chunk[1:] == chunk[:-1]
    return int(chunk[int(np.argmax(repeated))]) if repeated.any() else None


class FindTask(NamedTuple):
    """Ranges of rows, and the id that is looked for in them because it occurs twice."""

    ranges: Sequence[RowRange]
    id: int


def find_rows(task: FindTask) -> list[FoundRow]:
    """Returns every sequence of a task's rows that has its id."""
    return [
        FoundRow(task.id, int(batch.lengths[at]), each.where, batch.row(int(at)))
        for each in task.ranges
        for batch in each.batches()
        for at in np.flatnonzero(batch.ids == task.id)
    ]


def duplicate_error(repeated: int, rows: Sequence[FoundRow], before: PreparedDataset | None) -> ValueError:
    """Returns the error for an id that occurs twice.

    Args:
        repeated: the id.
        rows: every row of the input with this id.
        before: the version to which the rows are added; None for a new dataset.
    """
    named = "; ".join(f"row {each.row} of {each.file}, length {each.length}" for each in rows[:_MOST_ROWS_NAMED])
    named += "; …" if len(rows) > _MOST_ROWS_NAMED else ""
    if before is not None and len(rows) == 1:
        return ValueError(
            f"id {repeated} is in {before.name} already and comes again ({named}); every id must occur once: repair "
            "the id column, or append new sequences only"
        )
    return ValueError(
        f"id {repeated} occurs {len(rows)} times ({named}); every id must occur once: repair the id "
        "column, or leave out " + parameter("id_column") + " to use row numbers"
    )


def _first_from(pool: Entries, edges: NDArray[np.int64], value: int) -> NDArray[np.int64]:
    """Returns each segment's first entry with an id of at least `value`: int64 [D]."""
    entries = np.empty(len(edges) - 1, dtype=np.int64)
    find_entries(pool, edges[:-1], edges[1:], value, entries)
    return entries


def _first_above(pool: Entries, edges: NDArray[np.int64], value: int) -> NDArray[np.int64]:
    """Returns each segment's first entry with an id greater than `value`: int64 [D]."""
    return edges[1:] if value == np.iinfo(np.int64).max else _first_from(pool, edges, value + 1)
