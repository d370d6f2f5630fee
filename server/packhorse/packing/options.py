"""The options that make a sequence take more room than it has tokens: `align` and `extra_tokens`.

Owns their one formula, effective length = ceil((length + extra_tokens) / align) · align, for histograms and lists;
leaves to the packers that they see effective lengths only.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from packhorse.packing.checks import checked_integer
from packhorse.packing.plan import MAX_SEQ_LEN


def checked_options(align: object, extra_tokens: object) -> tuple[int, int]:
    """Returns (align, extra_tokens) as ints.

    Args:
        align: a sequence's room is rounded up to a multiple of this many tokens (context and tensor parallelism).
        extra_tokens: tokens added to every sequence before that (BOS, EOS).

    Raises:
        ValueError: align is no integer in [1, MAX_SEQ_LEN], or extra_tokens none in [0, MAX_SEQ_LEN].
    """
    return (
        checked_integer("align", align, 1, MAX_SEQ_LEN),
        checked_integer("extra_tokens", extra_tokens, 0, MAX_SEQ_LEN),
    )


def effective_counts(counts: Mapping[int, int], max_seq_len: int, align: int, extra_tokens: int) -> Mapping[int, int]:
    """Returns counts by effective length; lengths that come to the same are taken together.

    Args:
        counts: length in tokens → number of sequences; checked.
        max_seq_len: a bin's capacity in tokens.
        align: as in `checked_options`.
        extra_tokens: as in `checked_options`.

    Raises:
        ValueError: an effective length is over max_seq_len.
    """
    if align == 1 and not extra_tokens:
        return counts
    merged: dict[int, int] = {}
    for key, count in counts.items():
        length = int(key)  # sums with a small NumPy integer could overflow
        effective = -(-(length + extra_tokens) // align) * align
        if effective > max_seq_len:
            raise ValueError(_over_length(f"length {length}", effective, max_seq_len, align, extra_tokens))
        merged[effective] = merged.get(effective, 0) + count
    return merged


def effective_lengths(lengths: NDArray[np.int64], max_seq_len: int, align: int, extra_tokens: int) -> NDArray[np.int64]:
    """Returns effective lengths, int64 [S], of checked `lengths`, int64 [S]; the same array where nothing changes.

    Args:
        lengths: int64 [S], in tokens, each in [1, max_seq_len].
        max_seq_len: a bin's capacity in tokens.
        align: as in `checked_options`.
        extra_tokens: as in `checked_options`.

    Raises:
        ValueError: an effective length is over max_seq_len; names the first.
    """
    if align == 1 and not extra_tokens:
        return lengths
    effective: NDArray[np.int64] = -(-(lengths + extra_tokens) // align) * align
    over = effective > max_seq_len
    if over.any():
        index = int(np.argmax(over))
        name = f"lengths[{index}] = {int(lengths[index])}"
        raise ValueError(_over_length(name, int(effective[index]), max_seq_len, align, extra_tokens))
    return effective


def _over_length(name: str, effective: int, max_seq_len: int, align: int, extra_tokens: int) -> str:
    return (
        f"{name} takes {effective} tokens with extra_tokens {extra_tokens} and align {align}, over max_seq_len "
        f"{max_seq_len}: raise max_seq_len, or drop, truncate or split it first"
    )
