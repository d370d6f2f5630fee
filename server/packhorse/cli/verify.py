"""`packhorse verify`: compares a prepared folder with its checksums, and its lengths with the tokens.

Owns the flags and the output. Leaves the comparison to `packhorse.dataset`.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.shared.signals import stopped_by_signals
from packhorse.cli.shared.timeouts import store_timeout_option
from packhorse.cli.shared.tokens import open_tokens
from packhorse.dataset import (
    LengthReport,
    LengthsOf,
    Manifest,
    PreparedDatasetError,
    datasets_below,
    open_prepared,
    verify_files,
    verify_lengths,
    versions_of,
)
from packhorse.formats.left_out import left_out_text
from packhorse.formats.object_store import is_url
from packhorse.jobs import Progress, available_cores, show_progress
from packhorse.shelf import from_shelf, is_offered
from packhorse.wire import tokens_fingerprint

if TYPE_CHECKING:
    from packhorse.client import TokenSource

_MANY_ENTRIES = 10_000_000
"""Lengths from which on several processes compare them."""
_UNPROVEN = "Other tokens of the same lengths pass, such as those of another tokenizer run"


@click.command("verify")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--tokens", help="Token file or folder of the trainers: compare the length of every sequence with it.")
@click.option("--id-column", help="The column of --tokens that holds ids.  [default: the dataset's]")
@click.option(
    "--sample", type=click.IntRange(1), metavar="N", help="Compare N lengths drawn at random.  [default: all]"
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that compare lengths. [default: 1 below 10 million sequences, otherwise one for each processor]",
)
@click.option(
    "--version",
    "number",
    type=click.IntRange(1),
    metavar="N",
    help="Verify version N of a dataset that was appended to; `packhorse inspect` lists them.  [default: the current]",
)
@store_timeout_option
@click.option("--all-versions", is_flag=True, help="Verify every version, the newest first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@click.pass_context
def command(
    context: click.Context,
    /,
    folder: Path,
    tokens: str | None,
    id_column: str | None,
    sample: int | None,
    workers: int | None,
    number: int | None,
    all_versions: bool,
    as_json: bool,
) -> None:
    """Compare the prepared dataset in FOLDER with its checksums, and its lengths with the tokens.

    If FOLDER holds several datasets, like a server's data root, each is compared with its checksums.

    With --tokens, the length of each sequence in the token source is compared with the planned length. If the dataset
    was prepared from one Megatron or flat file, the tokens of up to 64 sequences are compared too, by a fingerprint.
    Otherwise other tokens with the same lengths pass. It exits with 0 if everything matches. Otherwise it exits with 1
    and names the first sequences that differ.
    """
    if tokens is None and (sample is not None or id_column is not None):
        raise click.UsageError("--sample and --id-column belong to --tokens; give --tokens as well")
    if number is not None and all_versions:
        raise click.UsageError("--version and --all-versions exclude each other; give one of them")
    below = datasets_below(folder)
    if below and (tokens is not None or number is not None):
        raise click.UsageError(f"--tokens and --version need one dataset, and {folder} holds several; name one of them")
    results: list[_VersionResult] = []
    with stopped_by_signals("nothing was changed"), show_progress() as progress:
        for dataset in below or [folder]:
            for path in _folders(dataset, number, all_versions):
                result = _compare_files(dataset, path, progress)
                if tokens is not None and not result.wrong:
                    given = _GivenTokens(tokens, id_column, sample, workers)
                    # The current version lies in the dataset's own folder, an older one below it.
                    _compare_with_tokens(result, given, progress, is_current=path == folder)
                results.append(result)
    is_wrong = any(result.wrong for result in results)
    if as_json:
        facts = [result.as_json() for result in results]
        click.echo(json.dumps(facts if all_versions or below else facts[0], indent=2))
    else:
        for result in results:
            _print(result, tokens)
        click.echo(f"as it was prepared: {'no' if is_wrong else 'yes'}")
    context.exit(1 if is_wrong else 0)


@dataclass(slots=True, kw_only=True)
class _VersionResult:
    """The result for one version of a dataset."""

    dataset: Path
    """The dataset's folder."""
    folder: Path
    """The version's: the same, or one below it if the version is older."""
    manifest: Manifest | None = None
    """The manifest; None if it cannot be read."""
    lengths: LengthReport | None = None
    """The comparison of lengths; None without --tokens."""
    are_tokens_compared: bool = False
    """Whether tokens were compared too, by a fingerprint."""
    wrong: list[str] = field(default_factory=list)
    """A sentence for each difference."""

    def as_json(self) -> dict[str, Any]:
        """Returns the result as a JSON object."""
        inputs = None if self.manifest is None else self.manifest.inputs
        return {
            "folder": str(self.folder),
            "version": None if self.manifest is None else self.manifest.version,
            "digest": None if self.manifest is None else self.manifest.digest,
            "ok": not self.wrong,
            "problems": self.wrong,
            "lengths": None if self.lengths is None else asdict(self.lengths),
            "left_out": None if inputs is None else inputs.left_out,
            "compared": [
                "checksums",
                *(["lengths"] if self.lengths is not None else []),
                *(["tokens"] if self.are_tokens_compared else []),
            ],
        }


