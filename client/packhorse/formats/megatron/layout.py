"""The layout of Megatron's files: the header of an index, the types of tokens, and writing an index.

Layout, little-endian. `.idx`: 9 bytes magic; u64 version 1; u8 dtype code; u64 S sequences; u64 D document indices;
at byte 34: int32[S] lengths in tokens; int64[S] byte offsets into `.bin`; int64[D] document indices (the first sequence
of each document, and S at the end); optionally int8[S] modes. `.bin`: the tokens, no header. Leaves checking and
reading an index to `index`.
"""

import struct
from numbers import Integral
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.arrays import CHUNK_ELEMENTS
from packhorse.parameters import parameter

MAGIC = b"MMIDIDX\0\0"
"""First bytes of an index."""
VERSION = 1
"""The only version of an index that is known."""
HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, dtype code, S and D."""
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f8"),
    7: np.dtype("<f4"),
    8: np.dtype("<u2"),
}
"""Code in the header -> type of a token in `.bin`."""


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Returns the type that Megatron's own tools choose: uint16 for a vocabulary below 65,500 tokens, otherwise int32.

    Example:
        >>> token_dtype(32_000).name, token_dtype(128_256).name
        ('uint16', 'int32')

    Args:
        vocab_size: number of tokens.

    Raises:
        ValueError: vocab_size is not in [1, 2^31].
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, Integral) or not 1 <= vocab_size <= 1 << 31:
        raise ValueError(parameter("vocab_size") + f" is {vocab_size!r}; it must be in [1, 2^31]")
    return np.dtype("<u2") if vocab_size < 65_500 else np.dtype("<i4")


class IndexHeader(NamedTuple):
    """What the header of an index says."""

    num_sequences: int
    num_document_indices: int
    dtype_code: int
    """Key of the tokens' type in DTYPES."""


def read_header(header: bytes, size_bytes: int, path: str) -> IndexHeader:
    """Reads the first HEADER.size bytes of an index; the lengths follow them, int32 [S].

    Raises:
        ValueError: the header is not valid, or does not fit the size of the file.
    """
    if size_bytes < HEADER.size:
        raise ValueError(f"{path} has {size_bytes} bytes, fewer than the {HEADER.size} of a Megatron index header")
    magic, version, code, num_sequences, num_document_indices = HEADER.unpack_from(header)
    if magic != MAGIC:
        raise ValueError(f"{path} is not a Megatron index: it begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise ValueError(f"{path} is a Megatron index of version {version}; only version {VERSION} is known")
    if code not in DTYPES:
        raise ValueError(f"{path} has the unknown dtype code {code}; known are {sorted(DTYPES)}")
    # Each sequence has 4 bytes for its length, 8 for its offset and perhaps 1 for its mode; a document index has 8.
    size = HEADER.size + 12 * num_sequences + 8 * num_document_indices
    if size_bytes not in (size, size + num_sequences):
        raise ValueError(
            f"{path} has {size_bytes} bytes, but {num_sequences} sequences and {num_document_indices} "
            f"document indices take {size} (or {size + num_sequences} with modes): it is truncated or altered"
        )
    return IndexHeader(num_sequences, num_document_indices, code)


def write_index(file: BinaryIO, lengths: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Writes the index of sequences that lie end to end, each its own document; needs memory for one chunk only."""
    code = next(code for code, known in DTYPES.items() if known == dtype)
    file.write(HEADER.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1))
    chunks = [lengths[begin : begin + CHUNK_ELEMENTS] for begin in range(0, len(lengths), CHUNK_ELEMENTS)]
    for chunk in chunks:
        file.write(chunk.astype("<i4").tobytes())
    offset_bytes = 0
    for chunk in chunks:
        sizes_bytes = chunk.astype(np.int64) * dtype.itemsize
        # A sequence begins where those before it end: the sum up to and with it, less its own bytes.
        file.write((offset_bytes + np.cumsum(sizes_bytes) - sizes_bytes).astype("<i8").tobytes())
        offset_bytes += int(sizes_bytes.sum())
    # Document i is sequence i, so the document indices are 0, 1, …, S.
    for begin in range(0, len(lengths) + 1, CHUNK_ELEMENTS):
        file.write(np.arange(begin, min(begin + CHUNK_ELEMENTS, len(lengths) + 1), dtype="<i8").tobytes())
