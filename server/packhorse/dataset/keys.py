"""The table of a dataset's keys: from key to id, and back.

Owns the table's files, and looking up in them without reading them whole. Plans, pools and bins know ids only, so the
table is no part of a digest; like every file it has its checksum in the manifest. Leaves where keys come from to
`packhorse.prepare`, and how people write them to `packhorse.formats.keys`.

A key's index is its place among all keys, which ascend by id.

| file | type | holds |
|---|---|---|
| keys.npy | uint8 [bytes] | all keys in UTF-8, one after the other without a separator |
| key_ends.npy | int64 [n] | for each index, where its key ends in keys.npy |
| key_order.npy | int64 [n, 2] | (hash of the key, its index), ascending by hash |
| key_ids.npy | int64 [n] | for each index, the key's id; there is no such file if each id is its key's index |
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packhorse.dataset.arrays import growing_array, map_array
from packhorse.dataset.errors import PreparedDatasetError, short_path
from packhorse.dataset.facts import KeyRecord
from packhorse.dataset.layout import KEY_ENDS, KEY_IDS, KEY_ORDER, KEYS

HASH_BITS = 63
"""A key's hash is this many lowest bits of its XXH3-64, so that it is an int64 that is not negative."""

_KEYS_AT_ONCE = 1 << 16
"""Keys that `Keys.rows` yields together."""
_BUCKET_KEYS = 1 << 22
"""About how many keys' hashes are sorted in memory together: 64 MiB, and as much again to sort them."""
_MOST_BUCKET_BITS = 9
"""Hashes are spread over at most 2^9 = 512 files, by so many of their highest bits."""


class KeyRows(NamedTuple):
    """Some keys, by ascending id."""

    data: NDArray[np.uint8]
    """Bytes of all keys in UTF-8, one after the other: uint8 [bytes]."""
    sizes: NDArray[np.int64]
    """Number of bytes of each key, at least 1: int64 [n]."""
    ids: NDArray[np.int64] | None = None
    """Id of each key: int64 [n]; None if ids count from 0."""


