"""Which column of a table holds the tokens, where nobody says so: one rule for preparing and for training."""

from collections.abc import Sequence

USUAL_COLUMNS = ("input_ids", "tokens")
"""Names that a column of tokens usually has."""


def evident_column(fitting: Sequence[str]) -> str | None:
    """Returns the only column that could hold tokens, or the only such one with a usual name; None without one.

    Example:
        >>> evident_column(["labels", "input_ids"]), evident_column(["a", "b"])
        ('input_ids', None)

    Args:
        fitting: the columns that could hold tokens.
    """
    for some in (fitting, [name for name in fitting if name in USUAL_COLUMNS]):
        if len(some) == 1:
            return some[0]
    return None
