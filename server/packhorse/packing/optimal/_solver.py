"""HiGHS as the solver of master problems: silent, and with rows and columns that are lengths and bins.

`_master` says what a master problem is. Leaves which one is solved, and how, to it and to `_branching`.
"""

from collections.abc import Mapping, Sequence

import highspy
import numpy as np
from numpy.typing import NDArray

Repeat = tuple[int, int]
"""A length in a bin: (its index among the descending lengths, number of copies)."""
Column = tuple[Repeat, ...]
"""A bin: its lengths, by ascending index."""


class Solver(highspy.Highs):
    """A HiGHS solver of master problems that never writes to stdout.

    From 1.16 on, HiGHS prints its name and licence when callbacks are enabled, which its constructor does before an
    option can be set. A command's stdout holds results only.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.setOptionValue("output_flag", False)  # releases before 1.16 may not call `enableCallbacks`

    def enableCallbacks(self) -> None:  # noqa: N802, as HiGHS spells it
        """Turns output off before HiGHS can print; its constructor calls this."""
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]

    def set_options(self, options: Mapping[str, bool | int | float | str]) -> None:
        """Sets several options of HiGHS, by their names."""
        for name, value in options.items():
            self.setOptionValue(name, value)

    def add_demands(self, demands: NDArray[np.float64]) -> None:
        """Adds a row for each length: the columns hold it at least as often as demanded, float64 [n]."""
        num_rows = len(demands)
        upper_bounds = np.full(num_rows, highspy.kHighsInf)
        num_entries, starts = 0, np.zeros(num_rows, dtype=np.int32)  # rows are empty until columns are added
        indices, values = np.zeros(0, dtype=np.int32), np.zeros(0)
        self.addRows(num_rows, demands, upper_bounds, num_entries, starts, indices, values)

    def add_columns(self, columns: Sequence[Column]) -> None:
        """Adds bins, at least one, each of which costs 1 and may be used any number of times."""
        num_columns = len(columns)
        costs, lower_bounds = np.ones(num_columns), np.zeros(num_columns)
        upper_bounds = np.full(num_columns, highspy.kHighsInf)
        sizes = np.array([len(column) for column in columns])
        # Columns ((0, 2), (3, 1)) and ((1, 4),): starts [0, 2], indices [0, 3, 1], copies [2, 1, 4].
        starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int32)
        indices, copies = np.array([repeat for column in columns for repeat in column]).T
        self.addCols(
            num_columns,
            costs,
            lower_bounds,
            upper_bounds,
            len(indices),
            starts,
            indices.astype(np.int32),
            copies.astype(np.float64),
        )
