"""Whether tokens are those that a dataset was prepared from.

Owns reading the rows that decide; leaves the fingerprint itself to `packhorse.wire`.
"""

import numpy as np
from numpy.typing import NDArray

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
    rows = rows_of_fingerprint(num_sequences)
    lengths = source.lengths(rows)
    gather = source.gather_from(rows, lengths)  # finds all of them at once
    number_of = {row: number for number, row in enumerate(rows.tolist())}

    def read(row: int) -> NDArray[np.int64]:
        number = number_of[row]
        tokens = np.empty(int(lengths[number]), dtype=np.int64)
        gather(number, number + 1, tokens, np.zeros(1, dtype=np.int64))
        return tokens

    if tokens_fingerprint(read, num_sequences) != fingerprint:
        raise TokenSourceError(
            "other tokens than those that the dataset was prepared from (made again, with another tokenizer?): "
            f"{source}; prepare it again, or give tokens= with the right ones"
        )
