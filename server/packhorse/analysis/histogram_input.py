"""Reading counts from what a user has: a prepared folder, or a histogram as JSON or Parquet."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packhorse.analysis.over_length import lengths_before, options_of
from packhorse.dataset import PlanOptions, open_prepared
from packhorse.formats import require


@dataclass(frozen=True, kw_only=True)
class HistogramInput:
    """Counts and where they are from."""

    name: str
    """What tables and plots call it."""
    counts: Counter[int]
    """Length in tokens → number of sequences, before anything was done to those that are too long."""
    options: PlanOptions | None
    """What a prepared folder was planned with; None for a histogram."""


def read_histogram(path: Path) -> HistogramInput:
    """Reads a prepared folder, or a histogram as JSON or Parquet.

    A JSON histogram is an object of length → count, or a list whose entry i counts length i + 1. A Parquet one has two
    columns of integers, the lengths and their counts in this order, as `SELECT length, count(*) … GROUP BY length`
    writes them.

    Raises:
        ValueError: it is none of these; the message says what it is.
    """
    if path.is_dir():
        dataset = open_prepared(path, check_pool=False)
        return HistogramInput(name=dataset.name, counts=lengths_before(dataset), options=options_of(dataset))
    if path.suffix == ".parquet":
        return _of_entries(path, _parquet_entries(path))
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path.name} is no JSON: {error}") from None
    match content:
        case dict():
            entries = list(content.items())
        case list():
            entries = list(enumerate(content, start=1))
        case _:
            raise ValueError(f"{path.name} is neither an object of length -> count nor a list of counts")
    return _of_entries(path, entries)


def _parquet_entries(path: Path) -> list[tuple[object, object]]:
    pa, pq = require("pyarrow"), require("pyarrow.parquet")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path.name} cannot be read as a Parquet file: {error}") from None
    if table.num_columns != 2 or not all(pa.types.is_integer(kind) for kind in table.schema.types):
        held = ", ".join(f"{field.name!r} ({field.type})" for field in table.schema)
        raise ValueError(
            f"{path.name} is no histogram: that has two columns of integers, lengths and their counts, and here are "
            f"{held}"
        )
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _of_entries(path: Path, entries: Iterable[tuple[object, object]]) -> HistogramInput:
    counts: Counter[int] = Counter()
    for length, count in entries:
        if not str(length).isdecimal() or isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"{path.name}: {length!r}: {count!r} is no length with its number of sequences")
        if count:
            counts[int(str(length))] += count
    if not counts:
        raise ValueError(f"{path.name} counts no sequence")
    return HistogramInput(name=path.stem, counts=counts, options=None)
