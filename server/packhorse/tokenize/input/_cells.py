"""Cells of Arrow columns, turned back into the Python values from which the table was made.

In a column of structs Arrow gives every cell the keys of all rows, with nulls for keys that a row did not have. Owns
removing these nulls, and parsing cells that hold JSON as text. Leaves reading tables to `table_rows`.
"""

import json
from collections.abc import Callable
from typing import Any

from packhorse.formats import require

_Convert = Callable[[Any], Any]


def cells_of(column: Any) -> list[Any]:
    """Returns the cells of an Arrow array.

    A null in a struct, at any depth, is taken for a missing key, except the `content` of a message (a struct with a
    `role`). Nulls in lists, maps and JSON belong to the data and stay. Cells of the type `arrow.json`, which Hugging
    Face `datasets` writes, are parsed.
    """
    convert = _converter(column.type)
    cells: list[Any] = column.to_pylist()
    return cells if convert is None else [None if cell is None else convert(cell) for cell in cells]


def _converter(kind: Any) -> _Convert | None:
    """Returns the function that converts cells of an Arrow type; None if they need no conversion."""
    types = require("pyarrow").types
    if getattr(kind, "extension_name", None) == "arrow.json":
        return _parsed
    if isinstance(kind, require("pyarrow").BaseExtensionType):
        return _converter(kind.storage_type)
    if types.is_map(kind):
        inner = _converter(kind.item_type)
        return lambda pairs: {key: _converted(inner, value) for key, value in pairs}
    if types.is_struct(kind):
        fields = {kind.field(at).name: _converter(kind.field(at).type) for at in range(kind.num_fields)}
        return lambda cell: {
            name: _converted(fields[name], value)
            for name, value in cell.items()
            if value is not None or (name == "content" and "role" in cell)
        }
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _converter(kind.value_type)
        return None if inner is None else lambda cell: [_converted(inner, value) for value in cell]
    return None


def _converted(convert: _Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _parsed(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:  # not JSON after all: the row's encoder reports it
        return text
