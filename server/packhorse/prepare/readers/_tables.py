"""Which columns of a table with a schema are meant, and whether they hold what they should.

Owns that judgement, for Parquet, Arrow files and Arrow streams alike.
"""

from dataclasses import replace
from typing import Any

from packhorse.formats import require
from packhorse.formats.columns import column_type, evident_column, is_token_list, listed
from packhorse.prepare.readers._rows import Columns

LARGEST_TOKEN = 2**31 - 1
"""Every vocabulary's ids fit into int32."""


def chosen_columns(schema: Any, columns: Columns, where: str) -> tuple[Columns, bool]:
    """Returns the columns that are meant, and whether the lengths are those of lists.

    Args:
        schema: an Arrow schema.
        columns: as the user named them.
        where: the data, for messages.

    Raises:
        ValueError: one is missing, there twice, or holds something else; or which one is meant cannot be told.
    """
    types = require("pyarrow").types
    length = columns.length
    if length is None:
        length = evident_column([field.name for field in schema if is_tokens(field.type)])
        if length is None:
            raise ValueError(
                f"{where}: which column holds the tokens is not evident; --length-column must name one, of lengths or "
                f"of lists of tokens. Its columns are: {listed(f'{field.name!r} ({field.type})' for field in schema)}"
            )
    kind = column_type(schema, length, where)
    if not (types.is_integer(kind) or is_tokens(kind)):
        raise ValueError(
            f"{where}: column {length!r} holds {kind}, but integers (lengths in tokens) or lists of integers (the "
            "tokens) are needed"
        )
    if columns.id is not None and not types.is_integer(id_kind := column_type(schema, columns.id, where)):
        raise ValueError(f"{where}: column {columns.id!r} holds {id_kind}, but ids are integers")
    if columns.group is not None and not types.is_integer(group_kind := column_type(schema, columns.group, where)):
        raise ValueError(
            f"{where}: column {columns.group!r} holds {group_kind}, but groups are integers: number them, for example "
            "by `pandas.factorize`"
        )
    return replace(columns, length=length), is_tokens(kind)


def is_tokens(kind: Any) -> bool:
    """Whether an Arrow type is that of lists of integers, of any layout."""
    types = require("pyarrow").types
    is_view = types.is_list_view(kind) or types.is_large_list_view(kind)
    return is_token_list(kind) or bool(is_view and types.is_integer(kind.value_type))
