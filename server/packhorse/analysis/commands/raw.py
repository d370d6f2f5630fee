"""A look at raw input: `inspect` prepares lengths or text in a temporary folder, shows its figures, and removes it.

Owns telling raw input from a prepared folder, and the look's defaults. Leaves reading, tokenizing and planning to the
command `packhorse prepare`, which it runs with the user's flags, and drawing a sample to `packhorse.tokenize`.
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
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli import main
from packhorse.cli.shared.spelling import in_flags
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.parameters import message_of, parameter
from packhorse.topology import checked_integer

if TYPE_CHECKING:
    from packhorse.analysis import DatasetReport, PackerComparison
    from packhorse.dataset import PreparedDataset

DEFAULT_MAX_SEQ_LEN = 4096
_FLAG = re.compile(r"(?<![\w-])--(?!help\b)[a-z][a-z-]+")
"""A flag in a message, except --help."""
_WRITING_FLAGS = {"--output", "--overwrite", "--append", "--dry-run", "--format"}
"""Flags of `prepare` that are about what it writes, which a look does not keep."""
_RAW_SUFFIXES = (".parquet", ".arrow", ".npy", ".idx", ".bin", ".jsonl", ".json", ".csv", ".txt", ".gz", ".zst")
"""Ends of names that are taken for raw input although nothing is there, so that the message is about a file."""
_TOKENIZE = "`packhorse tokenize"
"""What a message of `prepare` contains if its input is text, which `packhorse tokenize` would make tokens of."""
_QUICK_PACKERS = ("auto", "best-fit", "first-fit", "greedy-knapsack", "length-sorted")
"""The packers that are compared, if they are installed; each plans within `_QUICK_SECONDS`."""
_QUICK_SECONDS = 2.0
_WAYS = {
    "packed": "packed",
    "padded": "padded",
    "sorted-batches": "sorted by length",
    "random-order": "random order",
    "concatenated": "concatenated",
}
"""Way of filling rows → its name in sentences."""
_UNNAMEABLE = re.compile(r"[^\w.-]+")
"""Characters that a dataset's name must not have."""


@dataclass(frozen=True, kw_only=True)
class RawOptions:
    """How raw lengths or text are read and planned for a look."""

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


@dataclass(frozen=True, slots=True)
class Look:
    """A prepared folder to show: the user's own, or a temporary one made of raw input."""

    folder: Path
    is_raw: bool = False
    """Whether the folder was made of raw input, and is removed after the look."""
    notes: tuple[str, ...] = ()
    """Sentences about what the figures describe: the sample, and max_seq_len if it is the default."""
    share: float = 1.0
    """The share of the rows that was read, in (0, 1]; below 1 for a sample."""
    next_command: str = ""
    """The command with which the user would prepare the same input; empty for a folder that is prepared."""

    def lines(self, report: "DatasetReport") -> Iterator[str]:
        """Yields the sentences before the figures: efficiencies, what they describe, and a sample's standard errors."""
        if not self.is_raw:
            return
        packed, over = report.dataset.manifest.efficiency, report.dataset.manifest.over_length
        ways = ", ".join(f"{_WAYS[way.way]} {_percent(way.efficiency)}" for way in report.without_packing)
        yield f"of the tokens that a GPU computes, real are: packed {_percent(packed)}; without packing: {ways}"
        if over.sequences:
            done = f"{over.tokens:,} of their tokens are left out" if over.tokens else "no token is left out"
            yield (
                f"longer than max_seq_len: {over.sequences:,} sequences, here treated as --over-length "
                f"{report.dataset.manifest.options.over_length}: {done}"
            )
        yield from self.notes
        if errors := self._errors(report.dataset):
            shown = ", ".join(f"{_WAYS[name]} {100 * error:.1f}" for name, error in errors.items())
            yield (
                f"standard errors, in points of a percent, from tenths of the sample: {shown}; all rows sort better by "
                "length, and share bins again less, than those of a sample"
            )

    def cost_line(self, report: "DatasetReport", tokens_per_gpu_second: float, gpu_hour_price: float | None) -> str:
        """Returns what an epoch costs, padded, sorted by length and packed.

        Args:
            report: figures of the folder.
            tokens_per_gpu_second: speed of the training, padding included.
            gpu_hour_price: what a GPU-hour costs; None to speak of hours only.
        """
        computed = {way.way: way.computed_tokens for way in report.without_packing}
        texts = []
        for tokens in (computed["padded"], computed["sorted-batches"], report.dataset.manifest.total_capacity):
            hours = tokens / self.share / tokens_per_gpu_second / 3600
            price = f" (costs {hours * gpu_hour_price:,.2f})" if gpu_hour_price else ""
            texts.append(f"{hours:,.2f} GPU-hours{price}")
        about = "an epoch" if self.share == 1 else "an epoch of the whole, estimated,"
        return (
            f"cost: {about} takes {texts[0]} padded to max_seq_len, {texts[1]} sorted by length, and {texts[2]} packed"
        )

    def facts(self, dataset: "PreparedDataset") -> dict[str, Any]:
        """Returns the share read, standard errors and packers as JSON values; empty for a user's own folder."""
        if not self.is_raw:
            return {}
        return {
            "share_read": self.share,
            "standard_errors": self._errors(dataset),
            "packers": self.packers(dataset).facts()["packers"],
        }

    def packers(self, dataset: "PreparedDataset") -> "PackerComparison":
        """Compares quick packers on the same lengths. `packhorse plan compare` compares all packers."""
        from packhorse.analysis import HistogramInput, compare_packers, lengths_before, options_of
        from packhorse.packing import PACKERS

        options = options_of(dataset)
        source = HistogramInput(name=dataset.name, counts=lengths_before(dataset), options=options)
        quick = [name for name in _QUICK_PACKERS if name == "auto" or name in PACKERS]
        return compare_packers(source, options, algorithms=quick, time_limit_seconds=_QUICK_SECONDS)

    def _errors(self, dataset: "PreparedDataset") -> dict[str, float]:
        """Returns the standard errors of a sample; empty if all rows were read, or with groups."""
        from packhorse.analysis import standard_errors

        return standard_errors(dataset) if self.share < 1 and not dataset.has_groups else {}


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
    typed = {each.partition("=")[0] for each in more_flags}
    if writing := sorted(typed & _WRITING_FLAGS):
        raise click.UsageError(f"`packhorse inspect` keeps nothing: {', '.join(writing)} is for `packhorse prepare`.")
    if options.sample is not None and options.tokenizer is None:
        raise click.UsageError("--sample goes with --tokenizer: lengths are read as a whole, which takes seconds.")
    with tempfile.TemporaryDirectory(prefix="packhorse-inspect-") as folder:
        notes, share, inputs = [], 1.0, [source]
        if options.sample is not None:
            note, share, inputs = _sample_of(source, options.sample, Path(folder))
            notes.append(note)
        name = _UNNAMEABLE.sub("-", Path(without_secrets(source)).stem).strip("-.") or "raw"
        output = Path(folder) / "look" / (f"{name}-sample" if share < 1 else name)  # the figures show this name
        values = {
            "--max-seq-len": str(DEFAULT_MAX_SEQ_LEN if options.max_seq_len is None else options.max_seq_len),
            "--over-length": "split",
            "--length-column": options.length_column,
            "--tokenizer": options.tokenizer,
        }
        flags = [each for flag, value in values.items() if value is not None for each in (flag, value)]
        flags += more_flags
        _run_prepare([*(each for path in inputs for each in ("--input", path)), *flags], output)
        if options.max_seq_len is None and "--max-seq-len" not in typed:
            notes.append(f"planned for max_seq_len {DEFAULT_MAX_SEQ_LEN:,}; --max-seq-len gives yours")
        next_command = f"packhorse prepare {shlex.join(['--input', source, *flags])} --output DIR"
        yield Look(output, is_raw=True, notes=tuple(notes), share=share, next_command=next_command)


