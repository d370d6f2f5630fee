"""`BinsReader`: a connection of `PackedBins`, and the bins and rows that are read over it.

Owns requests for bins, and how many epochs stay in memory. Leaves reading ahead to `bins/_read_ahead`, and making rows
ahead to `bins/_rows_ahead`.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from packhorse.client.api import Client
from packhorse.client.errors import RequestTooLargeError
from packhorse.client.loading.bins._read_ahead import ReadAhead
from packhorse.client.loading.bins._rows_ahead import RowsAhead
from packhorse.client.loading.bins.indices import Indices
from packhorse.client.options import Run
from packhorse.client.streams.blocks import BinBlock, joined
from packhorse.storage import BoundedCache
from packhorse.types import StreamHeader

_OPEN_EPOCHS = 2
"""Epochs whose bins stay in memory: near the end of an epoch, a loader that reads ahead reads the next one too."""


class _IndexedRows(NamedTuple):
    """The rows of an epoch or several, and the indices that they were made for."""

    indices: Indices
    rows: RowsAhead


class BinsReader:
    """One process's connection, and the bins and rows read over it. Many threads may use it.

    Args:
        client: this process's connection.
        run: the dataset, its seed and skips.
        rows_at: function that makes the rows at some indices.
        lock: the lock of this process, for state that its threads share.
        with_tokens: whether to request the bins' tokens.
    """

    def __init__(
        self,
        client: Client,
        run: Run,
        rows_at: Callable[[Sequence[int]], list[dict[str, Any]]],
        lock: threading.RLock,
        *,
        with_tokens: bool,
    ) -> None:
        self.client = client
        self._run = run
        self._rows_at = rows_at
        self._lock = lock
        self._with_tokens = with_tokens
        self._epochs: BoundedCache[tuple[int, str], ReadAhead] = BoundedCache(_OPEN_EPOCHS)
        self._indexed: _IndexedRows | None = None

    def rows(self, indices: Indices) -> RowsAhead:
        """Returns the rows by index; the same object each time, until `indices` is another object."""
        if self._indexed is None or self._indexed.indices is not indices:
            with self._lock:
                if self._indexed is None or self._indexed.indices is not indices:
                    self._indexed = _IndexedRows(indices, RowsAhead(self._rows_at, indices.ends[-1]))
        return self._indexed.rows

    def bins_of_epoch(self, epoch: int, header: StreamHeader) -> ReadAhead:
        """Returns the bins of one epoch by position; the object is made at the first call and then reused."""
        fetch = partial(self._fetch, epoch, header.digest)
        return self._epochs.get((epoch, header.digest), lambda: ReadAhead(fetch, header.num_bins))

    def _fetch(self, epoch: int, digest: str, positions: Sequence[int]) -> BinBlock:
        """Requests bins, in several messages if one would be too large."""
        try:
            return self.client.get_bins(
                self._run.dataset,
                epoch=epoch,
                seed=self._run.seed,
                positions=positions,
                skip=self._run.skips(epoch),
                expected_digest=digest,
                with_tokens=self._with_tokens,
            )
        except RequestTooLargeError as error:
            max_positions = int(error.metadata.get("limit", 0))  # that the server takes at once; 0 if it does not say
            if not 0 < max_positions < len(positions):
                raise
        parts = (positions[:max_positions], positions[max_positions:])
        return joined([self._fetch(epoch, digest, part) for part in parts])
