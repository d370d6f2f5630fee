"""The page of commands and flags, from the command line's help."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from reference.markdown import UndocumentedError, cell, page, table


def commands(group: click.Group, name: str = "packhorse") -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name."""
    context = click.Context(group)
    for inner in group.list_commands(context):
        command = group.get_command(context, inner)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {inner}")
        else:
            yield f"{name} {inner}", command


def option_row(where: str, option: click.Option) -> tuple[str, str, str]:
    if not option.help:
        raise UndocumentedError(f"{where} {option.opts[0]} has no help text")
    context = click.Context(click.Command(where))
    record = option.get_help_record(context)
    assert record is not None
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if not option.is_flag:
        metavar = option.make_metavar(context).replace("|", " | ")
        names += " " + cell(re.sub(r"(INTEGER|FLOAT)( RANGE)?", "N", metavar))
    extras = option.get_help_extra(context)
    facts = []
    if "required" in extras:
        facts.append("required")
    if "default" in extras:
        facts.append(f"default: {extras['default']}")
    elif not option.is_flag and isinstance(option.default, int | float | str | Path) and "[default:" not in option.help:
        facts.append(f"default: {option.default}")
    if "range" in extras:
        facts.append(extras["range"])
    facts += [f"`{name}`" for name in extras.get("envvars", ())]
    return names, cell("; ".join(facts)), cell(option.help)


def commands_page() -> str:
    from packhorse.cli import COMMANDS, main

    parts = []
    for name, command in commands(main):
        if not command.help:
            raise UndocumentedError(f"{name} has no help text")
        parts.append(f"## {name}\n")
        extra = COMMANDS[name.split()[1]].extra
        parts.append(f"Needs `packhorse[{extra}]`.\n" if extra else "Every install has it.\n")
        parts.append(inspect.cleandoc(command.help).replace("\b\n", "").strip() + "\n")
        arguments = [
            f"`{(p.metavar or p.name or '').upper()}`" for p in command.params if isinstance(p, click.Argument)
        ]
        if arguments:
            parts.append(f"Arguments: {', '.join(arguments)}.\n")
        options = [p for p in command.params if isinstance(p, click.Option)]
        parts.append(table(("flag", "value", "meaning"), [option_row(name, option) for option in options]))
    return page(
        "Every command and every flag",
        "[The command line](command-line.md) shows each command at work. A variable in the second column gives a "
        "flag's value where the flag is left out.",
        *parts,
    )
