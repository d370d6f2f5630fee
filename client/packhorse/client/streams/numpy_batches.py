"""Batches as NumPy arrays, made of bins that the server sends with their tokens. Nothing here needs torch.

Owns the arrays. Leaves the stream to `stream`, and PyTorch's batches to `packhorse.client.batches`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.streams.blocks import AS_IT_IS, BinBlock
from packhorse.client.streams.sent_tokens import SentTokens
from packhorse.client.streams.stream import BinStream
from packhorse.types import StreamHeader


class BatchStream:
    """Batches of one (epoch, rank, worker), in order, each exactly once even if servers fail.

    A batch is a dict of arrays. Legend: B bins, L = `max_seq_len`.

    tokens         int32 [B, L], 0 in padding
    targets        int32 [B, L]: the next token of the same sequence, 0 for a sequence's last token and in padding
    loss_mask      bool [B, L]: whether the target is to be predicted
    segment_ids    int32 [B, L]: 1, 2, … for the sequences of a row, 0 in padding
    positions      int32 [B, L]: 0, 1, … within each sequence, 0 in padding
    step           int: the rank's step
    position       int: the position to resume at, under any topology, after every rank has taken this step

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client, client.stream_batches("corpus", seed=1) as batches:
        ...     for batch in batches:
        ...         print(batch["segment_ids"].tolist(), "resume at", batch["position"])
        [[1, 1, 1, 1, 1, 2, 2, 2]] resume at 1
        [[1, 1, 1, 1, 1, 2, 2, 2]] resume at 2

    Args:
        stream: a stream of bins that come with their tokens.
    """

    def __init__(self, stream: BinStream) -> None:
        self._stream = stream

    @property
    def header(self) -> StreamHeader:
        """Facts about the stream."""
        return self._stream.header

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the batches that are left; the client's exceptions pass through.

        Raises:
            ValueError: the dataset's groups share prefixes; their batches would be trees, which need torch.
        """
        header = self._stream.header
        if header.shares_prefixes:
            raise ValueError(
                "groups of this dataset share prefixes: its batches are trees, which need packhorse[client]"
            )
        for block in self._stream:
            end = 0  # the bins of each step follow those of the step before it
            for stretch, steps in self._stream.topology.by_stretch(block.steps):
                for step in steps:
                    begin, end = end, end + stretch.batch_size
                    batch = _arrays_of(block.slice(begin, end), header.max_seq_len)
                    yield batch | {"step": step, "position": self._stream.position_after(step)}

    def close(self) -> None:
        """Ends the call."""
        self._stream.close()

    def __enter__(self) -> "BatchStream":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _arrays_of(block: BinBlock, max_seq_len: int) -> dict[str, Any]:
    """Returns the arrays of a block's bins, which came with their tokens; see `BatchStream`."""
    num_tokens = len(block) * max_seq_len
    arrays = {name: np.zeros(num_tokens, np.int32) for name in ("tokens", "targets", "segment_ids", "positions")}
    loss_mask = np.zeros(num_tokens, np.bool_)
    assert block.tokens is not None  # `BatchStream` is given a stream that asks for them
    if len(block.ids):  # else the remainder policy added all of these bins, and they stay empty
        _write(block, block.tokens, max_seq_len, arrays, loss_mask)
    shape = len(block), max_seq_len
    return {name: array.reshape(shape) for name, array in arrays.items()} | {"loss_mask": loss_mask.reshape(shape)}


def _write(
    block: BinBlock,
    sent: SentTokens,
    max_seq_len: int,
    arrays: dict[str, NDArray[np.int32]],
    loss_mask: NDArray[np.bool_],
) -> None:
    """Writes all sequences of a block into flat arrays of zeros, one element for each token of all rows.

    A sequence has as many tokens as were sent, and as much room in its row as its bin's plan says (`block.lengths`).
    Alignment leaves the room's end free; with extra_tokens -1 the room lacks the last token, which is only a target.

    Legend: S sequences, N bins, W tokens that are written to `tokens`.
    """
    sizes = sent.sizes  # [S]
    rooms = block.lengths.astype(np.int64)  # [S]
    sequences_per_bin = np.diff(block.bin_ends, prepend=0)  # [N]: bin_ends [2, 3] -> [2, 1]
    first_of_bin = np.repeat(block.bin_starts(), sequences_per_bin)  # [S]: the first sequence of each one's bin
    row_starts = np.repeat(np.arange(len(block)) * max_seq_len, sequences_per_bin)  # [S]: where each one's row begins
    room_starts = _starts(rooms)  # [S], as if the rooms of all bins were end to end, without the rests of the rows
    starts = row_starts + room_starts - room_starts[first_of_bin]  # [S]: where each one's first token is written
    values = _end_to_end(sent)
    is_predicted = np.ones(len(values), np.bool_)
    if block.loss_mask is not None:
        is_predicted = _end_to_end(block.loss_mask) != 0
    if block.redactions is not None:
        is_predicted &= np.repeat(block.redactions == AS_IT_IS, sizes)
    num_written = np.minimum(sizes, rooms)  # [S]
    number_in_sequence = np.arange(int(num_written.sum())) - np.repeat(_starts(num_written), num_written)  # [W]
    row_index = np.repeat(starts, num_written) + number_in_sequence  # [W]: where each token is written
    value_index = np.repeat(_starts(sizes), num_written) + number_in_sequence  # [W]: where in `values` it is read
    arrays["tokens"][row_index] = values[value_index]
    arrays["positions"][row_index] = number_in_sequence
    arrays["segment_ids"][row_index] = np.repeat(np.arange(len(sizes)) - first_of_bin + 1, num_written)
    has_next = number_in_sequence + 1 < np.repeat(sizes, num_written)
    arrays["targets"][row_index[has_next]] = values[value_index[has_next] + 1]
    loss_mask[row_index[has_next]] = is_predicted[value_index[has_next] + 1]


def _end_to_end(sent: SentTokens) -> NDArray[np.int32]:
    """Returns the values of all sequences end to end."""
    sizes = sent.sizes
    values = np.empty(int(sizes.sum()), np.int32)
    no_ids = np.empty(0, np.int64)  # the values are those of the block's sequences, whatever their ids
    gather = sent.gather_from(no_ids, sizes, first_tokens=sent.first_tokens)
    gather(0, len(sizes), values, _starts(sizes))
    return values


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns where each item begins if items of these sizes lie end to end: [3, 2, 4] -> [0, 3, 5]."""
    return np.cumsum(sizes) - sizes
