"""Blocks of bins, decoded from the wire.

Owns `BinBlock`, the arrays of many bins, and its decoding from messages. Leaves the templates that a stream has defined
to `_templates`, opening streams to `streams/stream`, tokens to `sent_tokens`, and checksums to `packhorse.wire`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.errors import DamagedAnswerError, VersionMismatchError
from packhorse.client.streams._templates import NO_COMPONENT, ReceivedTemplates, TemplateDefinitions
from packhorse.client.streams.sent_tokens import SentTokens, decode_tokens, joined_tokens
from packhorse.topology import ADDED
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import (
    ADDED_OFFSET,
    BIN_ARRAYS,
    MASKED_TOKEN,
    WIRE_VERSION,
    bins_checksum,
    is_of_version_1,
)

_ID_DTYPES: dict[int, np.dtype[Any]] = {pb.ID_TYPE_UINT32: np.dtype("<u4"), pb.ID_TYPE_INT64: np.dtype("<i8")}
"""The type of ids, by the number that a header gives."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "templates": np.dtype("<u4"),
    "defined_templates": np.dtype("<u4"),
    "defined_sizes": np.dtype("<u4"),
    "defined_lengths": np.dtype("<i4"),
    "defined_components": np.dtype("<u4"),
    "position_offsets": np.dtype("<u4"),
    "group_ids": np.dtype("<i8"),
    "redacted": np.dtype("<u4"),
    "redacted_tokens": np.dtype("<u4"),
    "rows": np.dtype("<u2"),
}
"""Field of `pb.Bins` → the type of its array, if it is the same in every message; ids and first tokens have two."""

_NO_GROUP = -1
"""The value in `BinBlock.group_ids` of a sequence without a group."""

AS_IT_IS = -2
"""The value in `BinBlock.redactions` of a sequence that is not redacted."""

