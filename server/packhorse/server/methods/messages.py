"""Bins and their tokens as messages.

A message gives positions only if the request does not imply them. Its arrays are made for all bins at once. Leaves the
numbers of templates to `_sent_templates`, datasets to `dataset_messages`, and when messages are made to `backend` and
`open_stream`.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import MASKED, Manifest, Redacted
from packhorse.epoch import Bins
from packhorse.server.datasets.corpus import BinTokens
from packhorse.server.methods._sent_templates import NumberedTemplates, SentTemplates
from packhorse.topology import ADDED
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import (
    ADDED_OFFSET,
    BIN_ARRAYS,
    MASKED_TOKEN,
    arrays_checksum,
    tokens_checksum,
)

MAX_POSITION_SPREAD = ADDED_OFFSET
"""Most consecutive positions in one message: a position is sent as an offset of 32 bits, from 0 to ADDED_OFFSET - 1.
ADDED_OFFSET itself stands for a bin that was added."""


def as_declared(bins: Bins, manifest: Manifest) -> Bins:
    """Returns bins with ids and first tokens of their dataset's dtypes.

    Bins of a mixture have the dtypes of their components.
    """
    ids, first_tokens = bins.ids.astype(manifest.id_dtype, copy=False), bins.first_tokens
    if manifest.start_dtype is not None:
        first_tokens = np.zeros(len(ids), manifest.start_dtype) if first_tokens is None else first_tokens
        first_tokens = first_tokens.astype(manifest.start_dtype, copy=False)
    return replace(bins, ids=ids, first_tokens=first_tokens)


def components_in(bins: Bins) -> list[int]:
    """Returns the numbers of the components that have some of the bins, ascending; empty without a mixture."""
    if bins.component_ids is None:
        return []
    counts = np.bincount(bins.component_ids + 1)  # an empty bin has component -1, and is counted first
    return np.flatnonzero(counts[1:]).tolist()


def encode(
    bins: Bins,
    message: pb.Bins,
    context: int,
    numbered: NumberedTemplates | None = None,
    positions: NDArray[np.int64] | None = None,
    redacted: Redacted | None = None,
) -> None:
    """Writes bins into an empty message, which is part of a larger one: a message of their own would have to be copied.

    Args:
        bins: to be sent.
        message: empty.
        context: a number that the checksum begins with, of the request and the header; see `packhorse.wire`.
        numbered: the bins' templates; None for a single answer, which defines all of them.
        positions: the bins' positions as the client computes them: int64 [N]; None if it needs none.
        redacted: which sequences are redacted; None for none.
    """
    numbers, defining = SentTemplates().numbered(bins) if numbered is None else numbered
    defined_sizes, defined_lengths = _defined(bins, defining)
    base, offsets = 0, b""
    if positions is not None and not np.array_equal(bins.positions, positions):
        base, offsets = _offsets(bins.positions)
    first_tokens, group_ids = bins.first_tokens, bins.group_ids
    arrays = {
        "ids": _bytes(bins.ids, bins.ids.dtype),
        "templates": _bytes(numbers, np.uint32),
        "defined_templates": _bytes(numbers[defining], np.uint32),
        "defined_sizes": _bytes(defined_sizes, np.uint32),
        "defined_lengths": _bytes(defined_lengths, np.int32),
        "defined_components": b"" if bins.component_ids is None else _bytes(bins.component_ids[defining], np.uint32),
        "position_offsets": offsets,
        "first_tokens": b"" if first_tokens is None else _bytes(first_tokens, first_tokens.dtype),
        "group_ids": b"" if group_ids is None else _bytes(group_ids, np.int64),
        "redacted": b"" if redacted is None else _bytes(redacted.entries, np.uint32),
        "redacted_tokens": b"" if redacted is None else _replacements(redacted),
        "rows": b"" if bins.rows is None else _bytes(bins.rows, np.uint16),
    }
    for name, data in arrays.items():
        setattr(message, name, data)
    message.base_position = base
    message.checksum = arrays_checksum((arrays[name] for name in BIN_ARRAYS), base, context)


def encode_tokens(tokens: BinTokens, message: pb.Tokens, bins_checksum: int, *, has_prefixes: bool) -> None:
    """Writes the tokens of bins into an empty message.

    Args:
        tokens: of the bins.
        message: empty.
        bins_checksum: of the bins' message.
        has_prefixes: whether each entry begins at token 0, though its first token in the bin is a later one.
    """
    message.tokens = _bytes(tokens.tokens, tokens.tokens.dtype)
    message.token_bytes = tokens.tokens.dtype.itemsize
    if tokens.sizes is not None and tokens.whole_sizes is not None:
        message.sizes, message.whole_sizes = _bytes(tokens.sizes, np.uint32), _bytes(tokens.whole_sizes, np.int64)
    if tokens.loss_mask is not None:
        message.loss_mask = np.packbits(tokens.loss_mask, bitorder="little").tobytes()
    message.has_prefixes = has_prefixes
    message.checksum = tokens_checksum(message, bins_checksum)


def _defined(bins: Bins, defining: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Returns the sizes of some bins' templates, int64 [M], and their lengths, int32 [sum of the sizes]."""
    sizes = bins.sizes()[defining]
    ends = sizes.cumsum()
    # Indices into `bins.lengths`, where a bin's sequences end at its `bin_ends`; in `members` they end at its `ends`.
    members = np.repeat(bins.bin_ends[defining] - ends, sizes)
    members += np.arange(len(members))
    return sizes, bins.lengths[members]


def _offsets(positions: NDArray[np.int64]) -> tuple[int, bytes]:
    """Returns the lowest position, from which offsets count, and the offsets; ADDED_OFFSET for a bin that was added."""
    is_added = positions == ADDED
    base = 0 if is_added.all() else int(positions[~is_added].min())
    return base, _bytes(np.where(is_added, ADDED_OFFSET, positions - base), np.uint32)


def _replacements(redacted: Redacted) -> bytes:
    """Returns the token that replaces those of each redacted sequence, as bytes; MASKED_TOKEN if it keeps its own."""
    return _bytes(np.where(redacted.tokens == MASKED, MASKED_TOKEN, redacted.tokens), np.uint32)


def _bytes(array: NDArray[np.integer], dtype: "np.dtype[np.integer] | type[np.integer]") -> bytes:
    """Returns an array as little-endian bytes of a type."""
    return array.astype(np.dtype(dtype).newbyteorder("<"), copy=False).tobytes()
