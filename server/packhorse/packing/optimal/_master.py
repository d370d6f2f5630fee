"""The master problem: a linear program, solved by HiGHS, for how often to use each of the bins known so far.

Owns its columns (the known bins), its rows (the lengths), and solving it again from the last solution. Leaves how HiGHS
is told of them to `_solver`, finding bins that are worth adding to `_pricing`, and making whole numbers of its
fractions to `_rounding`.
"""

from collections.abc import Iterable, Sequence

import highspy
import numpy as np
from numpy.typing import NDArray

from packhorse.packing.optimal._budget import Budget, OutOfTimeError, OutOfWorkError
from packhorse.packing.optimal._solver import Column, Solver

_STEPS_PER_ROW = 50
"""Steps of the budget that an iteration of the simplex method costs for each row."""
# Values of HiGHS's option simplex_strategy, and the largest of its simplex_iteration_limit.
_PRIMAL_SIMPLEX = 4
_DUAL_SIMPLEX = 1
_MOST_ITERATIONS = 2**31 - 1

_LARGEST_DEMAND = 10**5
"""Largest demand of a length that the solver gets. Its tolerances are absolute and meant for values near 1, so billions
of bins are scaled down."""


class Master:
    """Minimizes Σ x over columns, x ≥ 0, so that the columns together hold each length at least as often as demanded.

    Args:
        num_rows: number of lengths.
        columns: the first known bins.

    Attributes:
        columns: all known bins, in the order in which they were added.
        uses: how often the last solution uses each of the `columns` of that time, in units of `scale` bins.
        scale: number of bins that one unit of `uses` stands for.
    """

    def __init__(self, num_rows: int, columns: Iterable[Column]) -> None:
        self.columns: list[Column] = []
        self.uses: list[float] = []
        self._known: set[Column] = set()
        self._num_rows = num_rows
        self._rows = np.arange(num_rows, dtype=np.int32)
        self._solver = Solver()
        self._solver.set_options(
            {
                "threads": 1,
                "presolve": "off",
                "simplex_scale_strategy": 0,  # off: coefficients are small integers; scaling took half as long again
                "solver": "simplex",
                "random_seed": 0,
            }
        )
        self._solver.add_demands(np.zeros(num_rows))  # until `demand` sets them
        self.scale = 1
        self._has_new_demand = True
        self.add(columns)

    def add(self, columns: Iterable[Column]) -> int:
        """Adds the columns that are not known yet, and returns their number."""
        new = [column for column in dict.fromkeys(columns) if column not in self._known]
        if not new:
            return 0
        self._known.update(new)
        self.columns.extend(new)
        self._solver.add_columns(new)
        return len(new)

    def demand(self, counts: Sequence[int]) -> None:
        """Sets the demand: the number of sequences of each length, [n], in the order of the rows."""
        self.scale = max(1, -(-max(counts) // _LARGEST_DEMAND))
        lower = np.array([count / self.scale for count in counts])
        upper = np.full(self._num_rows, highspy.kHighsInf)
        self._solver.changeRowsBounds(self._num_rows, self._rows, lower, upper)  # type: ignore[attr-defined]
        self._has_new_demand = True

    def solve(self, budget: Budget) -> None:
        """Solves from the last basis: by primal simplex after new columns, by dual simplex after new demand.

        Raises:
            OutOfWorkError: the budget is spent.
            OutOfTimeError: its deadline passed, or the solver gave up.
        """
        strategy = _DUAL_SIMPLEX if self._has_new_demand else _PRIMAL_SIMPLEX
        steps = _STEPS_PER_ROW * self._num_rows  # of one iteration
        budget.spend(steps)  # a call without iterations takes time too
        most_iterations = (budget.left - budget.reserved) // steps
        self._solver.setOptionValue("simplex_strategy", strategy)
        self._solver.setOptionValue("simplex_iteration_limit", min(most_iterations, _MOST_ITERATIONS))
        # HiGHS adds up the time of all calls.
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + budget.seconds_left())
        self._solver.run()
        status = self._solver.getModelStatus()
        if status == highspy.HighsModelStatus.kIterationLimit:
            raise OutOfWorkError
        if status != highspy.HighsModelStatus.kOptimal:
            raise OutOfTimeError
        self._has_new_demand = False
        budget.spend(steps * max(self._solver.getInfo().simplex_iteration_count, 0))
        self.uses = np.array(self._solver.getSolution().col_value).tolist()

    @property
    def prices(self) -> NDArray[np.float64]:
        """Each length's dual value, at least 0: float64 [n]."""
        return np.maximum(np.array(self._solver.getSolution().row_dual), 0.0)

    @property
    def num_bins(self) -> float:
        """The optimal value with the known columns: a number of bins, not whole."""
        return float(self._solver.getObjectiveValue()) * self.scale
