"""`EveryToken`: the loss mask of tokens that have none, which trains on every token.

A mixture needs it if only some of its components have a mask; see `mixture`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.tokens.base import TokenSource


class EveryToken(TokenSource):
    """The loss mask of a component that has none: 1 for each of its tokens."""

    def __init__(self, tokens: TokenSource) -> None:
        self._tokens = tokens

    @property
    def knows_lengths(self) -> bool:
        """Whether the tokens' source knows lengths without reading tokens."""
        return self._tokens.knows_lengths

    def for_ids(self, id_column: str) -> "EveryToken":
        """Returns the mask of the tokens' source for these ids; see `TokenSource.for_ids`."""
        return EveryToken(self._tokens.for_ids(id_column))

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Returns as many ones as there are tokens."""
        return np.ones(len(self._tokens.read(sequence_id, start, length)), dtype=np.uint8)

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the lengths of the tokens."""
        return self._tokens.lengths(ids)

    def gather(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        out: NDArray[np.integer],
        out_starts: NDArray[np.int64],
        *,
        first_tokens: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> None:
        """Writes ones, without checking lengths: gathering the tokens themselves checks them."""
        for start, length in zip(out_starts.tolist(), lengths.tolist(), strict=True):
            out[start : start + length] = 1
