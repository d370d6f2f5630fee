"""Read-only memory maps of whole files, and the checks that every reader makes on a slice of a sequence.

Leaves what the bytes mean to the formats.
"""

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CHUNK_ELEMENTS = 1 << 20
"""How many elements a check of a whole array looks at at once, so that its memory stays bounded."""


def map_file(path: Path) -> mmap.mmap | bytes:
    """Maps a file read-only; an empty file, which the system refuses to map, becomes empty bytes.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def resolve_slice(length: int, index: int, start: int, count: int | None) -> int:
    """Returns how many tokens to read from `start` of a sequence of `length` tokens.

    Args:
        length: tokens in the sequence.
        index: the sequence, for the message.
        start: first token wanted, in [0, length].
        count: tokens wanted; None for all from `start`.

    Raises:
        ValueError: the slice leaves the sequence.
    """
    wanted = length - start if count is None else count
    if not 0 <= start <= length or wanted < 0 or start + wanted > length:
        raise ValueError(
            f"sequence {index} has {length} tokens; [{start}, {start + wanted}) is not inside it: "
            "choose start and length with 0 <= start and start + length <= its length"
        )
    return wanted


def check_index(index: int, num_sequences: int, path: Path | str) -> None:
    """Refuses an index outside [0, num_sequences).

    Raises:
        IndexError: it is outside.
    """
    if not 0 <= index < num_sequences:
        raise IndexError(f"sequence {index} is not in {path}, which holds [0, {num_sequences})")


def first_descent(values: NDArray[np.int64]) -> int | None:
    """Returns the first i with values[i] < values[i - 1], or None; looks at the array [N] piece by piece."""
    for begin in range(0, max(len(values) - 1, 0), CHUNK_ELEMENTS):
        piece = values[begin : begin + CHUNK_ELEMENTS + 1]
        descents = np.flatnonzero(piece[1:] < piece[:-1])
        if descents.size:
            return begin + int(descents[0]) + 1
    return None