def _sample_of(source: str, num_rows: int, folder: Path) -> tuple[str, float, list[str]]:
    """Copies a sample of rows into a folder; returns (a sentence about it, its share of the rows, the copies)."""
    if find_spec("packhorse.tokenize") is None:
        raise click.UsageError("--sample needs packhorse.tokenize, which this installation does not have.")
    from packhorse.tokenize import sample_rows

    place = folder / "sample"
    place.mkdir()
    sample = sample_rows(source, num_rows, place)
    if not sample.files:
        raise click.ClickException(f"{without_secrets(source)} has no row")
    if sample.share == 1:
        return f"all {sample.num_rows:,} rows are shown: there are no more than --sample asks for", 1.0, sample.files
    note = (
        f"sample: {sample.num_rows:,} of about {sample.about_rows:,} rows ({sample.share:.2%}), from all over the "
        "input; all counts below are of the sample"
    )
    return note, sample.share, sample.files


def _run_prepare(arguments: Sequence[str], output: Path) -> None:
    """Runs `packhorse prepare`, without its summary; a ClickException in terms of `inspect` if it fails."""
    context = click.get_current_context()
    command = main.get_command(context.find_root(), "prepare")
    assert command is not None
    output.parent.mkdir()
    try:
        with (
            command.make_context("inspect", [*arguments, "--output", str(output)], parent=context.parent) as running,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            command.invoke(running)
    except (ValueError, OSError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else message_of(error)
        if _TOKENIZE in message and "--tokenizer" not in arguments:
            message = f"{message.partition(',')[0]}: give --tokenizer, the tokenizer.json or its folder"
            raise click.ClickException(message) from error
        raise click.ClickException(_where_flags_go(in_flags(message, command.params))) from error


def _percent(share: float) -> str:
    """Returns a share in percent, with enough digits that only 1 is shown as 100 %."""
    return f"{share:.2%}" if share == 1 or share < 0.9999 else f"{share:.4%}"


def _where_flags_go(message: str) -> str:
    """Adds to a message of `prepare` where its flags go here (after `--`), if it names one that `inspect` lacks."""
    own = {flag for option in click.get_current_context().command.params for flag in option.opts}
    others = set(_FLAG.findall(message)) - own
    return f"{message} (here, after `--`: packhorse inspect … -- {min(others)} …)" if others else message
