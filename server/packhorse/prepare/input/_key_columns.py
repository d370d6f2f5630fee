"""Columns of keys: text, UUIDs and whole numbers, which become UTF-8 text.

Owns which types of Arrow are always keys, turning values into UTF-8, and refusing a row without a usable key. When a
column of uint64 holds keys is decided in `_tables`. The pass that reads all keys is in `prepare/records/keys`, and the
table that it writes in `packhorse.dataset.keys`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import KeyRows
from packhorse.formats import require
from packhorse.formats.arrow import nulls_of
from packhorse.formats.keys import MOST_KEY_BYTES
from packhorse.formats.object_store import without_secrets
from packhorse.parameters import parameter
from packhorse.prepare.input._columns import InputColumns

_UUID_BYTES = 16
_UUID_CHARACTERS = 36
_HYPHENS_BEFORE = (8, 12, 16, 20)
"""Indices of the digits of a UUID before which its text has a hyphen."""


class KeyChunk(NamedTuple):
    """Keys of consecutive rows of one file, not checked yet."""

    where: str
    """Name of the file, for messages."""
    first_row: int
    """Number of the first row in the file, 0-based."""
    values: Any
    """The keys, an Arrow array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumn:
    """The keys of an input, one for each row, in the order in which rows are numbered."""

    name: str
    """Name of the column, for the manifest."""
    rows: Callable[[], Iterator[KeyRows]]
    """A function that reads all keys from the beginning; it raises a ValueError if a row has no key."""

    @classmethod
    def of_chunks(cls, name: str, chunks: Callable[[], Iterator[KeyChunk]]) -> Self:
        """Returns the column of a name whose keys are in Arrow arrays; `chunks` gives all chunks at each call."""

        def rows() -> Iterator[KeyRows]:
            for chunk in chunks():
                if len(chunk.values):  # Arrow lets an empty array have no offsets
                    yield _in_utf8(chunk, name)

        return cls(name=name, rows=rows)


def keys_of_files(
    columns: InputColumns, paths: Sequence[str], column_of: Callable[[str, str], Iterator[Any]]
) -> KeyColumn | None:
    """Returns the column of keys of files; None if no column of keys is chosen.

    Args:
        columns: the chosen columns.
        paths: paths of the files, in order.
        column_of: a function that yields a file's column of a name, as Arrow arrays.
    """
    name = columns.key
    if name is None:
        return None

    def chunks() -> Iterator[KeyChunk]:
        for path in paths:
            first_row = 0
            for values in column_of(path, name):
                yield KeyChunk(without_secrets(path), first_row, values)
                first_row += len(values)

    return KeyColumn.of_chunks(name, chunks)


def are_keys(arrow_type: Any) -> bool:
    """Returns whether values of an Arrow type are keys: text, UUIDs (16 bytes), or decimals without a fraction."""
    pa = require("pyarrow")
    types = pa.types
    of_values = arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type
    stored = of_values.storage_type if isinstance(of_values, pa.BaseExtensionType) else of_values  # such as pa.uuid()
    is_text = types.is_string(stored) or types.is_large_string(stored) or types.is_string_view(stored)
    is_uuid = types.is_fixed_size_binary(stored) and stored.byte_width == _UUID_BYTES
    is_whole = types.is_decimal(stored) and stored.scale == 0
    return bool(is_text or is_uuid or is_whole)


def _in_utf8(chunk: KeyChunk, column: str) -> KeyRows:
    """Returns the keys of some rows in UTF-8: a UUID in 36 characters, a number in digits.

    Raises:
        ValueError: a value is null, empty, longer than a key may be, or not UTF-8; the message names file and row.
    """
    pa = require("pyarrow")
    types = pa.types

    def refusal(index: int, what: str) -> ValueError:
        return ValueError(
            f"{chunk.where}: row {chunk.first_row + index}, column {column!r} {what}; every row needs a "
            "key of its own, also with " + parameter("on_bad_row", "skip") + ": repair the row or leave it out"
        )

    values = chunk.values.dictionary_decode() if types.is_dictionary(chunk.values.type) else chunk.values
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    if values.null_count:  # checked after decoding: a dictionary's own nulls are not counted before
        raise refusal(int(np.flatnonzero(nulls_of(values))[0]), "is null")
    if types.is_fixed_size_binary(values.type):
        return _uuids(values)
    text = values.cast(pa.large_string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        raise ValueError(
            f"{chunk.where}: column {column!r} holds text that is not UTF-8 in rows {chunk.first_row} to "
            f"{chunk.first_row + len(text) - 1}; write it again as UTF-8"
        ) from None
    _, offsets, data = text.buffers()
    # Key i is data[bounds[i] : bounds[i + 1]].
    bounds = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    sizes = np.diff(bounds)
    for is_wrong, what in (
        (sizes == 0, "is empty"),
        (sizes > MOST_KEY_BYTES, f"is longer than {MOST_KEY_BYTES:,} bytes"),
    ):
        if is_wrong.any():
            raise refusal(int(np.argmax(is_wrong)), what)
    return KeyRows(np.frombuffer(data, np.uint8)[int(bounds[0]) : int(bounds[-1])], sizes)


def _uuids(values: Any) -> KeyRows:
    """Returns UUIDs of 16 bytes as text, such as 123e4567-e89b-12d3-a456-426614174000."""
    _, data = values.buffers()
    begin = values.offset * _UUID_BYTES
    raw = np.frombuffer(data, np.uint8)[begin : begin + len(values) * _UUID_BYTES].reshape(-1, _UUID_BYTES)
    # A byte is two digits: 0x12 -> 1, 2.
    digits = np.stack([raw >> 4, raw & 15], axis=2).reshape(-1, 2 * _UUID_BYTES)
    text: NDArray[np.uint8] = np.frombuffer(b"0123456789abcdef", np.uint8)[digits]
    text = np.insert(text, _HYPHENS_BEFORE, ord("-"), axis=1)
    return KeyRows(text.reshape(-1), np.full(len(raw), _UUID_CHARACTERS))
