"""The extents of each row of a batch: `row_extents`.

Owns cutting a layout's extents into rows, for presets whose trainers take offsets or lengths for each row. What an
extent is stands in `batches/layout`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout


def row_extents(layout: PackLayout) -> list[NDArray[np.int64]]:
    """Returns for each row the tokens of its extents: those of its rooms, then of its rest, which may be 0.

    Args:
        layout: the layout of a batch with B rows.

    Returns:
        B arrays int64 [sequences of the row + 1]: views of `layout.extent_lengths`.
    """
    extent_ends = layout.row_ends + np.arange(1, layout.num_rows + 1)  # a row has one extent more than sequences
    return np.split(layout.extent_lengths, extent_ends[:-1])[: layout.num_rows]  # of 0 rows np.split makes one array
