"""`MappedTokens`: the sequences of a memory-mapped token file, checked at every read.

Owns mapping files, and what a token file's index must tell (`TokenIndex`). Leaves the layouts of token files and of
their indices to `formats.megatron` and `formats.flat`.
"""

import mmap
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packhorse.storage import open_plain


def map_file(path: Path) -> mmap.mmap | bytes:
    """Maps a file read-only; an empty file, which the system refuses to map, becomes empty bytes.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it is not a plain file.
    """
    with open_plain(path) as file:
        if path.stat().st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def check_index(index: int, num_sequences: int, path: Path | str) -> None:
    """Refuses an index outside [0, num_sequences) with an IndexError."""
    if not 0 <= index < num_sequences:
        raise IndexError(f"sequence {index} is not in {path}, which holds [0, {num_sequences})")


class TokenIndex(Protocol):
    """The index of a token file: where its sequences lie. Legend: S sequences that are asked for."""

    @property
    def path(self) -> Path:
        """The index's own file."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a token."""
        ...

    def __len__(self) -> int:
        """Number of sequences."""
        ...

    def ranges(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where sequences begin, in bytes, and their lengths in tokens: int64 [S] each."""
        ...


class MappedTokens:
    """The sequences of a token file, memory-mapped. Legend: S sequences.

    Pickles by path and reopens when first used, so sending it to a spawned DataLoader worker takes a few bytes. A
    forked worker shares the read-only map.
    """

    def __init__(self, path: Path, index: TokenIndex, size_bytes: int) -> None:
        """Takes the token file, its index, and the size with which a later mapping must agree."""
        self.path = path
        self.index = index
        self._size_bytes = size_bytes
        self._mapped: mmap.mmap | bytes | None = None  # None until the file is needed, also after unpickling

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.index)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a token."""
        return self.index.dtype

    def read(self, index: int, start: int = 0, length: int | None = None) -> NDArray[Any]:
        """Returns tokens of one sequence, a read-only view of the file: `dtype` [length].

        Args:
            index: the sequence, in [0, S).
            start: the first token to return.
            length: how many tokens; None for all from `start`.

        Raises:
            IndexError: there is no such sequence.
            ValueError: the sequence has fewer tokens, or the files have been replaced since they were first opened.
        """
        check_index(index, len(self), self.path)
        begins, lengths = self.index.ranges(np.array([index]))
        begin_byte, held = int(begins[0]), int(lengths[0])
        count = held - start if length is None else length
        if not 0 <= start <= held or count < 0 or start + count > held:
            raise ValueError(
                f"sequence {index} has {held} tokens; [{start}, {start + count}) is not inside it: "
                "choose start and length with 0 <= start and start + length <= its length"
            )
        first_byte = begin_byte + start * self.dtype.itemsize
        return np.frombuffer(self.mapped(), self.dtype, count=count, offset=first_byte)

    def mapped(self) -> mmap.mmap | bytes:
        """Returns all bytes of the file.

        Raises:
            FileNotFoundError: the file is gone.
            ValueError: it has been replaced since it was first opened.
        """
        if self._mapped is None:
            mapped = map_file(self.path)
            if len(mapped) != self._size_bytes:
                raise ValueError(
                    f"{self.path} had {self._size_bytes} bytes and now has {len(mapped)}: it has been replaced since "
                    "it was first opened; open it again"
                )
            self._mapped = mapped
        return self._mapped
