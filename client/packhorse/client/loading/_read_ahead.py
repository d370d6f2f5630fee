"""Bins by position for one process of `PackedBins`: its connection, reading ahead, and the rows of batches.

A bin's plan is dozens of bytes and a request costs a millisecond. A client that reads positions one after the other (a
rank's share, a worker's batches, a thread pool) gets ranges that were read before; one that jumps gets exactly what it
asks for. Owns that judgement, what an index means, and how long epochs are kept. Leaves tensors to `dataset`.
"""

import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import gcd
from typing import Any, NamedTuple, overload

from packhorse.client.api import Client
from packhorse.client.errors import RequestTooLargeError
from packhorse.client.options import Run
from packhorse.client.streams.blocks import BinBlock, joined
from packhorse.client.streams.cursor import Resume
from packhorse.storage import BoundedCache
from packhorse.types import StreamHeader

REMEMBERED = 64
"""Positions that tell a walk from jumps."""

_CHUNK_BYTES = 64 << 10  # some hundreds of usual bins; asking for them takes half as long again as asking for one
_MOST_BINS = 512
_MOST_CHUNKS = 4  # threads that run ahead of each other are in two of them at most
_FEWEST = 4
_SPARSEST = 32  # a walk asks for one position of so many in its range: the others are other workers'


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Bins at first, first + stride, …, as they were answered."""

    first: int
    stride: int
    block: BinBlock

    def find(self, position: int) -> int:
        """Index of a position's bin; -1 where it is not in this chunk."""
        index, rest = divmod(position - self.first, self.stride)
        return index if rest == 0 and 0 <= index < len(self.block) else -1


