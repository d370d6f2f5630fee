"""Whether tokens are those that a dataset was prepared from.

Owns reading the rows that decide; leaves the fingerprint itself to `packhorse.wire`.
"""

import numpy as np

from packhorse.tokens.base import TokenSource, TokenSourceError
from packhorse.wire import rows_of_fingerprint, tokens_fingerprint


def check_tokens(source: TokenSource, fingerprint: str, num_sequences: int) -> None:
    """Refuses other tokens than those that a dataset was prepared from, by a fingerprint of 64 sequences.

    Args:
        source: the tokens; it may hold more sequences, as a file does that has grown.
        fingerprint: of the first `num_sequences`, as `packhorse.wire.tokens_fingerprint` makes it.
        num_sequences: at least 1.

    Raises:
        TokenSourceError: they are others, or fewer.
    """
    if fingerprint_of(source, num_sequences) != fingerprint:
        raise TokenSourceError(
            "other tokens than those that the dataset was prepared from (made again, with another tokenizer?): "
            f"{source}; prepare it again, or give tokens= with the right ones"
        )


def fingerprint_of(source: TokenSource, num_sequences: int) -> str:
    """Returns the fingerprint of the first `num_sequences` rows of a source, at least 1.

    Raises:
        TokenSourceError: one of the 64 that are read is missing, or is no list of tokens.
    """
    rows = rows_of_fingerprint(num_sequences)
    lengths = source.lengths(rows)
    tokens = np.split(source.end_to_end(rows, lengths), np.cumsum(lengths)[:-1])
    of_row = dict(zip(rows.tolist(), tokens, strict=True))
    return tokens_fingerprint(of_row.__getitem__, num_sequences)
