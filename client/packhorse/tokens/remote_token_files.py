"""`RemoteSource`: a Megatron pair or a flat file in a store, read in blocks through the node's disk.

Owns choosing between the two kinds of files, and their index on the disk. Leaves what all token files have in common to
`token_files`, and blocks to `stored`.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packhorse.formats import MegatronIndex
from packhorse.formats.flat import FlatBoundaries
from packhorse.formats.mapping import TokenIndex
from packhorse.formats.object_store import Store, StoredObject, StoreOptions, without_secrets
from packhorse.tokens.base import TokenSource, TokenSourceError
from packhorse.tokens.mapped import Ranges
from packhorse.tokens.stored.cached_object import CachedObject
from packhorse.tokens.stored.read_ahead import ReadAhead
from packhorse.tokens.stored.store_cache import (
    DEFAULT_BLOCK_BYTES,
    DEFAULT_CACHE_BYTES,
    DEFAULT_READ_AHEAD_BYTES,
    StoreCache,
)
from packhorse.tokens.token_files import TokenFileSource


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
        urls = _urls_of_pair(url, store.options)
        self._store = store
        self._object = CachedObject(urls.tokens, store)
        # Kept for as long as this source: until then the cache does not remove the file.
        self._copied_index = CachedObject(urls.index, store).copied()
        where = without_secrets(urls.tokens)
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
        begins_bytes, lengths = self._index.ranges(self._lookup.rows(ids))
        all_of_object_0 = np.zeros_like(begins_bytes)
        self._reads.expect(all_of_object_0, begins_bytes, begins_bytes + lengths * self._dtype.itemsize)

    def _locate(self, ids: NDArray[np.int64]) -> Ranges:
        begins_bytes, lengths = self._index.ranges(self._lookup.rows(ids))
        ends_bytes = begins_bytes + lengths * self._dtype.itemsize
        ranges = zip(begins_bytes.tolist(), ends_bytes.tolist(), strict=True)
        buffers = [self._reads.read(0, begin, end) for begin, end in ranges]  # each holds one sequence
        return Ranges(buffers, begins_bytes=np.zeros_like(begins_bytes), lengths=lengths)

    def _object_of(self, number: int) -> CachedObject:
        """Returns object 0, the only one that is read."""
        return self._object


def _opened_index(path: Path, tokens_bytes: int, where: str) -> TokenIndex:
    """Opens a copied index, and checks that it fits the size of its tokens; `where` is the tokens' URL."""
    if path.suffix == ".idx":
        index = MegatronIndex(path, bin_size_bytes=tokens_bytes)
        index.refuse_sentences()
        return index
    return FlatBoundaries(path, size_bytes=tokens_bytes, where=where)


@dataclass(frozen=True, slots=True)
class _TokenUrls:
    """The two objects of a token file."""

    tokens: str
    index: str
    """The `.idx` of a Megatron pair, or the `.boundaries` of a flat file."""


def _urls_of_pair(url: str, options: StoreOptions) -> _TokenUrls:
    """Returns the URLs of the tokens and of their index; asks the store if the URL does not tell the kind of file."""
    if url.endswith(".boundaries"):
        return _TokenUrls(url.removesuffix(".boundaries"), url)
    if url.endswith(".idx"):
        return _TokenUrls(f"{url.removesuffix('.idx')}.bin", url)
    prefix = url.removesuffix(".bin")
    for urls in (_TokenUrls(f"{prefix}.bin", f"{prefix}.idx"), _TokenUrls(url, f"{url}.boundaries")):
        try:
            StoredObject(urls.index, options)
        except FileNotFoundError:
            continue
        return urls
    url, prefix = without_secrets(url), without_secrets(prefix)
    raise TokenSourceError(
        f"{url}: neither {prefix}.idx (Megatron) nor {url}.boundaries (flat file) is there, and its name is not one "
        "of Parquet, Arrow or MDS; give the URL of such files, or an object with __getitem__(id)"
    )
