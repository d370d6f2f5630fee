"""The tokens that `packhorse prepare --tokenizer` makes before it prepares them.

Owns the hidden folder in which they are until the dataset has a copy, and the decision whether tokens of an earlier,
failed call can be used again. Leaves making them to the command `tokenize`. `packhorse inspect` of text runs `prepare`
under its own name, and so comes here too.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import click

from packhorse.cli import main
from packhorse.cli.shared.spelling import in_flags
from packhorse.dataset import PlanOptions, PreparedDataset, open_prepared, refuse_holding, refuse_output
from packhorse.formats.object_store import is_url
from packhorse.jobs import Execution
from packhorse.parameters import message_of
from packhorse.prepare import Grouping, InputColumns, check_plan
from packhorse.storage import read_record, write_record

_RECORD = "made.json"
"""File in the hidden folder that says from which arguments and files the tokens were made; it is written last."""


class Place(NamedTuple):
    """Where a dataset is written, and what may happen to one that is there."""

    output: Path
    overwrite: bool
    append: bool


@dataclass(frozen=True, slots=True)
class MadeTokens:
    """Tokens that are ready to be prepared."""

    input: str
    """Path of their index, NAME.idx, in the hidden folder."""
    grouping: Grouping | None = None
    """Which sequences the text keeps together, such as the two answers of a preference; None if each is by itself."""


@contextmanager
def tokens_of_text(
    sources: Sequence[str],
    options: Sequence[str],
    plan: PlanOptions,
    columns: InputColumns,
    grouping: Grouping | None,
    execution: Execution,
    place: Place,
) -> Iterator[MadeTokens]:
    """Tokenizes text into a hidden folder beside the output, and yields the tokens to the caller, who prepares them.

    Afterwards the folder is removed. If the caller fails, the folder stays, and the next call with the same options and
    unchanged files uses its tokens without tokenizing again.

    Args:
        sources: files or URLs of the text.
        options: options of `tokenize`, as the user typed them.
        plan: the options with which the dataset is planned afterwards; they are only checked here.
        columns: which column of the text has the ids, and what happens to bad rows.
        grouping: the grouping that the user gave, which is only checked here; None to take that of the made tokens.
        execution: engine, workers, and whether finished parts are used again.
        place: where the dataset is written.

    Raises:
        ClickException: an option or the text is wrong.
        ValueError: the options of the plan contradict each other; raised before any token is made.
        FileExistsError: something is at the output already, which `place` does not let it replace or append to.
    """
    old_index = _checked_old_index(sources, plan, columns, grouping, place)
    output = place.output.resolve()
    folder = output.with_name(f".{output.name}.tokens")
    tokens, record = folder / "tokens" / output.name, folder / _RECORD
    arguments = [each for source in sources for each in ("--input", source)] + list(options)
    arguments += _options_of_both(columns, execution)
    files = _files_now(arguments if old_index is None else [*arguments, str(old_index)])
    request = {"arguments": arguments, "files": files}
    made = read_record(record)
    # Without the files' stamps a change would not be seen, so the tokens are made again.
    if made is not None and files is not None and request.items() <= made.items():
        click.echo("tokens       those of the call before: neither its options nor a file has changed")
    else:
        flags = ["--resume"] if execution.resume else []
        flags += ["--overwrite"] if place.overwrite or record.exists() else []
        tokens.parent.mkdir(parents=True, exist_ok=True)
        record.unlink(missing_ok=True)
        made = {**request, "sequences_per_row": _tokenize([*arguments, *flags], tokens, old_index)}
        write_record(record, made)
    sequences_per_row = made["sequences_per_row"]
    try:
        yield MadeTokens(f"{tokens}.idx", Grouping(size=sequences_per_row) if sequences_per_row > 1 else None)
    except BaseException:
        # `inspect` prepares in a temporary folder, and takes this one away with it.
        if click.get_current_context().info_name == "prepare":
            click.echo(
                f"the tokens stay in {folder}: the same command with other options of the plan uses them", err=True
            )
        raise
    shutil.rmtree(folder)


def _checked_old_index(
    sources: Sequence[str], plan: PlanOptions, columns: InputColumns, grouping: Grouping | None, place: Place
) -> Path | None:
    """Returns the index of the tokens to which those of the text are appended; None if a new dataset is made.

    Refuses whatever would fail only after the text was tokenized; arguments and errors are those of `tokens_of_text`.
    """
    if plan.max_seq_len is None:
        raise click.UsageError("Missing option '--max-seq-len'.")
    if columns.length is not None:
        raise click.UsageError("--length-column does not go with --tokenizer: lengths are those of the tokens.")
    dataset = open_prepared(place.output, check_pool=False) if place.append else None
    check_plan(plan, grouping, appends_to=dataset)
    refuse_holding(place.output, [Path(source) for source in sources if not is_url(source)])
    if dataset is not None:
        return _index_of_tokens(dataset)
    refuse_output(place.output, overwrite=place.overwrite)
    return None


def _tokenize(arguments: list[str], output: Path, old_index: Path | None) -> int:
    """Runs `tokenize`, which appends to the tokens of `old_index`; returns how many sequences it makes of each row."""
    if old_index is None:
        return _run_tokenize([*arguments, "--output", str(output)])
    new = output.parent.parent / "new" / output.name
    new.parent.mkdir(exist_ok=True)
    sequences_per_row = _run_tokenize([*arguments, "--output", str(new)])
    joined = ["--input", str(old_index), "--input", f"{new}.idx", "--output", str(output)]
    _run_tokenize([*joined, "--overwrite"])
    shutil.rmtree(new.parent)
    return sequences_per_row


def _index_of_tokens(dataset: PreparedDataset) -> Path:
    """Returns the path of the index of the tokens that a dataset's folder holds; a UsageError if it holds none."""
    inputs = dataset.manifest.inputs
    path = None if inputs is None or inputs.tokens is None else dataset.path / inputs.tokens.path
    if path is None or not path.is_file():
        raise click.UsageError(
            f"--append with --tokenizer needs the tokens of {dataset.path}, which does not hold them: tokenize the new "
            "text yourself, and append the tokens."
        )
    return path


