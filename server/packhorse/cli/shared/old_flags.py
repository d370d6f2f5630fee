"""Old names of flags: for one minor release a flag that was renamed gives its value to the new one and warns.

Owns the option of the old name. Leaves the text of the warning to `packhorse.deprecations`.
"""

from collections.abc import Callable
from typing import Any

import click

from packhorse.deprecations import declare


def old_flag(
    command: str, old: str, *, since: str, removed: str, instead: str, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the old name of a flag to a command.

    Args:
        command: its full name, `packhorse serve`.
        old: the flag's old name, `--old`.
        since: the minor release that warns first.
        removed: the first minor release without it.
        instead: the flag's new name, which the command has as well.
        options: further arguments of `click.option`, such as `is_flag=True`.
    """
    deprecation = declare(f"{command} {old}", since=since, removed=removed, instead=instead)

    def hand_over(context: click.Context, option: click.Parameter, value: Any) -> None:
        """Makes the old flag's value the default of the new flag, which its own value overrides, and warns."""
        if value is None or value is False or value == ():  # the old flag was not given; 0 is a value, and == False
            return
        new = next(each for each in context.command.params if instead in each.opts)
        if new.resolve_envvar_value(context) is not None:  # a variable would come before a default
            raise click.UsageError(f"{old} is now {instead}: give that, as an environment variable gives another value")
        click.echo(f"Warning: {deprecation}", err=True)
        context.default_map = {**(context.default_map or {}), str(new.name): value}

    return click.option(
        old,
        f"old_{old.lstrip('-').replace('-', '_')}",
        expose_value=False,
        is_eager=True,  # so that the default is there before the new flag is read
        callback=hand_over,
        help=f"Deprecated since {since}, goes in {removed}: use {instead}.",
        **options,
    )
