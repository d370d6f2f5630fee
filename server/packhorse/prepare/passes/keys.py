"""The keys of an input become the table of a dataset.

Owns the pass over them, and naming the rows of a key that comes twice. Leaves what may be a key to the readers, and the
table to `packhorse.dataset`.
"""

from collections.abc import Iterator
from pathlib import Path

from packhorse.dataset import DuplicateKeyError, KeyRecord, KeyRows, PreparedDataset, write_keys
from packhorse.jobs import Progress
from packhorse.prepare.input import Opened, changed


def gather_keys(
    folder: Path, opened: Opened, progress: Progress, before: PreparedDataset | None = None
) -> KeyRecord | None:
    """Writes the table of keys; None where the input has none.

    Args:
        folder: to write it into.
        opened: the input.
        progress: shows sequences.
        before: the version that the rows are added to, whose keys come first.

    Raises:
        ValueError: a row has no key, or two have the same; the message names them.
    """
    if opened.keys is None:
        return None
    column, num_rows = opened.keys.name, sum(span.num_rows for span in opened.spans)
    num_before = len(before.keys) if before and before.keys else 0

    def rows() -> Iterator[KeyRows]:
        if before and before.keys:
            yield from before.keys.rows()
        assert opened.keys is not None
        count = 0
        with progress.task("keeping keys", num_rows, "sequences") as advance:
            for some in opened.keys.rows():
                yield some
                count += len(some.sizes)
                advance(len(some.sizes))
        if count != num_rows:
            raise changed(opened.spans[0].path)
        for file in opened.files:
            file.check()

    try:
        return write_keys(folder, rows(), column=column, num_keys=num_before + num_rows)
    except DuplicateKeyError as error:
        first, second = (_row_named(opened, each, before) for each in error.ids)
        raise ValueError(
            f"key {error.key!r:.100} comes twice ({first}; {second}); a key names one sequence: repair column "
            f"{column!r}, or leave out --id-column to go without keys"
        ) from None


def _row_named(opened: Opened, index: int, before: PreparedDataset | None) -> str:
    """Says where the sequence of a number stands."""
    for span in opened.spans:
        if span.first_index <= index < span.first_index + span.num_rows:
            return f"row {span.first_row + index - span.first_index} of {span.where}"
    return f"row {index} of what {before.name} was prepared from" if before else f"row {index}"
