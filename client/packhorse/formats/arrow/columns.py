"""Columns of Arrow data: which one holds tokens, its type, and its values as NumPy arrays.

Leaves files and record batches to `arrow.files`, and the layout of lists to `packhorse.tokens`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.extras import require
from packhorse.formats.name_lists import listed

USUAL_COLUMNS = ("input_ids", "tokens")
"""Usual names of a column of tokens."""


def evident_column(fitting: Sequence[str]) -> str | None:
    """Returns the column of tokens if it is evident: the only fitting one, or the only one with a usual name.

    Args:
        fitting: the columns that could hold tokens.

    Returns:
        None if no column is evident.

    Example:
        >>> evident_column(["labels", "input_ids"]), evident_column(["a", "b"])
        ('input_ids', None)
    """
    usual = [name for name in fitting if name in USUAL_COLUMNS]
    candidates = fitting if len(fitting) == 1 else usual
    return candidates[0] if len(candidates) == 1 else None


def column_type(schema: Any, column: str, where: str) -> Any:
    """Returns the Arrow type of a column; a ValueError if no column, or several, have the name.

    `where` is the path or URL of the data, for messages.
    """
    found = schema.get_all_field_indices(column)
    if not found:
        raise ValueError(f"{where} has no column {column!r}; its columns are: {listed(map(repr, schema.names))}")
    if len(found) > 1:
        raise ValueError(f"{where} has {len(found)} columns named {column!r}; rename all but one")
    return schema.field(found[0]).type


def is_token_list(kind: Any) -> bool:
    """Returns whether an Arrow type is a list of integers, of a layout that keeps lists end to end in memory.

    Lists whose fixed size is 0 do not count: they hold no tokens.
    """
    types = require("pyarrow", "arrow").types
    is_fixed = types.is_fixed_size_list(kind) and kind.list_size > 0
    is_list = is_fixed or types.is_list(kind) or types.is_large_list(kind)
    return is_list and types.is_integer(kind.value_type)


def values_of(array: Any) -> Any:
    """Returns an Arrow array of numbers without nulls as a NumPy array, a view.

    Arrow's own `to_numpy` would import pandas, which takes longer than opening a source.
    """
    return np.from_dlpack(array)


def nulls_of(array: Any) -> NDArray[np.bool_]:
    """Returns which values of an Arrow array are null: bool [n]."""
    # Arrow packs bools as single bits, of which NumPy has no views, so they become bytes first.
    return np.asarray(values_of(array.is_null().cast("uint8")).astype(np.bool_))
