"""`packhorse show`: draws bins to scale, lists the documents of a step, and finds a sequence.

Owns the flags, and the table of a sequence's positions. Leaves pictures and explained steps to `packhorse.pictures`.
"""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from packhorse.cli.shared.options import dataset_argument, run_options, target_option, topology_options
from packhorse.cli.shared.printing import output_console, table
from packhorse.cli.shared.service import asking_for, timeout_option
from packhorse.cli.shared.tokens import open_tokens, token_options
from packhorse.client import Client, DatasetInfo, TokenSource
from packhorse.formats.keys import ids_and_keys, shown_key
from packhorse.formats.megatron_writer import masked_paths
from packhorse.parameters import message_of
from packhorse.pictures import ExplainedStep, MarkedSequence, Picture, draw_bins, explain_step
from packhorse.pictures.bins import Decode
from packhorse.pictures.commands.decoding import decoder
from packhorse.pictures.commands.marked_output import marked_of, print_marked
from packhorse.storage import read_text

_LEFT_OUT = -1
"""The position that `locate` returns for a bin that is skipped."""

_COLUMNS = (
    "id",
    "key",
    "component",
    "first_token",
    "length",
    "position",
    "index_in_bin",
    "step",
    "rank",
    "worker",
    "slot",
)
_OPTIONAL_COLUMNS = ("key", "component", "first_token")
"""Columns that the table only has if they are not empty."""

_WIDTH_IN_FILES = 140
"""Characters in a line of a picture, if the output is no terminal."""


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
    "names",
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
    names: tuple[str, ...],
    html: Path | None,
    as_json: bool,
    **which: Any,
) -> None:
    """Draw bins of DATASET, explain a step of a run, or find a sequence.

    DATASET is a prepared folder, or the name of a dataset of --target.

    Sequences are drawn to scale between bars, with their ids; padding is dotted. With --tokens it also shows how each
    sequence begins, as text if there is a tokenizer.

    If the loss of a step jumped, give the flags of the run and --step: it lists the step's documents with their
    rows in --tokens, lengths and costs. To find a sequence, give --id. A whole number is an id; anything else, such as
    a URL or a number in quotes, is a key. It exits with 1 if the dataset lacks one.
    """
    questions = {"--position": position is not None, "--cursor": cursor is not None, "--step": step is not None}
    given = [flag for flag, is_given in (questions | {"--id": bool(names)}).items() if is_given]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other; give one of them")
    tokenizer, tokens, id_column, limit, rank = (
        which.pop(name) for name in ("tokenizer", "tokens", "id_column", "limit", "rank")
    )
    source, decode = open_tokens(tokens, id_column), decoder(tokenizer, tokens)
    with asking_for(target, timeout_seconds, dataset) as (client, name):
        if names:
            marked = _marker(source, decode, tokens, client.get_dataset(name))
            _print_locations(client, name, names, as_json=as_json, marked=marked, **which)
        elif step is not None:
            explained = explain_step(client, name, step=step, rank=rank, tokens=source, decode=decode, **which)
            _print_step(explained, html, as_json=as_json)
        else:
            del which["topology"]
            if cursor is not None:
                which["epoch"], which["seed"], position = _read_cursor(cursor)
            picture = _bins_from(client, name, position or 0, limit, tokens=source, decode=decode, **which)
            _print(picture, html, as_json=as_json)


def _print_locations(
    client: Client,
    dataset: str,
    ids_or_keys: Iterable[str],
    *,
    as_json: bool,
    marked: Callable[[int], MarkedSequence] | None = None,
    **which: Any,
) -> None:
    """Prints the position, step, rank and slot at which sequences come in an epoch.

    For a mixture there is a row for each component that has the id, and for each time that the sequence comes. If a
    skip or a takedown leaves out the bin, the table says "left out", and JSON has the position -1. The command exits
    with 1 if the dataset lacks one of the sequences.

    Args:
        client: an open client.
        dataset: name of the dataset.
        ids_or_keys: ids and keys of sequences, as the user wrote them.
        as_json: whether to print JSON instead of a table.
        marked: returns a sequence by id with its trained tokens marked, to print it too; None to print none.
        which: the epoch, seed, topology and skipped positions, as `Client.locate` takes them.
    """
    ids, keys = ids_and_keys("\n".join(ids_or_keys), "ID|KEY")
    locations = [asdict(location) for location in client.locate(dataset, ids=ids, keys=keys, **which)]
    empty = [name for name in _OPTIONAL_COLUMNS if not any(location[name] for location in locations)]
    columns = [name for name in _COLUMNS if name not in empty]
    console = output_console()
    if as_json:
        for location in locations:
            facts = {name: value for name, value in location.items() if name not in ("component", "key") or value}
            console.print_json(data=facts, indent=None)
    else:
        rows = []
        for location in locations:
            shown = columns if location["found"] else [column for column in columns if column in ("id", "key")]
            cells = [_cell(column, location[column]) for column in shown]
            rows.append(cells if location["found"] else [*cells, "not in the dataset"])
        console.print(table(*columns, rows=rows, left=columns))
    if marked is not None:
        for sequence_id in dict.fromkeys(location["id"] for location in locations if location["found"]):
            print_marked(marked(sequence_id), as_json=as_json)
    if not all(location["found"] for location in locations):
        click.get_current_context().exit(1)


