"""The table of training without packing, which `inspect` and `plan` print.

Owns its columns and the ways' names. Leaves every figure to `packhorse.analysis`.
"""

from collections.abc import Sequence

from rich.table import Table

from packhorse.analysis import ROWS_PER_BATCH, Unpacked
from packhorse.cli.shared.printing import table

_WAYS = {
    "padded": "one sequence a row, padded",
    "sorted-batches": f"sorted by length, batches of {ROWS_PER_BATCH} padded to their longest",
    "random-order": "rows filled in random order",
    "concatenated": "concatenated and cut into rows",
}
"""Way of filling rows without packing → its name in the table."""


def unpacked_table(ways: Sequence[Unpacked], packed_tokens: int) -> Table:
    """Returns the table of ways without packing, compared with the tokens that a GPU computes with packing."""
    rows = (
        (
            _WAYS[way.way],
            f"{way.rows:,}",
            f"{way.efficiency:.2%}",
            f"{way.computed_tokens / packed_tokens:.3f}",
            f"{way.sequences_cut:,}" + (f" ({way.sequences_cut / way.sequences:.1%})" if way.sequences_cut else ""),
        )
        for way in ways
    )
    columns = ("without packing", "rows", "efficiency", "computed tokens, packed = 1", "sequences cut apart")
    return table(*columns, rows=rows)
