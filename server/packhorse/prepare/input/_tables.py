"""Choosing the columns of a table, and checking their types.

Owns that judgement, for Parquet, Arrow files and Arrow streams alike.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import KeyRows
from packhorse.formats import require
from packhorse.formats.arrow import column_type, evident_column, is_token_list, listed, nulls_of, values_of
from packhorse.formats.keys import MOST_KEY_BYTES
from packhorse.parameters import parameter
from packhorse.prepare.input._rows import MOST_RESOURCE, InputColumns, RawRows, as_amounts, evident_lengths

LARGEST_TOKEN = 2**31 - 1
"""Every vocabulary's ids fit into int32."""


def chosen_columns(
    schema: Any, columns: InputColumns, where: str, *, is_wide: Callable[[str], bool] = lambda _: False
) -> tuple[InputColumns, bool]:
    """Returns the columns that are meant, and whether the lengths are those of lists.

    Args:
        schema: an Arrow schema.
        columns: as the user named them.
        where: the data, for messages.
        is_wide: whether a column of uint64 holds numbers that int64 cannot: these are keys then, and no ids.

    Raises:
        ValueError: one is missing, ambiguous, there twice, or of another type.
    """
    types = require("pyarrow").types
    length = columns.length
    if length is None:
        lists = [field.name for field in schema if is_tokens(field.type)]
        length = evident_column(lists) or evident_lengths(
            lists, [field.name for field in schema if types.is_integer(field.type)]
        )
        if length is None:
            raise ValueError(
                f"{where}: which column holds the tokens is not evident; "
                + parameter("length_column")
                + " must name one, of lengths or of lists of tokens. Its columns are: "
                f"{listed(f'{field.name!r} ({field.type})' for field in schema)}"
            )
    kind = column_type(schema, length, where)
    if not (types.is_integer(kind) or is_tokens(kind)):
        raise ValueError(
            f"{where}: column {length!r} holds {kind}, but integers (lengths in tokens) or lists of integers (the "
            "tokens) are needed"
        )
    columns = _with_keys(schema, columns, where, is_wide)
    if columns.group is not None and not types.is_integer(group_kind := column_type(schema, columns.group, where)):
        raise ValueError(
            f"{where}: column {columns.group!r} holds {group_kind}, but groups are integers: number them, for example "
            "by `pandas.factorize`"
        )
    for name in columns.amounts:
        if not is_amount(amount_kind := column_type(schema, name, where)):
            raise ValueError(
                f"{where}: column {name!r} holds {amount_kind}, but a resource is a column of integers, of lists of "
                "integers, whose sum counts, or of lists of grids (t, h, w), whose t·h·w are summed"
            )
    return replace(columns, length=length), is_tokens(kind)


def refuse_other_ids(path: str, before: InputColumns, now: InputColumns) -> None:
    """Refuses a file whose column of ids holds another kind than in files before it; a ValueError."""
    if before.key != now.key:
        is_text = now.key is not None
        raise ValueError(
            f"{path}: column {now.key or now.id!r} holds {'keys' if is_text else 'integers'}, and in the files before "
            f"it {'integers' if is_text else 'keys'}: give files that are alike"
        )


def _with_keys(schema: Any, columns: InputColumns, where: str, is_wide: Callable[[str], bool]) -> InputColumns:
    """Returns columns with that of ids as `key` where it holds no integers."""
    name = columns.id if columns.key is None else columns.key
    if name is None:
        return columns
    kind = column_type(schema, name, where)
    types = require("pyarrow").types
    if types.is_uint64(kind) and (columns.key is not None or is_wide(name)):
        return replace(columns, id=None, key=name)
    if types.is_integer(kind):
        return replace(columns, id=name, key=None)
    if not are_keys(kind):
        raise ValueError(
            f"{where}: column {name!r} holds {kind}, but sequences are named by integers, or by keys: text, UUIDs, or "
            "decimals without a fraction; cast the column to text"
        )
    return replace(columns, id=None, key=name)


