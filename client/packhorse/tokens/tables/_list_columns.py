"""Lists of Arrow data as NumPy arrays: what Arrow's list layouts mean.

Leaves which column holds tokens to `_token_columns`, and which row an id is in to `row_lookup`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.arrow import nulls_of, values_of
from packhorse.formats.extras import ARROW, require
from packhorse.tokens.base import TokenSourceError


class Located(NamedTuple):
    """Where each of S sequences is in memory."""

    buffers: list[memoryview]
    """The buffer that holds each sequence; sequences of one chunk share its buffer."""
    starts: NDArray[np.int64]
    """Number of each sequence's first token in its buffer: int64 [S]."""
    lengths: NDArray[np.int64]
    """Number of tokens of each sequence: int64 [S]."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive rows that lie in one buffer. Legend: R rows."""

    offsets: Sequence[int]
    """Where each row begins in `values`, in tokens, and where the last ends: [R + 1], ascending."""
    values: memoryview
    """Tokens end to end, as bytes."""
    is_null: NDArray[np.bool_] | None
    """Which rows are null or hold a null: bool [R]; None if no row is."""


class ListColumn:
    """A list column in chunks, as views of Arrow's memory. Legend: N rows, S sequences."""

    def __init__(
        self, arrays: Iterable[Any], *, dtype: np.dtype[Any], where: str, column: str, nbytes: int = 0
    ) -> None:
        """Takes Arrow's list arrays.

        Args:
            arrays: list arrays of one type.
            dtype: type of a token.
            where: the data, for messages.
            column: name of the column, for messages.
            nbytes: bytes of memory that the arrays keep; 0 if they are mapped.
        """
        sizes: list[int] = []
        self._chunks: list[_Chunk] = []
        is_fixed = require("pyarrow", ARROW).types.is_fixed_size_list
        for array in arrays:
            if len(array):
                sizes.append(len(array))
                self._chunks.append(_view(array, dtype.itemsize, is_fixed=is_fixed(array.type)))
        self._row_ends = np.cumsum(sizes, dtype=np.int64)
        self.dtype = dtype
        self.nbytes = nbytes
        self._where = where
        self._column = column

    def __len__(self) -> int:
        return int(self._row_ends[-1]) if len(self._row_ends) else 0

    def end_to_end(self) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.integer]]:
        """Copies the column into one piece.

        Returns:
            Where rows begin and the last ends, in tokens, int64 [N + 1]; which rows are null, bool [N]; all tokens.
        """
        # Each list begins with an array of no rows, in case there is no chunk; the first row begins at token 0.
        lengths, are_null, tokens = [np.zeros(1, np.int64)], [np.zeros(0, np.bool_)], [np.empty(0, self.dtype)]
        for chunk in self._chunks:
            offsets = np.asarray(chunk.offsets, np.int64)
            lengths.append(np.diff(offsets))
            are_null.append(np.zeros(len(offsets) - 1, np.bool_) if chunk.is_null is None else chunk.is_null)
            first, last = int(offsets[0]), int(offsets[-1])
            tokens.append(np.frombuffer(chunk.values, self.dtype, last - first, first * self.dtype.itemsize))
        return np.cumsum(np.concatenate(lengths)), np.concatenate(are_null), np.concatenate(tokens)

    def locate(self, rows: NDArray[np.int64], ids: NDArray[np.int64]) -> Located:
        """Finds the sequences in some rows, int64 [S]; `ids` are the sequences' ids, for messages.

        Raises:
            TokenSourceError: a row is null, or holds a null.
        """
        numbers = np.searchsorted(self._row_ends, rows, side="right")  # of chunks
        begins = self._row_ends[numbers - 1]  # first row of each row's chunk
        begins[numbers == 0] = 0  # there, -1 took the end of the last chunk
        buffers, starts, stops = [], [], []
        # One by one: shuffled sequences rarely share a chunk, and an operation on a small array takes longer than four
        # passes of this loop.
        for i, (number, row) in enumerate(zip(numbers.tolist(), (rows - begins).tolist(), strict=True)):
            chunk = self._chunks[number]
            if chunk.is_null is not None and chunk.is_null[row]:
                refuse_null(ids[i], self._column, self._where)
            buffers.append(chunk.values)
            starts.append(chunk.offsets[row])
            stops.append(chunk.offsets[row + 1])
        starts_array = np.array(starts, dtype=np.int64)
        return Located(buffers, starts_array, np.array(stops, dtype=np.int64) - starts_array)


def refuse_null(sequence_id: Any, column: str, where: str) -> NoReturn:
    """Raises the TokenSourceError of a row that is null, or holds a null."""
    raise TokenSourceError(
        f"sequence {sequence_id}: column {column!r} of {where} is null there, or holds a null; leave the row out, or "
        "fill it"
    )


def _view(array: Any, itemsize: int, *, is_fixed: bool) -> _Chunk:
    """Returns views of a list array's memory; the array may be a slice of a larger one.

    Args:
        array: the list array.
        itemsize: bytes of a token.
        is_fixed: whether all lists have the same size, so that Arrow stores no offsets.
    """
    values = array.values  # the values of the larger array too: offsets refer to these
    buffer = values.buffers()[1]  # of numbers; buffer 0 says which are null
    data = memoryview(b"" if buffer is None else buffer).cast("B")[values.offset * itemsize :]
    offsets: Sequence[int]
    if is_fixed:
        size = array.type.list_size
        offsets = range(array.offset * size, (array.offset + len(array)) * size + 1, size)
    else:
        offsets = memoryview(values_of(array.offsets))
    is_null = nulls_of(array) if array.null_count else None
    if values.null_count:
        # A row holds a null if there are more nulls before its end than before its begin.
        nulls_before = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(nulls_of(values), out=nulls_before[1:])
        at = np.asarray(offsets)
        holds_null = nulls_before[at[1:]] > nulls_before[at[:-1]]
        is_null = holds_null if is_null is None else is_null | holds_null
    return _Chunk(offsets, data, is_null)
