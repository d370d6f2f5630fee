"""`MappedSource`: a base class for tokens that lie end to end in memory, copied as bytes.

Owns copying many sequences at once; where they are, each subclass finds. What a source is, is in `base`.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.tokens.base import (
    Gather,
    TokenSource,
    TokenSourceError,
    refuse_length,
    refuse_truncated,
    write_end_to_end,
)


class Ranges(NamedTuple):
    """Where sequences are in memory. Legend: S sequences."""

    buffers: Iterable[memoryview]
    """The buffer that holds each sequence: S of them, or more, such as one that is repeated endlessly."""
    begins_bytes: NDArray[np.int64]
    """Where each sequence begins in its buffer, in bytes: int64 [S]."""
    lengths: NDArray[np.int64]
    """Number of tokens of each sequence: int64 [S]."""


class MappedSource(TokenSource):
    """A source of tokens of one type that lie in memory, usually in mapped files, which forked processes share."""

    _dtype: np.dtype[Any]
    """Type of every token."""

    @abstractmethod
    def _locate(self, ids: NDArray[np.int64]) -> Ranges:
        """Finds sequences; a TokenSourceError if an id is missing."""

    @property
    def knows_lengths(self) -> bool:
        """True; see `TokenSource.knows_lengths`."""
        return True

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """Type of every token; see `TokenSource.token_dtype`."""
        return self._dtype

    @property
    def may_be_out_of_range(self) -> bool:
        """Whether the type is signed or wider than 16 bits; see `TokenSource.may_be_out_of_range`."""
        return self._dtype.kind != "u" or self._dtype.itemsize > 2

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Returns tokens of one sequence, a view; see `TokenSource.read`."""
        buffers, begins_bytes, lengths = self._locate(np.array([sequence_id]))
        left = max(int(lengths[0]) - start, 0)
        count = left if length is None else min(left, length)
        if not count:
            return np.empty(0, self._dtype)
        return np.frombuffer(
            next(iter(buffers)), self._dtype, count, int(begins_bytes[0]) + start * self._dtype.itemsize
        )

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the lengths of whole sequences; see `TokenSource.lengths`."""
        return self._locate(ids).lengths

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
        self._write(self._slices(ids, lengths, first_tokens, truncate=truncate), lengths, out, out_starts)

    def gather_from(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        *,
        first_tokens: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> Gather:
        """Finds all sequences now, and copies them batch by batch; see `TokenSource.gather_from`."""
        try:
            slices = self._slices(ids, lengths, first_tokens, truncate=truncate)
        except TokenSourceError:  # raised again by the batch that has the sequence, after those before it
            return super().gather_from(ids, lengths, first_tokens=first_tokens, truncate=truncate)

        def gather(first: int, last: int, out: NDArray[np.integer], out_starts: NDArray[np.int64]) -> None:
            self._write(slices[first:last], lengths[first:last], out, out_starts)

        return gather

    def end_to_end(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        *,
        first_tokens: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> NDArray[np.integer]:
        """Returns sequences one after the other, in their own type; see `TokenSource.end_to_end`."""
        slices = self._slices(ids, lengths, first_tokens, truncate=truncate)
        values = np.frombuffer(b"".join(slices), self._dtype)
        if len(values) != int(lengths.sum()):  # a slice beyond the end of a buffer is short
            refuse_truncated()
        return values

    def _slices(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        first_tokens: NDArray[np.int64] | None,
        *,
        truncate: bool,
    ) -> list[memoryview]:
        """Returns the bytes of each sequence, or piece: S views; refuses lengths other than planned.

        Arguments are those of `gather`.
        """
        buffers, begins_bytes, held = self._locate(ids)
        planned = lengths.astype(np.int64, copy=False)
        planned_ends = planned if first_tokens is None else first_tokens + planned
        # A piece, or a sequence that may be truncated, may be followed by more tokens of its sequence.
        is_whole = first_tokens is None and not truncate
        is_wrong = held != planned_ends if is_whole else held < planned_ends
        if is_wrong.any():
            i = int(is_wrong.argmax())
            start = 0 if first_tokens is None else int(first_tokens[i])
            refuse_length(int(ids[i]), int(planned[i]), int(held[i]), start=start, is_whole=is_whole)
        itemsize = self._dtype.itemsize
        if first_tokens is not None:
            begins_bytes = begins_bytes + first_tokens * itemsize
        ends_bytes = begins_bytes + planned * itemsize
        return [
            buffer[begin:end]
            for buffer, begin, end in zip(buffers, begins_bytes.tolist(), ends_bytes.tolist(), strict=False)
        ]

    def _write(
        self,
        slices: list[memoryview],
        lengths: NDArray[np.integer],
        out: NDArray[np.integer],
        out_starts: NDArray[np.int64],
    ) -> None:
        """Copies the bytes of sequences to where each begins in `out`."""
        # Slices are joined as bytes, and then converted to the type of `out` in as few steps as possible: slicing
        # memory takes half the time of slicing an array, and a conversion for each sequence takes longer than copying
        # its tokens. Twice as fast for 64 sequences of 256 tokens.
        write_end_to_end(np.frombuffer(b"".join(slices), self._dtype), lengths, out, out_starts)