class ReadAhead:
    """The bins of one epoch, by position; safe to be used by many threads.

    Args:
        fetch: returns the bins at some positions, in their order, as one block.
        num_bins: positions are in [0, num_bins).
    """

    def __init__(self, fetch: Callable[[Sequence[int]], BinBlock], num_bins: int) -> None:
        self._fetch = fetch
        self._num_bins = num_bins
        self._seen: deque[int] = deque(maxlen=REMEMBERED)
        self._chunks: deque[_Chunk] = deque(maxlen=_MOST_CHUNKS)
        self._bins_per_chunk = 0  # not known before the first answer
        self._lock = threading.Lock()
        self._fetching = threading.Lock()

    def bins(self, positions: Sequence[int]) -> BinBlock:
        """Returns the bins at these positions, in their order; at most one call of `fetch`, which may raise."""
        with self._lock:
            self._seen.extend(positions)
            found = _taken(positions, self._chunks)
            stride = 0 if found is not None or not self._bins_per_chunk else stride_of(self._seen, sparsest=_SPARSEST)
        if found is not None:
            return found
        if not stride:
            block = self._fetch(positions)
            self._bins_per_chunk = self._bins_per_chunk or _bins_in(block)
            return block
        with self._fetching:  # the first of several walking threads reads for all
            with self._lock:
                chunks = list(self._chunks)
            if (found := _taken(positions, chunks)) is None:
                chunks = self._read(positions, stride, chunks)
                found = _taken(positions, chunks)
            assert found is not None
            return found

    def _read(self, positions: Sequence[int], stride: int, known: Sequence[_Chunk]) -> list[_Chunk]:
        """Reads the chunks that hold what is missing, and returns them with those that are known."""
        size = self._bins_per_chunk * stride
        missing = [position for position in positions if all(chunk.find(position) < 0 for chunk in known)]
        begins = sorted({position // size * size + position % stride for position in missing})
        ranges = [range(begin, min(begin + size, self._num_bins), stride) for begin in begins]
        block = self._fetch([position for some in ranges for position in some])
        chunks, taken = [], 0
        for some in ranges:
            chunks.append(_Chunk(some.start, stride, block.slice(taken, taken + len(some))))
            taken += len(some)
        with self._lock:
            self._chunks.extend(chunks)
        return [*chunks, *known]


def stride_of(seen: Sequence[int], *, sparsest: int) -> int:
    """Returns the stride of a walk through these positions; 0 where they are not a walk.

    Example:
        >>> stride_of([8, 2, 4, 6], sparsest=4), stride_of([8, 2, 4, 900], sparsest=4)
        (2, 0)

    Args:
        seen: positions, in any order.
        sparsest: a walk has seen at least one in this many of its positions.
    """
    first = min(seen)
    stride = gcd(*(position - first for position in seen))
    if len(seen) < _FEWEST or not stride or max(seen) - first > sparsest * len(seen) * stride:
        return 0
    return stride


def _taken(positions: Sequence[int], chunks: Sequence[_Chunk] | deque[_Chunk]) -> BinBlock | None:
    """The bins at these positions, where the chunks hold all of them."""
    parts: list[tuple[_Chunk, int, int]] = []
    for position in positions:
        for chunk in chunks:
            if (index := chunk.find(position)) >= 0:
                break
        else:
            return None
        if parts and parts[-1][0] is chunk and parts[-1][2] == index:
            parts[-1] = (chunk, parts[-1][1], index + 1)
        else:
            parts.append((chunk, index, index + 1))
    return joined([chunk.block.slice(first, end) for chunk, first, end in parts]) if parts else None


def _bins_in(block: BinBlock) -> int:
    """Bins in a chunk: a power of two, judged by the first answer."""
    bytes_per_sequence = block.ids.itemsize + block.lengths.itemsize
    num_bytes = bytes_per_sequence * len(block.ids) + block.bin_ends.itemsize * len(block)
    bytes_per_bin = max(num_bytes // max(len(block), 1), 1)
    return min(1 << (max(_CHUNK_BYTES // bytes_per_bin, 1).bit_length() - 1), _MOST_BINS)


class Rows(Sequence[dict[str, Any]]):
    """The rows at some indices, made when the first is read; `collate` makes a batch of the bins instead.

    Example:
        >>> from packhorse.client import PackedBins
        >>> bins = PackedBins("embedded:datasets", "corpus", "corpus.idx", seed=1)
        >>> rows = bins.__getitems__([1, 0])
        >>> [row["position"].item() for row in rows], rows.bins.ids.tolist()
        ([1, 0], [0, 1, 3, 2])

    Args:
        bins: of the rows.
        make: makes one row of each bin.
    """

    def __init__(self, bins: BinBlock, make: Callable[[BinBlock], list[dict[str, Any]]]) -> None:
        self.bins = bins
        self._make = make
        self._made: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self.bins)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self._all()[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._all())

    def _all(self) -> list[dict[str, Any]]:
        if self._made is None:
            self._made = self._make(self.bins)
        return self._made


_AT_ONCE, _AT_ONCE_BYTES = 16, 2 << 20  # rows that are made together: more gain nothing, and long ones need none
_READY_BYTES = 32 << 20  # sixteen threads that make batches of eight are in 128 rows of 2,048 tokens at a time: 8 MiB
_SPARSEST_ROWS = 4  # a walk that skips more than that would waste the rows made ahead


class RowsAhead:
    """The rows at some indices, each returned once. Thread-safe.

    Args:
        make: returns the rows at some indices, in their order.
        num_rows: indices are in [0, num_rows).
    """

    def __init__(self, make: Callable[[Sequence[int]], list[dict[str, Any]]], num_rows: int) -> None:
        self._make = make
        self._num_rows = num_rows
        self._seen: deque[int] = deque(maxlen=REMEMBERED)
        self._ready: dict[int, dict[str, Any]] = {}
        self._making = threading.Lock()
        self._bytes_per_row = _AT_ONCE_BYTES  # not known before the first row

    def row(self, index: int) -> dict[str, Any]:
        """Returns the row at an index; at most one call of `make`, which may raise."""
        self._seen.append(index)
        row = self._ready.pop(index, None)
        if row is not None:
            return row
        with self._making:  # the first of several walking threads makes for all
            row = self._ready.pop(index, None)
            if row is not None:
                return row
            stride = stride_of(list(self._seen), sparsest=_SPARSEST_ROWS)
            at_once = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // self._bytes_per_row))
            wanted = range(index, min(index + at_once * stride, self._num_rows), stride) if stride else (index,)
            missing = [each for each in wanted if each not in self._ready]
            row, *others = self._make(missing)
            self._bytes_per_row = max(1, sum(getattr(value, "nbytes", 0) for value in row.values()))
            self._ready.update(zip(missing[1:], others, strict=True))
            while len(self._ready) * self._bytes_per_row > _READY_BYTES:
                self._ready.pop(next(iter(self._ready)), None)
            return row


class BinAddress(NamedTuple):
    """What one index means."""

    epoch: int
    position: int
    header: StreamHeader

    @property
    def is_empty(self) -> bool:
        """Whether it is an empty bin after the epoch's last."""
        return self.position >= self.header.num_bins


class Indices:
    """The indices of some epochs that follow each other.

    Args:
        choice: `Progress.choice` of the first epoch.
        resume: where the first epoch begins.
        headers: of each epoch.
        multiple_of: each epoch's rows are made up to a multiple of it by empty bins.
    """

    def __init__(self, choice: int, resume: Resume, headers: list[StreamHeader], multiple_of: int) -> None:
        self.choice = choice
        self.headers = headers
        self._first = resume
        rows = [header.num_bins for header in headers]
        rows[0] -= resume.position
        self.ends = list(accumulate(-(-count // multiple_of) * multiple_of for count in rows))

    def find(self, index: int) -> BinAddress:
        """Returns what an index means; an IndexError where it is out of range."""
        length = self.ends[-1]
        if not -length <= index < length:
            raise IndexError(f"index {index} is outside of {length} rows")
        index %= length
        number = bisect_right(self.ends, index)
        before = self.ends[number - 1] if number else -self._first.position
        return BinAddress(self._first.epoch + number, index - before, self.headers[number])


_OPEN_EPOCHS = 2  # a loader that reads ahead is in two at their border


class BinsReader:
    """One process's connection, and the epochs that it reads.

    Args:
        client: of this process.
        run: that is read.
        rows_at: makes the rows of some indices.
        lock: of this process.
        with_tokens: whether bins bring their tokens.
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
        self._with_tokens = with_tokens
        self.pid = os.getpid()
        self.client = client
        self.is_prepared = False
        """Whether the maker of batches knows the dataset."""
        self.assembling = threading.Lock()
        """Held while a batch is made."""
        self._run = run
        self._rows_at = rows_at
        self._lock = lock
        self._epochs: BoundedCache[tuple[int, str], ReadAhead] = BoundedCache(_OPEN_EPOCHS)
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
        fetch = partial(self._fetch, epoch, header.digest)
        return self._epochs.get((epoch, header.digest), lambda: ReadAhead(fetch, header.num_bins))

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
                with_tokens=self._with_tokens,
            )
        except RequestTooLargeError as error:
            fitting = int(error.metadata.get("limit", 0))
            if not 0 < fitting < len(positions):
                raise
        parts = (positions[:fitting], positions[fitting:])
        return joined([self._fetch(epoch, digest, part) for part in parts])
