"""Errors of the library name Python parameters; the command line prints its flags, and nobody's paths are rewritten."""

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest

from packhorse.cli import COMMANDS, main
from packhorse.cli.shared.spelling import in_flags
from packhorse.parameters import message_of, parameter

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


@pytest.mark.shelf
@pytest.mark.parametrize(
    ("command", "message", "shown"),
    [
        ("prepare", parameter("max_seq_len") + " must be at least 1", "--max-seq-len must be at least 1"),
        ("prepare", "pass " + parameter("over_length", "split"), "pass --over-length split"),
        ("prepare", parameter("columns.length") + " names no column", "--length-column names no column"),
        ("prepare", parameter("grouping.size", 2) + " is too few", "--group-size 2 is too few"),
        ("prepare", "pass " + parameter("overwrite", True), "pass --overwrite"),
        ("prepare", "raise " + parameter("plan.align"), "raise --align"),
        ("tokenize", "leave out " + parameter("append_eos", False), "leave out --no-eos"),
        ("stream", parameter("topology.world_size") + " must be at least 1", "--world-size must be at least 1"),
        ("stream", parameter("max_tokens", 3) + " has no flag", "max_tokens=3 has no flag"),
        ("prepare", "max_seq_len=8 is text", "max_seq_len=8 is text"),
    ],
)
def test_parameters_become_flags(command: str, message: str, shown: str) -> None:
    assert in_flags(message, parameters_of(command)) == shown


PATHS = (
    "max_seq_len=4096",
    ".corpus.work",
    ".a.1.partial",
    "over_length=drop",
    "max_seq_len",
    "`resume`",
    "overwrite=True",
    "input",
    "keep 'tail'",
)


@pytest.mark.parametrize("folder", PATHS)
def test_a_path_is_printed_as_it_is(folder, tmp_path, packhorse) -> None:
    path = tmp_path / folder / "l.npy"
    path.parent.mkdir()
    np.save(path, np.array([5, 0]))
    result = packhorse("prepare", "--input", path, "--output", tmp_path / "o", "--max-seq-len", 8)
    assert f"Error: {path}: row 1, length is 0" in result.stderr
    assert "choose --on-bad-row skip" in result.stderr
    np.save(path, np.array([5, 9]))
    result = packhorse("prepare", "--input", path, "--output", tmp_path / "o", "--max-seq-len", 8)
    assert f"sequence 1 (row 1 of {path}) has 9 tokens, over --max-seq-len 8" in result.stderr
    missing = tmp_path / folder / "over_length=split.npy"
    result = packhorse("prepare", "--input", missing, "--output", tmp_path / "o", "--max-seq-len", 8)
    assert str(missing) in result.stderr
    taken = tmp_path / folder / "taken"
    taken.mkdir()
    np.save(path, np.array([5, 6]))
    result = packhorse("prepare", "--input", path, "--output", taken, "--max-seq-len", 8)
    assert str(taken) in result.stderr
    assert "--overwrite" in result.stderr


@pytest.mark.shelf
@pytest.mark.parametrize("folder", PATHS)
def test_a_path_of_text_and_of_a_server_is_printed_as_it_is(folder, tmp_path, packhorse) -> None:
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "chats.jsonl"
    path.write_text('{"text": 3}\n')
    result = packhorse("tokenize", "--input", path, "--output", tmp_path / "o", "--train-tokenizer")
    assert result.exit_code == 1
    assert str(path) in result.stderr
    result = packhorse("serve", "--data-root", tmp_path, "--token-file", tmp_path / folder / "tokens")
    assert f"--token-file {tmp_path / folder / 'tokens'} cannot be read" in result.stderr


def test_a_warning_names_flags_and_an_error_keeps_them_when_it_is_pickled() -> None:
    error = ValueError("give " + parameter("over_length", "drop") + " or " + parameter("max_seq_len"))
    assert str(error) == "give over_length='drop' or max_seq_len"
    assert message_of(pickle.loads(pickle.dumps(error))).parts == message_of(error).parts


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


@pytest.mark.shelf
def test_no_error_of_the_library_names_a_flag() -> None:
    ours, more = our_flags(), {}
    for root in ROOTS:
        for path in root.rglob("*.py"):
            name = path.relative_to(root).as_posix()
            flags = [flag for flag in flags_in_errors(path) if flag in ours]
            if not name.startswith(("cli/", "v1/")) and "/commands/" not in name and flags:
                more[name] = flags
    assert not more, f"these errors name flags; name the Python parameters: {more}"
