"""Flat token files: `x.bin` of uint16 or uint32 tokens, and beside it `x.bin.boundaries`, the documents' ends.

Owns the two files' layout, reading and writing. The boundaries are int64, little-endian, cumulative and exclusive:
document 0 is `[0, boundaries[0])`.
"""

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from packhorse.formats.mapping import check_index, first_descent, map_file, resolve_slice
from packhorse.storage import AtomicFiles

_DTYPES = (np.dtype("<u2"), np.dtype("<u4"))


class FlatTokens:
    """The sequences of a flat token file, memory-mapped. Legend: S sequences.

    Pickles by path and reopens when first used; a fork shares the read-only map.

    Example:
        >>> num_sequences = write_flat_tokens("flat.bin", [[1, 2, 3], [4]], dtype="uint16")
        >>> tokens = FlatTokens("flat.bin")
        >>> tokens.lengths.tolist(), tokens.read(0, start=1).tolist()
        ([3, 1], [2, 3])
    """

    def __init__(self, path: str | os.PathLike[str], *, dtype: DTypeLike | None = None) -> None:
        """Opens and checks the two files; O(S) once.

        Args:
            path: `x.bin`, or `x.bin.boundaries`.
            dtype: uint16 or uint32; None finds it from the size of the file and the last boundary.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ValueError: the two do not fit each other or the dtype; the message names the file and the fault.
        """
        name = os.fspath(path)
        self.path = Path(name.removesuffix(".boundaries"))
        self.boundaries_path = Path(f"{self.path}.boundaries")
        wanted = None if dtype is None else _flat_dtype(dtype)
        self._size_bytes = self.path.stat().st_size
        self._boundaries: NDArray[np.int64] | None = None
        self._mapped: mmap.mmap | bytes | None = None
        self._num_sequences: int | None = None
        ends, self.dtype = read_boundaries(self.boundaries_path, self._size_bytes, str(self.path), wanted)
        self._num_sequences = len(ends)
        self._boundaries = ends

    def __len__(self) -> int:
        """Number of sequences, S."""
        return self._num_sequences or 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None, "_boundaries": None}

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Lengths in tokens: int32 [S], computed at every call.

        Raises:
            ValueError: a sequence has 2^31 tokens or more.
        """
        lengths = np.diff(self._ends(), prepend=0)
        if len(lengths) and int(lengths.max()) >= 1 << 31:
            at = int(lengths.argmax())
            raise ValueError(f"{self.boundaries_path}: sequence {at} has {lengths[at]} tokens; int32 lengths end below")
        return lengths.astype(np.int32)

    @property
    def boundaries(self) -> NDArray[np.int64]:
        """Exclusive end of every sequence, in tokens: int64 [S], a read-only view of the file."""
        return self._ends()

    def read(self, index: int, start: int = 0, length: int | None = None) -> NDArray[Any]:
        """Returns tokens of one sequence, a read-only view of the file: `dtype` [length].

        Args:
            index: the sequence, in [0, S).
            start: its first token wanted.
            length: how many tokens; None for all from `start`.

        Raises:
            IndexError: there is no such sequence.
            ValueError: the slice leaves the sequence, or the files have been replaced since they were first opened.
        """
        check_index(index, len(self), self.path)
        ends = self._ends()
        first = int(ends[index - 1]) if index else 0
        count = resolve_slice(int(ends[index]) - first, index, start, length)
        return np.frombuffer(self._buffer(), self.dtype, count, (first + start) * self.dtype.itemsize)

    def _ends(self) -> NDArray[np.int64]:
        """Exclusive end of every sequence, in tokens: int64 [S]."""
        if self._boundaries is None:
            mapped = map_file(self.boundaries_path)
            if self._num_sequences is not None and len(mapped) != 8 * self._num_sequences:
                raise ValueError(f"{self.boundaries_path} has been replaced since it was first opened; open it again")
            self._boundaries = np.frombuffer(mapped, "<i8")
        return self._boundaries

    def _buffer(self) -> mmap.mmap | bytes:
        if self._mapped is None:
            mapped = map_file(self.path)
            if len(mapped) != self._size_bytes:
                raise ValueError(f"{self.path} has been replaced since it was first opened; open it again")
            self._mapped = mapped
        return self._mapped


def read_boundaries(
    path: Path, size_bytes: int, tokens: str, wanted: np.dtype[Any] | None = None
) -> tuple[NDArray[np.int64], np.dtype[Any]]:
    """Maps a boundaries file and checks it against its tokens: every sequence's end, int64 [S], and a token's type.

    Args:
        path: the boundaries.
        size_bytes: of the token file.
        tokens: the token file, for messages.
        wanted: the type that it must have; None for the one that its size shows.

    Raises:
        ValueError: the two do not fit each other or the type.
    """
    mapped = map_file(path)
    if len(mapped) % 8:
        raise ValueError(f"{path} has {len(mapped)} bytes, not a multiple of 8: it is truncated")
    ends = np.frombuffer(mapped, "<i8")
    descent = first_descent(ends)
    if descent is not None or (len(ends) and ends[0] < 0):
        raise ValueError(f"{path}: boundary {descent or 0} is below the one before it")
    num_tokens = int(ends[-1]) if len(ends) else 0
    known_dtypes = _DTYPES if wanted is None else (wanted,)
    fitting = [known for known in known_dtypes if num_tokens * known.itemsize == size_bytes]
    if not fitting:
        names = " or ".join(known.name for known in known_dtypes)
        raise ValueError(
            f"{tokens} has {size_bytes} bytes, but {path} ends at {num_tokens} tokens, "
            f"which do not take that as {names}: one of the two is truncated, from elsewhere or of another dtype"
        )
    return ends, fitting[0]


def write_flat_tokens(
    path: str | os.PathLike[str],
    sequences: Iterable[ArrayLike],
    dtype: DTypeLike,
    *,
    overwrite: bool = False,
) -> int:
    """Writes sequences as a flat token file with boundaries; streams, and leaves nothing behind when it fails.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     num_sequences = write_flat_tokens(Path(folder, "x.bin"), [[5, 6, 7], [8]], dtype="uint16")
        ...     FlatTokens(Path(folder, "x.bin")).read(0).tolist()
        [5, 6, 7]

    Args:
        path: `x.bin`.
        sequences: integers [n] each, in the range of dtype.
        dtype: uint16 or uint32.
        overwrite: whether files already there are replaced.

    Returns:
        Number of sequences written.

    Raises:
        FileExistsError: one of the files is there and overwrite is False.
        ValueError: dtype is another one, or a sequence is not a list of integers in its range.
    """
    kind = _flat_dtype(dtype)
    limit = int(np.iinfo(kind).max)
    num_sequences = num_tokens = 0
    target = Path(path)
    with AtomicFiles([target, Path(f"{target}.boundaries")], overwrite=overwrite) as pair:
        tokens_file, boundaries_file = pair.files
        for sequence in sequences:
            values = np.asarray(sequence)
            if values.ndim != 1 or (len(values) and not np.issubdtype(values.dtype, np.integer)):
                raise ValueError(
                    f"sequence {num_sequences} is a {values.dtype} array of shape {values.shape}; "
                    "a sequence is a list of integers"
                )
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) <= limit:
                raise ValueError(f"sequence {num_sequences} holds a token id outside [0, {limit}], {kind.name}'s range")
            tokens_file.write(values.astype(kind).tobytes())
            num_tokens += len(values)
            num_sequences += 1
            boundaries_file.write(num_tokens.to_bytes(8, "little"))
    return num_sequences


def _flat_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    kind = np.dtype(dtype).newbyteorder("<")
    if kind not in _DTYPES:
        raise ValueError(f"dtype is {np.dtype(dtype).name}; flat token files hold uint16 or uint32")
    return kind
