"""The command line: `packhorse COMMAND`, one file for each command.

Owns the group and how failures are shown; a command's module is imported when it is run, so that no command needs
another's dependencies.
"""

import sys
from importlib import import_module
from importlib.metadata import version

try:
    import click
except ModuleNotFoundError:
    sys.exit("the packhorse command needs click: install packhorse[server] or packhorse[prepare]")

COMMANDS = ("demo", "tokenize", "prepare", "plan", "inspect", "serve", "stream", "audit", "locate", "health")
"""Every command; each stands in the module of its name."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of every command, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports one command."""
        if cmd_name not in COMMANDS:
            return None
        try:
            command: click.Command = import_module(f"packhorse.cli.{cmd_name}").command
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("packhorse"):
                raise
            raise click.ClickException(
                f"`packhorse {cmd_name}` needs {error.name}; install the extra that has it, e.g. packhorse[demo]"
            ) from None
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Runs a command; what a user can mend is shown as one line, without a trace."""
        from packhorse.client import PackhorseError

        try:
            return super().invoke(ctx)
        except (ValueError, OSError, ImportError, PackhorseError) as error:
            raise click.ClickException(str(error)) from error


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("packhorse"), prog_name="packhorse")
def main() -> None:
    """Packs training sequences into full contexts and streams them to trainers."""
