"""Which column of a table holds the tokens, and what a column holds: one rule for preparing and for training."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.extras import require

_MOST_NAMES = 6

USUAL_COLUMNS = ("input_ids", "tokens")
"""Names that a column of tokens usually has."""


def evident_column(fitting: Sequence[str]) -> str | None:
    """Returns the only column that could hold tokens, or the only such one with a usual name; None without one.

    Example:
        >>> evident_column(["labels", "input_ids"]), evident_column(["a", "b"])
        ('input_ids', None)

    Args:
        fitting: the columns that could hold tokens.
    """
    for some in (fitting, [name for name in fitting if name in USUAL_COLUMNS]):
        if len(some) == 1:
            return some[0]
    return None


def column_type(schema: Any, column: str, where: str) -> Any:
    """Returns the Arrow type of a column.

    Example:
        >>> import pyarrow as pa
        >>> column_type(pa.schema({"id": pa.int64()}), "id", "corpus.parquet")
        DataType(int64)

    Args:
        schema: an Arrow schema.
        column: its name.
        where: the data, for messages.

    Raises:
        ValueError: it is missing, or there twice.
    """
    found = schema.get_all_field_indices(column)
    if not found:
        raise ValueError(f"{where} has no column {column!r}; its columns are: {listed(map(repr, schema.names))}")
    if len(found) > 1:
        raise ValueError(f"{where} has {len(found)} columns named {column!r}; give them names of their own")
    return schema.field(found[0]).type


def is_token_list(kind: Any) -> bool:
    """Whether an Arrow type is that of lists of integers, which lie end to end in memory.

    Example:
        >>> import pyarrow as pa
        >>> is_token_list(pa.list_(pa.int32())), is_token_list(pa.list_(pa.float32()))
        (True, False)
    """
    types = require("pyarrow", "arrow").types
    is_list = types.is_list(kind) or types.is_large_list(kind) or (types.is_fixed_size_list(kind) and kind.list_size)
    return bool(is_list and types.is_integer(kind.value_type))


def values_of(array: Any) -> Any:
    """Returns the values of an Arrow array of numbers without nulls as NumPy sees them.

    Arrow's own `to_numpy` would import pandas, which takes longer than opening a source.

    Example:
        >>> import pyarrow as pa
        >>> values_of(pa.array([3, 5, 7])[1:]).tolist()
        [5, 7]
    """
    return np.from_dlpack(array)


def nulls_of(array: Any) -> NDArray[np.bool_]:
    """Returns which values of an Arrow array are null: bool [n].

    Example:
        >>> import pyarrow as pa
        >>> nulls_of(pa.array([3, None])).tolist()
        [False, True]
    """
    return np.asarray(values_of(array.is_null().cast("uint8")).astype(np.bool_))


def listed(names: Iterable[str]) -> str:
    """Returns names for a message, the first of them where there are many; "none" without any.

    Example:
        >>> listed(["a", "b"]), listed(map(str, range(1000)))
        ('a, b', '0, 1, 2, 3, 4, 5 and 994 more')
    """
    shown = list(names)
    more = f" and {len(shown) - _MOST_NAMES:,} more" if len(shown) > _MOST_NAMES else ""
    return ", ".join(shown[:_MOST_NAMES]) + more if shown else "none"
