"""Megatron pairs and flat files as sources: what all have in common, and those on a disk, which are memory-mapped.

Owns choosing between the two kinds of files, and finding a loss mask beside them. Leaves the files' layouts to
`packhorse.formats`, copying tokens into batches to `mapped`, and files in a store to `remote_token_files`.
"""

import os
from abc import abstractmethod
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from packhorse.formats import FlatTokens, MegatronTokens
from packhorse.formats.beside_tokens import unused_name
from packhorse.formats.files import as_path, exists
from packhorse.formats.loss_mask import mask_files
from packhorse.formats.mapping import TokenIndex
from packhorse.formats.object_store import without_secrets
from packhorse.tokens.base import TokenSourceError
from packhorse.tokens.mapped import MappedSource, Ranges
from packhorse.tokens.tables.row_lookup import RowLookup, refuse_row_numbers


class TokenFileSource(MappedSource):
    """A source of one token file; ids are the indices of its sequences."""

    def __init__(self, where: str, index: TokenIndex) -> None:
        if index.dtype.kind not in "iu":
            raise TokenSourceError(f"{where}: holds {index.dtype}, but tokens are integers")
        self._where = where
        self._index = index
        self._dtype = index.dtype
        self._lookup = RowLookup(where, len(index))

    def __len__(self) -> int:
        return len(self._index)

    @property
    def where(self) -> str:
        """The token file, as messages show it."""
        return self._where

    def for_ids(self, id_column: str) -> Self:
        """Returns itself if ids are row numbers, and refuses others; see `TokenSource.for_ids`."""
        if id_column:
            refuse_row_numbers(
                self.where,
                id_column,
                "holds no ids, only rows",
                "Pass an Arrow or Parquet file that has the column, or a dict from id to tokens",
            )
        return self

    def loss_mask_beside(self) -> "TokenFileSource | None":
        """Returns the mask beside the token file, of either kind of file; see `TokenSource.loss_mask_beside`."""
        files = mask_files(self._address)
        try:
            has_values = self._is_there(files.values)
            has_megatron = self._is_there(files.megatron_index)
            has_flat = self._is_there(files.flat_boundaries)
        except PermissionError as error:
            raise TokenSourceError(
                f"whether a loss mask lies beside {self.where} cannot be seen: {error}; give loss_mask=, or "
                "loss_mask=None to train on every token"
            ) from None
        index = files.megatron_index if has_megatron else files.flat_boundaries if has_flat else ""
        if not has_values and not index:
            return None
        if not has_values or not index:
            here, missing = (files.values, files.megatron_index) if has_values else (index, files.values)
            raise TokenSourceError(
                f"half of a loss mask lies beside {self.where}: {without_secrets(here)} is there, and "
                f"{without_secrets(missing)} is not; copy both, or give loss_mask=None to train on every token"
            )
        return self._opened_beside(index)

    def sign_of_mask(self) -> str:
        """Returns a sentence if a file beside the tokens says that they are of chats or pairs; otherwise ""."""
        name = unused_name(self._address)
        return f"{without_secrets(name)} says that they are of chats or pairs" if self._is_there(name) else ""

    @property
    @abstractmethod
    def _address(self) -> str:
        """Path or URL of the tokens."""

    def _is_there(self, name: str) -> bool:
        """Returns whether a file lies beside the tokens."""
        return exists(as_path(name))

    @abstractmethod
    def _opened_beside(self, index: str) -> "TokenFileSource":
        """Opens another token file in the same way, by its index."""

    def origin(self, sequence_id: int) -> str:
        """Returns the row of the token file."""
        (row,) = self._lookup.rows(np.array([sequence_id])).tolist()
        return f"row {row} of {self.where}"

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the lengths of whole sequences, from the index; see `TokenSource.lengths`."""
        return self._index.ranges(self._lookup.rows(ids))[1]


class _MappedFileSource(TokenFileSource):
    """A source of a file on disk. Forks share the map; a pickled source only holds paths, and maps them when used."""

    def __init__(self, tokens: MegatronTokens | FlatTokens) -> None:
        super().__init__(str(tokens.path), tokens.index)
        self._tokens = tokens
        self._mapped: memoryview | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def _address(self) -> str:
        return str(self._tokens.path)

    @property
    def mapped_files(self) -> Sequence[str]:
        """The file of tokens and its index."""
        return str(self._tokens.path), str(self._index.path)

    def _opened_beside(self, index: str) -> TokenFileSource:
        return MegatronSource(index) if index.endswith(".idx") else FlatSource(index)

    def _locate(self, ids: NDArray[np.int64]) -> Ranges:
        if self._mapped is None:
            self._mapped = memoryview(self._tokens.mapped())
        return Ranges(repeat(self._mapped), *self._index.ranges(self._lookup.rows(ids)))


class MegatronSource(_MappedFileSource):
    """Tokens of a Megatron `.bin`/`.idx` pair, memory-mapped; a sequence's id is its index.

    Example:
        >>> MegatronSource("corpus.idx").lengths(np.array([0, 1])).tolist()
        [5, 3]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the pair.

        Args:
            path: the `.idx`, the `.bin` or their common prefix.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ValueError: the index is not valid, does not fit the `.bin`, or groups sentences into documents.
            TokenSourceError: the file holds floating-point numbers.
        """
        tokens = MegatronTokens(path)
        tokens.index.refuse_sentences()
        super().__init__(tokens)


class FlatSource(_MappedFileSource):
    """Tokens of a flat memmap with `.boundaries` beside it; a sequence's id is its index.

    Example:
        >>> from packhorse.formats import write_flat_tokens
        >>> num_sequences = write_flat_tokens("flat-source.bin", [[1, 2, 3], [4]], dtype="uint16")
        >>> FlatSource("flat-source.bin").read(0).tolist()
        [1, 2, 3]
    """

    def __init__(self, path: str | os.PathLike[str], dtype: DTypeLike | None = None) -> None:
        """Opens the file and its boundaries.

        Args:
            path: the token file; the boundaries' path is the same with `.boundaries` appended.
            dtype: uint16 or uint32; None finds it from the size of the file and the last boundary.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ValueError: the two do not fit each other or the dtype.
        """
        super().__init__(FlatTokens(path, dtype=dtype))


def token_file_source(path: Path) -> TokenFileSource:
    """Returns the source of a Megatron pair or of a flat file, chosen by the index that lies beside the tokens.

    Raises:
        FileNotFoundError: the path is that of an index, and there is none.
        TokenSourceError: no index is beside the tokens, or one of each kind.
        ValueError: see `MegatronSource` and `FlatSource`.
    """
    if path.suffix in (".boundaries", ".idx") and not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.suffix == ".boundaries":
        return FlatSource(path)
    if path.suffix == ".idx":
        return MegatronSource(path)
    index = path.with_suffix(".idx") if path.suffix == ".bin" else path.with_name(path.name + ".idx")
    boundaries = path.with_name(path.name + ".boundaries")
    if index.exists() and boundaries.exists():
        raise TokenSourceError(
            f"{path}: both {index.name} and {boundaries.name} are beside it; "
            "say which is meant with MegatronSource(path) or FlatSource(path)"
        )
    if boundaries.exists():
        return FlatSource(path)
    if index.exists():
        return MegatronSource(path)
    raise TokenSourceError(
        f"{path}: neither {index.name} (Megatron) nor {boundaries.name} (flat file with boundaries) is beside it; "
        "pass the path of a token file with its index, of a folder or file of Arrow, Parquet or MDS, a TokenSource, or "
        "an object with __getitem__(id)"
    )
