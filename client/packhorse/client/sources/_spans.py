"""Sources whose tokens lie end to end in memory, mapped or not: one gather for all of them.

Owns checking spans against the plan and copying them; leaves where a sequence's span is to each source.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources.base import TokenSource, TokenSourceError, refuse_length


class Spans(NamedTuple):
    """Where sequences lie. Legend: S sequences."""

    buffers: Iterable[memoryview]
    """What each lies in, as bytes: at least S."""
    firsts: NDArray[np.int64]
    """Its first token there, in bytes: int64 [S]."""
    lengths: NDArray[np.int64]
    """Its tokens: int64 [S]."""


class SpanSource(TokenSource):
    """A source of tokens of one type, in memory that forks share."""

    _dtype: np.dtype[Any]
    """Of every token."""

    @abstractmethod
    def _spans(self, ids: NDArray[np.int64]) -> Spans:
        """Finds sequences.

        Raises:
            TokenSourceError: an id is missing.
        """

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Returns tokens of one sequence, a view; see `TokenSource.read`."""
        buffers, firsts, lengths = self._spans(np.array([sequence_id]))
        left = max(int(lengths[0]) - start, 0)
        count = left if length is None else min(left, length)
        if not count:
            return np.empty(0, self._dtype)
        return np.frombuffer(next(iter(buffers)), self._dtype, count, int(firsts[0]) + start * self._dtype.itemsize)

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns whole sequences' lengths; see `TokenSource.lengths`."""
        return self._spans(ids).lengths

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
        buffers, firsts, held = self._spans(ids)
        wanted = lengths.astype(np.int64, copy=False)
        wanted_end = wanted if first_tokens is None else first_tokens + wanted
        is_whole = first_tokens is None and not truncate
        is_wrong = held != wanted_end if is_whole else held < wanted_end
        if is_wrong.any():
            i = int(is_wrong.argmax())
            start = 0 if first_tokens is None else int(first_tokens[i])
            refuse_length(int(ids[i]), int(wanted[i]), int(held[i]), start=start, is_whole=is_whole)
        itemsize = self._dtype.itemsize
        if first_tokens is not None:
            firsts = firsts + first_tokens * itemsize
        stops = firsts + wanted * itemsize
        # Joined as bytes first, then converted a run at a time: a slice of memory costs half of an array's, and a
        # conversion for each sequence costs more than its tokens. Twice as fast at 64 sequences of 256 tokens.
        joined = b"".join(
            [buffer[first:stop] for buffer, first, stop in zip(buffers, firsts.tolist(), stops.tolist(), strict=False)]
        )
        _write_runs(np.frombuffer(joined, self._dtype), wanted, out, out_starts)


def _write_runs(
    tokens: NDArray[np.integer], lengths: NDArray[np.int64], out: NDArray[np.integer], out_starts: NDArray[np.int64]
) -> None:
    """Writes sequences that lie end to end in `tokens` to their places, those that follow one another at once."""
    if not len(lengths):
        return
    ends = lengths.cumsum()
    if ends[-1] != len(tokens):
        raise TokenSourceError("the data ends before a sequence that it lists does: it is truncated or corrupt")
    shifts = out_starts - ends
    shifts += lengths
    breaks = np.flatnonzero(shifts[1:] != shifts[:-1])
    first = 0
    for stop, shift in zip(ends[breaks].tolist(), shifts[breaks].tolist(), strict=True):
        out[first + shift : stop + shift] = tokens[first:stop]
        first = stop
    shift = int(shifts[-1])
    out[first + shift : len(tokens) + shift] = tokens[first:]
