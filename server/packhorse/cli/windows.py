"""What locality windows do to a dataset's shuffle and to its disk: the rows and the table that `inspect` shows.

Owns which numbers of windows are compared; leaves measuring to `packhorse.epoch.shuffle_quality`.
"""

from collections.abc import Sequence

from rich.table import Table

from packhorse.dataset import PreparedDataset
from packhorse.epoch import ShuffleQuality, shuffle_quality

_NUM_WINDOWS = (1, 8, 32, 128, 512)
_LEAST_BINS = 16
"""Windows of fewer bins are not compared."""


def quality_rows(dataset: PreparedDataset) -> list[ShuffleQuality]:
    """Measures a dataset's first epochs under some numbers of windows; groups count as one sequence.

    Args:
        dataset: what was prepared.
    """
    return [
        shuffle_quality(dataset.plan, dataset.pool, num_windows, first_tokens=dataset.first_tokens)
        for num_windows in _NUM_WINDOWS
        if num_windows == 1 or dataset.plan.num_bins >= _LEAST_BINS * num_windows
    ]


def quality_table(rows: Sequence[ShuffleQuality]) -> Table:
    """Returns the table.

    Args:
        rows: what to show.
    """
    table = Table(
        "shuffle",
        "chi-square",
        "neighbours, by chance = 1",
        "soonest return, epochs",
        "read from disk, all tokens = 1",
        "globally, as much cache",
        title="locality windows; the cache holds one",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        is_global = row.num_windows == 1
        table.add_row(
            "global" if is_global else f"windowed({row.num_windows})",
            f"{row.chi_square:,.2f}",
            f"{row.neighbours:.2f}",
            f"{row.return_epochs:.2f}",
            f"{row.read:.2f}",
            f"{row.read_globally:.2f}",
        )
    return table