def _folders(folder: Path, number: int | None, all_versions: bool) -> list[Path]:
    """Returns the folders of the versions to verify; the dataset's own if no version is given."""
    if number is None and not all_versions:
        return [folder]
    versions = versions_of(folder)
    meant = [version.path for version in versions if all_versions or version.number == number]
    if not meant:
        there = ", ".join(str(version.number) for version in versions)
        raise click.UsageError(f"there is no --version {number}; {folder} has {there}")
    return meant


def _compare_files(dataset_folder: Path, folder: Path, progress: Progress) -> _VersionResult:
    """Compares the files of one version with their checksums."""
    result = _VersionResult(dataset=dataset_folder, folder=folder)
    try:
        dataset = open_prepared(folder, check_pool=False)
        result.manifest = dataset.manifest
        result.wrong = verify_files(dataset, progress)
    except PreparedDatasetError as error:
        result.wrong = [str(error)]
    return result


@dataclass(frozen=True, slots=True)
class _GivenTokens:
    """The tokens to compare with, and how, as the flags say."""

    path: str
    """Value of --tokens."""
    id_column: str | None
    sample: int | None
    workers: int | None


def _compare_with_tokens(result: _VersionResult, given: _GivenTokens, progress: Progress, *, is_current: bool) -> None:
    """Compares a version, whose files are as they were, with the tokens; writes what is found to `result`."""
    manifest = result.manifest
    assert manifest is not None
    result.lengths = _compare_lengths(result.folder, manifest, given, progress)
    num_given = _open_source(given.path, given.id_column).num_sequences
    result.wrong += _what_differs(result.lengths, manifest, given.path, num_given, is_current=is_current)
    result.are_tokens_compared = _has_fingerprint(manifest, num_given)
    if result.are_tokens_compared and not result.wrong:
        result.wrong += _what_differs_in_tokens(manifest, given.path)


def _open_source(tokens: str, id_column: str | None = None) -> "TokenSource":
    """Opens the source of --tokens, which was given."""
    source = open_tokens(tokens, id_column)
    assert source is not None
    return source


@dataclass(frozen=True, slots=True)
class _OpenLengths:
    """A function without arguments that opens a token source; it can be pickled for other processes."""

    tokens: str
    """Value of --tokens."""
    id_column: str | None
    """Value of --id-column."""
    dataset_column: str
    """The column that the dataset's ids come from; empty if they are row numbers."""

    def __call__(self) -> LengthsOf:
        """Opens the source, and returns its function from ids to lengths."""
        source = _open_source(self.tokens, self.id_column)
        return source.for_ids(self.dataset_column).lengths


