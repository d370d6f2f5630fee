"""The command line: the table of all commands, and how `packhorse COMMAND` shows failures.

Each command of the core has a file of its name in this folder; commands of the shelf are in their own packages. A
command's module is imported when it runs, so that no command needs another's packages and help appears at once.
"""

import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NoReturn

import click

from packhorse.cli.shared.spelling import in_flags
from packhorse.parameters import message_of
from packhorse.shelf import has_package


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """What is known of a command before its module is imported."""

    summary: str
    """The first sentence of its help."""
    extra: str | None = None
    """The extra of packhorse that it needs; None if every install has it."""
    modules: tuple[str, ...] = ()
    """Modules of that extra without which the command cannot run."""
    package: str = "packhorse.cli"
    """The package with the command's module, named like the command. A package of the shelf may not be installed."""

    @property
    def is_there(self) -> bool:
        """Whether this installation has the package."""
        return has_package(self.package)

    @property
    def missing(self) -> list[str]:
        """The needed modules that are not installed."""
        return [name for name in self.modules if find_spec(name) is None]


# Modules that commands need, and packages that have them.
_DEMO = ("torch", "numba", "prometheus_client", "grpc_reflection", "tokenizers", "matplotlib")
_SERVE = ("numba", "prometheus_client", "grpc_reflection")
_ANALYSIS, _PROOF = "packhorse.analysis.commands", "packhorse.proof.commands"

COMMANDS: Mapping[str, CommandEntry] = {
    "demo": CommandEntry(
        "Tokenize, prepare, serve, train and audit, on the Python standard library's source code.",
        "demo",
        _DEMO,
        package="packhorse.demo.commands",
    ),
    "tokenize": CommandEntry(
        "Turn text into Megatron token files, one sequence for each document, chat or prompt/response pair.",
        "prepare",
        ("tokenizers",),
        package="packhorse.tokenize.commands",
    ),
    "prepare": CommandEntry(
        "Plan a dataset from its lengths and write the folder that `packhorse serve` serves.", "prepare", ("numba",)
    ),
    "shard": CommandEntry(
        "Cut a corpus into shards, prepare each, and write the mixture that serves them as one.", "prepare", ("numba",)
    ),
    "plan": CommandEntry(
        "Plan without preparing: compare packers, or ways to share bins.", "prepare", ("numba",), package=_ANALYSIS
    ),
    "inspect": CommandEntry(
        "Show what packing makes of lengths or text, a prepared folder, or what --target serves.",
        package=_ANALYSIS,
    ),
    "verify": CommandEntry(
        "Compare the prepared dataset in FOLDER with its checksums, and its lengths with the tokens.",
        "server",
        ("numba",),
    ),
    "show": CommandEntry(
        "Draw bins of DATASET, explain a step of a run, or find a sequence.", package="packhorse.pictures.commands"
    ),
    "serve": CommandEntry("Serve prepared datasets over gRPC until SIGTERM.", "server", _SERVE),
    "mixture": CommandEntry("Show a mixture of datasets, or append a stage to it during a run.", "server", ("numba",)),
    "redact": CommandEntry(
        "Remove sequences of DATASET from training.",
        "server",
        ("numba",),
    ),
    "token": CommandEntry("Make tokens for `packhorse serve --token-file`.", "server", ("numba",)),
    "stream": CommandEntry("Print the bins of one (epoch, rank, worker), one JSON object a line."),
    "export": CommandEntry(
        "Write the bins of an epoch to files, in the order of positions.", package="packhorse.export.commands"
    ),
    "audit": CommandEntry(
        "Read every stream of an epoch and check that each sequence comes exactly once.", package=_PROOF
    ),
    "doctor": CommandEntry(
        "Test each step from here to the first bin of --target, or ask for its health.", package=_PROOF
    ),
    "top": CommandEntry(
        "Watch the servers of --target until Ctrl-C: runs, how far their ranks are, streams, rates and queues.",
        package=_PROOF,
    ),
    "bench": CommandEntry(
        "Open every stream of a run at the servers of --target, and measure rates and waits.", package=_PROOF
    ),
}
"""Name of each command → its entry, in the order in which a user needs them.

Commands of the shelf are listed here too. If their package is not installed, they are neither shown nor found.
"""


