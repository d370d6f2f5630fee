"""`FetchSource`: a base class for sequences that must be decoded, which holds those of one batch.

Owns when sequences are fetched. What a source is, is in `base`; turning what came into integers is in `integers`.
"""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.tokens.base import TokenSource


class FetchSource(TokenSource):
    """A source that reads or decodes whole sequences, preferably many together.

    To tell lengths it must fetch the sequences, so `lengths` holds them in memory until the next `gather`.
    """

    def __init__(self) -> None:
        self._held: dict[int, NDArray[np.integer]] = {}  # id → tokens, from `lengths` to the next `gather`

    @abstractmethod
    def _fetch(self, ids: NDArray[np.int64]) -> list[NDArray[np.integer]]:
        """Returns whole sequences in the order of ids.

        They are views of mapped files, or copies: a view of other memory would keep all of it.

        Raises:
            TokenSourceError: an id is missing, or its tokens are not integers.
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
        """Returns the lengths of whole sequences; see `TokenSource.lengths`."""
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
        """Writes sequences; see `TokenSource.gather`."""
        try:
            missing = list(dict.fromkeys(sequence_id for sequence_id in ids.tolist() if sequence_id not in self._held))
            if missing:
                fetched = self._fetch(np.array(missing))
                self._held |= dict(zip(missing, fetched, strict=True))
            super().gather(ids, lengths, out, out_starts, first_tokens=first_tokens, truncate=truncate)
        finally:
            self._held = {}
