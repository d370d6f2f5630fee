"""`listed`: names in a message, such as those of columns, of which there may be too many to show."""

from collections.abc import Iterable

_MOST_NAMES = 6
"""Names that a message lists."""


def listed(names: Iterable[str]) -> str:
    """Returns names for a message: the first ones if there are many, "none" if there are none.

    Example:
        >>> listed(["a", "b"]), listed(map(str, range(1000)))
        ('a, b', '0, 1, 2, 3, 4, 5 and 994 more')
    """
    all_names = list(names)
    more = f" and {len(all_names) - _MOST_NAMES:,} more" if len(all_names) > _MOST_NAMES else ""
    return ", ".join(all_names[:_MOST_NAMES]) + more if all_names else "none"
