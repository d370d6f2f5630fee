"""The command line: `packhorse COMMAND`, one file for each command.

Owns the list of commands, what each needs to be installed, and how failures are shown. A command's module is imported
when it is run, so that no command needs another's packages and help is there at once.
"""

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import click


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command, as it is listed before its module is imported."""

    summary: str
    """The first sentence of its help."""
    extra: str | None = None
    """The extra of packhorse that installs what it needs; None where every install has it."""
    modules: tuple[str, ...] = ()
    """What it cannot do without, of what that extra installs."""

    @property
    def missing(self) -> list[str]:
        """Which of these modules are not installed."""
        return [name for name in self.modules if find_spec(name) is None]


_DEMO = ("torch", "numba", "prometheus_client", "grpc_reflection", "tokenizers", "matplotlib")
_SERVE = ("numba", "prometheus_client", "grpc_reflection")

COMMANDS: Mapping[str, CommandEntry] = {
    "demo": CommandEntry(
        "Tokenize, prepare, serve, train and audit, on the Python standard library's source code.", "demo", _DEMO
    ),
    "tokenize": CommandEntry(
        "Turn text into Megatron token files, one sequence for each document, chat or prompt/response pair.",
        "prepare",
        ("tokenizers",),
    ),
    "prepare": CommandEntry(
        "Plan a dataset from its lengths and write the folder that `packhorse serve` serves.", "prepare", ("numba",)
    ),
    "shard": CommandEntry(
        "Cut a corpus into shards, prepare each, and write the mixture that serves them as one.", "prepare", ("numba",)
    ),
    "plan": CommandEntry("Plan without preparing: see what a packer would make of a dataset.", "prepare", ("numba",)),
    "inspect": CommandEntry(
        "Show a prepared folder: statistics, versions and waste without packing; or list what --target serves."
    ),
    "verify": CommandEntry(
        "Compare the prepared dataset in FOLDER with its checksums, and its lengths with the tokens.",
        "server",
        ("numba",),
    ),
    "show": CommandEntry("Draw bins of DATASET, explain a step of a run, or tell where a sequence comes."),
    "serve": CommandEntry("Serve prepared datasets over gRPC until SIGTERM.", "server", _SERVE),
    "mixture": CommandEntry(
        "Show a mixture of datasets, or append a stage to it while a run goes on.", "server", ("numba",)
    ),
    "redact": CommandEntry(
        "Take sequences of DATASET away from training; every bin and position stays as it was.",
        "server",
        ("numba",),
    ),
    "token": CommandEntry("Make tokens for `packhorse serve --token-file`.", "server", ("numba",)),
    "stream": CommandEntry("Print the bins of one (epoch, rank, worker), one JSON object a line."),
    "audit": CommandEntry("Read every stream of an epoch and check that each sequence comes exactly once."),
    "doctor": CommandEntry("Go every step from here to the first bin of --target, or ask for its health."),
    "top": CommandEntry(
        "Watch the servers of --target: runs and how far their ranks are, streams, rates and queues, until Ctrl-C."
    ),
    "bench": CommandEntry("Load the servers of --target with every stream of a run, and tell what they felt."),
}
"""Every command, in the order of use; each stands in the module of its name."""


_HIDDEN = re.compile(r"(^|[/'\s])\.([^/'\s]+?)(?:\.work|\.\w+\.partial)(?=['/\s:]|$)")
"""Names that an output has until it is whole; users know it by its own."""

_GRPC_VERBOSITY = "NONE"
"""What gRPC's core, which writes to stderr by itself, is told as it is imported. Strangers could make it write as much
as they like, past the log, its form and its limits: bytes of a GOAWAY, broken handshakes, long metadata."""


def in_flags(message: str, options: Iterable[click.Option]) -> str:
    """Returns a message of the library with its arguments called as the command line calls them.

    A name of several words is replaced wherever it stands, one of a single word where the message begins with it or
    gives it a value; a name behind a dot or in quotes is something else.

    Example:
        >>> in_flags("max_seq_len must be above 0; no_targets='drop'", [
        ...     click.Option(["--max-seq-len"]), click.Option(["--no-targets"])
        ... ])
        '--max-seq-len must be above 0; --no-targets drop'
    """
    for option in options:
        flag = max(option.opts, key=len)
        name = flag.removeprefix("--").replace("-", "_")
        before = r"""(?<![\w.'"-])"""
        if name.startswith("no_"):
            message = re.sub(rf"{before}(?:append_)?{name.removeprefix('no_')}=False\b", flag, message)
        name += "s?" * (option.multiple and "_" in name)
        message = re.sub(rf"""{before}{name}=(?:True\b)?(?![\w"'-])""", flag, message)
        message = re.sub(rf"""{before}{name}=(["'])([\w-]+)\1""", rf"{flag} \2", message)
        message = re.sub(rf"""{before}{name}=([\w-]+|'[^']*')""", rf"{flag} \1", message)
        where = before if "_" in name else "^"
        message = re.sub(rf"{where}{name}(?![\w.'\"-])", flag, message)
    return message


def _said(error: Exception) -> str:
    """Returns an error's message; of one of the system's, the file and what is wrong with it, without a number."""
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        return ": ".join([*([] if error.filename is None else [str(error.filename)]), error.strerror])
    return str(error)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of every command, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports one command; refuses it where what it needs is not installed."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if entry.missing:
            raise click.ClickException(
                f"`packhorse {cmd_name}` needs {', '.join(entry.missing)}; install it with: pip install "
                f"'packhorse[{entry.extra}]'"
            )
        command: click.Command = import_module(f"packhorse.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds a command; a mistyped one is refused with the names that are near it."""
        near = get_close_matches(args[0], COMMANDS)
        if near and args[0] not in COMMANDS:
            ctx.fail(f"No such command '{args[0]}'. Did you mean {' or '.join(near)}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists every command without importing it; one that cannot run here says which extra it needs."""
        rows = [
            (name, f"(needs packhorse[{entry.extra}]) {entry.summary}" if entry.missing else entry.summary)
            for name, entry in COMMANDS.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        """Runs a command; what a user can mend is shown as one line, without a trace."""
        os.environ.setdefault("GRPC_VERBOSITY", _GRPC_VERBOSITY)
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except BrokenPipeError:  # of `packhorse stream | head`: click ends quietly
            raise
        except Exception as error:
            from packhorse.client import (
                PackhorseError,
            )  # here, so that a command without the client does not wait for it

            if not isinstance(error, ValueError | OSError | ImportError | PackhorseError):
                raise
            raise click.ClickException(_HIDDEN.sub(r"\1\2", in_flags(_said(error), self.options(ctx)))) from error

    def options(self, ctx: click.Context) -> Iterator[click.Option]:
        """Yields the options of the command that runs, and of those below it."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        commands = [] if command is None else [command, *getattr(command, "commands", {}).values()]
        yield from (option for each in commands for option in each.params if isinstance(option, click.Option))


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("packhorse"), prog_name="packhorse")
def main() -> None:
    """Packs training sequences into full contexts and streams them to trainers."""
    _prepare_streams()


def _prepare_streams() -> None:
    """Lets output go somewhere: where a shell closed it (`>&-`), nowhere, and what an encoding lacks becomes `?`."""
    for name in ("stdin", "stdout", "stderr"):  # in this order: each takes the lowest descriptor that is free
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
