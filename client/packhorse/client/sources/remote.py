"""Token files in object stores: Megatron pairs and flat files with boundaries, read in blocks through a cache on disk.

Owns which blocks a sequence lies in; leaves fetching them to `sources.fetched`, and what an index says to `stored`.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources._blocks import DEFAULT_CACHE_BYTES
from packhorse.client.sources._spans import Spans
from packhorse.client.sources.base import Gather, TokenSource, TokenSourceError
from packhorse.client.sources.fetched import (
    DEFAULT_BLOCK_BYTES,
    DEFAULT_READ_AHEAD_BYTES,
    CachedObject,
    FetchedAhead,
    StoreCache,
)
from packhorse.client.sources.stored import FlatAddresses, MegatronAddresses, SequenceAddresses, StoredSource
from packhorse.formats import MegatronIndex
from packhorse.formats.flat import read_boundaries
from packhorse.formats.object_store import StoredObject, StoreOptions, without_secrets


class RemoteSource(StoredSource):
    """Tokens of a Megatron pair or a flat file in an object store; a sequence's id is its index.

    The index is copied to the node's disk once, whole. Tokens are read in blocks, which all processes of the node share
    through a folder on its disk, and which are fetched ahead: a batch's plan names the sequences of the batches after
    it. A store that fails, stalls or gives too little is asked again until `options.retry` gives up.

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
            url: of an `.idx`, a `.bin` or their common prefix, or of a flat file; any URL that fsspec knows, such as
                s3://…, gs://… or file:///….
            cache_folder: on a local disk of the node; None for `~/.cache/packhorse/tokens`.
            cache_bytes: that blocks in it take up at most, about.
            block_bytes: of one read. Where neighbours in a batch are neighbours in the file (locality windows), larger
                ones cost fewer requests; where they are not, smaller ones fetch less that is not wanted.
            read_ahead_bytes: that each process fetches before it is asked for.
            options: how the store is reached; None for the defaults.

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
        self._block_bytes = block_bytes
        self._read_ahead_blocks = read_ahead_bytes // block_bytes
        bin_url, index_url = _token_urls(url, store.options)
        self._object = CachedObject(bin_url, store)
        self._index = CachedObject(index_url, store).copied()
        where = without_secrets(bin_url)
        super().__init__(where, _addresses_of(self._index.path, self._object.size_bytes, where))
        self._blocks: FetchedAhead[int, memoryview] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_blocks": None}

    @property
    def is_mapped(self) -> bool:
        """Lengths are in the index, which is mapped; see `TokenSource.is_mapped`."""
        return True

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns whole sequences' lengths, from the index alone; see `TokenSource.lengths`."""
        return self._addresses(self._lookup.rows(ids))[1]

    def gather_from(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        *,
        first_tokens: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> Gather:
        """Begins to fetch all sequences in their order; see `TokenSource.gather_from`."""
        if len(ids):
            firsts, held = self._addresses(self._lookup.rows(ids))
            begins, ends = self._blocks_of(firsts, held)
            several = ends - begins
            offsets = np.arange(int(several.sum())) - np.repeat(np.cumsum(several) - several, several)
            numbers = np.repeat(begins, several) + offsets
            _, at = np.unique(numbers, return_index=True)
            self._opened_blocks().expect(numbers[np.sort(at)].tolist())
        return TokenSource.gather_from(self, ids, lengths, first_tokens=first_tokens, truncate=truncate)

    def _spans(self, ids: NDArray[np.int64]) -> Spans:
        firsts, lengths = self._addresses(self._lookup.rows(ids))
        begins, ends = self._blocks_of(firsts, lengths)
        blocks = self._opened_blocks()
        size = self._block_bytes
        buffers: list[memoryview] = []
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            some = [blocks.get(number) for number in range(begin, end)]
            buffers.append(some[0] if len(some) == 1 else memoryview(b"".join(some)))
        return Spans(buffers, firsts - begins * size, lengths)

    def _blocks_of(
        self, firsts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[begin, end) of the blocks that sequences lie in: int64 [S] each; none for an empty sequence."""
        begins = firsts // self._block_bytes
        ends = -(-(firsts + lengths * self._dtype.itemsize) // self._block_bytes)
        return begins, np.where(lengths > 0, ends, begins)

    def _opened_blocks(self) -> FetchedAhead[int, memoryview]:
        if self._blocks is None or self._blocks.process != os.getpid():
            self._blocks = FetchedAhead(self._object.block, ahead=self._read_ahead_blocks)
        return self._blocks


def _addresses_of(index_path: Path, bin_size_bytes: int, where: str) -> SequenceAddresses:
    """Opens a copied index, and checks that it fits its tokens."""
    if index_path.suffix == ".idx":
        return MegatronAddresses(MegatronIndex(index_path, bin_size_bytes=bin_size_bytes))
    ends, dtype = read_boundaries(index_path, bin_size_bytes, where)
    return FlatAddresses(index_path, len(ends), dtype)


def _token_urls(url: str, options: StoreOptions) -> tuple[str, str]:
    """Returns the URLs of the tokens and of their index."""
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
        f"{url}: neither {prefix}.idx (Megatron) nor {url}.boundaries (flat file) is there, and its name is not one of "
        "Parquet, Arrow or MDS; give the URL of such, or an object with __getitem__(id)"
    )
