"""`MegatronTokens`: the sequences of a pair `.bin` and `.idx`, memory-mapped.

Leaves the index to `index`, and reading tokens to `formats.mapping`.
"""

import os

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.mapping import MappedTokens
from packhorse.formats.megatron.index import MegatronIndex
from packhorse.formats.megatron.paths import megatron_paths


class MegatronTokens(MappedTokens):
    """The sequences of a Megatron `.bin`/`.idx` pair, memory-mapped. Legend: S sequences.

    Pickles by path and reopens when first used, so sending it to a spawned DataLoader worker takes a few bytes. A
    forked worker shares the read-only map.

    Example:
        >>> tokens = MegatronTokens("corpus.idx")
        >>> len(tokens), tokens.read(0, start=3).tolist()
        (4, [3, 4])
    """

    index: MegatronIndex

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens and checks the pair; O(S) once.

        Args:
            path: `X`, `X.bin` or `X.idx`.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ValueError: the index is not valid or does not fit the `.bin`.
        """
        tokens, index = megatron_paths(path)
        for missing, there in ((tokens, index), (index, tokens)):
            if there.exists() and not missing.exists():
                raise FileNotFoundError(
                    f"{there} is there and {missing} is not: a Megatron token file is a pair; copy both into one folder"
                )
        size_bytes = tokens.stat().st_size
        super().__init__(tokens, MegatronIndex(path, bin_size_bytes=size_bytes), size_bytes)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Lengths in tokens: int32 [S], read-only and not aligned."""
        return self.index.lengths