MASKED = -1
"""The value in `BinBlock.redactions` of a sequence that keeps its tokens, but is left out of the loss."""


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
    """Lengths of all sequences in tokens: int32 [S]."""
    bin_ends: NDArray[np.int64]
    """Exclusive end of every bin in `ids`: int64 [N]; bin 0 is `[0, bin_ends[0])`."""
    positions: NDArray[np.int64]
    """Position of every bin: int64 [N]; -1 for a bin that the remainder policy added."""
    steps: range = range(0)
    """The worker's steps in the block; empty for `get_bins`, which has no steps."""
    first_tokens: NDArray[np.int64] | None = None
    """Number of the token at which each entry of `ids` begins in its sequence: int64 [S]; None if all begin at 0."""
    component_ids: NDArray[np.int32] | None = None
    """The component of every bin in a mixture, -1 for an empty bin: int32 [N]; None without a mixture."""
    group_ids: NDArray[np.int64] | None = None
    """The group of every sequence, -1 for a sequence without one: int64 [S]; None without groups. A group's sequences
    are next to each other in one bin, in their order.
    """
    redactions: NDArray[np.int64] | None = None
    """The redaction of each sequence: AS_IT_IS for none, MASKED if its tokens are left out of the loss, otherwise the
    token that replaces each of its tokens: int64 [S]; None if the block has no redactions.
    """
    rows: NDArray[np.uint16] | None = None
    """The row of every sequence in its bin, if a mixture joins short bins into long ones: uint16 [S]; None if no bin of
    the block is joined.
    """
    tokens: SentTokens | None = None
    """The tokens of the entries of `ids`, if the request asked for tokens."""
    loss_mask: SentTokens | None = None
    """1 for each of these tokens that is to be predicted, else 0; None if all are."""

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
        """Returns the inclusive start of every bin in `ids`: int64 [N]."""
        begins = np.zeros_like(self.bin_ends)
        begins[1:] = self.bin_ends[:-1]
        return begins

    def bins(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Yields (ids int64 [k], lengths int32 [k]) of one bin after the other."""
        start = 0
        for end in self.bin_ends.tolist():
            yield self.ids[start:end], self.lengths[start:end]
            start = end

    def component_of_sequences(self) -> NDArray[np.int32] | None:
        """Returns the index of every sequence's component in the mixture: int32 [S]; None without a mixture."""
        return None if self.component_ids is None else self.component_ids.repeat(np.diff(self.bin_ends, prepend=0))

    def slice(self, first: int, last: int) -> "BinBlock":
        """Returns the bins [first, last) as another block, whose arrays are views if possible. Its steps are empty."""
        start = int(self.bin_ends[first - 1]) if first else 0
        end = int(self.bin_ends[last - 1]) if last else 0
        return self._cut(first, last, start, end, bin_ends=self.bin_ends[first:last] - start)

    def _cut(self, first: int, last: int, start: int, end: int, *, bin_ends: NDArray[np.int64]) -> "BinBlock":
        """Returns the bins [first, last) as another block.

        Args:
            first: the first bin.
            last: the end of the bins.
            start: the first sequence of these bins.
            end: the end of their sequences.
            bin_ends: the bins' ends, counted from `start`.
        """
        return BinBlock(
            ids=self.ids[start:end],
            lengths=self.lengths[start:end],
            bin_ends=bin_ends,
            positions=self.positions[first:last],
            first_tokens=_part(self.first_tokens, start, end),
            component_ids=_part(self.component_ids, first, last),
            group_ids=_part(self.group_ids, start, end),
            redactions=_part(self.redactions, start, end),
            rows=_part(self.rows, start, end),
            tokens=_part_of_tokens(self.tokens, start, end),
            loss_mask=_part_of_tokens(self.loss_mask, start, end),
        )

    def split(self, num_bins: int) -> Iterator["BinBlock"]:
        """Yields blocks of `num_bins` bins each, the last with the bins that are left. Faster than `slice` for each.

        Example:
            >>> ids, ends = np.array([7, 4, 9]), np.array([1, 2, 3])
            >>> block = BinBlock(ids=ids, lengths=ids, bin_ends=ends, positions=ends)
            >>> [part.ids.tolist() for part in block.split(2)]
            [[7, 4], [9]]

        Args:
            num_bins: bins in each block, at least 1.
        """
        firsts = range(0, len(self), num_bins)
        starts = self.bin_starts()[::num_bins]  # the first sequence of each block
        bin_ends = self.bin_ends - np.repeat(starts, num_bins)[: len(self)]  # counted from the block's start
        block_ends = [*starts.tolist(), len(self.ids)][1:]
        for first, start, end in zip(firsts, starts.tolist(), block_ends, strict=True):
            last = first + num_bins
            yield self._cut(first, last, start, end, bin_ends=bin_ends[first:last])

    def padded(self, num_bins: int) -> "BinBlock":
        """Returns a block of `num_bins` bins: the bins of this block, then empty ones."""
        added = (0, num_bins - len(self))  # for `np.pad`: none before, these after
        end = int(self.bin_ends[-1]) if len(self) else 0
        return replace(
            self,
            bin_ends=np.pad(self.bin_ends, added, constant_values=end),
            positions=np.pad(self.positions, added, constant_values=ADDED),
            component_ids=None
            if self.component_ids is None
            else np.pad(self.component_ids, added, constant_values=NO_COMPONENT),
        )


def _part(array: NDArray[Any] | None, first: int, last: int) -> NDArray[Any] | None:
    """Returns the entries [first, last) of a field, as a view; None for a block without it."""
    return None if array is None else array[first:last]


def _part_of_tokens(tokens: SentTokens | None, first: int, last: int) -> SentTokens | None:
    """Returns the tokens of the sequences [first, last); None for a block without tokens."""
    return None if tokens is None else tokens.entries(first, last)


def joined(blocks: Sequence[BinBlock]) -> BinBlock:
    """Joins one or more blocks of a dataset into one block, whose steps are empty."""
    if len(blocks) == 1:
        return replace(blocks[0], steps=range(0))
    num_before = np.cumsum([0, *(len(block.ids) for block in blocks)])  # one more than blocks: the last is the total
    return BinBlock(
        ids=np.concatenate([block.ids for block in blocks]),
        lengths=np.concatenate([block.lengths for block in blocks]),
        bin_ends=np.concatenate([block.bin_ends + before for block, before in zip(blocks, num_before, strict=False)]),
        positions=np.concatenate([block.positions for block in blocks]),
        first_tokens=_joined_field(blocks, "first_tokens", np.int64(0)),
        component_ids=_joined_field(blocks, "component_ids", np.int32(NO_COMPONENT)),
        group_ids=_joined_field(blocks, "group_ids", np.int64(_NO_GROUP)),
        redactions=_joined_field(blocks, "redactions", np.int64(AS_IT_IS)),
        rows=_joined_field(blocks, "rows", np.uint16(0)),
        tokens=_tokens_of_all([block.tokens for block in blocks if len(block.ids)]),
        loss_mask=_tokens_of_all([block.loss_mask for block in blocks if len(block.ids)]),
    )


def _tokens_of_all(parts: Sequence[SentTokens | None]) -> SentTokens | None:
    """Joins the tokens of the blocks that have sequences; None if any of them came without tokens."""
    found = [part for part in parts if part is not None]
    return joined_tokens(found) if found and len(found) == len(parts) else None


def _joined_field(blocks: Sequence[BinBlock], name: str, missing: np.integer[Any]) -> NDArray[Any] | None:
    """Joins the field `name` of all blocks, filled with `missing` for a block without it; None if no block has it."""
    arrays = [getattr(block, name) for block in blocks]
    if all(array is None for array in arrays):
        return None
    sizes = [len(block if name == "component_ids" else block.ids) for block in blocks]
    return np.concatenate(
        [np.full(size, missing) if array is None else array for array, size in zip(arrays, sizes, strict=True)]
    )


def decode_bins(
    bins: pb.Bins,
    id_type: pb.IdType,
    *,
    templates: ReceivedTemplates | None = None,
    positions: Callable[[int], NDArray[np.int64]] = np.arange,
    context: int = 0,
    steps: range = range(0),
    tokens: pb.Tokens | None = None,
) -> BinBlock:
    """Decodes the little-endian bytes of a message into a block.

    Args:
        bins: the message.
        id_type: how the message encodes ids.
        templates: the templates that the stream has defined so far; None for a single answer.
        positions: function from the number of bins to their positions, for a message that does not give them.
        context: the request's part of the checksum, see `packhorse.wire`.
        steps: the worker's steps in the block.
        tokens: the message of the bins' tokens; None if they come without tokens.

    Raises:
        VersionMismatchError: the server is older than this client.
        DamagedAnswerError: the checksum does not match, or the arrays do not fit each other.
    """
    data = {name: getattr(bins, name) for name in BIN_ARRAYS}
    if is_of_version_1(bins, context):
        raise VersionMismatchError(
            "this server is older than the client: it sends every sequence's length, as wire version 1 did, and the "
            f"client reads version {WIRE_VERSION}; upgrade packhorse on the server's side to the release of the client",
            {"client_version": str(WIRE_VERSION), "server_version": "1"},
        )
    if bins_checksum(bins, context) != bins.checksum:
        raise DamagedAnswerError("the bins do not match their checksum: bytes changed on the way")
    if id_type not in _ID_DTYPES:
        raise DamagedAnswerError(f"the bins' ids are of type {id_type}, which this client does not know")
    arrays = {name: _array(name, data[name], dtype) for name, dtype in _DTYPES.items()}
    ids = _array("ids", data["ids"], _ID_DTYPES[id_type])
    lengths, bin_ends, component_ids = (templates or ReceivedTemplates()).expand(
        arrays["templates"],
        len(ids),
        TemplateDefinitions(
            numbers=arrays["defined_templates"],
            sizes=arrays["defined_sizes"],
            lengths=arrays["defined_lengths"],
            components=arrays["defined_components"],
        ),
    )
    first_tokens = _first_tokens(data["first_tokens"], len(ids))
    offsets = arrays["position_offsets"]
    if len(offsets):
        bin_positions = np.where(offsets == ADDED_OFFSET, ADDED, bins.base_position + offsets.astype(np.int64))
    else:
        bin_positions = positions(len(bin_ends))
    block = BinBlock(
        ids=ids.astype(np.int64),
        lengths=lengths,
        bin_ends=bin_ends,
        positions=bin_positions,
        steps=steps,
        first_tokens=first_tokens,
        component_ids=component_ids,
        group_ids=arrays["group_ids"].astype(np.int64, copy=False) if data["group_ids"] else None,  # to native bytes
        redactions=_redactions(arrays["redacted"], arrays["redacted_tokens"], len(ids)),
        rows=arrays["rows"] if data["rows"] else None,
    )
    arrays_of_sequences = [array for array in (first_tokens, block.group_ids, block.rows) if array is not None]
    if len(block.positions) != len(block) or any(len(array) != len(ids) for array in arrays_of_sequences):
        raise DamagedAnswerError("the arrays of the bins do not fit each other")
    if tokens is None:
        return block
    sent, loss_mask = decode_tokens(tokens, bins.checksum, lengths, first_tokens)
    return replace(block, tokens=sent, loss_mask=loss_mask)


def _first_tokens(data: bytes, num_sequences: int) -> NDArray[np.int64] | None:
    """Returns `BinBlock.first_tokens`, whose numbers have 4 or 8 bytes in a message."""
    if not data:
        return None
    dtype = np.dtype("<i8" if len(data) == 8 * num_sequences else "<u4")
    return _array("first_tokens", data, dtype).astype(np.int64, copy=False)


def _redactions(
    redacted: NDArray[np.uint32], tokens: NDArray[np.uint32], num_sequences: int
) -> NDArray[np.int64] | None:
    """Returns `BinBlock.redactions`, given the indices of the redacted sequences and the token that replaces each."""
    if not len(redacted) and not len(tokens):
        return None
    if len(redacted) != len(tokens) or redacted.max(initial=0) >= num_sequences:
        raise DamagedAnswerError("the arrays of the bins do not fit each other")
    redactions = np.full(num_sequences, AS_IT_IS)
    redactions[redacted] = np.where(tokens == MASKED_TOKEN, MASKED, tokens.astype(np.int64))
    return redactions


def _array(name: str, data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns bytes as an array without a copy; refuses a size that is not a multiple of the dtype's."""
    if len(data) % dtype.itemsize:
        raise DamagedAnswerError(f"the bins' {name} hold {len(data)} bytes, not a multiple of {dtype.itemsize}")
    return np.frombuffer(data, dtype=dtype)
