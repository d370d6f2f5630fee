"""The check that a value is an integer within a range, which every packer and stream starts with.

Owns its one message; leaves which ranges are right to its callers.
"""

from numbers import Integral


def checked_integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """Returns `value` as an int.

    Example:
        >>> checked_integer("batch_size", 8, 1)
        8

    Args:
        name: what the message calls the value.
        value: any Python or NumPy integer; bool is none.
        least: smallest value allowed.
        most: largest value allowed; None for no limit.

    Raises:
        ValueError: it is no integer, or outside [least, most].
    """
    wanted = f"an integer of at least {least}" if most is None else f"an integer in [{least}, {most}]"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be {wanted}, got {quoted(value)}")
    number = int(value)
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name} must be {wanted}, got {number}")
    return number


def quoted(value: object) -> str:
    """Returns a value as an error quotes it: its first 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def counted(number: int, noun: str) -> str:
    """Returns a number of things as a sentence holds it.

    Example:
        >>> counted(1, "rank"), counted(2_000, "id")
        ('1 rank', '2,000 ids')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
