"""Which column of a table holds the tokens, and refusing columns of other types, for tokens and for ids.

What the lists of such a column mean in memory is in `_list_columns`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packhorse.formats.arrow import column_type, evident_column, is_token_list
from packhorse.formats.extras import ARROW, require
from packhorse.parameters import parameter
from packhorse.tokens.base import TokenSourceError


def choose_column(schema: Any, column: str | None, where: str) -> str:
    """Returns `column` or, if it is None, the column of integer lists: the only one, or the only one with a usual name.

    Raises:
        TokenSourceError: several columns could hold the tokens, or none.
    """
    if column is not None:
        return column
    kinds = {field.name: field.type for field in schema}
    return choose_by_name(
        {name: str(kind) for name, kind in kinds.items()},
        [name for name, kind in kinds.items() if is_token_list(kind)],
        where,
    )


def choose_by_name(columns: Mapping[str, str], fitting: Sequence[str], where: str) -> str:
    """Returns the column of tokens, if it is evident: the only fitting one, or the only one with a usual name.

    Args:
        columns: name → type of every column, for the message.
        fitting: the columns that could hold tokens.
        where: the data, for the message.

    Raises:
        TokenSourceError: several columns could hold the tokens, or none.
    """
    evident = evident_column(fitting)
    if evident is not None:
        return evident
    found = ", ".join(f"{name!r} ({kind})" for name, kind in columns.items()) or "none"
    raise TokenSourceError(
        f"{where}: {len(fitting)} of its columns could hold tokens; say which does with column=... "
        f"Its columns are: {found}"
    )


def token_dtype_of(schema: Any, column: str, where: str) -> np.dtype[Any]:
    """Returns the type of a token; a TokenSourceError if the column is missing or does not hold lists of integers."""
    kind = _type_of(schema, column, where)
    if not is_token_list(kind):
        raise TokenSourceError(f"{where}: column {column!r} holds {kind}, but tokens are lists of integers")
    return np.dtype(kind.value_type.to_pandas_dtype())


def check_id_type(schema: Any, column: str, where: str) -> None:
    """Raises a TokenSourceError if an id column is missing or does not hold integers."""
    kind = _type_of(schema, column, where)
    if not require("pyarrow", ARROW).types.is_integer(kind):
        raise TokenSourceError(
            f"{where}: column {column!r} holds {kind}, but ids are integers; where it holds a dataset's "
            "keys, ids are rows: leave " + parameter("id_column") + " out"
        )


def _type_of(schema: Any, column: str, where: str) -> Any:
    """Returns the Arrow type of a column; a TokenSourceError if it is missing or there twice."""
    try:
        return column_type(schema, column, where)
    except ValueError as error:
        raise TokenSourceError(str(error)) from None