def _options_of_both(columns: InputColumns, execution: Execution) -> list[str]:
    """Returns the options that prepare and tokenize both have, as arguments of tokenize."""
    values = {
        "--id-column": columns.id,
        "--on-bad-row": None if columns.on_bad_row == "error" else columns.on_bad_row,
        "--engine": None if execution.engine == "threads" else execution.engine,
        "--workers": execution.workers,
        "--ray-address": execution.ray_address,
    }
    return [text for flag, value in values.items() if value is not None for text in (flag, str(value))]


def _run_tokenize(arguments: list[str]) -> int:
    """Runs `packhorse tokenize` inside this command; returns how many sequences it makes of each row."""
    context = click.get_current_context()
    command = main.get_command(context.find_root(), "tokenize")
    if command is None:
        raise click.UsageError("--tokenizer needs packhorse.tokenize, which this installation does not have.")
    try:
        # Named as the command that the user typed, for usage errors.
        with command.make_context("prepare", arguments, parent=context.parent) as running:
            sequences_per_row: int = command.invoke(running)
    except ValueError as error:
        raise click.ClickException(in_flags(message_of(error), command.params)) from error
    return sequences_per_row


def _files_now(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Returns path → [size in bytes, time of change in ns] of each file that arguments name; None if one is a URL.

    An argument names a file by its path, as NAME=PATH, by a pattern, or by a folder that contains it. Only `tokenize`
    knows which options take files, so every argument is tried. A file that is named by chance does no harm: if it
    changes, tokens are made again.
    """
    named = {text for argument in arguments for text in (argument, argument.partition("=")[2]) if text}
    if any(map(is_url, named)):
        return None
    paths = [Path(path) for text in named for path in ([text] if os.path.exists(text) else glob(text, recursive=True))]
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    return {str(file.resolve()): [file.stat().st_size, file.stat().st_mtime_ns] for file in sorted(files)}
