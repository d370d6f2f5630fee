"""What one process reads `PackedBins` with: its connection, and the bins of the epochs that it is in.

Owns how long epochs are kept, and requests for bins. Leaves reading ahead to `_read_ahead`.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from packhorse.client.api import Client
from packhorse.client.errors import RequestTooLargeError
from packhorse.client.loading._read_ahead import ReadAhead, RowsAhead
from packhorse.client.options import Run
from packhorse.client.streams.blocks import BinBlock, joined
from packhorse.client.streams.cursor import Resume
from packhorse.client.streams.stream import StreamHeader


class BinAddress(NamedTuple):
    """What one index means."""

    epoch: int
    position: int
    header: StreamHeader

    @property
    def is_empty(self) -> bool:
        """Whether it is a bin that makes the epoch up to a multiple."""
        return self.position >= self.header.num_bins


class Indices:
    """The indices of some epochs that follow each other.

    Args:
        choice: number of the choice of epoch that they follow from.
        resume: where the first epoch begins.
        headers: of each epoch.
        multiple_of: each epoch's rows are made up to a multiple of it.
    """

    def __init__(self, choice: int, resume: Resume, headers: list[StreamHeader], multiple_of: int) -> None:
        self.choice = choice
        self.headers = headers
        self._first = resume
        rows = [header.num_bins for header in headers]
        rows[0] -= resume.position
        self.ends = list(accumulate(-(-count // multiple_of) * multiple_of for count in rows))

    def find(self, index: int) -> BinAddress:
        """Finds an index; an IndexError where there is none."""
        length = self.ends[-1]
        if not -length <= index < length:
            raise IndexError(f"index {index} is outside of {length} rows")
        index %= length
        number = bisect_right(self.ends, index)
        before = self.ends[number - 1] if number else -self._first.position
        return BinAddress(self._first.epoch + number, index - before, self.headers[number])


_OPEN_EPOCHS = 2  # a loader that reads ahead is in two at their border


class BinsReader:
    """One process's connection, and the epochs that it reads."""

    def __init__(
        self,
        client: Client,
        run: Run,
        rows_at: Callable[[Sequence[int]], list[dict[str, Any]]],
        lock: threading.RLock,
    ) -> None:
        """Begins to read.

        Args:
            client: of this process.
            run: what is read.
            rows_at: makes the rows of some indices.
            lock: of this process.
        """
        self.pid = os.getpid()
        self.client = client
        self.is_prepared = False
        """Whether the maker of batches knows the dataset."""
        self.assembling = threading.Lock()
        """Held while a batch is made."""
        self._run = run
        self._rows_at = rows_at
        self._lock = lock
        self._epochs: dict[tuple[int, str], ReadAhead] = {}
        self._rows: tuple[Indices, RowsAhead] | None = None

    def rows(self, indexed: Indices) -> RowsAhead:
        """The rows one by one, as long as indices mean the same."""
        if self._rows is None or self._rows[0] is not indexed:
            with self._lock:
                if self._rows is None or self._rows[0] is not indexed:
                    self._rows = indexed, RowsAhead(self._rows_at, indexed.ends[-1])
        return self._rows[1]

    def epoch(self, epoch: int, header: StreamHeader) -> ReadAhead:
        """The bins of one epoch."""
        key = epoch, header.digest
        if key not in self._epochs:
            with self._lock:
                fetch = partial(self._fetch, epoch, header.digest)
                self._epochs[key] = self._epochs.get(key) or ReadAhead(fetch, header.num_bins)
                for old in list(self._epochs)[:-_OPEN_EPOCHS]:
                    del self._epochs[old]
        return self._epochs[key]

    def _fetch(self, epoch: int, digest: str, positions: Sequence[int]) -> BinBlock:
        """Asks for bins, in parts where they are more than one message holds."""
        try:
            return self.client.get_bins(
                self._run.dataset,
                epoch=epoch,
                seed=self._run.seed,
                positions=positions,
                skip=self._run.skips(epoch),
                expected_digest=digest,
            )
        except RequestTooLargeError as error:
            fitting = int(error.metadata.get("limit", 0))
            if not 0 < fitting < len(positions):
                raise
        parts = (positions[:fitting], positions[fitting:])
        return joined([self._fetch(epoch, digest, part) for part in parts])
