"""Blocks of bins as the client hands them out, decoded from the wire.

Owns the arrays and their decoding; leaves where blocks come from to the transports and streams.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.errors import DamagedAnswerError
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import bins_checksum

_ID_DTYPES: dict[int, np.dtype[Any]] = {pb.ID_TYPE_UINT32: np.dtype("<u4"), pb.ID_TYPE_INT64: np.dtype("<i8")}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BinBlock:
    """Many bins laid end to end.

    Legend: S sequences, N bins.

    Example:
        >>> ids, lengths = np.array([7, 4, 9]), np.array([5, 3, 8])
        >>> block = BinBlock(ids=ids, lengths=lengths, bin_ends=np.array([2, 3]), positions=np.array([0, 1]))
        >>> [ids.tolist() for ids, lengths in block.bins()]
        [[7, 4], [9]]
    """

    ids: NDArray[np.int64]
    """Ids of all sequences, bin after bin: int64 [S]."""
    lengths: NDArray[np.int32]
    """Their lengths in tokens: int32 [S]."""
    bin_ends: NDArray[np.int64]
    """Exclusive end of every bin in `ids`: int64 [N]; bin 0 is `[0, bin_ends[0])`."""
    positions: NDArray[np.int64]
    """Position of every bin: int64 [N]; -1 for a bin that the remainder policy added."""
    steps: range = range(0)
    """The worker's steps in the block; none where steps have no meaning (`get_bins`)."""
    first_tokens: NDArray[np.int64] | None = None
    """First token of each entry of `ids` in its sequence: int64 [S]; None where all of the dataset begin at token 0."""

    def __len__(self) -> int:
        """Number of bins."""
        return len(self.bin_ends)

    def __repr__(self) -> str:
        steps = f", steps {self.steps[0]:,} to {self.steps[-1]:,}" if self.steps else ""
        first = f" from position {self.positions[0]:,}" if len(self) else ""
        return (
            f"<BinBlock of {len(self):,} bins{first}{steps}: {len(self.ids):,} sequences, "
            f"{int(self.lengths.sum(dtype=np.int64)):,} tokens>"
        )

    def bin_starts(self) -> NDArray[np.int64]:
        """Inclusive start of every bin: int64 [N]."""
        begins = np.zeros_like(self.bin_ends)
        begins[1:] = self.bin_ends[:-1]
        return begins

    def bins(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Yields (ids int64 [k], lengths int32 [k]) of one bin after the other."""
        start = 0
        for end in self.bin_ends.tolist():
            yield self.ids[start:end], self.lengths[start:end]
            start = end

    def slice(self, first: int, last: int) -> "BinBlock":
        """Returns the bins [first, last) as a block of their own; arrays are views where they can be."""
        start = int(self.bin_ends[first - 1]) if first else 0
        end = int(self.bin_ends[last - 1]) if last else 0
        return BinBlock(
            ids=self.ids[start:end],
            lengths=self.lengths[start:end],
            bin_ends=self.bin_ends[first:last] - start,
            positions=self.positions[first:last],
            first_tokens=None if self.first_tokens is None else self.first_tokens[start:end],
        )

    def padded(self, num_bins: int) -> "BinBlock":
        """Returns a block of `num_bins` bins: these, and empty ones behind them."""
        missing = num_bins - len(self)
        end = int(self.bin_ends[-1]) if len(self) else 0
        return replace(
            self,
            bin_ends=np.pad(self.bin_ends, (0, missing), constant_values=end),
            positions=np.pad(self.positions, (0, missing), constant_values=-1),
        )


def joined(blocks: Sequence[BinBlock]) -> BinBlock:
    """Lays the bins of some blocks of one dataset end to end; their steps are left out.

    Args:
        blocks: at least one.
    """
    if len(blocks) == 1:
        return replace(blocks[0], steps=range(0))
    ends, num_before = [], 0
    for block in blocks:
        ends.append(block.bin_ends + num_before)
        num_before += len(block.ids)
    firsts = [block.first_tokens for block in blocks if block.first_tokens is not None]
    return BinBlock(
        ids=np.concatenate([block.ids for block in blocks]),
        lengths=np.concatenate([block.lengths for block in blocks]),
        bin_ends=np.concatenate(ends),
        positions=np.concatenate([block.positions for block in blocks]),
        first_tokens=np.concatenate(firsts) if firsts else None,
    )


def decode_bins(bins: pb.Bins, id_type: pb.IdType, *, context: int = 0, steps: range = range(0)) -> BinBlock:
    """Decodes packed little-endian bytes into a block.

    Args:
        bins: message of the service.
        id_type: how its ids are encoded.
        context: what the bins answer, see `packhorse.wire`.
        steps: the worker's steps in the block.

    Raises:
        DamagedAnswerError: the checksum does not match, or the arrays do not fit each other.
    """
    if bins_checksum(bins, context) != bins.checksum:
        raise DamagedAnswerError("the bins do not match their checksum: bytes changed on the way")
    if id_type not in _ID_DTYPES:
        raise DamagedAnswerError(f"the bins' ids are of type {id_type}, which this client does not know")
    first_tokens = _array("first_tokens", bins.first_tokens, np.dtype("<i8")).astype(np.int64, copy=False)
    block = BinBlock(
        ids=_array("ids", bins.ids, _ID_DTYPES[id_type]).astype(np.int64),
        lengths=_array("lengths", bins.lengths, np.dtype("<i4")).astype(np.int32, copy=False),
        bin_ends=_array("bin_ends", bins.bin_ends, np.dtype("<u4")).astype(np.int64),
        positions=_array("positions", bins.positions, np.dtype("<i8")).astype(np.int64, copy=False),
        steps=steps,
        first_tokens=first_tokens if len(first_tokens) else None,
    )
    num_sequences = int(block.bin_ends[-1]) if len(block) else 0
    arrays = (
        (block.ids, block.lengths) if block.first_tokens is None else (block.ids, block.lengths, block.first_tokens)
    )
    if (
        {len(array) for array in arrays} != {num_sequences}
        or len(block.positions) != len(block)
        or (block.bin_ends[1:] < block.bin_ends[:-1]).any()
    ):
        raise DamagedAnswerError("the arrays of the bins do not fit each other")
    return block


def _array(name: str, data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise DamagedAnswerError(f"the bins' {name} hold {len(data)} bytes, no multiple of {dtype.itemsize}")
    return np.frombuffer(data, dtype=dtype)