class DuplicateKeyError(ValueError):
    """A key names two sequences."""

    def __init__(self, key: str, ids: tuple[int, int]) -> None:
        super().__init__(f"key {key!r:.200} names two sequences, {ids[0]} and {ids[1]}")
        self.key = key
        self.ids = ids


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """A dataset's keys, memory-mapped: O(log n) from key to id; back O(1), or O(log n) if the table has a list of ids.

    Example:
        >>> import tempfile
        >>> rows = KeyRows(np.frombuffer(b"https://ahttps://b", np.uint8), np.array([9, 9]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     record = write_keys(Path(folder), [rows], column="url", num_keys=2)
        ...     keys = Keys.mapped(Path(folder), record)
        ...     keys.ids_of(["https://b", "https://c"]).tolist(), keys.of(np.array([0, 9]))
        ([1, -1], ['https://a', ''])
    """

    data: NDArray[np.uint8]
    """The content of keys.npy."""
    ends: NDArray[np.int64]
    """The content of key_ends.npy."""
    order: NDArray[np.int64]
    """The content of key_order.npy."""
    ids: NDArray[np.int64] | None
    """The content of key_ids.npy; None if each id is its key's index."""

    @classmethod
    def mapped(cls, folder: Path, record: KeyRecord) -> "Keys":
        """Maps the table in a folder; raises a PreparedDatasetError if a file is not as the manifest says."""
        table = cls(
            data=map_array(folder / KEYS, "uint8", (record.num_bytes,)),
            ends=map_array(folder / KEY_ENDS, "int64", (record.num_keys,)),
            order=map_array(folder / KEY_ORDER, "int64", (record.num_keys, 2)),
            ids=map_array(folder / KEY_IDS, "int64", (record.num_keys,)) if record.has_ids else None,
        )
        if int(table.ends[-1]) != record.num_bytes:
            raise PreparedDatasetError(f"{short_path(folder / KEY_ENDS)} does not fit {KEYS}: restore both from a copy")
        return table

    def __len__(self) -> int:
        return len(self.ends)

    def ids_of(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Returns the ids of keys, -1 for an unknown key: int64 [n]."""
        encoded_keys = [key.encode(errors="surrogatepass") for key in keys]  # a key that is no UTF-8 is just unknown
        hashes = np.array([_hash(key) for key in encoded_keys], dtype=np.int64)
        places = np.searchsorted(self.order[:, 0], hashes)
        ids = np.full(len(keys), -1, dtype=np.int64)
        for number, (key, key_hash, place) in enumerate(
            zip(encoded_keys, hashes.tolist(), places.tolist(), strict=True)
        ):
            while place < len(self) and self.order[place, 0] == key_hash:  # keys may share a hash
                index = int(self.order[place, 1])
                if self._bytes_of(index) == key:
                    ids[number] = index if self.ids is None else self.ids[index]
                    break
                place += 1
        return ids

    def of(self, ids: NDArray[np.integer]) -> list[str]:
        """Returns the keys of ids; the empty string for an id without a key."""
        indices = ids.astype(np.int64)
        if self.ids is not None:
            indices = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
            indices[self.ids[indices] != ids] = -1
        return [self._bytes_of(index).decode(errors="replace") for index in indices.tolist()]

    def rows(self, ids: NDArray[np.int64] | None = None) -> Iterator[KeyRows]:
        """Yields all keys, or the keys of some ids, `_KEYS_AT_ONCE` at a time.

        Args:
            ids: ids whose keys are wanted: int64 [n], ascending; only for a table whose ids are indices. None for all
                keys.
        """
        for first in range(0, len(self) if ids is None else len(ids), _KEYS_AT_ONCE):
            end = first + _KEYS_AT_ONCE
            yield self._rows_between(first, end) if ids is None else self._rows_of(ids[first:end])

    def begins_with(self, before: "Keys") -> bool:
        """Returns whether the table begins with all keys of `before`, in order. In both tables ids are indices."""
        num_keys, num_bytes = len(before), len(before.data)
        if len(self) < num_keys or not np.array_equal(self.ends[:num_keys], before.ends):
            return False
        return np.array_equal(self.data[:num_bytes], before.data)

    def _rows_between(self, first: int, end: int) -> KeyRows:
        """Returns the keys with the indices [first, end), or fewer at the table's end."""
        ends = np.array(self.ends[first:end])
        begin = int(self.ends[first - 1]) if first else 0
        sizes = np.diff(ends, prepend=begin)  # keys that end at [3, 5, 9] and begin at 0 have [3, 2, 4] bytes
        ids = None if self.ids is None else np.array(self.ids[first:end])
        return KeyRows(np.array(self.data[begin : int(ends[-1])]), sizes, ids)

    def _rows_of(self, indices: NDArray[np.int64]) -> KeyRows:
        """Returns the keys with some indices, which are also their ids."""
        keys = [self._bytes_of(index) for index in indices.tolist()]
        sizes = np.array([len(key) for key in keys], dtype=np.int64)
        return KeyRows(np.frombuffer(b"".join(keys), np.uint8), sizes, np.array(indices))

    def _bytes_of(self, index: int) -> bytes:
        """Returns the key with an index, in UTF-8; no bytes if there is none.

        That is so for an id without a key. An index of key_order.npy can also be wrong, if the file was altered and its
        checksum is not compared yet.
        """
        if not 0 <= index < len(self):
            return b""
        begin = int(self.ends[index - 1]) if index else 0
        return self.data[begin : int(self.ends[index])].tobytes()


def write_keys(folder: Path, rows: Iterable[KeyRows], *, column: str, num_keys: int) -> KeyRecord:
    """Writes the table of keys into a folder.

    The pairs (hash, index) are first spread over files, the buckets, by the highest bits of their hash. Then each
    bucket is sorted in memory, so all buckets together ascend. This takes about 128 MiB of memory, and until it is done
    as much disk again as key_order.npy.

    Example:
        >>> import tempfile
        >>> rows = KeyRows(np.frombuffer(b"aab", np.uint8), np.array([2, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_keys(Path(folder), [rows], column="name", num_keys=2)
        KeyRecord(column='name', num_keys=2, num_bytes=3, has_ids=False)

    Args:
        folder: the folder, without any of the table's files.
        rows: all keys, ascending by id; either every `KeyRows` has ids, or none has.
        column: the column of the input that the keys come from.
        num_keys: about how many keys there are.

    Raises:
        DuplicateKeyError: a key names two sequences.
        OSError: the disk is full.
    """
    bucket_bits = min((num_keys // _BUCKET_KEYS).bit_length(), _MOST_BUCKET_BITS)
    buckets = [folder / f"{KEY_ORDER}.{number:03}" for number in range(1 << bucket_bits)]
    num_bytes = num_written = 0
    with ExitStack() as files:
        append_data = files.enter_context(growing_array(folder / KEYS, "uint8", None))
        append_ends = files.enter_context(growing_array(folder / KEY_ENDS, "int64", None))
        opened = [files.enter_context(path.open("xb")) for path in buckets]
        append_ids: Callable[[NDArray[np.int64]], None] | None = None  # its file is created only if keys have ids
        for batch in rows:
            ends = np.cumsum(batch.sizes)
            if batch.ids is not None:
                if append_ids is None:
                    append_ids = files.enter_context(growing_array(folder / KEY_IDS, "int64", None))
                append_ids(batch.ids)
            append_data(batch.data)
            append_ends(ends + num_bytes)
            pairs = np.stack([_hashes(batch.data, ends), np.arange(num_written, num_written + len(ends))], axis=1)
            bucket_of = pairs[:, 0] >> (HASH_BITS - bucket_bits)
            for number in np.unique(bucket_of).tolist() if bucket_bits else [0]:  # a single bucket needs no search
                opened[number].write(np.ascontiguousarray(pairs[bucket_of == number], dtype="<i8").data.cast("B"))
            num_bytes, num_written = num_bytes + len(batch.data), num_written + len(ends)
    with growing_array(folder / KEY_ORDER, "int64", 2) as append_order:
        for path in buckets:
            pairs = np.fromfile(path, dtype="<i8").reshape(-1, 2)
            path.unlink()
            append_order(pairs[np.argsort(pairs[:, 0], kind="stable")])
    record = KeyRecord(column=column, num_keys=num_written, num_bytes=num_bytes, has_ids=append_ids is not None)
    _refuse_duplicates(Keys.mapped(folder, record))
    return record


def _refuse_duplicates(table: Keys) -> None:
    """Raises a DuplicateKeyError if a key is in the table twice."""
    for first in range(0, len(table), _BUCKET_KEYS):
        hashes = np.array(table.order[first : first + _BUCKET_KEYS + 1, 0])  # one more: the next batch's first
        same_as_next = np.flatnonzero(hashes[1:] == hashes[:-1])
        for place in (first + same_as_next + 1).tolist():
            _refuse_earlier(table, place)


def _refuse_earlier(table: Keys, place: int) -> None:
    """Raises a DuplicateKeyError if the key at a place of `table.order` is there earlier too, so with an equal hash."""
    key_hash, index = table.order[place].tolist()
    key = table._bytes_of(index)
    while place > 0 and table.order[place - 1, 0] == key_hash:
        place -= 1
        earlier = int(table.order[place, 1])
        if table._bytes_of(earlier) == key:
            ids = (earlier, index) if table.ids is None else (int(table.ids[earlier]), int(table.ids[index]))
            raise DuplicateKeyError(key.decode(errors="replace"), ids)


def _hashes(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the hash of each key of `data`: int64 [n]; `ends` says where the keys end, int64 [n]."""
    view = np.ascontiguousarray(data).data
    digest = xxhash.xxh3_64_intdigest
    hashes = [digest(view[begin:end]) for begin, end in pairwise([0, *ends.tolist()])]
    return (np.array(hashes, dtype=np.uint64) & np.uint64(2**HASH_BITS - 1)).astype(np.int64)


def _hash(key: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(key)) & (2**HASH_BITS - 1)
