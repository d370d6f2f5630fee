"""Error messages that name Python parameters, so that the command line can print flags instead.

Owns `Message`, a string that remembers which of its parts are parameters. So no text is searched for parameter names:
a user's path may contain `max_seq_len`, and is printed as it is. Leaves the flags to `packhorse.cli`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

_NOT_GIVEN = object()
"""Default of a value that may itself be None."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that a message names, with or without a value."""

    name: str
    """Name of the parameter, such as `over_length`; the field of an options object has a dot, such as `plan.align`."""
    value: object = None
    """The value that the message suggests; it counts only if `has_value`."""
    has_value: bool = False
    """Whether the message suggests a value."""

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}" if self.has_value else self.name


class Message(str):
    """A string that remembers which of its parts are parameters. Adding a str before or after it keeps them.

    The string itself spells parameters as Python does: `over_length='split'`.

    Args:
        parts: texts and parameters, in the order in which they are joined.
    """

    __slots__ = ("parts",)

    parts: tuple[str | Parameter, ...]

    def __new__(cls, *parts: str | Parameter) -> Self:
        """Joins the parts."""
        message = super().__new__(cls, "".join(map(str, parts)))
        message.parts = parts
        return message

    def __getnewargs__(self) -> tuple[str | Parameter, ...]:  # type: ignore[override]
        """Lets pickle keep the parts: worker processes send their errors to the process that started them."""
        return self.parts

    def __add__(self, text: str) -> "Message":
        return Message(*self.parts, *_parts(text))

    def __radd__(self, text: str) -> "Message":
        return Message(*_parts(text), *self.parts)

    def spelled(self, spell: Callable[[Parameter], str]) -> str:
        """Returns the text in which each parameter is spelled by `spell`."""
        return "".join(spell(part) if isinstance(part, Parameter) else part for part in self.parts)


def parameter(name: str, value: object = _NOT_GIVEN) -> Message:
    """Returns `name`, or `name=value` if a value is given, as a part of a message.

    Example:
        >>> from packhorse.parameters import parameter
        >>> message = "row 3 is too long; pass " + parameter("over_length", "split") + " to cut it"
        >>> print(message)
        row 3 is too long; pass over_length='split' to cut it
        >>> message.spelled(lambda found: f"--{found.name.replace('_', '-')} {found.value}")
        'row 3 is too long; pass --over-length split to cut it'
    """
    return Message(Parameter(name) if value is _NOT_GIVEN else Parameter(name, value, has_value=True))


def message_of(error: BaseException | str) -> str:
    """Returns the message of an error or warning: a `Message` if it was raised with one, else a plain str."""
    if isinstance(error, str):
        return error
    first = error.args[0] if error.args else None
    return first if isinstance(first, Message) else str(error)


def _parts(text: str) -> tuple[str | Parameter, ...]:
    return text.parts if isinstance(text, Message) else (text,)
