"""Flat token files: `x.bin` of uint16 or uint32 tokens, and beside it `x.bin.boundaries`, the sequences' ends.

Owns the two files' layout, reading and writing. A boundary is the exclusive end of a sequence, in tokens from the start
of `x.bin`, as int64, little-endian: sequence 0 is `[0, boundaries[0])`.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from packhorse.formats.arrays import first_descent
from packhorse.formats.mapping import MappedTokens, map_file
from packhorse.storage import AtomicFiles

_DTYPES = (np.dtype("<u2"), np.dtype("<u4"))
"""Types that tokens may have."""
_BOUNDARY = np.dtype("<i8")
"""Type of a boundary."""


class FlatTokens(MappedTokens):
    """The sequences of a flat token file, memory-mapped. Legend: S sequences.

    Pickles by path and reopens when first used; a forked process shares the read-only map.

    Example:
        >>> num_sequences = write_flat_tokens("flat.bin", [[1, 2, 3], [4]], dtype="uint16")
        >>> tokens = FlatTokens("flat.bin")
        >>> tokens.lengths.tolist(), tokens.read(0, start=1).tolist()
        ([3, 1], [2, 3])
    """

    index: "FlatBoundaries"

    def __init__(self, path: str | os.PathLike[str], *, dtype: DTypeLike | None = None) -> None:
        """Opens and checks the two files; O(S) once.

        Args:
            path: `x.bin`, or `x.bin.boundaries`.
            dtype: uint16 or uint32; None finds it from the size of the file and the last boundary.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ValueError: the two do not fit each other or the dtype; the message names the file and the fault.
        """
        tokens_path = Path(os.fspath(path).removesuffix(".boundaries"))
        token_dtype = None if dtype is None else _flat_dtype(dtype)
        size_bytes = tokens_path.stat().st_size
        boundaries = FlatBoundaries(
            Path(f"{tokens_path}.boundaries"), size_bytes=size_bytes, where=str(tokens_path), dtype=token_dtype
        )
        super().__init__(tokens_path, boundaries, size_bytes)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Lengths in tokens: int32 [S], computed at every call.

        Raises:
            ValueError: a sequence has 2^31 tokens or more.
        """
        lengths = np.diff(self.boundaries, prepend=0)
        if len(lengths) and int(lengths.max()) >= 1 << 31:
            at = int(lengths.argmax())
            raise ValueError(f"{self.index.path}: sequence {at} has {lengths[at]} tokens, more than int32 holds")
        return lengths.astype(np.int32)

    @property
    def boundaries(self) -> NDArray[np.int64]:
        """Exclusive end of every sequence, in tokens: int64 [S], a read-only view of the file."""
        return self.index.ends


class FlatBoundaries:
    """The memory-mapped boundaries of a flat token file. Pickles by path and reopens when first used."""

    def __init__(self, path: Path, *, size_bytes: int, where: str, dtype: np.dtype[Any] | None = None) -> None:
        """Maps the boundaries and checks them against their tokens.

        Args:
            path: the file of boundaries.
            size_bytes: size of the token file.
            where: the token file, for messages.
            dtype: type of a token; None finds it from `size_bytes` and the last boundary.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the two do not fit each other or the type.
        """
        mapped = map_file(path)
        if len(mapped) % _BOUNDARY.itemsize:
            raise ValueError(f"{path} has {len(mapped)} bytes, not a multiple of {_BOUNDARY.itemsize}: it is truncated")
        ends = np.frombuffer(mapped, _BOUNDARY)
        descent = first_descent(ends)
        if descent is not None or (len(ends) and ends[0] < 0):
            raise ValueError(f"{path}: boundary {descent or 0} is below the one before it")
        num_tokens = int(ends[-1]) if len(ends) else 0
        candidates = _DTYPES if dtype is None else (dtype,)
        fitting = [candidate for candidate in candidates if num_tokens * candidate.itemsize == size_bytes]
        if not fitting:
            names = " or ".join(candidate.name for candidate in candidates)
            raise ValueError(
                f"{where} has {size_bytes} bytes, but {path} ends at {num_tokens} tokens, "
                f"which take another size as {names}: one of the two is truncated, from elsewhere or of another dtype"
            )
        self.path = path
        self.dtype = fitting[0]  # both types fit a file without tokens
        self._num_sequences = len(ends)
        self._ends: NDArray[np.int64] | None = ends  # None after unpickling, until they are needed

    def __len__(self) -> int:
        return self._num_sequences

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ends": None}

    @property
    def ends(self) -> NDArray[np.int64]:
        """Exclusive end of every sequence, in tokens: int64 [S], a read-only view of the file."""
        if self._ends is None:
            mapped = map_file(self.path)
            if len(mapped) != _BOUNDARY.itemsize * self._num_sequences:
                raise ValueError(f"{self.path} has been replaced since it was first opened; open it again")
            self._ends = np.frombuffer(mapped, _BOUNDARY)
        return self._ends

    def ranges(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See `TokenIndex.ranges`."""
        if not len(rows):
            return rows, rows
        ends = self.ends
        firsts = ends[rows - 1]
        firsts *= rows > 0  # row 0 has no row before it, and rows - 1 wraps around
        return firsts * self.dtype.itemsize, ends[rows] - firsts


def write_flat_tokens(
    path: str | os.PathLike[str],
    sequences: Iterable[ArrayLike],
    dtype: DTypeLike,
    *,
    overwrite: bool = False,
) -> int:
    """Writes sequences as a flat token file with boundaries. After a failure, neither file exists.

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
        overwrite: whether to replace existing files.

    Returns:
        Number of sequences written.

    Raises:
        FileExistsError: one of the files is there and overwrite is False.
        ValueError: dtype is not uint16 or uint32, or a sequence is not a list of integers in its range.
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
            boundaries_file.write(num_tokens.to_bytes(_BOUNDARY.itemsize, "little"))
    return num_sequences


def _flat_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Returns the little-endian type of tokens; a ValueError if it is not uint16 or uint32."""
    kind = np.dtype(dtype).newbyteorder("<")
    if kind not in _DTYPES:
        raise ValueError(f"dtype is {np.dtype(dtype).name}; flat token files hold uint16 or uint32")
    return kind
