"""Raw input of `packhorse inspect`: lengths or text, prepared in a temporary folder, which is removed afterwards.

Owns telling raw input from a prepared folder, and how it is planned by default. Leaves reading, tokenizing and planning
to the command `packhorse prepare`, which it runs with the user's flags, drawing a sample to `packhorse.tokenize`, and
what is shown of the folder to `look`.
"""

import contextlib
import io
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import has_magic
from importlib.util import find_spec
from pathlib import Path

import click

from packhorse.analysis.commands.look import Look
from packhorse.cli import main
from packhorse.cli.shared.spelling import in_flags
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.parameters import message_of, parameter
from packhorse.topology import checked_integer

DEFAULT_MAX_SEQ_LEN = 4096
_FLAG = re.compile(r"(?<![\w-])--(?!help\b)[a-z][a-z-]+")
"""A flag in a message, except --help."""
_WRITING_FLAGS = {"--output", "--overwrite", "--append", "--dry-run", "--format"}
"""Flags of `prepare` that are about what it writes, which a look does not keep."""
_RAW_SUFFIXES = (".parquet", ".arrow", ".npy", ".idx", ".bin", ".jsonl", ".json", ".csv", ".txt", ".gz", ".zst")
"""Ends of names that are taken for raw input although nothing is there, so that the message is about a file."""
_TOKENIZE = "`packhorse tokenize"
"""What a message of `prepare` contains if its input is text, which `packhorse tokenize` would make tokens of."""
_UNNAMEABLE = re.compile(r"[^\w.-]+")
"""Characters that a dataset's name must not have."""


@dataclass(frozen=True, kw_only=True)
class RawOptions:
    """How raw lengths or text are read and planned for a look; the fields' texts are the help of their flags."""

    max_seq_len: int | None = None
    """Of raw input: a bin's capacity in tokens; by default 4096. Longer sequences are split, and counted; options after
    `--` may say otherwise.
    """
    length_column: str | None = None
    """Of raw input: the column of lengths in tokens, or of lists of tokens."""
    tokenizer: str | None = None
    """Of raw text, chats or pairs: the tokenizer.json, or its folder."""
    sample: int | None = None
    """Of raw text in JSON lines or Parquet: tokenize about this many rows, drawn from all over it, and show how far the
    figures may be from those of all rows.
    """

    def __post_init__(self) -> None:
        """Raises a ValueError if the sample is not a positive number of rows."""
        if self.sample is not None:
            checked_integer(parameter("sample"), self.sample, 1, 2**31 - 1)


def check_install(*, of_raw: bool = False, of_text: bool = False) -> None:
    """Raises a ClickException if packages are missing for a look, and names the extra to install.

    Args:
        of_raw: whether raw input is looked at, which needs what `packhorse prepare` needs.
        of_text: whether the raw input is text to tokenize.
    """
    missing = [name for name in ("numba", *(("tokenizers",) if of_text else ())) if find_spec(name) is None]
    if missing:
        kind, extra = ("lengths or text", "prepare") if of_raw else ("a folder", "server")
        raise click.ClickException(
            f"`packhorse inspect` of {kind} needs {', '.join(missing)}; install it with: pip install "
            f"'packhorse[{extra}]'"
        )


def is_raw(source: str) -> bool:
    """Whether a path names raw input: lengths or text, and not a prepared folder, a mixture or a served dataset.

    Raises:
        ClickException: the path is a folder without files.
    """
    path = Path(source)
    if not path.exists():
        return is_url(source) or has_magic(source) or path.suffix in _RAW_SUFFIXES
    from packhorse.dataset import MIXTURE_SUFFIX, datasets_below, is_prepared

    if not path.is_dir():
        return not path.name.endswith(MIXTURE_SUFFIX)
    if is_prepared(path) or datasets_below(path):
        return False
    if not any(each.is_file() for each in path.rglob("*")):
        raise click.ClickException(f"the folder {source} has no files")
    return True


