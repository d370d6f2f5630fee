"""Parameters in messages: an error names a Python parameter, and the command line prints its flag instead.

Owns the text that remembers which of its words are parameters. Leaves flags to `packhorse.cli`. What a user wrote, a
path for example, is never searched for names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

_NOT_GIVEN = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, as a message names it."""

    name: str
    """The name, of an option of an object with a dot: `plan.align`."""
    value: object = None
    """The value that the message gives it, if `has_value`."""
    has_value: bool = False
    """Whether the message gives it a value."""

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}" if self.has_value else self.name


class Message(str):
    """A text that remembers which of its words are parameters; texts may be added on both sides.

    As a string it spells parameters as Python does.

    Args:
        parts: texts and parameters, in their order.
    """

    __slots__ = ("parts",)

    parts: tuple[str | Parameter, ...]

    def __new__(cls, *parts: str | Parameter) -> Self:
        """Joins the parts."""
        message = super().__new__(cls, "".join(map(str, parts)))
        message.parts = parts
        return message

    def __getnewargs__(self) -> tuple[str | Parameter, ...]:  # type: ignore[override]
        """Pickles the parts, as engines send errors to the process that started them."""
        return self.parts

    def __add__(self, text: str) -> "Message":
        return Message(*self.parts, *_parts(text))

    def __radd__(self, text: str) -> "Message":
        return Message(*_parts(text), *self.parts)

    def spelled(self, spell: Callable[[Parameter], str]) -> str:
        """Returns the text with each parameter as `spell` writes it."""
        return "".join(spell(part) if isinstance(part, Parameter) else part for part in self.parts)


def parameter(name: str, value: object = _NOT_GIVEN) -> Message:
    """Returns a parameter's name, or `name=value`, to be added to a message.

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
    """Returns the message of an error or warning, with its parameters if it names some."""
    if isinstance(error, str):
        return error
    first = error.args[0] if error.args else None
    return first if isinstance(first, Message) else str(error)


def _parts(text: str) -> tuple[str | Parameter, ...]:
    return text.parts if isinstance(text, Message) else (text,)