def is_tokens(kind: Any) -> bool:
    """Whether an Arrow type is that of lists of integers, of any layout."""
    types = require("pyarrow").types
    is_view = types.is_list_view(kind) or types.is_large_list_view(kind)
    return is_token_list(kind) or bool(is_view and types.is_integer(kind.value_type))


_UUID_BYTES = 16


class KeyChunk(NamedTuple):
    """Keys of consecutive rows of one file, unchecked."""

    where: str
    """The file."""
    first_row: int
    """In it, 0-based."""
    values: Any
    """An Arrow array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumn:
    """The keys of an input, a value for each row in the order that numbers them."""

    name: str
    """The column, as the manifest calls it."""
    rows: Callable[[], Iterator[KeyRows]]
    """Reads them, once each time that it is called; a ValueError if a row has none."""

    @classmethod
    def of_chunks(cls, name: str, chunks: Callable[[], Iterator[KeyChunk]]) -> Self:
        """Returns the keys of Arrow arrays."""
        return cls(name=name, rows=lambda: (_rows(chunk, name) for chunk in chunks() if len(chunk.values)))


def are_keys(kind: Any) -> bool:
    """Whether values of an Arrow type may name sequences: text, UUIDs, and whole numbers that int64 cannot hold."""
    types = require("pyarrow").types
    inner = _plain(kind.value_type if types.is_dictionary(kind) else kind)
    is_uuid = types.is_fixed_size_binary(inner) and inner.byte_width == _UUID_BYTES
    is_whole = types.is_decimal(inner) and inner.scale == 0
    return bool(types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)) or bool(
        is_uuid or is_whole
    )


def _rows(chunk: KeyChunk, column: str) -> KeyRows:
    """Returns the keys of some rows in UTF-8; UUIDs as 36 characters, numbers in digits.

    Raises:
        ValueError: a value is null, empty, longer than a key may be, or no UTF-8; names file and row.
    """
    pa = require("pyarrow")
    types, values = pa.types, chunk.values

    def refuse(index: int, what: str) -> ValueError:
        return ValueError(
            f"{chunk.where}: row {chunk.first_row + index}, column {column!r} {what}; every row needs a "
            "key of its own, also with " + parameter("on_bad_row", "skip") + ": repair the row or leave it out"
        )

    if values.null_count:
        raise refuse(int(np.flatnonzero(nulls_of(values))[0]), "is null")
    values = values.dictionary_decode() if types.is_dictionary(values.type) else values
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    if types.is_fixed_size_binary(values.type):
        return _uuids(values)
    values = values.cast(pa.large_string())
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        raise ValueError(
            f"{chunk.where}: column {column!r} holds text that is not UTF-8 in rows {chunk.first_row} to "
            f"{chunk.first_row + len(values) - 1}; write it again as UTF-8"
        ) from None
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    sizes = np.diff(ends)
    for is_wrong, what in (
        (sizes == 0, "is empty"),
        (sizes > MOST_KEY_BYTES, f"is longer than {MOST_KEY_BYTES:,} bytes"),
    ):
        if is_wrong.any():
            raise refuse(int(np.argmax(is_wrong)), what)
    return KeyRows(np.frombuffer(data, np.uint8)[int(ends[0]) : int(ends[-1])], sizes)


def _plain(kind: Any) -> Any:
    return kind.storage_type if isinstance(kind, require("pyarrow").BaseExtensionType) else kind


def _uuids(values: Any) -> KeyRows:
    _, data = values.buffers()
    begin = values.offset * _UUID_BYTES
    raw = np.frombuffer(data, np.uint8)[begin : begin + len(values) * _UUID_BYTES].reshape(-1, _UUID_BYTES)
    digits = np.stack([raw >> 4, raw & 15], axis=2).reshape(-1, 2 * _UUID_BYTES)
    text: NDArray[np.uint8] = np.frombuffer(b"0123456789abcdef", np.uint8)[digits]
    return KeyRows(np.insert(text, (8, 12, 16, 20), ord("-"), axis=1).reshape(-1), np.full(len(raw), 36))


def is_amount(kind: Any) -> bool:
    """Whether an Arrow type is that of integers, of lists of integers, or of lists of these."""
    types = require("pyarrow").types
    depth = 0
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    return depth < 3 and bool(types.is_integer(kind))


def amounts_of(column: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Returns how much of a resource each row has, and which rows are null: int64 [n], and bool [n] or None.

    Example:
        >>> import pyarrow
        >>> amounts_of(pyarrow.array([[[1, 4, 6], [1, 2, 2]], []]))[0]
        array([28,  0])

    Args:
        column: an Arrow array: integers; lists of integers, which are summed; or lists of grids (t, h, w).
    """
    import pyarrow.compute as pc

    if require("pyarrow").types.is_integer(column.type):
        values, nulls = _values_and_nulls(column)
        return as_amounts(values), nulls
    sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    inner = column.flatten()
    if require("pyarrow").types.is_integer(inner.type):
        values = as_amounts(values_of(inner.fill_null(-1)))
    else:
        values = _products(inner)
    ends = np.cumsum(sizes)

    def summed(numbers: NDArray[np.integer]) -> NDArray[np.int64]:
        sums = np.concatenate(([0], np.cumsum(numbers, dtype=np.int64)))
        return sums[ends] - sums[ends - sizes]

    amounts = np.where(summed((values < 0).astype(np.int64)) > 0, -1, summed(np.minimum(values, MOST_RESOURCE + 1)))
    return amounts, nulls_of(column) if column.null_count else None