@contextlib.contextmanager
def prepared_for_a_look(source: str, options: RawOptions, more_flags: Sequence[str]) -> Iterator[Look]:
    """Prepares raw input in a temporary folder, yields it, and removes it afterwards.

    Args:
        source: a path, pattern or URL.
        options: how the input is read and planned.
        more_flags: further options of `prepare` (and of `tokenize`, if there is a tokenizer), as they were typed.

    Raises:
        ClickException: an option or the input is wrong.
    """
    typed = {flag.partition("=")[0] for flag in more_flags}
    if writing := sorted(typed & _WRITING_FLAGS):
        raise click.UsageError(f"`packhorse inspect` keeps nothing: {', '.join(writing)} is for `packhorse prepare`.")
    if options.sample is not None and options.tokenizer is None:
        raise click.UsageError("--sample goes with --tokenizer: lengths are read as a whole, which takes seconds.")
    with tempfile.TemporaryDirectory(prefix="packhorse-inspect-") as folder:
        rows = _Rows([source])
        if options.sample is not None:
            rows = _sample_of(source, options.sample, Path(folder))
        notes = [rows.note] if rows.note else []
        name = _UNNAMEABLE.sub("-", Path(without_secrets(source)).stem).strip("-.") or "raw"
        output = Path(folder) / "look" / (f"{name}-sample" if rows.share < 1 else name)  # the figures show this name
        values = {
            "--max-seq-len": str(DEFAULT_MAX_SEQ_LEN if options.max_seq_len is None else options.max_seq_len),
            "--over-length": "split",
            "--length-column": options.length_column,
            "--tokenizer": options.tokenizer,
        }
        flags = [word for flag, value in values.items() if value is not None for word in (flag, value)]
        flags += more_flags
        inputs = [word for path in rows.paths for word in ("--input", path)]
        _run_prepare([*inputs, *flags], output)
        if options.max_seq_len is None and "--max-seq-len" not in typed:
            notes.append(f"planned for max_seq_len {DEFAULT_MAX_SEQ_LEN:,}; --max-seq-len gives yours")
        next_command = f"packhorse prepare {shlex.join(['--input', source, *flags])} --output DIR"
        yield Look(output, is_raw=True, notes=tuple(notes), share=rows.share, next_command=next_command)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that are prepared."""

    paths: list[str]
    """The user's path, pattern or URL, or the files of a sample."""
    note: str = ""
    """A sentence about the sample; empty without one."""
    share: float = 1.0
    """The share of all rows that these are, in (0, 1]."""


def _sample_of(source: str, num_rows: int, folder: Path) -> _Rows:
    """Copies a sample of rows into a folder."""
    if find_spec("packhorse.tokenize") is None:
        raise click.UsageError("--sample needs packhorse.tokenize, which this installation does not have.")
    from packhorse.tokenize import sample_rows

    place = folder / "sample"
    place.mkdir()
    sample = sample_rows(source, num_rows, place)
    if not sample.files:
        raise click.ClickException(f"{without_secrets(source)} has no row")
    if sample.share == 1:
        return _Rows(sample.files, f"all {sample.num_rows:,} rows are shown: there are no more than --sample asks for")
    note = (
        f"sample: {sample.num_rows:,} of about {sample.about_rows:,} rows ({sample.share:.2%}), from all over the "
        "input; all counts below are of the sample"
    )
    return _Rows(sample.files, note, sample.share)


def _run_prepare(arguments: Sequence[str], output: Path) -> None:
    """Runs `packhorse prepare`, without its summary; a ClickException in terms of `inspect` if it fails."""
    context = click.get_current_context()
    command = main.get_command(context.find_root(), "prepare")
    assert command is not None
    output.parent.mkdir()
    try:
        # By the name "inspect", `prepare` sees that nothing of what it makes stays.
        with (
            command.make_context("inspect", [*arguments, "--output", str(output)], parent=context.parent) as running,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            command.invoke(running)
    except (ValueError, OSError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else message_of(error)
        # `prepare` says that text must be tokenized, after what the text is and a comma.
        if _TOKENIZE in message and "--tokenizer" not in arguments:
            message = f"{message.partition(',')[0]}: give --tokenizer, the tokenizer.json or its folder"
            raise click.ClickException(message) from error
        raise click.ClickException(_where_flags_go(in_flags(message, command.params))) from error


def _where_flags_go(message: str) -> str:
    """Adds to a message of `prepare` where its flags go here (after `--`), if it names one that `inspect` lacks."""
    own = {flag for option in click.get_current_context().command.params for flag in option.opts}
    others = set(_FLAG.findall(message)) - own
    return f"{message} (here, after `--`: packhorse inspect … -- {min(others)} …)" if others else message
