"""`packhorse verify`: is a prepared folder what was written, and do its lengths fit the tokens?

Owns the flags and what is printed; leaves the comparison to `packhorse.dataset`.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from packhorse.cli.signals import stopped_by_signals
from packhorse.cli.token_options import open_tokens
from packhorse.dataset import (
    LengthReport,
    LengthsOf,
    Manifest,
    PreparedDatasetError,
    open_prepared,
    verify_files,
    verify_lengths,
)
from packhorse.jobs import Progress, show_progress

_MANY_ENTRIES = 10_000_000


@click.command("verify")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--tokens", help="Token file or folder of the trainers: compare the length of every sequence with it.")
@click.option("--id-column", help="The column of --tokens that holds ids; the dataset's own when left out.")
@click.option(
    "--sample", type=click.IntRange(1), metavar="N", help="Compare N lengths drawn at random.  [default: all]"
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that compare lengths.  [default: 1 below 10 million sequences, else one for each processor]",
)
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
    as_json: bool,
) -> None:
    """Compare the prepared dataset in FOLDER with its checksums, and its lengths with the tokens.

    With --tokens the length of each sequence is taken from the token source and compared with the planned one, without
    making batches; `packhorse audit --tokens` compares the tokens themselves. Exits with 0 when all is as it was
    prepared; with 1 when not, naming the first sequences that differ.
    """
    if tokens is None and (sample is not None or id_column is not None):
        raise click.UsageError("--sample and --id-column say how to compare with --tokens; give --tokens as well")
    lengths: LengthReport | None = None
    manifest: Manifest | None = None
    with stopped_by_signals("nothing was changed"), show_progress() as progress:
        try:
            dataset = open_prepared(folder, check_pool=False)
            manifest = dataset.manifest
            wrong = verify_files(dataset, progress)
        except PreparedDatasetError as error:
            wrong = [str(error)]
        if tokens is not None and manifest is not None and not wrong:
            lengths = _compared(folder, manifest, tokens, id_column, sample, workers, progress)
            wrong += _what_differs(lengths, manifest, tokens, id_column)
    if as_json:
        click.echo(json.dumps(_as_json(folder, manifest, lengths, wrong), indent=2))
    else:
        _print(folder, manifest, lengths, wrong, tokens)
    context.exit(1 if wrong else 0)


@dataclass(frozen=True, slots=True)
class _OpenLengths:
    """Opens a token source, in whichever process."""

    tokens: str
    id_column: str | None
    dataset_column: str

    def __call__(self) -> LengthsOf:
        """Returns what gives lengths by id."""
        source = open_tokens(self.tokens, self.id_column)
        assert source is not None
        return source.for_ids(self.dataset_column).lengths


def _compared(
    folder: Path,
    manifest: Manifest,
    tokens: str,
    id_column: str | None,
    sample: int | None,
    workers: int | None,
    progress: Progress,
) -> LengthReport:
    source = open_tokens(tokens, id_column)
    assert source is not None
    num_entries = min(sample or manifest.n_sequences, manifest.n_sequences)
    return verify_lengths(
        folder,
        _OpenLengths(tokens, id_column, manifest.id_column or ""),
        order="pool" if source.is_mapped else "id",
        sample=sample,
        workers=workers or (1 if num_entries < _MANY_ENTRIES else os.cpu_count() or 1),
        progress=progress,
    )


def _what_differs(lengths: LengthReport, manifest: Manifest, tokens: str, id_column: str | None) -> Iterator[str]:
    """Yields what is wrong, in words."""
    yield from (difference.why for difference in lengths.first)
    more = lengths.differing - len(lengths.first)
    if more > 0:
        yield f"{more:,} more entries of the plan differ"
    if lengths.differing:
        return
    if lengths.compared == lengths.entries and lengths.tokens != manifest.own_tokens:
        yield (
            f"the sequences have {lengths.tokens:,} tokens together, and had {manifest.own_tokens:,} when they were "
            "planned; their rooms are the same"
        )
    source = open_tokens(tokens, id_column)
    held = None if source is None else source.num_sequences
    if manifest.inputs is not None and held not in (None, manifest.inputs.rows):
        yield f"{tokens} holds {held:,} sequences, and the dataset was prepared from {manifest.inputs.rows:,}"


def _as_json(folder: Path, manifest: Manifest | None, lengths: LengthReport | None, wrong: list[str]) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "digest": None if manifest is None else manifest.digest,
        "ok": not wrong,
        "problems": wrong,
        "lengths": None if lengths is None else asdict(lengths),
    }


def _print(
    folder: Path, manifest: Manifest | None, lengths: LengthReport | None, wrong: list[str], tokens: str | None
) -> None:
    if manifest is not None:
        click.echo(f"{folder.name} {manifest.digest}")
        click.echo(f"{len(manifest.checksums)} files, {manifest.n_sequences:,} sequences in {manifest.n_bins:,} bins")
    if lengths is not None:
        click.echo(f"{lengths.compared:,} of {lengths.entries:,} lengths compared with {tokens}")
    for problem in wrong:
        click.echo(f"WRONG: {problem}", err=True)
    click.echo(f"as it was prepared: {'no' if wrong else 'yes'}")
