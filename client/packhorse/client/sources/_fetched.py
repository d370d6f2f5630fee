"""Sources that fetch whole sequences, at some cost: what was fetched for the lengths also serves the tokens.

Owns holding a batch's sequences between the two; leaves fetching to each source.
"""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources.base import TokenSource


class FetchSource(TokenSource):
    """A source that reads or decodes sequences, best many at once.

    `lengths` holds what it fetched until the next `gather` or `lengths`: one batch, which asks for both.
    """

    def __init__(self) -> None:
        self._held: dict[int, NDArray[np.integer]] = {}

    @abstractmethod
    def _fetch(self, ids: NDArray[np.int64]) -> list[NDArray[np.integer]]:
        """Returns whole sequences in the order of ids; views where they pin no more than a map, else copies.

        Raises:
            TokenSourceError: an id is missing, or its tokens are no integers.
        """

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": {}}

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Returns tokens of one sequence; see `TokenSource.read`."""
        tokens = self._held.get(sequence_id)
        if tokens is None:
            tokens = self._fetch(np.array([sequence_id]))[0]
        return tokens[start:] if length is None else tokens[start : start + length]

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns whole sequences' lengths; see `TokenSource.lengths`."""
        fetched = self._fetch(ids)
        self._held = dict(zip(ids.tolist(), fetched, strict=True))
        return np.array([len(tokens) for tokens in fetched], dtype=np.int64)

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
        """Writes many sequences; see `TokenSource.gather`."""
        try:
            missing = list(dict.fromkeys(sequence_id for sequence_id in ids.tolist() if sequence_id not in self._held))
            if missing:
                fetched = self._fetch(np.array(missing))
                self._held |= dict(zip(missing, fetched, strict=True))
            super().gather(ids, lengths, out, out_starts, first_tokens=first_tokens, truncate=truncate)
        finally:
            self._held = {}
