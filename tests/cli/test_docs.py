"""Every command and flag is documented in the README."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from packhorse.cli import COMMANDS, main

README = (Path(__file__).parents[2] / "README.md").read_text()


def flags(name: str, command: click.Command) -> Iterator[tuple[str, str]]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from ((name, flag) for flag in parameter.opts if flag.startswith("--"))
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from flags(f"{name} {inner.name}", inner)


def all_flags() -> list[tuple[str, str]]:
    context = click.Context(main)
    found = set()
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        found |= set(flags(name, command))
    return sorted(found)


@pytest.mark.parametrize(("command", "flag"), all_flags())
def test_every_flag_stands_in_a_row_of_its_command(command: str, flag: str) -> None:
    rows = [row for row in README.splitlines() if re.match(rf"\| .*`{command}`", row)]
    assert any(re.search(rf"`{flag}(?![\w-])", row) for row in rows), f"{command} {flag}"
