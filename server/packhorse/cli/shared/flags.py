"""Flags of a command, made from the fields of an options dataclass: their names, types, defaults and docstrings."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import wraps
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from packhorse.cli.shared.spelling import in_flags
from packhorse.parameters import message_of

_MOST_OF_CHOICES = 60
"""Characters of a flag's choices up to which the help shows all of them in place of a value."""
_METAVARS = {int: "N", float: "NUMBER"}
"""Type of a flag's value → what the help shows in its place."""
_METAVARS_OF_NAMES = {"_column": "NAME", "_seconds": "SECONDS"}
"""End of a flag's name → what the help shows in place of its value."""


def field_texts(kind: type) -> dict[str, str]:
    """Returns field → its docstring, as one line, for each field of a class that has one.

    Example:
        >>> from packhorse.dataset import PlanOptions
        >>> field_texts(PlanOptions)["max_seq_len"]
        "A bin's capacity in tokens, in [1, 2^31)."
    """
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            texts[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return texts


def flags_of(
    kind: type,
    argument: str,
    *,
    names: Mapping[str, str] | None = None,
    choices: Mapping[str, list[str]] | None = None,
    leave_out: tuple[str, ...] = (),
    is_optional: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a flag for each field of a dataclass to a command, which receives the object itself.

    Args:
        kind: the dataclass; each field has a docstring, and a default that is no factory.
        argument: the command's argument that receives the object.
        names: field → flag's name, with underscores, if they differ.
        choices: field → possible values, if its type does not list them.
        leave_out: fields without a flag.
        is_optional: whether the argument is None if all flags have their defaults.
    """
    names, choices = names or {}, choices or {}
    hints, texts = get_type_hints(kind), field_texts(kind)
    defaults = {field.name: field.default for field in fields(kind) if field.init and field.name not in leave_out}
    flag_of = {name: names.get(name, name) for name in defaults}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the command with the flags."""

        @wraps(command)
        def with_object(*arguments: Any, **options: Any) -> Any:
            """Runs the command with the object that is made of the flags' values."""
            given = {name: options.pop(flag) for name, flag in flag_of.items()}
            is_left_out = is_optional and given == defaults
            try:
                made = None if is_left_out else kind(**given)
            except ValueError as error:
                raise click.UsageError(
                    in_flags(message_of(error), click.get_current_context().command.params)
                ) from None
            return command(*arguments, **options, **{argument: made})

        decorated: Callable[..., Any] = with_object
        for name in reversed(defaults):  # as decorators, the last of which click shows first
            text = texts[name]
            for field, flag in flag_of.items():  # a docstring names other fields, the help their flags
                text = text.replace(f"`{field}`", f"--{flag.replace('_', '-')}")
            option = _option(flag_of[name], defaults[name], hints[name], choices.get(name), text)
            decorated = option(decorated)
            # The names by which `in_flags` finds this flag for a message of the library.
            decorated.__click_params__[-1].fields = (name, f"{argument}.{name}")  # type: ignore[attr-defined]
        return decorated

    return decorate


def _option(
    flag: str, default: Any, hint: Any, choices: list[str] | None, text: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns the decorator that adds one field's flag.

    Args:
        flag: the flag's name, with underscores.
        default: the field's default; MISSING if it has none, and the flag is required.
        hint: the field's type.
        choices: the possible values; None if the type lists them, or any value is possible.
        text: the text that the help shows.
    """
    names = "--" + flag.replace("_", "-"), flag
    if get_origin(hint) in (UnionType, Union):
        [hint] = [each for each in get_args(hint) if each is not NoneType]
    if hint is bool:
        return click.option(*names, is_flag=True, default=default, help=text)
    if choices is None and get_origin(hint) is Literal:
        choices = list(get_args(hint))
    elif isinstance(hint, type) and issubclass(hint, StrEnum):
        choices, default = [each.value for each in hint], default.value
    value_type: Any = str
    if choices:
        value_type = click.Choice(choices)
    elif hint in (int, float):
        value_type = hint
    return click.option(
        *names,
        type=value_type,
        required=default is MISSING,
        default=None if default is MISSING else default,
        show_default=default not in (MISSING, None),
        metavar=_short_metavar(choices) if choices else _metavar(flag, hint),
        help=f"{text} One of {', '.join(choices)}." if choices and _short_metavar(choices) else text,
    )


def _metavar(flag: str, hint: Any) -> str:
    """Returns the word that help shows for a flag's value: by the end of its name, or else by its type."""
    by_name = (word for end, word in _METAVARS_OF_NAMES.items() if flag.endswith(end))
    return next(by_name, _METAVARS.get(hint, "VALUE"))


def _short_metavar(choices: list[str]) -> str | None:
    """Returns a short metavar for many choices, which click would write into one line; None if they fit."""
    return None if len("|".join(choices)) <= _MOST_OF_CHOICES else f"[{choices[0]}|{choices[1]}|…]"