def _compare_lengths(folder: Path, manifest: Manifest, given: _GivenTokens, progress: Progress) -> LengthReport:
    """Compares the planned lengths with those of the tokens."""
    source = _open_source(given.path, given.id_column)
    num_entries = min(given.sample or manifest.num_sequences, manifest.num_sequences)
    return verify_lengths(
        folder,
        _OpenLengths(given.path, given.id_column, dataset_column=manifest.id_column or ""),
        # If the tokens have to be read for their lengths, they are read in their own order.
        order="pool" if source.knows_lengths else "id",
        sample=given.sample,
        workers=given.workers or (1 if num_entries < _MANY_ENTRIES else available_cores()),
        progress=progress,
    )


def _what_differs(
    lengths: LengthReport, manifest: Manifest, tokens: str, num_given: int | None, *, is_current: bool
) -> Iterator[str]:
    """Yields a sentence for each difference.

    The tokens are of `num_given` sequences, None if that is not known; these may be more than an older version had.
    """
    yield from (difference.why for difference in lengths.first)
    num_not_named = lengths.differing - len(lengths.first)
    if num_not_named > 0:
        yield f"{num_not_named:,} more entries of the plan differ"
    if lengths.differing:
        return
    if lengths.compared == lengths.entries and lengths.tokens != manifest.own_tokens:
        yield (
            f"the sequences have {lengths.tokens:,} tokens together, and had {manifest.own_tokens:,} when they were "
            "planned; their rooms are the same"
        )
    if manifest.inputs is None or num_given is None:
        return
    if num_given < manifest.inputs.rows or (is_current and num_given > manifest.inputs.rows):
        yield f"{tokens} holds {num_given:,} sequences, and the dataset was prepared from {manifest.inputs.rows:,}"


def _has_fingerprint(manifest: Manifest, num_given: int | None) -> bool:
    """Returns whether the manifest has a fingerprint of as many sequences as the tokens are of."""
    inputs = manifest.inputs
    return inputs is not None and inputs.tokens is not None and inputs.rows == num_given


def _what_differs_in_tokens(manifest: Manifest, tokens: str) -> Iterator[str]:
    """Yields a sentence if the tokens differ from those that the dataset was prepared from."""
    source = _open_source(tokens)  # without a column of ids: a fingerprint is of rows
    assert manifest.inputs is not None
    assert manifest.inputs.tokens is not None
    if tokens_fingerprint(source.read, manifest.inputs.rows) != manifest.inputs.tokens.fingerprint:
        yield (
            f"{tokens} holds other tokens of the same lengths than the dataset was prepared from (made again, with "
            "another tokenizer?): prepare it again, or name the right ones"
        )


def _print(result: _VersionResult, tokens: str | None) -> None:
    """Prints what was compared on stdout, and what is wrong on stderr."""
    manifest, lengths = result.manifest, result.lengths
    if manifest is not None:
        # An older version is numbered even if it is the first.
        version = f", version {manifest.version}" if manifest.version > 1 or result.folder != result.dataset else ""
        click.echo(f"{result.dataset.absolute().name}{version} {manifest.digest}")
        click.echo(
            f"{len(manifest.checksums)} files, {manifest.num_sequences:,} sequences in {manifest.num_bins:,} bins"
        )
    if lengths is not None:
        click.echo(f"{lengths.compared:,} of {lengths.entries:,} lengths compared with {tokens}")
        if result.are_tokens_compared:
            click.echo("tokens compared by a fingerprint of up to 64 sequences")
        else:
            click.echo(f"not compared: the tokens themselves, of which a plan knows only lengths. {_UNPROVEN}")
    if tokens is not None and not is_url(tokens) and is_offered("recorded_lines"):
        for line in from_shelf("recorded_lines")(tokens):  # what the rows held and the tokens do not
            click.echo(line)
    elif manifest is not None and manifest.inputs is not None and manifest.inputs.left_out:
        click.echo(f"not in the tokens, as tokenize left it out: {left_out_text(manifest.inputs.left_out)}")
    for problem in result.wrong:
        click.echo(f"WRONG: {problem}", err=True)