def _cell(column: str, value: int | str | None) -> str:
    """Returns a field of a location as the table shows it."""
    if column == "key" and isinstance(value, str):
        return escape(shown_key(value))
    if column == "position" and value == _LEFT_OUT:
        return "left out"
    if column == "id" and isinstance(value, int) and value < 0:  # of a key that the dataset lacks
        return "-"
    return "-" if value is None else str(value)


def _marker(
    source: TokenSource | None, decode: Decode | None, tokens: str | None, info: DatasetInfo
) -> Callable[[int], MarkedSequence] | None:
    """Returns a function that reads a sequence by id and marks its trained tokens.

    Returns None without tokens or a tokenizer, and for mixtures. `source` reads the path `tokens`.
    """
    if source is None or decode is None or tokens is None or info.components:
        return None
    mask_path = masked_paths(tokens).mask_idx
    mask = open_tokens(str(mask_path)) if mask_path.is_file() else None
    of_ids = source.for_ids(info.id_column or "")

    def read(sequence_id: int) -> MarkedSequence:
        """Reads a sequence; its origins are shown only if its row still gives the same tokens."""
        ids, title, note = of_ids.read(sequence_id), f"sequence {sequence_id}", ""
        if mask is not None and not info.id_column:  # the rows of a file of chats or pairs
            try:
                from packhorse.tokenize import trace_sequence

                traced = trace_sequence(tokens, sequence_id)
            except (ImportError, OSError, ValueError) as error:
                traced, note = None, f"the origin is not known: {message_of(error)}"
            if traced is not None:
                if traced.explained.input_ids.tolist() == ids.tolist():
                    return marked_of(f"{title}, from {traced.origin}", traced.explained)
                note = f"the origin is not known: {traced.origin} gives other tokens now"
        trained = None if mask is None else mask.read(sequence_id)
        shown = MarkedSequence.of_tokens(title, ids, trained, decode)
        return replace(shown, notes=(note,)) if note else shown

    return read


def _read_cursor(text: str) -> tuple[int, int, int]:
    """Returns epoch, seed and position of a cursor, given as JSON or as a file of JSON."""
    try:
        cursor = json.loads(text if text.lstrip().startswith("{") else read_text(text))
        return int(cursor["epoch"]), int(cursor["seed"]), int(cursor["position"])
    except (KeyError, TypeError, ValueError) as error:
        raise click.UsageError(
            f"--cursor must be a batch's cursor as JSON, with epoch, seed and position: {error}"
        ) from None


def _bins_from(client: Client, name: str, first: int, limit: int, **which: Any) -> Picture:
    """Draws `limit` bins from position `first` on."""
    run = {key: which[key] for key in ("epoch", "seed", "skip")}
    with client.stream_bins(name, **run) as stream:
        num_bins = stream.header.num_bins
    if first >= num_bins:
        raise click.UsageError(f"--position {first} is beyond the epoch's end; give one below {num_bins}")
    return draw_bins(client, name, positions=range(first, min(first + limit, num_bins)), **which)


def _print_step(explained: ExplainedStep, html: Path | None, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(explained.facts(), indent=2))
    else:
        _print(explained.picture(), html, as_json=False)
        click.echo(str(explained))


def _print(picture: Picture, html: Path | None, *, as_json: bool) -> None:
    if html is not None:
        html.write_text(picture.page(), encoding="utf-8")
        click.echo(f"picture: {html}", err=True)
    if as_json:
        click.echo(json.dumps(picture.facts(), indent=2))
    elif html is None:
        click.echo(picture.text(None if sys.stdout.isatty() else _WIDTH_IN_FILES))
