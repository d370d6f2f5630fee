"""Reading bins ahead: whether positions are a walk, and the bins that a walk is about to ask for.

A bin's plan is dozens of bytes, and a request costs a millisecond. A client that reads positions one after the other (a
rank's share, a worker's batches, a thread pool) gets bins that were read ahead; one that jumps gets exactly what it
asks for. Leaves requests to `_bins_reader`, and rows made ahead to `_rows`.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from packhorse.client.streams.blocks import BinBlock, joined

REMEMBERED = 64
"""How many of the latest positions tell a walk from jumps."""

_CHUNK_BYTES = 64 << 10
"""Size of a chunk: hundreds of usual bins, which take half as long again as one bin."""
_MOST_BINS = 512
"""The most bins in a chunk."""
_MOST_CHUNKS = 4
"""Chunks that are kept; threads that run ahead of each other are in at most two."""
_FEWEST = 4
"""The fewest positions that may be called a walk."""
_SPARSEST = 32
"""A walk asks for at least one in this many positions; the others are other workers'."""


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Bins that one request brought, at evenly spaced positions: first, first + stride, and so on."""

    first: int
    stride: int
    block: BinBlock

    def find(self, position: int) -> int:
        """Returns the index of a position's bin in the block; -1 if this chunk does not have it."""
        index, rest = divmod(position - self.first, self.stride)
        return index if rest == 0 and 0 <= index < len(self.block) else -1


class ReadAhead:
    """The bins of one epoch by position, read ahead if the positions are a walk. Many threads may use it.

    Args:
        fetch: requests the bins at some positions; returns them in their order, as one block.
        num_bins: number of bins in the epoch; positions are in [0, num_bins).
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
        """Returns the bins at these positions, in their order. Calls `fetch`, which may raise, at most once."""
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
        """Reads the chunks that hold the missing positions; returns them and the known chunks."""
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
    """Returns the stride of a walk through these positions, in positions; 0 if they are not a walk.

    Example:
        >>> stride_of([8, 2, 4, 6], sparsest=4), stride_of([8, 2, 4, 900], sparsest=4)
        (2, 0)

    Args:
        seen: positions, in any order.
        sparsest: the positions are a walk only if they hold at least one in this many multiples of the stride.
    """
    first = min(seen)
    stride = gcd(*(position - first for position in seen))
    if len(seen) < _FEWEST or not stride or max(seen) - first > sparsest * len(seen) * stride:
        return 0
    return stride


def _taken(positions: Sequence[int], chunks: Sequence[_Chunk] | deque[_Chunk]) -> BinBlock | None:
    """Returns the bins at these positions; None if the chunks do not hold all."""
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
    """Returns how many bins a chunk shall hold, judged by the first answer: a power of two."""
    bytes_per_sequence = block.ids.itemsize + block.lengths.itemsize
    num_bytes = bytes_per_sequence * len(block.ids) + block.bin_ends.itemsize * len(block)
    bytes_per_bin = max(num_bytes // max(len(block), 1), 1)
    return min(1 << (max(_CHUNK_BYTES // bytes_per_bin, 1).bit_length() - 1), _MOST_BINS)
