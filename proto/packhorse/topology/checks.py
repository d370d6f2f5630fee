"""Checking options, and the words of the messages that refuse them.

Owns `checked_integer`, by which options classes check their numbers. Leaves options that are one of a few names to
`choices`.
"""

from numbers import Integral

from packhorse.parameters import parameter

_QUOTED_CHARACTERS = 40
"""The most characters of a value that an error message quotes."""


def checked_integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """Returns `value` as an int.

    Example:
        >>> checked_integer("batch_size", 8, 1)
        8

    Args:
        name: name of the value, for the message.
        value: a Python or NumPy integer, not a bool.
        least: smallest value allowed.
        most: largest value allowed; None for no limit.

    Raises:
        ValueError: the value is not an integer, or outside [least, most].
    """
    if type(value) is int and least <= value and (most is None or value <= most):  # the usual case, first for speed
        return value
    expected = f"an integer of at least {least}" if most is None else f"an integer in [{least}, {most}]"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(parameter(name) + f" must be {expected}, got {quoted(value)}")
    number = int(value)
    if number < least or (most is not None and number > most):
        raise ValueError(parameter(name) + f" must be {expected}, got {number}")
    return number


def quoted(value: object) -> str:
    """Returns the beginning of a value's repr, for an error message."""
    text = repr(value)
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}…"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, in the singular for 1.

    Example:
        >>> counted(1, "rank"), counted(2_000, "id")
        ('1 rank', '2,000 ids')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
