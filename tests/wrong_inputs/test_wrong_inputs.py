"""Wrong inputs: every one is refused at once, in one line that names what is wrong.

The cases stand in the text files beside this one, a case a line: what is called, `=>`, and what its message must
say, as a regular expression. `command_line.txt` holds command lines, the others Python expressions (see `names`).
"""

import re
import shlex
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
MOST_CHARACTERS = 400


def cases(*tables: str) -> list[tuple[str, str]]:
    lines = [line for table in tables for line in (FOLDER / f"{table}.txt").read_text().splitlines()]
    return [(call, pattern) for call, _, pattern in (line.partition("  =>  ") for line in lines)]


PYTHON = cases("packing", "epoch", "prepare", "tokenize", "client", "trainer")
COMMANDS = cases("command_line")


def check(message: str, pattern: str) -> None:
    assert re.search(pattern, message), message
    assert "\n" not in message
    assert len(message) <= MOST_CHARACTERS


def test_there_are_as_many_as_a_first_week_found() -> None:
    assert len(set(PYTHON + COMMANDS)) == len(PYTHON + COMMANDS) >= 228


@pytest.mark.parametrize(("call", "pattern"), PYTHON, ids=[call[:100] for call, _ in PYTHON])
def test_python(call: str, pattern: str, names, in_wrong_folder) -> None:
    """What is documented is raised: never an AttributeError, a KeyError, an assertion or something of a dependency."""
    documented = (ValueError, TypeError, OSError, ImportError, names["PackhorseError"])
    with pytest.raises(documented) as caught:
        eval(call, dict(names))
    check(str(caught.value), pattern)


@pytest.mark.parametrize(("arguments", "pattern"), COMMANDS, ids=[arguments[:100] for arguments, _ in COMMANDS])
def test_command_line(arguments: str, pattern: str, in_wrong_folder) -> None:
    """Exit status 1 or 2, no trace, and flags are called as they are written."""
    from click.testing import CliRunner

    from packhorse.cli import main

    result = CliRunner().invoke(main, shlex.split(arguments))
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    usage = result.exit_code == 2 and result.stderr.startswith("Usage: ")
    check(result.stderr.strip().splitlines()[-1] if usage else result.stderr.strip(), pattern)
