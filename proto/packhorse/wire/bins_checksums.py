"""Checksums of messages of bins and of their tokens.

Owns which arrays of a message are hashed by XXH3-64, and in which order. Leaves the hash's seed, the `context`, which
is a hash of the request, to `wire/checksums`.
"""

from collections.abc import Iterable

import xxhash

from packhorse.v1 import packing_pb2 as pb

BIN_ARRAYS = (
    "ids",
    "templates",
    "defined_templates",
    "defined_sizes",
    "defined_lengths",
    "defined_components",
    "position_offsets",
    "first_tokens",
    "group_ids",
    "redacted",
    "redacted_tokens",
    "rows",
)
"""The arrays of a message of bins, in the order in which they are hashed."""

_LATER = ("group_ids", "redacted", "redacted_tokens", "rows")
"""Arrays that were added later. Empty ones are not hashed, so that messages without them keep their checksum."""


def bins_checksum(bins: pb.Bins, context: int = 0) -> int:
    """Returns the checksum of a message of bins, see `arrays_checksum`.

    Example:
        >>> bins = pb.Bins(ids=b"abcd")
        >>> bins_checksum(bins, context=1) == bins_checksum(bins, context=2)
        False

    Args:
        bins: the message; its own `checksum` is left out.
        context: the hash's seed, from `block_context` or `get_bins_context`.
    """
    return arrays_checksum((getattr(bins, name) for name in BIN_ARRAYS), bins.base_position, context)


def tokens_checksum(tokens: pb.Tokens, context: int) -> int:
    """Returns the checksum of the tokens of a message of bins; in [0, 2^64).

    Example:
        >>> tokens = pb.Tokens(tokens=b"ab", token_bytes=2)
        >>> tokens_checksum(tokens, 1) == tokens_checksum(tokens, 2)
        False

    Args:
        tokens: the message; its own `checksum` is left out.
        context: the hash's seed: the checksum of the bins, which depends on the stream and the steps.
    """
    state = xxhash.xxh3_64(seed=context)
    for part in (tokens.tokens, tokens.sizes, tokens.whole_sizes, tokens.loss_mask):
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    state.update(tokens.token_bytes.to_bytes(8, "little", signed=True))
    state.update(int(tokens.has_prefixes).to_bytes(8, "little"))
    return int(state.intdigest())


def arrays_checksum(arrays: Iterable[bytes], base_position: int, context: int = 0) -> int:
    """Returns the XXH3-64 of arrays, each after its size in bytes, then of base_position; in [0, 2^64).

    Size and base_position are hashed as 8 little-endian bytes.

    Example:
        >>> arrays_checksum([b"abcd", *[b""] * 7], 0) == bins_checksum(pb.Bins(ids=b"abcd"))  # ids to first_tokens
        True

    Args:
        arrays: in the order of `BIN_ARRAYS`; the last four, which were added later, may be left out if they are empty.
        base_position: as in the message.
        context: the hash's seed, as for `bins_checksum`.
    """
    state = xxhash.xxh3_64(seed=context)
    for name, part in zip(BIN_ARRAYS, arrays, strict=False):
        if name in _LATER and not part:
            continue
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    state.update(base_position.to_bytes(8, "little", signed=True))
    return int(state.intdigest())
