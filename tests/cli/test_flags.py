"""Errors of the library name Python parameters; the command line turns them into flags of the command that runs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from packhorse.cli import COMMANDS, in_flags, main

REPOSITORY = Path(__file__).parents[2]
ROOTS = tuple(REPOSITORY / root / "packhorse" for root in ("proto", "server", "client"))
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")

_COMMAND = re.compile("`packhorse [^`]*`")
"""A whole command to paste into a shell, which an error may suggest."""


def parameters_of(*path: str) -> list[click.Parameter]:
    command: click.Command = main
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command.params


@pytest.mark.parametrize(
    ("command", "message", "shown"),
    [
        ("prepare", "max_seq_len must be at least 1, got 0", "--max-seq-len must be at least 1, got 0"),
        ("prepare", 'pass over_length="split" to keep it', "pass --over-length split to keep it"),
        (
            "prepare",
            "pass over_length='split', or more extra_tokens",
            "pass --over-length split, or more --extra-tokens",
        ),
        ("prepare", "row 3 is bad; pass on_bad_row='skip'", "row 3 is bad; pass --on-bad-row skip"),
        ("prepare", "ids repeat: give an id_column", "ids repeat: give an --id-column"),
        ("prepare", "columns.length names no column", "--length-column names no column"),
        ("prepare", "InputColumns(length='n') is no column", "InputColumns(--length-column n) is no column"),
        ("prepare", "grouping.size must be at least 2", "--group-size must be at least 2"),
        ("prepare", "pass overwrite=True", "pass --overwrite"),
        ("prepare", "pass `overwrite=True`, or resume=True", "pass --overwrite, or --resume"),
        ("prepare", "pass `resume` to continue", "pass --resume to continue"),
        ("prepare", "output x has another dataset", "--output x has another dataset"),
        ("prepare", "input y.parquet is empty", "--input y.parquet is empty"),
        ("prepare", "use format='packhorse'", "use --format packhorse"),
        ("prepare", "engine='ray' and ray_address", "--engine ray and --ray-address"),
        ("prepare", "max_sequences_per_bin=4 is too few", "--max-sequences-per-bin 4 is too few"),
        ("prepare", "keep 'tail' is for over_length 'truncate'", "--keep tail is for --over-length truncate"),
        ("prepare", "use format 'packhorse', or engine 'ray'", "use --format packhorse, or --engine ray"),
        ("tokenize", "leave out append_eos=False", "leave out --no-eos"),
        ("serve", "listen must be HOST:PORT", "--listen must be HOST:PORT"),
        ("serve", "tls_cert needs tls_key", "--tls-cert needs --tls-key"),
        ("serve", "token_file x.txt cannot be read", "--token-file x.txt cannot be read"),
        ("serve", "give metrics_listen=127.0.0.1:9464", "give --metrics-listen 127.0.0.1:9464"),
        ("stream", "start_position must be in [0, 4], got 9", "--start-position must be in [0, 4], got 9"),
        ("stream", "pass remainder='drop'", "pass --remainder drop"),
        ("stream", "skip 5:3 is empty", "--skip 5:3 is empty"),
        ("tokenize", "no_targets='drop' leaves them out", "--no-targets drop leaves them out"),
        ("tokenize", "output x exists; pass overwrite=True.", "--output x exists; pass --overwrite."),
        ("shard", "data_root is no folder", "--data-root is no folder"),
        # and what only looks like a parameter
        ("prepare", "manifest.max_seq_len is 'max_seq_len'", "manifest.max_seq_len is 'max_seq_len'"),
        ("prepare", "the output and the input of this workers", "the output and the input of this workers"),
        ("prepare", "length 5 of row 3", "length 5 of row 3"),
        ("prepare", "my_max_seq_len and max_seq_len.json", "my_max_seq_len and max_seq_len.json"),
    ],
)
def test_parameters_become_flags(command: str, message: str, shown: str) -> None:
    assert in_flags(message, parameters_of(command)) == shown


@pytest.mark.parametrize("command", [name for name, entry in COMMANDS.items() if not entry.missing])
def test_every_flag_of_several_words_is_found_by_its_parameter(command: str) -> None:
    parameters = parameters_of(command)
    for option in parameters:
        if isinstance(option, click.Option) and "-" in (flag := max(option.opts, key=len)).removeprefix("--"):
            name = flag.removeprefix("--").replace("-", "_")
            assert in_flags(f"give {name}, please", parameters) == f"give {flag}, please"
            assert in_flags(f"{name}='x' is wrong", parameters) == f"{flag} x is wrong"


def our_flags() -> set[str]:
    flags: set[str] = set()
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        for each in (command, *getattr(command, "commands", {}).values()):
            flags.update(flag for option in each.params for flag in option.opts)
    return flags


def flags_in_errors(path: Path) -> Iterator[str]:
    """Every flag that the text of a `raise` statement names, except in whole commands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise):
            texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
            message = "".join(text for text in texts if isinstance(text, str))
            yield from _FLAG.findall(_COMMAND.sub("", message))


def test_no_error_of_the_library_names_a_flag() -> None:
    ours, more = our_flags(), {}
    for root in ROOTS:
        for path in root.rglob("*.py"):
            name = path.relative_to(root).as_posix()
            flags = [flag for flag in flags_in_errors(path) if flag in ours]
            if not name.startswith(("cli/", "v1/")) and flags:
                more[name] = flags
    assert not more, f"these errors name flags; name the Python parameters: {more}"
