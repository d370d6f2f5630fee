"""The table of what training would cost without packing, which `inspect` and `plan compare` both show."""

from collections.abc import Sequence

from rich.table import Table

from packhorse.cli.unpacked import ROWS_PER_BATCH, Unpacked

_MEANINGS = {
    "padded": "one sequence a row, padded",
    "sorted-batches": f"sorted by length, batches of {ROWS_PER_BATCH} padded to their longest",
    "random-order": "rows filled in random order",
    "concatenated": "concatenated and cut into rows",
}


def unpacked_table(ways: Sequence[Unpacked], packed_tokens: int) -> Table:
    """Returns the table.

    Args:
        ways: what to show.
        packed_tokens: tokens that a GPU computes in an epoch with packing, beside which each way is set.
    """
    table = Table("without packing", "rows", "efficiency", "computed tokens, packed = 1", "sequences cut apart")
    for column in table.columns[1:]:
        column.justify = "right"
    for way in ways:
        table.add_row(
            _MEANINGS[way.way],
            f"{way.rows:,}",
            f"{way.efficiency:.2%}",
            f"{way.computed_tokens / packed_tokens:.3f}",
            f"{way.sequences_cut:,}" + (f" ({way.sequences_cut / way.sequences:.1%})" if way.sequences_cut else ""),
        )
    return table
