"""Megatron pairs and flat files as sources: on a disk memory-mapped, in a store read in blocks through the node's disk.

Owns opening them; leaves the files' layouts to `packhorse.formats`, copying tokens into batches to `mapped`, and blocks
to `read_ahead`.
"""

import os
from abc import abstractmethod
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from packhorse.formats import FlatTokens, MegatronIndex, MegatronTokens
from packhorse.formats.files import as_path, exists
from packhorse.formats.flat import FlatBoundaries
from packhorse.formats.left_out import unused_name
from packhorse.formats.loss_mask import mask_files
from packhorse.formats.mapping import TokenIndex
from packhorse.formats.object_store import Store, StoredObject, StoreOptions, without_secrets
from packhorse.tokens.base import TokenSource, TokenSourceError
from packhorse.tokens.mapped import MappedSource, Ranges
from packhorse.tokens.read_ahead import ReadAhead
from packhorse.tokens.store_cache import (
    DEFAULT_BLOCK_BYTES,
    DEFAULT_CACHE_BYTES,
    DEFAULT_READ_AHEAD_BYTES,
    CachedObject,
    StoreCache,
)
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


class RemoteSource(TokenFileSource):
    """Tokens of a Megatron pair or a flat file in an object store; a sequence's id is its index.

    The index is copied to the node's disk as a whole. Tokens are read in blocks, which are fetched ahead of the stream
    and shared by all processes of the node in a folder on its disk. A store that fails, stalls or gives too few bytes
    is asked again until `options.retry` gives up.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as cache:
        ...     source = RemoteSource(pathlib.Path("corpus.idx").absolute().as_uri(), cache_folder=cache)
        ...     source.read(1).tolist()
        [0, 1, 2]
    """

    def __init__(
        self,
        url: str,
        *,
        cache_folder: str | os.PathLike[str] | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES,
        options: StoreOptions | None = None,
    ) -> None:
        """Asks for the files and copies the index, unless it is on the disk already.

        Args:
            url: URL of an `.idx`, a `.bin` or their common prefix, or of a flat file, in any scheme that fsspec knows,
                such as s3://…, gs://… or file:///….
            cache_folder: folder on a local disk; None for `~/.cache/packhorse/tokens`.
            cache_bytes: about how many bytes of blocks the folder may hold.
            block_bytes: bytes of one read. With locality windows, larger blocks need fewer requests; without, smaller
                blocks fetch less unneeded data.
            read_ahead_bytes: about how many bytes each process fetches ahead.
            options: how to reach the store; None for the defaults.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ImportError: fsspec, or its file system for this kind of URL, is not installed.
            TokenSourceError: the object is no token file, or holds floating-point numbers.
            TokenStoreError: the store does not answer.
            ValueError: a number is out of range, or the index does not fit the tokens.
        """
        store = StoreCache(
            cache_folder=cache_folder,
            cache_bytes=cache_bytes,
            block_bytes=block_bytes,
            read_ahead_bytes=read_ahead_bytes,
            options=options or StoreOptions(),
        )
        tokens_url, index_url = _token_urls(url, store.options)
        self._store = store
        self._object = CachedObject(tokens_url, store)
        self._copied_index = CachedObject(index_url, store).copied()
        where = without_secrets(tokens_url)
        super().__init__(where, _opened_index(self._copied_index.path, self._object.size_bytes, where))
        self._reads = ReadAhead(self._object_of, store)

    @classmethod
    def through(cls, url: str, store: StoreCache) -> "RemoteSource":
        """Returns the source of a URL, with the options of a StoreCache."""
        return cls(
            url,
            cache_folder=store.cache_folder,
            cache_bytes=store.cache_bytes,
            block_bytes=store.block_bytes,
            read_ahead_bytes=store.read_ahead_bytes,
            options=store.options,
        )

    # `MappedSource.gather_from` would locate all sequences, and so wait for the blocks of later batches.
    gather_from = TokenSource.gather_from

    @property
    def _address(self) -> str:
        return self._object.url

    def _is_there(self, name: str) -> bool:
        return Store(name, self._store.options).look() is not None  # with the options that reached the tokens

    def _opened_beside(self, index: str) -> TokenFileSource:
        return RemoteSource.through(index, self._store)

    def _expect(self, ids: NDArray[np.int64]) -> None:
        begins, lengths = self._index.ranges(self._lookup.rows(ids))
        self._reads.expect(np.zeros_like(begins), begins, begins + lengths * self._dtype.itemsize)

    def _locate(self, ids: NDArray[np.int64]) -> Ranges:
        begins, lengths = self._index.ranges(self._lookup.rows(ids))
        ends = begins + lengths * self._dtype.itemsize
        buffers = [self._reads.read(0, begin, end) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        return Ranges(buffers, np.zeros_like(begins), lengths)

    def _object_of(self, number: int) -> CachedObject:
        """Returns object 0, the only one that is read."""
        return self._object


def _opened_index(path: Path, tokens_bytes: int, where: str) -> TokenIndex:
    """Opens a copied index, and checks that it fits the size of its tokens; `where` is the tokens' URL."""
    if path.suffix == ".idx":
        index = MegatronIndex(path, bin_size_bytes=tokens_bytes)
        index.refuse_sentences()
        return index
    return FlatBoundaries(path, tokens_bytes, where)


def _token_urls(url: str, options: StoreOptions) -> tuple[str, str]:
    """Returns the URLs of the tokens and of their index; asks the store if the URL does not tell the kind of file."""
    if url.endswith(".boundaries"):
        return url.removesuffix(".boundaries"), url
    if url.endswith(".idx"):
        return f"{url[:-4]}.bin", url
    prefix = url[:-4] if url.endswith(".bin") else url
    for tokens, index in ((f"{prefix}.bin", f"{prefix}.idx"), (url, f"{url}.boundaries")):
        try:
            StoredObject(index, options)
        except FileNotFoundError:
            continue
        return tokens, index
    url, prefix = without_secrets(url), without_secrets(prefix)
    raise TokenSourceError(
        f"{url}: neither {prefix}.idx (Megatron) nor {url}.boundaries (flat file) is there, and its name is not one "
        "of Parquet, Arrow or MDS; give the URL of such files, or an object with __getitem__(id)"
    )
