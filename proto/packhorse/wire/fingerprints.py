"""The fingerprint of a token file: a hash of at most 64 of its sequences.

By it a client notices that its tokens were made by another tokenizer than those from which the dataset was prepared.
A row is the number of a sequence in the file.
Leaves fingerprints of sets of ids to `id_sums`.
"""

from collections.abc import Callable
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

_MOST_SEQUENCES = 64


def rows_of_fingerprint(num_sequences: int) -> NDArray[np.int64]:
    """Returns the rows whose tokens a fingerprint covers: int64 [at most 64], ascending, the same in every process.

    Example:
        >>> rows_of_fingerprint(2)
        array([0, 1])

    Args:
        num_sequences: rows, at least 1.
    """
    return np.unique(np.random.default_rng(num_sequences).integers(num_sequences, size=_MOST_SEQUENCES))


def tokens_fingerprint(read: Callable[[int], NDArray[np.integer]], num_sequences: int) -> str:
    """Returns the fingerprint of tokens: 16 hexadecimal digits of the SHA-256 of at most 64 sequences.

    Tokens of another tokenizer differ in nearly every sequence, so their fingerprint differs too.

    Example:
        >>> tokens_fingerprint([np.array([1, 2]), np.array([3])].__getitem__, 2)
        '30840ba7bc1b9bf3'

    Args:
        read: returns the tokens of a row, one of `rows_of_fingerprint`: integers of any type [length].
        num_sequences: rows, at least 1.
    """
    digest = sha256()
    for row in rows_of_fingerprint(num_sequences).tolist():
        tokens = np.asarray(read(row)).astype("<i8")
        digest.update(np.array([row, len(tokens)], dtype="<i8").tobytes() + tokens.tobytes())
    return digest.hexdigest()[:16]
