"""`packhorse show`: draws bins to scale, lists the documents of a step, and finds a sequence.

Owns the flags. Leaves pictures and explained steps to `packhorse.pictures`, the table of a sequence's positions to
`locations`, and marking its trained tokens to `marking`.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from packhorse.cli.shared.options import dataset_argument, run_options, target_option, topology_options
from packhorse.cli.shared.service import asking_for, timeout_option
from packhorse.cli.shared.tokens import open_tokens, token_options
from packhorse.client import Client, TokenSource
from packhorse.client.streams import SequenceLocation
from packhorse.formats.keys import ids_and_keys
from packhorse.pictures import ExplainedStep, Picture, draw_bins, explain_step
from packhorse.pictures.beginnings import Decode
from packhorse.pictures.commands.decoding import decoder
from packhorse.pictures.commands.locations import print_locations
from packhorse.pictures.commands.marking import marker
from packhorse.storage import read_text
from packhorse.topology import Skips, Topology

_WIDTH_IN_FILES = 140
"""Characters in a line of a picture, if the output is no terminal."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The flags that say which run is shown, and with which tokens; their help says what they mean."""

    epoch: int
    seed: int
    topology: Topology
    skip: Skips
    rank: int
    limit: int
    tokens: str | None
    id_column: str | None
    tokenizer: Path | None


@click.command("show", context_settings={"show_default": True})
@dataset_argument
@target_option
@timeout_option
@run_options
@topology_options
@click.option("--position", type=click.IntRange(0), help="Draw the bins from this position on.  [default: 0]")
@click.option("--limit", default=8, type=click.IntRange(1, 1000), help="Draw at most this many bins.")
@click.option(
    "--cursor", metavar="JSON|FILE", help="Draw the bins from a batch's cursor on; it sets epoch, seed and position."
)
@click.option("--step", type=click.IntRange(0), help="Draw the bins of this step of --rank, and list their documents.")
@click.option("--rank", default=0, type=click.IntRange(0), help="Data-parallel rank, with --step.")
@click.option(
    "--id",
    "ids_or_keys",
    multiple=True,
    metavar="ID|KEY",
    help="Print the position, step, rank and slot of a sequence. May be given several times.",
)
@token_options
@click.option("--html", type=click.Path(path_type=Path), help="Save the picture as an HTML page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a picture.")
def command(
    target: str,
    timeout_seconds: float | None,
    dataset: str,
    position: int | None,
    cursor: str | None,
    step: int | None,
    ids_or_keys: tuple[str, ...],
    html: Path | None,
    as_json: bool,
    **run_and_tokens: Any,
) -> None:
    """Draw bins of DATASET, explain a step of a run, or find a sequence.

    DATASET is a prepared folder, or the name of a dataset of --target.

    Sequences are drawn to scale between bars, with their ids; padding is dotted. With --tokens it also shows how each
    sequence begins, as text if there is a tokenizer.

    If the loss of a step jumped, give the flags of the run and --step: it lists the step's documents with their
    rows in --tokens, lengths and costs. To find a sequence, give --id. A whole number is an id; anything else, such as
    a URL or a number in quotes, is a key. It exits with 1 if the dataset lacks one.
    """
    questions = {
        "--position": position is not None,
        "--cursor": cursor is not None,
        "--step": step is not None,
        "--id": bool(ids_or_keys),
    }
    given = [flag for flag, is_given in questions.items() if is_given]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other; give one of them")
    if ids_or_keys and html is not None:
        raise click.UsageError("--id draws no picture that --html could save; leave --html out")
    options = _Options(**run_and_tokens)
    source, decode = open_tokens(options.tokens, options.id_column), decoder(options.tokenizer, options.tokens)
    with asking_for(target, timeout_seconds, dataset) as (client, name):
        if ids_or_keys:
            mark = marker(source, decode, options.tokens, client.get_dataset(name))
            print_locations(_located(client, name, ids_or_keys, options), as_json=as_json, mark=mark)
        elif step is not None:
            _print_step(_explained(client, name, step, options, source, decode), html, as_json=as_json)
        else:
            begin = _Begin(epoch=options.epoch, seed=options.seed, position=position or 0)
            if cursor is not None:
                begin = _read_cursor(cursor)
            _print_bins(_drawn(client, name, begin, options, source, decode), html, as_json=as_json)


