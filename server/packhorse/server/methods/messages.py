"""Bins and their tokens as messages.

A message names each bin's template by a number, and gives positions only if the request does not imply them. Its arrays
are made for all bins at once. Leaves datasets to `dataset_messages`, and when messages are made to `backend` and
`open_stream`.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import MASKED, Manifest, Redacted
from packhorse.epoch import Bins
from packhorse.server.datasets.corpus import BinTokens
from packhorse.topology import ADDED
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import (
    ADDED_OFFSET,
    BIN_ARRAYS,
    KEPT_TEMPLATES,
    MASKED_TOKEN,
    arrays_checksum,
    tokens_checksum,
)

MAX_POSITION_SPREAD = ADDED_OFFSET
"""Largest difference of two positions in one message: a position is sent as an offset of 32 bits, the largest of which,
ADDED_OFFSET, means something else."""

_FEW_BINS = 32
"""Up to this many bins are numbered one by one, without arrays."""


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
    return [] if bins.component_ids is None else np.flatnonzero(np.bincount(bins.component_ids + 1)[1:]).tolist()


class Numbered(NamedTuple):
    """The templates of some bins by their numbers on the wire."""

    numbers: NDArray[np.int64]
    """Number of each bin's template on the wire: int64 [N]."""
    defining: NDArray[np.int64]
    """Indices of bins, one for each template that the client does not know, by ascending number: int64 [M]."""


class SentTemplates:
    """Which templates the client of a stream knows by now.

    A client remembers only templates below KEPT_TEMPLATES. Other templates, and bins without one, get numbers from
    KEPT_TEMPLATES on, which hold for one message.
    """

    def __init__(self) -> None:
        self._is_known = bytearray(1)  # a byte for each template, and a last one, always 0, for template -1: none

    def numbered(self, bins: Bins) -> Numbered:
        """Numbers the bins' templates, for a message that defines those that the client does not know yet."""
        templates = bins.templates if bins.templates is not None else np.full(len(bins), -1, dtype=np.int64)
        if len(templates) <= _FEW_BINS:
            return self._numbered_few(templates)
        unknown = self._unknown(templates)
        if not len(unknown):
            return Numbered(templates, unknown)
        is_kept = (templates[unknown] >= 0) & (templates[unknown] < KEPT_TEMPLATES)
        kept, others = unknown[is_kept], unknown[~is_kept]
        numbers = templates.copy() if len(others) else templates
        numbers[others] = KEPT_TEMPLATES + np.arange(len(others))
        new, first_uses = np.unique(templates[kept], return_index=True)
        self._make_room(int(new.max(initial=-1)))
        np.frombuffer(self._is_known, dtype=np.bool_)[new] = True
        return Numbered(numbers, np.concatenate((kept[first_uses], others)))

    def _numbered_few(self, templates: NDArray[np.int64]) -> Numbered:
        """Returns the same as `numbered`, without arrays: each operation on an array costs more than a few bins do."""
        numbers = templates.tolist()
        self._make_room(max((each for each in numbers if each < KEPT_TEMPLATES), default=-1))
        unknown: dict[int, int] = {}
        others: list[int] = []
        for index, template in enumerate(numbers):
            if not 0 <= template < KEPT_TEMPLATES:
                numbers[index] = KEPT_TEMPLATES + len(others)
                others.append(index)
            elif not self._is_known[template]:
                unknown.setdefault(template, index)
        for template in unknown:
            self._is_known[template] = True
        defining = [unknown[template] for template in sorted(unknown)] + others
        return Numbered(np.array(numbers, dtype=np.int64), np.array(defining, dtype=np.int64))

    def _make_room(self, template: int) -> None:
        """Makes room for templates up to `template`, inclusive."""
        self._is_known.extend(bytes(max(0, template + 2 - len(self._is_known))))

    def _unknown(self, templates: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the indices of bins whose template the client does not know, or that have none: int64 [M]."""
        is_known = np.frombuffer(self._is_known, dtype=np.bool_)
        try:
            known = is_known.take(templates)  # -1 takes the last byte, which is 0
        except IndexError:  # a new greatest number has to take the last byte too, like -1, which is huge as uint64
            last = np.uint64(len(is_known) - 1)
            known = is_known.take(np.minimum(templates.view(np.uint64), last).view(np.int64))
        return np.flatnonzero(~known)


def encode(
    bins: Bins,
    message: pb.Bins,
    context: int,
    numbered: Numbered | None = None,
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
