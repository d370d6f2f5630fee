"""Megatron `.bin`/`.idx` token files, written.

Owns streaming a corpus into the pair; leaves the layout's constants and reading to `megatron`.
"""

import os
from array import array
from types import TracebackType

import numpy as np
from numpy.typing import ArrayLike

from packhorse.formats.atomic import AtomicFiles
from packhorse.formats.mapping import CHUNK_ELEMENTS
from packhorse.formats.megatron import DTYPES, HEADER, MAGIC, VERSION, megatron_paths, token_dtype

_BUFFERED_TOKENS = 1 << 18


class MegatronWriter:
    """Writes sequences one by one, each a document of its own, as a context manager.

    The files are written beside their place and renamed at the end: after an exception nothing is left. Memory is
    4 bytes a sequence and a buffer.
    """

    def __init__(self, path: str | os.PathLike[str], *, vocab_size: int, overwrite: bool = False) -> None:
        """Begins the files.

        Args:
            path: `X`, `X.bin` or `X.idx`.
            vocab_size: token ids are in [0, vocab_size); below 65,500 they take 2 bytes each, else 4.
            overwrite: whether files already there are replaced.

        Raises:
            FileExistsError: one of the files is there and overwrite is False.
            ValueError: vocab_size is out of range.
        """
        self.dtype = token_dtype(vocab_size)
        self.bin_path, self.idx_path = megatron_paths(path)
        self._vocab_size = vocab_size
        self._lengths = array("i")
        self._num_tokens = 0
        self._buffer = np.empty(_BUFFERED_TOKENS, dtype=self.dtype)
        self._buffered = 0
        # The index last: it is what a reader looks for.
        self._files = AtomicFiles([self.bin_path, self.idx_path], overwrite=overwrite)

    def __enter__(self) -> "MegatronWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._files.discard()
        else:
            self.close()

    def __len__(self) -> int:
        """Number of sequences written."""
        return len(self._lengths)

    @property
    def num_tokens(self) -> int:
        """Number of tokens written."""
        return self._num_tokens

    def append(self, tokens: ArrayLike) -> None:
        """Adds one sequence.

        Args:
            tokens: integers [n], n at least 1, each in [0, vocab_size).

        Raises:
            ValueError: the tokens are not such a list.
        """
        values = np.asarray(tokens)
        if values.ndim != 1 or not 1 <= len(values) < 1 << 31 or not np.issubdtype(values.dtype, np.integer):
            raise ValueError(
                f"sequence {len(self)} is a {values.dtype} array of shape {values.shape}; "
                "a sequence is a list of at least one and fewer than 2^31 integers"
            )
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= self._vocab_size:
            raise ValueError(
                f"sequence {len(self)} holds the token id {low if low < 0 else high}; "
                f"with vocab_size {self._vocab_size} ids are in [0, {self._vocab_size})"
            )
        self._write(values)
        self._lengths.append(len(values))
        self._num_tokens += len(values)

    def close(self) -> None:
        """Writes the index, syncs and renames both files; the context manager calls it."""
        try:
            self._flush()
            self._write_index()
        except BaseException:
            self._files.discard()
            raise
        self._files.publish()

    def _write(self, values: np.ndarray) -> None:
        if self._buffered + len(values) > len(self._buffer):
            self._flush()
        if len(values) > len(self._buffer):
            self._files.files[0].write(values.astype(self.dtype).tobytes())
            return
        self._buffer[self._buffered : self._buffered + len(values)] = values
        self._buffered += len(values)

    def _flush(self) -> None:
        self._files.files[0].write(self._buffer[: self._buffered].tobytes())
        self._buffered = 0

    def _write_index(self) -> None:
        index = self._files.files[1]
        num_sequences = len(self._lengths)
        code = next(code for code, dtype in DTYPES.items() if dtype == self.dtype)
        index.write(HEADER.pack(MAGIC, VERSION, code, num_sequences, num_sequences + 1))
        lengths = np.frombuffer(self._lengths, dtype=np.intc) if num_sequences else np.empty(0, dtype=np.intc)
        pieces = range(0, num_sequences, CHUNK_ELEMENTS)
        for begin in pieces:
            index.write(lengths[begin : begin + CHUNK_ELEMENTS].astype("<i4").tobytes())
        offset_bytes = 0
        for begin in pieces:
            sizes_bytes = lengths[begin : begin + CHUNK_ELEMENTS].astype(np.int64) * self.dtype.itemsize
            ends_bytes = offset_bytes + np.cumsum(sizes_bytes)
            index.write((ends_bytes - sizes_bytes).astype("<i8").tobytes())
            offset_bytes = int(ends_bytes[-1])
        for begin in range(0, num_sequences + 1, CHUNK_ELEMENTS):
            end = min(begin + CHUNK_ELEMENTS, num_sequences + 1)
            index.write(np.arange(begin, end, dtype="<i8").tobytes())
