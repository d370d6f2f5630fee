"""Arrow IPC files: opening them, their record batches, and their columns.

Only re-exports. Which files a path names is in `arrow.folders`, and compressed streams in stores are in
`arrow.streams`.
"""

from packhorse.formats.arrow.columns import (
    USUAL_COLUMNS,
    column_type,
    evident_column,
    is_token_list,
    nulls_of,
    values_of,
)
from packhorse.formats.arrow.files import OpenArrow, open_arrow, read_arrow, record_batches

__all__ = [
    "USUAL_COLUMNS",
    "OpenArrow",
    "column_type",
    "evident_column",
    "is_token_list",
    "nulls_of",
    "open_arrow",
    "read_arrow",
    "record_batches",
    "values_of",
]
