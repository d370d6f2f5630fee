"""The rows that a prepare left out, in words.

Leaves the count and the reasons, which a dataset's facts have, to `facts`.
"""

from collections.abc import Mapping

from packhorse.topology.checks import counted


def skipped_text(rows: int, by_reason: Mapping[str, int] | None) -> str:
    """Returns how many rows were left out, and why.

    Example:
        >>> from packhorse.types import skipped_text
        >>> skipped_text(1203, {"the id is null": 3, "the length is null": 1200})
        '1,203 rows, 3 where the id is null, 1,200 where the length is null'
    """
    reasons = (f"{count:,} where {reason}" for reason, count in (by_reason or {}).items())
    return ", ".join([counted(rows, "row"), *reasons])