def _products(grids: Any) -> NDArray[np.int64]:
    """Returns the product of each grid (t, h, w), -1 where it is not three numbers of at least 0: int64 [n]."""
    import pyarrow.compute as pc

    sizes = pc.fill_null(pc.list_value_length(grids), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    numbers = values_of(grids.flatten().fill_null(-1)).astype(np.float64)
    grid = np.repeat(np.arange(len(sizes)), sizes)
    products = np.ones(len(sizes))
    np.multiply.at(products, grid, numbers)
    products[sizes != 3] = -1
    products[grid[numbers < 0]] = -1
    return np.minimum(products, MOST_RESOURCE + 1).astype(np.int64)


def with_integers(rows: RawRows, table: Any, columns: InputColumns) -> RawRows:
    """Returns rows with the ids, groups and resources of an Arrow table or record batch of them."""
    found = [(None, None) if name is None else _values_and_nulls(_joined(table, name)) for name in columns.integers]
    (ids, null_ids), (groups, null_groups) = found
    rows = rows._replace(ids=ids, null_ids=null_ids, groups=groups, null_groups=null_groups)
    if not columns.resources:
        return rows
    amounts, nulls = zip(*(amounts_of(_joined(table, name)) for name in columns.amounts), strict=True)
    is_null = [
        np.zeros(len(values), dtype=np.bool_) if null is None else null
        for values, null in zip(amounts, nulls, strict=True)
    ]
    return rows._replace(
        resources=np.stack(amounts, axis=1),
        null_resources=np.stack(is_null, axis=1) if any(null is not None for null in nulls) else None,
    )


def arrow_lengths(lengths: Any, is_list: bool) -> RawRows:
    """Returns an Arrow array of lengths, or of lists, whose lengths are taken from their offsets.

    Args:
        lengths: integers, or lists.
        is_list: which of them.
    """
    if is_list:
        import pyarrow.compute as pc

        lengths = pc.list_value_length(lengths)
    return RawRows(*_values_and_nulls(lengths))


def arrow_rows(batch: Any, columns: InputColumns, is_list: bool) -> RawRows:
    """Returns the rows of an Arrow record batch.

    Args:
        batch: has the columns, by name.
        columns: which they are.
        is_list: whether the length column holds lists.
    """
    lengths = arrow_lengths(batch.column(batch.schema.get_field_index(columns.length)), is_list)
    return with_integers(lengths, batch, columns)


def _joined(table: Any, name: str) -> Any:
    """Returns a column of an Arrow table or record batch as one array."""
    column = table.column(table.schema.get_field_index(name))
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _values_and_nulls(array: Any) -> tuple[NDArray[np.integer], NDArray[np.bool_] | None]:
    return (values_of(array.fill_null(1)), nulls_of(array)) if array.null_count else (values_of(array), None)