_GRPC_VERBOSITY = "NONE"
"""Value of the environment variable GRPC_VERBOSITY with which gRPC's core writes nothing to stderr. Otherwise strangers
could make it write without limit: bytes of a GOAWAY, broken handshakes, long metadata."""


def _message_of(error: Exception) -> str:
    """Returns an error's message; of an OSError, the file and the reason without the error's number."""
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        return ": ".join([*([] if error.filename is None else [str(error.filename)]), error.strerror])
    return message_of(error)


class LazyGroup(click.Group):
    """A group whose commands are imported when they run."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Reads the flags before a command, and prints what --version and --help ask for."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            _end_like_sigpipe()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands that this installation has, in the order of COMMANDS."""
        return [name for name, entry in COMMANDS.items() if entry.is_there]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports one command.

        Raises:
            ClickException: a package that it needs is not installed; the message says how to install it.
        """
        entry = COMMANDS.get(cmd_name)
        if entry is None or not entry.is_there:
            return None
        if entry.missing:
            raise click.ClickException(
                f"`packhorse {cmd_name}` needs {', '.join(entry.missing)}; install it with: pip install "
                f"'packhorse[{entry.extra}]'"
            )
        command: click.Command = import_module(f"{entry.package}.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds a command; for a mistyped name the error suggests similar ones."""
        near = get_close_matches(args[0], COMMANDS)
        if near and args[0] not in COMMANDS:
            ctx.fail(f"No such command '{args[0]}'. Did you mean {' or '.join(near)}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists every command without importing it; one that cannot run here says which extra it needs."""
        rows = [
            (name, f"(needs packhorse[{entry.extra}]) {entry.summary}" if entry.missing else entry.summary)
            for name, entry in COMMANDS.items()
            if entry.is_there
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        """Runs a command. Shows an error that the user can correct as one line, without a traceback."""
        os.environ.setdefault("GRPC_VERBOSITY", _GRPC_VERBOSITY)
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except BrokenPipeError:
            _end_like_sigpipe()
        except Exception as error:
            from packhorse.client import PackhorseError  # imported late: most commands need no client

            if not isinstance(error, ValueError | OSError | ImportError | PackhorseError):
                raise
            raise click.ClickException(in_flags(_message_of(error), self.parameters(ctx))) from error

    def parameters(self, ctx: click.Context) -> Iterator[click.Parameter]:
        """Yields the parameters of the command that runs, and of its subcommands."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        for each in [] if command is None else [command, *getattr(command, "commands", {}).values()]:
            yield from each.params


def _end_like_sigpipe() -> NoReturn:
    """Ends a command whose output nobody reads any more (`packhorse stream | head`): quietly, with SIGPIPE's status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains as it flushes at its end
    sys.exit(128 + signal.SIGPIPE)


def _say_versions(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Prints the versions that deploy/guides/compatibility.md promises something about, and ends the command."""
    if not wanted or ctx.resilient_parsing:
        return
    from packhorse.wire import WIRE_VERSION

    formats = [f"protocol {WIRE_VERSION}"]
    if find_spec("numba"):  # which a client's install lacks: it reads no folders
        from packhorse.dataset import FORMAT_VERSION

        formats.append(f"folder format {FORMAT_VERSION}")
    click.echo(f"packhorse {version('packhorse')} ({', '.join(formats)})")
    ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_say_versions,
    help="Show the versions of the release, the protocol and the folder format.",
)
def main() -> None:
    """Packs training sequences into full contexts and streams them to trainers."""
    _prepare_streams()


def _prepare_streams() -> None:
    """Opens /dev/null for a standard stream that the shell closed (`>&-`); prints `?` for what an encoding lacks."""
    for name in ("stdin", "stdout", "stderr"):  # in this order: each takes the lowest free descriptor
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