def _located(client: Client, dataset: str, ids_or_keys: Iterable[str], options: _Options) -> Sequence[SequenceLocation]:
    """Finds sequences in an epoch by their ids and keys, as the user wrote them."""
    ids, keys = ids_and_keys("\n".join(ids_or_keys), "ID|KEY")
    return client.locate(
        dataset,
        ids=ids,
        keys=keys,
        epoch=options.epoch,
        seed=options.seed,
        topology=options.topology,
        skip=options.skip,
    )


def _explained(
    client: Client, dataset: str, step: int, options: _Options, source: TokenSource | None, decode: Decode | None
) -> ExplainedStep:
    """Finds the sequences of a step of a rank."""
    return explain_step(
        client,
        dataset,
        step=step,
        rank=options.rank,
        epoch=options.epoch,
        seed=options.seed,
        topology=options.topology,
        skip=options.skip,
        tokens=source,
        decode=decode,
    )


def _drawn(
    client: Client, dataset: str, begin: "_Begin", options: _Options, source: TokenSource | None, decode: Decode | None
) -> Picture:
    """Draws bins from a position on, as many as the user asks for."""
    with client.stream_bins(dataset, epoch=begin.epoch, seed=begin.seed, skip=options.skip) as stream:
        num_bins = stream.header.num_bins
    if begin.position >= num_bins:
        raise click.UsageError(f"--position {begin.position} is beyond the epoch's end; give one below {num_bins}")
    return draw_bins(
        client,
        dataset,
        positions=range(begin.position, min(begin.position + options.limit, num_bins)),
        epoch=begin.epoch,
        seed=begin.seed,
        skip=options.skip,
        tokens=source,
        decode=decode,
    )


@dataclass(frozen=True, kw_only=True)
class _Begin:
    """Where drawing begins."""

    epoch: int
    seed: int
    position: int
    """Position of the first bin."""


def _read_cursor(text: str) -> _Begin:
    """Reads a cursor, given as JSON or as a file of JSON."""
    try:
        cursor = json.loads(text if text.lstrip().startswith("{") else read_text(text))
        return _Begin(epoch=int(cursor["epoch"]), seed=int(cursor["seed"]), position=int(cursor["position"]))
    except (KeyError, TypeError, ValueError) as error:
        raise click.UsageError(
            f"--cursor must be a batch's cursor as JSON, with epoch, seed and position: {error}"
        ) from None


def _print_bins(picture: Picture, html: Path | None, *, as_json: bool) -> None:
    """Saves a picture as an HTML page if one is named; prints it as JSON, or as text if there is no page."""
    _save_page(picture, html)
    if as_json:
        click.echo(json.dumps(picture.facts(), indent=2))
    elif html is None:
        click.echo(_text_of(picture))


def _print_step(explained: ExplainedStep, html: Path | None, *, as_json: bool) -> None:
    """Saves a step's picture if a page is named; prints the step as JSON, or as text, drawn if there is no page."""
    picture = explained.picture()
    _save_page(picture, html)
    if as_json:
        click.echo(json.dumps(explained.facts(), indent=2))
        return
    if html is None:
        click.echo(_text_of(picture))
    click.echo(str(explained))


def _save_page(picture: Picture, html: Path | None) -> None:
    """Saves a picture as an HTML page; does nothing if none is named."""
    if html is not None:
        html.write_text(picture.page(), encoding="utf-8")
        click.echo(f"picture: {html}", err=True)


def _text_of(picture: Picture) -> str:
    """Returns a picture as text, as wide as the terminal."""
    return picture.text(None if sys.stdout.isatty() else _WIDTH_IN_FILES)
