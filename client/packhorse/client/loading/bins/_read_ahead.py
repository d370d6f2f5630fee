"""Reading bins ahead: `ReadAhead` requests many bins at once if the requested positions are a walk.

A bin is dozens of bytes, and a request takes a millisecond, so a walk gets bins that were read ahead; other positions
are requested exactly. Leaves what a walk is to `bins/_walks`, requests to `bins/reader`, and rows that are made ahead
to `bins/_rows_ahead`.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from packhorse.client.loading.bins._walks import REMEMBERED, stride_of
from packhorse.client.streams.blocks import BinBlock, joined

_CHUNK_BYTES = 64 << 10
"""Size of a chunk: hundreds of usual bins, whose request takes 1.5 times as long as that of one bin."""
_MOST_BINS = 512
"""The most bins in a chunk."""
_MOST_CHUNKS = 4
"""The most chunks in memory; threads that read at different speeds use at most two at a time."""
_SPARSEST = 32
"""A walk has at least one in this many multiples of its stride; other workers may read the rest."""


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Bins at evenly spaced positions: first, first + stride, first + 2 · stride, and so on."""

    first: int
    """The position of the first bin."""
    stride: int
    """The distance from one position to the next."""
    block: BinBlock
    """The bins."""

    def find(self, position: int) -> int:
        """Returns the index of a position's bin in the block; -1 if this chunk does not have it."""
        index, remainder = divmod(position - self.first, self.stride)
        return index if remainder == 0 and 0 <= index < len(self.block) else -1


class ReadAhead:
    """The bins of one epoch by position, read ahead if the positions are a walk. Many threads may use it.

    Args:
        fetch: function that requests the bins at some positions, and returns them in that order as one block.
        num_bins: number of bins in the epoch; positions are in [0, num_bins).
    """

    def __init__(self, fetch: Callable[[Sequence[int]], BinBlock], num_bins: int) -> None:
        self._fetch = fetch
        self._num_bins = num_bins
        self._seen: deque[int] = deque(maxlen=REMEMBERED)
        self._chunks: deque[_Chunk] = deque(maxlen=_MOST_CHUNKS)
        self._bins_per_chunk = 0  # 0 until the first answer shows how large bins are
        self._lock = threading.Lock()
        self._fetching = threading.Lock()

    def bins(self, positions: Sequence[int]) -> BinBlock:
        """Returns the bins at these positions, in their order. Calls `fetch`, which may raise, at most once."""
        with self._lock:
            self._seen.extend(positions)
            if (found := _bins_in(self._chunks, positions)) is not None:
                return found
            stride = stride_of(self._seen, sparsest=_SPARSEST) if self._bins_per_chunk else 0
        if not stride:
            block = self._fetch(positions)
            if not self._bins_per_chunk:  # without the lock: whichever thread is last, its size is as good
                self._bins_per_chunk = _chunk_size_for(block)
            return block
        with self._fetching:  # if several threads walk, the first reads and the others find the chunk
            with self._lock:
                chunks = list(self._chunks)
            if (found := _bins_in(chunks, positions)) is None:
                chunks = self._read(positions, stride, chunks)
                found = _bins_in(chunks, positions)
            assert found is not None
            return found

    def _read(self, positions: Sequence[int], stride: int, known: Sequence[_Chunk]) -> list[_Chunk]:
        """Reads the chunks that hold the missing positions, in one request; returns them, then the known chunks.

        Chunks lie on a fixed grid, so that all threads of a walk request the same ones: a chunk has every `stride`-th
        of `span` positions. With span 8 and stride 2, positions 1, 3, 5, 7 are a chunk, and 9, 11, 13, 15 the next.
        """
        span = self._bins_per_chunk * stride
        missing = [position for position in positions if all(chunk.find(position) < 0 for chunk in known)]
        begins = sorted({position // span * span + position % stride for position in missing})
        ranges = [range(begin, min(begin + span, self._num_bins), stride) for begin in begins]
        block = self._fetch(list(chain.from_iterable(ranges)))
        chunks, end = [], 0
        for chunk_positions in ranges:
            begin, end = end, end + len(chunk_positions)
            chunks.append(_Chunk(chunk_positions.start, stride, block.slice(begin, end)))
        with self._lock:
            self._chunks.extend(chunks)
        return [*chunks, *known]


def _bins_in(chunks: Sequence[_Chunk] | deque[_Chunk], positions: Sequence[int]) -> BinBlock | None:
    """Returns the bins at these positions; None if the chunks do not hold all."""
    blocks: list[BinBlock] = []
    # A run of bins that are next to each other in a chunk, its bins [first, end), is cut out as one block when it ends.
    current: _Chunk | None = None
    first = end = 0
    for position in positions:
        for chunk in chunks:
            if (index := chunk.find(position)) >= 0:
                break
        else:
            return None
        if chunk is not current or index != end:
            if current is not None:
                blocks.append(current.block.slice(first, end))
            current, first = chunk, index
        end = index + 1
    return None if current is None else joined([*blocks, current.block.slice(first, end)])


def _chunk_size_for(block: BinBlock) -> int:
    """Returns how many bins like these make a chunk of _CHUNK_BYTES: a power of two."""
    bytes_per_sequence = block.ids.itemsize + block.lengths.itemsize
    num_bytes = bytes_per_sequence * len(block.ids) + block.bin_ends.itemsize * len(block)
    bytes_per_bin = max(num_bytes // max(len(block), 1), 1)
    num_bins = max(_CHUNK_BYTES // bytes_per_bin, 1)
    return min(1 << (num_bins.bit_length() - 1), _MOST_BINS)  # rounded down to a power of two: 5 -> 4
