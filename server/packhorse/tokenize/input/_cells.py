"""Cells of Arrow columns as the values that they were before they became a table.

Owns telling a null that Arrow invented, for a key that other rows have, from one of the data; and JSON kept as text.
Leaves reading tables to `table_rows`.
"""

import json
from collections.abc import Callable
from typing import Any

from packhorse.formats import require

_Convert = Callable[[Any], Any]


def cells_of(column: Any) -> list[Any]:
    """Returns the cells of an Arrow array.

    A null in a struct is a key that is missing, at any depth; a message's content stays. Nulls in lists, maps and JSON
    are of the data. `datasets`' Json type, which is text, becomes the value that it holds.
    """
    convert = _converter(column.type)
    cells: list[Any] = column.to_pylist()
    return cells if convert is None else [None if cell is None else convert(cell) for cell in cells]


def _converter(kind: Any) -> _Convert | None:
    """The conversion of a type's cells; None if they are what they were."""
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
    except json.JSONDecodeError:  # not JSON after all: whoever reads it says so
        return text
