"""`HistogramInput`: counts to plan, read from a prepared folder or a file with a histogram, and options to plan them.

Leaves recovering the counts of a prepared folder to `counts`.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from packhorse.analysis.counts import lengths_before, options_of
from packhorse.dataset import Manifest, PlanOptions, open_prepared
from packhorse.formats import require
from packhorse.parameters import parameter
from packhorse.storage import check_plain, read_text


@dataclass(frozen=True, kw_only=True)
class HistogramInput:
    """Counts, and where they come from."""

    name: str
    """Name of the dataset or file, for tables and plots."""
    counts: Counter[int]
    """Length in tokens → number of sequences, before the over-length policy."""
    options: PlanOptions | None
    """The options of a prepared folder's plan; None for a histogram."""
    budgets: str = ""
    """A sentence about the caps of a prepared folder's resources, which plans of these counts ignore; empty if no
    resource has a cap."""


def read_histogram(path: Path) -> HistogramInput:
    """Reads a prepared folder, or a histogram as JSON or Parquet.

    A JSON histogram is an object of length → count, or a list whose entry i counts length i + 1. A Parquet histogram
    has two columns of integers, the lengths and their counts in this order, as `SELECT length, count(*) … GROUP BY
    length` writes them.

    Raises:
        ValueError: the path is neither a prepared folder nor such a file; the message says why.

    Example:
        >>> read_histogram(Path("datasets/corpus")).counts
        Counter({3: 2, 5: 2})
    """
    if path.is_dir():
        dataset = open_prepared(path, check_pool=False)
        return HistogramInput(
            name=dataset.name,
            counts=lengths_before(dataset),
            options=options_of(dataset),
            budgets=_budgets_sentence(dataset.manifest),
        )
    if path.suffix == ".parquet":
        return _of_entries(path, _parquet_entries(path))
    try:
        content = json.loads(read_text(path))
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from None
    match content:
        case dict():
            entries = list(content.items())
        case list():
            entries = list(enumerate(content, start=1))
        case _:
            raise ValueError(f"{path.name} is neither an object of length -> count nor a list of counts")
    return _of_entries(path, entries)


def options_for(
    source: HistogramInput,
    *,
    max_seq_len: int | None = None,
    max_sequences_per_bin: int | None = None,
    align: int | None = None,
    extra_tokens: int | None = None,
) -> PlanOptions:
    """Returns the options to plan with.

    They are the source's own if it is a prepared folder, else defaults. Arguments that are given replace them.

    Raises:
        ValueError: max_seq_len is missing for a histogram; or the folder was prepared with `align`, and the given
            `align` and `extra_tokens` need lengths that cannot be recovered from its rooms.

    Example:
        >>> from collections import Counter
        >>> source = HistogramInput(name="counts", counts=Counter({3: 2}), options=None)
        >>> options_for(source, max_seq_len=8).align
        1
    """
    own = source.options
    if own is None:
        if max_seq_len is None:
            raise ValueError(f"{source.name} is a histogram; give " + parameter("max_seq_len"))
        own = PlanOptions(max_seq_len=max_seq_len)
    options = replace(
        own,
        max_seq_len=max_seq_len or own.max_seq_len,
        max_sequences_per_bin=max_sequences_per_bin or own.max_sequences_per_bin,
        align=align or own.align,
        extra_tokens=own.extra_tokens if extra_tokens is None else extra_tokens,
    )
    if own.align > 1 and (options.align % own.align or options.extra_tokens != own.extra_tokens):
        raise ValueError(
            f"{source.name} was prepared with "
            + parameter("align", own.align)
            + " and "
            + parameter("extra_tokens", own.extra_tokens)
            + ", and so knows rooms only: keep "
            + parameter("extra_tokens")
            + f", and give a multiple of {own.align} as align, or a histogram of lengths"
        )
    return options


def _budgets_sentence(manifest: Manifest) -> str:
    """Returns the sentence about caps of resources; empty if no resource has a cap."""
    caps = ", ".join(f"{resource.cap:,} {resource.name}" for resource in manifest.resources if resource.cap is not None)
    if not caps:
        return ""
    return (
        f"these plans know tokens only: with at most {caps} a bin, the dataset's own plan has {manifest.num_bins:,} "
        f"bins, and none has fewer than {manifest.lower_bound:,}"
    )


def _parquet_entries(path: Path) -> list[tuple[object, object]]:
    """Reads the (length, count) pairs of a Parquet file with two columns of integers."""
    pa, pq = require("pyarrow"), require("pyarrow.parquet")
    check_plain(path)
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path.name} cannot be read as a Parquet file: {error}") from None
    if table.num_columns != 2 or not all(pa.types.is_integer(kind) for kind in table.schema.types):
        held = ", ".join(f"{field.name!r} ({field.type})" for field in table.schema)
        raise ValueError(
            f"{path.name} is no histogram: it must have two columns of integers, lengths and their counts, and it has "
            f"{held}"
        )
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _of_entries(path: Path, entries: Iterable[tuple[object, object]]) -> HistogramInput:
    """Adds up (length, count) pairs; a ValueError if an entry is no such pair, or all counts are 0."""
    counts: Counter[int] = Counter()
    for length, count in entries:
        if not str(length).isdecimal() or isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"{path.name}: {length!r}: {count!r} is not a length and its number of sequences")
        if count:
            counts[int(str(length))] += count
    if not counts:
        raise ValueError(f"{path.name} counts no sequence")
    return HistogramInput(name=path.stem, counts=counts, options=None)
